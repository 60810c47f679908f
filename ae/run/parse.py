"""Turns the log of an upstream workload into records, with the recipe's `parse.py`.

The authors' programs print; they do not write our records. A recipe's parser reads what a point
left behind, outside the container, and returns records in the format of records.jsonl.
"""

from __future__ import annotations

import json
from pathlib import Path

from ae.errors import WorkloadError
from ae.model import Point
from ae.recipe.code import function_of, load_code


def parse_point(recipe_dir: Path, point: Point, folder: Path) -> None:
    """Append the records that the point's parser finds in `folder` to its records.jsonl.

    Does nothing for a point without a parser. Raises WorkloadError when the log does not hold
    what it should, RecipeError when there is no such parser.
    """
    if point.parser is None:
        return
    module = load_code(recipe_dir, "parse", fix=f"write it, with a function {point.parser}")
    function = function_of(module, point.parser)
    try:
        found = function(folder, dict(point.labels))
        lines = [json.dumps(record, allow_nan=False) for record in found]  # type: ignore[attr-defined]
    except ValueError as error:  # how a parser says that the log is not what it knows
        raise WorkloadError(
            f"the log of {point.id} could not be read: {error}", fix="see the point's stdout.log"
        ) from error
    except Exception as error:
        raise WorkloadError(
            f"the parser {point.parser} of {point.recipe} failed on the log of {point.id}: "
            f"{type(error).__name__}: {error}",
            fix=f"mend recipes/{point.recipe}/parse.py",
        ) from error
    with (folder / "records.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)

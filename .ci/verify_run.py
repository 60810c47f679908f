"""Checks the newest run of a recipe from its files alone.

verify_run.py RECIPE FIGURE... CLAIM=VERDICT... EXPERIMENT:VARIANT,VARIANT...

The last form asks that every point of the experiment has records of each of these variants.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path


def main(recipe: str, expected: list[str]) -> None:
    """Fail with one sentence when a point, figure or verdict is not as expected."""
    run = sorted(Path("results/runs", recipe).iterdir())[-1]
    plan = json.loads((run / "run.json").read_text())["plan"]
    planned = {point["id"] for point in plan["points"]}
    ended = {
        path.parent.name: json.loads(path.read_text())
        for path in run.glob("points/[!.]*/status.json")
    }
    bad = [name for name in planned if ended.get(name, {}).get("status") != "done"]
    assert not bad, f"not done: {bad}"
    claims = {one["id"]: one for one in json.loads((run / "claims.json").read_text())["claims"]}
    assert claims, "no verdicts"
    for word in expected:
        name, equals, verdict = word.partition("=")
        if equals:
            got = claims[name]["verdict"]
            assert got == verdict, f"claim {name} is '{got}', not '{verdict}'"
            continue
        experiment, colon, variants = word.partition(":")
        if colon:
            points = [one["id"] for one in plan["points"] if one["experiment"] == experiment]
            assert points, f"no point of the experiment {experiment}"
            for point in points:
                lines = (run / "points" / point / "records.jsonl").read_text().splitlines()
                measured = {json.loads(line)["labels"].get("variant") for line in lines}
                lacking = set(variants.split(",")) - measured
                assert not lacking, f"point {point} lacks {sorted(lacking)}"
            continue
        for ending in ("pdf", "png", "csv"):
            path = run / "figures" / f"{name}.{ending}"
            assert path.stat().st_size > 100, f"{path} is empty"
        with (run / "figures" / f"{name}.csv").open(newline="") as file:
            assert list(csv.DictReader(file)), f"figure {name} shows nothing"
    print(f"{run.name}: {len(planned)} points done, {len(claims)} verdicts, {expected} as expected")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""Plans as JSON files.

A file is one object with the keys of `Plan`:

    {"name": "mine",
     "columns": [{"name": "price", "kind": "dense", "null_rate": 0.1},
                 {"name": "item", "kind": "sparse", "width": 8, "ragged": true, "ids": 100000}],
     "nodes": [{"name": "price_0", "op": "fill_null", "input": "price", "parameters": {"value": 0}},
               ...],
     "dense": ["price_1"],
     "sparse": [{"node": "item_2", "rows": 65536}],
     "over_arch": [1024, 1024, 512, 256, 1]}

Keys with a default in `Column`, `Node` or `Plan` may be left out. Sizes are bounded: see MOST_BYTES
and the constants after it. Every fault is a PlanError that begins with the file's name.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from rap_training.plan.graph import MOST_WIDTH, Column, Node, Plan, PlanError, SparseOutput
from rap_training.plan.operators import OPERATORS

_T = TypeVar("_T")
MOST_BYTES = 16 << 20  # of a file
MOST_ITEMS = 10_000  # of one list
MOST_LETTERS = 200  # of one word
MOST_ROWS = 2**40  # of one table


def load(path: Path) -> Plan:
    """Return the checked plan of a JSON file. Raises PlanError, with the path, for every fault."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise PlanError(f"{path}: there is no such plan file; fix: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read ({error}); fix: a readable UTF-8 file") from error
    try:
        if len(data) > MOST_BYTES:
            raise PlanError(f"is larger than {MOST_BYTES} bytes; fix: a smaller plan")
        return parse(text)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def parse(text: str) -> Plan:
    """Return the checked plan that a JSON text holds. Raises PlanError for every fault."""
    try:
        data = json.loads(text, object_pairs_hook=_once, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"not JSON (line {error.lineno}, column {error.colno}: {error.msg}); "
            "fix: write valid JSON there"
        ) from error
    except RecursionError:
        raise PlanError("nested too deeply; fix: the keys of a plan, as documented") from None
    given = _record(Plan, data, "the plan")
    columns = _list(given["columns"], "columns", _column)
    if not columns:
        raise PlanError("the plan has no columns; fix: at least one dense and one sparse column")
    return Plan(
        name=given["name"],
        columns=columns,
        nodes=_list(given["nodes"], "nodes", _node),
        dense=_list(given["dense"], "dense", _name),
        sparse=_list(given["sparse"], "sparse", _output),
        **({"over_arch": _over_arch(given["over_arch"])} if "over_arch" in given else {}),
    )


def dump(plan: Plan) -> str:
    """Return the JSON text of a plan, one line per column, node and output; `parse` reads it."""
    lists = {
        "columns": [_stated(column) for column in plan.columns],
        "nodes": [_stated(node) for node in plan.nodes],
        "sparse": [_stated(output) for output in plan.sparse],
    }
    parts = [f'"name": {json.dumps(plan.name)}']
    for key, items in lists.items():
        lines = ",\n".join(f"    {json.dumps(item)}" for item in items)
        parts.append(f'"{key}": [\n{lines}\n  ]' if items else f'"{key}": []')
    parts.append(f'"dense": {json.dumps(plan.dense)}')
    parts.append(f'"over_arch": {json.dumps(plan.over_arch)}')
    return "{\n  " + ",\n  ".join(parts) + "\n}\n"


def _stated(item: Column | Node | SparseOutput) -> dict[str, Any]:
    """The fields that differ from their default."""
    values = {f.name: getattr(item, f.name) for f in fields(item)}
    return {
        f.name: dict(values[f.name]) if isinstance(values[f.name], Mapping) else values[f.name]
        for f in fields(item)
        if f.default is MISSING or values[f.name] != f.default
    }


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise PlanError(f"{digits[:20]} is out of range; fix: whole numbers of 64 bits")
    return int(digits)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise PlanError(f"the key {_show(key)} is given twice in one object; fix: keep one")
        found[key] = value
    return found


def _nearest(word: str, words: Iterable[str]) -> str:
    known = list(words)
    close = difflib.get_close_matches(word[:40], known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"one of {', '.join(known)}"


_WORDS = {
    "str": f"a word of at most {MOST_LETTERS} printable letters",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: (
        isinstance(value, str) and 0 < len(value) <= MOST_LETTERS and value.isprintable()
    ),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
}


def _record(kind: type, data: Any, where: str) -> dict[str, Any]:
    """An object with the keys of a dataclass; the simple ones are of the right type."""
    if not isinstance(data, dict):
        raise PlanError(f"{where} is {_show(data)}; fix: an object, {{...}}")
    known = {field.name: field for field in fields(kind)}
    for key in data:
        if key not in known:
            raise PlanError(
                f"{where} has the unknown key {_show(key)}; fix: {_nearest(key, known)}"
            )
    for key, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and key not in data:
            raise PlanError(f"{where} lacks the key {key}; fix: add it")
        simple = str(field.type)
        if key in data and simple in _KINDS and not _KINDS[simple](data[key]):
            raise PlanError(f"{where}: {key} is {_show(data[key])}; fix: {_WORDS[simple]}")
    return data


def _list(data: Any, key: str, make: Callable[[Any, str], _T]) -> tuple[_T, ...]:
    if not isinstance(data, list):
        raise PlanError(f"{key} is {_show(data)}; fix: a list, [...]")
    if len(data) > MOST_ITEMS:
        raise PlanError(f"{key} has {len(data)} items; fix: at most {MOST_ITEMS}")
    return tuple(make(item, f"{key}[{index}]") for index, item in enumerate(data))


def _column(data: Any, where: str) -> Column:
    given = _record(Column, data, where)
    column = Column(**given)
    if not 0 <= column.null_rate <= 1:
        raise PlanError(f"{where}: null_rate is {column.null_rate}; fix: a share from 0 to 1")
    if column.ids < 0:
        raise PlanError(f"{where}: ids is {column.ids}; fix: how many distinct ids there are")
    return column


def _node(data: Any, where: str) -> Node:
    given = _record(Node, data, where)
    op = given["op"]
    if op not in OPERATORS:
        raise PlanError(f"{where} has the unknown operator {op}; fix: {_nearest(op, OPERATORS)}")
    parameters = given.get("parameters", {})
    known = OPERATORS[op].parameters
    if not isinstance(parameters, dict):
        raise PlanError(f"{where}: parameters is {_show(parameters)}; fix: an object, {{...}}")
    for key, value in parameters.items():
        if key not in known:
            fix = _nearest(key, known)
            raise PlanError(f"{where}: {op} has no parameter {_show(key)}; fix: {fix}")
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, float) and not isfinite(number) for number in numbers):
            raise PlanError(f"{where}: {key} of {op} is not finite; fix: a finite number")
    values = {
        key: tuple(value) if isinstance(value, list) else value for key, value in parameters.items()
    }
    return Node(name=given["name"], op=op, input=given["input"], parameters=values)


def _output(data: Any, where: str) -> SparseOutput:
    output = SparseOutput(**_record(SparseOutput, data, where))
    if output.rows > MOST_ROWS:
        raise PlanError(f"{where}: rows is {output.rows}; fix: at most {MOST_ROWS}")
    return output


def _name(data: Any, where: str) -> str:
    if not _KINDS["str"](data):
        raise PlanError(f"{where} is {_show(data)}; fix: the name of a node")
    return str(data)


def _over_arch(data: Any) -> tuple[int, ...]:
    def width(item: Any, where: str) -> int:
        if not _KINDS["int"](item) or not 1 <= item <= MOST_WIDTH:
            raise PlanError(f"{where} is {_show(item)}; fix: a whole number, 1 to {MOST_WIDTH}")
        return int(item)

    found = _list(data, "over_arch", width)
    if not found or found[-1] != 1:
        raise PlanError("over_arch does not end with 1; fix: the widths of its layers, 1 the last")
    return found


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."

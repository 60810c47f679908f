"""YAML files whose errors name the file and the line: syntax, double keys, and the schema."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from ae.errors import RecipeError, nearest
from ae.model import Model

Place = tuple[str | int, ...]  # keys and list positions from the top of the file

# The C parser is ten times faster; PyYAML may be built without it.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_BYTES, _MOST_VALUES = 1 << 20, 50_000
_DEEPEST = 50
_LONGEST = 200  # characters of a number or a key
_WORDS = {
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "must be a mapping (key: value)"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    "too_short": "names nothing",
}


@dataclass(frozen=True)
class Document:
    """The contents of a YAML file and where in it every key and list item stands."""

    name: str  # the path that errors show
    data: dict[str, Any]
    lines: Mapping[Place, int]

    def line(self, place: Sequence[str | int]) -> int:
        """The line of `place`, else that of the nearest part around it that is in the file."""
        around = (tuple(place[:size]) for size in range(len(place), -1, -1))
        return next(self.lines[part] for part in around if part in self.lines)

    def fault(self, place: Sequence[str | int], message: str, *, fix: str) -> RecipeError:
        """Return the error for `place`."""
        return RecipeError(f"{self.name}:{self.line(place)}: {message}", fix=fix)


def read_yaml(path: Path, root: Path) -> Document:
    """Read a YAML mapping. Raises RecipeError with file and line; OSError if it cannot be read."""
    name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    with path.open("rb") as file:
        return _parsed(name, file.read(_MOST_BYTES + 1))


@lru_cache(maxsize=8)  # a command asks several times for a recipe, a run for the lock
def _parsed(name: str, raw: bytes) -> Document:
    line = 1
    try:
        reader = _Reader(raw.decode("utf-8") if len(raw) <= _MOST_BYTES else "")
        data = reader.document()
    except UnicodeDecodeError as error:
        line, why = raw.count(b"\n", 0, error.start) + 1, "not UTF-8 text"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        said = [part for part in (error.context, error.problem) if part]
        why = f"not valid YAML: {', '.join(said)}"
    except yaml.reader.ReaderError as error:
        line = raw.count(b"\n", 0, error.position) + 1
        why = f"not valid YAML: {error.reason}"
    else:
        if isinstance(data, dict):
            return Document(name, data, reader.lines)
        what = "empty" if data is None else "not a mapping (key: value)"
        why = f"the file is {what if len(raw) <= _MOST_BYTES else 'larger than 1 MiB'}"
    fix = "see that it is YAML in UTF-8, its indentation, quotes and brackets"
    raise RecipeError(f"{name}:{line}: {why}", fix=fix)


def validate(document: Document, model: type[Model]) -> Model:
    """Return the document as `model`; the first error in the file becomes a RecipeError."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        # A misspelt key comes before the key that is missing because of it.
        errors = sorted(
            error.errors(include_url=False),
            key=lambda found: (found["type"] == "missing", document.line(_place(found))),
        )
        place, message, fix = _explain(model, errors[0])
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise document.fault(place, message + more, fix=fix) from error


class _Reader:
    """Builds plain data from the events of a YAML text and notes where everything stands.

    Nothing nests or grows without bound: not lists, not aliases, not numbers. What YAML takes for a
    date, a merge or a binary stays the text that it is.
    """

    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {(): 1}
        self._events = yaml.parse(text, _Loader)
        self._types = _Loader("")  # what YAML takes a plain word for
        self._values = 0
        self._anchors: dict[str, tuple[Any, int]] = {}  # the value, and of how many it is made

    def document(self) -> Any:
        """The one document of the text; None when it holds none."""
        data = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if self._values:
                    raise _fault(_line(event), "expected a single document")
                data = self._value(self._next(), ())
        return data

    def _next(self) -> Any:
        event: Any = next(self._events)
        if tag := getattr(event, "tag", None):
            raise _fault(_line(event), f"the tag {tag} is not allowed")
        return event

    def _value(self, event: Any, place: Place) -> Any:
        before = self._values
        self._values += 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:  # not yet: an alias within itself
                raise _fault(_line(event), f"found undefined alias '{event.anchor}'")
            value, size = self._anchors[event.anchor]
            self._values = before + size
        elif isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif len(place) < _DEEPEST:
            value = self._collection(isinstance(event, yaml.MappingStartEvent), place)
        else:
            raise _fault(_line(event), f"nested more than {_DEEPEST} deep")
        if self._values > _MOST_VALUES:
            raise _fault(self.lines[place], f"more than {_MOST_VALUES} values, aliases written out")
        if event.anchor:
            self._anchors[event.anchor] = value, self._values - before
        return value

    def _collection(self, mapping: bool, place: Place) -> dict[str, Any] | list[Any]:
        found: dict[Any, Any] = {}
        while not isinstance(start := self._next(), yaml.CollectionEndEvent):
            # As written: `on`, `1` and `8.0` stay words.
            key: Any = getattr(start, "value", None) if mapping else len(found)
            if key is None or (mapping and len(key) > _LONGEST):
                raise _fault(_line(start), "a key must be a plain word")
            inside = (*place, key)
            if key in found:
                first = self.lines[inside]
                raise _fault(_line(start), f"the key '{key}' stands twice, first in line {first}")
            self.lines[inside] = _line(start)
            found[key] = self._value(self._next() if mapping else start, inside)
        return found if mapping else list(found.values())

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        text, line = event.value, _line(event)
        tag = self._types.resolve(yaml.ScalarNode, text, event.implicit)
        kind = tag.removeprefix("tag:yaml.org,2002:")
        if "\0" in text:
            raise _fault(line, "a zero byte is no text")
        if kind not in ("null", "bool", "int", "float"):
            return text
        try:
            if len(text) > _LONGEST:
                raise ValueError
            return self._types.construct_object(yaml.ScalarNode(tag, text))
        except (ValueError, LookupError) as error:
            shown = reprlib.repr(text)
            raise _fault(line, f"{shown} cannot be read as {kind}; put text in quotes") from error


def _line(part: Any) -> int:
    return int(part.start_mark.line) + 1


def _fault(line: int, why: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=why, problem_mark=yaml.Mark("", 0, line - 1, 0, None, 0))


def _place(error: Mapping[str, Any]) -> Place:
    return tuple(part for part in error["loc"] if part != "[key]")


def _explain(model: type[BaseModel], error: Mapping[str, Any]) -> tuple[Place, str, str]:
    """One pydantic error as (place, sentence, fix)."""
    place, kind = _place(error), error["type"]
    around, last = place[:-1], place[-1] if place else ""
    where = f" in {dotted(around)}" if around else ""
    if kind == "extra_forbidden":
        known = known_keys(model, around)
        message = f"unknown key '{last}'{where}; {nearest(str(last), known)}"
        return place, message, f"the keys{where} are: {', '.join(known)}"
    if kind == "missing":
        example = "; every need says why" if last == "why" else ""
        return around, f"missing key '{last}'{where}{example}", f"add '{last}:'"
    said = _WORDS.get(kind) or error["msg"].removeprefix("Value error, ")
    given = reprlib.repr(error["input"])
    if kind == "literal_error":
        said = f"must be {error['ctx']['expected']}, not {given}"
    elif kind == "string_pattern_mismatch":
        said = f"{given} does not match {error['ctx']['pattern']}"
    message = f"{dotted(place) or 'the file'}: {said}"
    return place, message, "see docs/contracts.md for what may stand there"


def dotted(place: Sequence[str | int]) -> str:
    """A place as a person would say it: `needs.cap_add[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def known_keys(model: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    """The keys that may stand at `place` of a document of this model, in the model's order."""
    schema = model.model_json_schema(by_alias=True)
    node: Any = schema
    for part in (*place, None):
        node = next((one for one in node.get("anyOf", ()) if one.get("type") != "null"), node)
        node = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
        if part is None:
            break
        named = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
        inner = node.get("items") if isinstance(part, int) else named[0]
        node = node.get("properties", {}).get(part, inner) or {}
    return list(node.get("properties", ()))

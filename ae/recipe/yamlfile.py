"""YAML files whose errors name the file and the line: syntax, double keys, and the schema."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from ae.errors import RecipeError, nearest

Place = tuple[str | int, ...]  # keys and list positions from the top of the file
Model = TypeVar("Model", bound=BaseModel)

# The C parser is ten times faster; PyYAML may be built without it.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN_TAGS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
_WORDS = {
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping (key: value)",
    "mapping_type": "must be a mapping (key: value)",
    "model_type": "must be a mapping (key: value)",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
}


@dataclass(frozen=True)
class Document:
    """The contents of a YAML file and where in it every key and list item stands."""

    name: str  # the path that errors show
    data: dict[str, Any]
    lines: Mapping[Place, int]

    def line(self, place: Sequence[str | int]) -> int:
        """The line of `place`, else that of the nearest part around it that is in the file."""
        for size in range(len(place), -1, -1):
            if tuple(place[:size]) in self.lines:
                return self.lines[tuple(place[:size])]
        return 1

    def fault(self, place: Sequence[str | int], message: str, *, fix: str) -> RecipeError:
        """Return the error for `place`."""
        return RecipeError(f"{self.name}:{self.line(place)}: {message}", fix=fix)


def read_yaml(path: Path, root: Path) -> Document:
    """Read a YAML mapping. Raises RecipeError with file and line; OSError if it cannot be read."""
    name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{name}: not UTF-8 text", fix="save the file as UTF-8") from error
    lines: dict[Place, int] = {(): 1}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = _construct(loader, node, (), lines, frozenset()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise RecipeError(
            f"{name}:{line}: not valid YAML: {error.problem or error.context}",
            fix="check the indentation, quotes and brackets around that line",
        ) from error
    except yaml.YAMLError as error:
        why = str(error).splitlines()[0]
        raise RecipeError(f"{name}: not valid YAML: {why}", fix="save it as plain text") from error
    if not isinstance(data, dict):
        what = "is empty" if data is None else "is not a mapping (key: value)"
        raise RecipeError(f"{name}:1: the file {what}", fix="see docs/contracts.md for an example")
    return Document(name, data, lines)


def validate(document: Document, model: type[Model]) -> Model:
    """Return the document as `model`; the first error in the file becomes a RecipeError."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        found = [(e["type"] == "missing", *_explain(document, model, dict(e))) for e in errors]
        found.sort()  # a misspelt key comes before the key that is missing because of it
        _, line, message, fix = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise RecipeError(f"{document.name}:{line}: {message}{more}", fix=fix) from error


def _construct(
    loader: yaml.SafeLoader | yaml.CSafeLoader,
    node: yaml.Node,
    place: Place,
    lines: dict[Place, int],
    above: frozenset[int],
) -> Any:
    if id(node) in above:
        raise yaml.constructor.ConstructorError(
            None, None, "an alias inside what it stands for", node.start_mark
        )
    above = above | {id(node)}
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_object(node)
    if node.tag not in _PLAIN_TAGS:
        raise yaml.constructor.ConstructorError(
            None, None, f"the tag {node.tag} is not allowed", node.start_mark
        )
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            lines[(*place, index)] = item.start_mark.line + 1
            items.append(_construct(loader, item, (*place, index), lines, above))
        return items
    result: dict[Hashable, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a plain word", key_node.start_mark
            )
        key = str(key_node.value)  # as written: `on`, `1` and `8.0` stay words
        if key in result:
            first = lines[(*place, key)]
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{key}' stands twice, first in line {first}",
                key_node.start_mark,
            )  # fmt: skip
        lines[(*place, key)] = key_node.start_mark.line + 1
        result[key] = _construct(loader, value_node, (*place, key), lines, above)
    return result


def _explain(
    document: Document, model: type[BaseModel], error: Mapping[str, Any]
) -> tuple[int, str, str]:
    """One pydantic error as (line, sentence, fix)."""
    place: Place = tuple(part for part in error["loc"] if part != "[key]")
    kind = str(error["type"])
    around, last = place[:-1], str(place[-1]) if place else ""
    where = f" in {dotted(around)}" if around else ""
    line = document.line(place)
    if kind == "extra_forbidden":
        known = known_keys(model, around)
        message = f"unknown key '{last}'{where}; {nearest(last, known)}"
        return line, message, f"the keys{where} are: {', '.join(known)}"
    if kind == "missing":
        example = "; every need says why" if last == "why" else ""
        return document.line(around), f"missing key '{last}'{where}{example}", f"add '{last}:'"
    said = _WORDS.get(kind) or re.sub(r"^Value error, ", "", str(error["msg"]))
    subject = dotted(place) if place else "the file"
    given = error.get("input")
    if kind == "literal_error":
        said = f"must be {error['ctx']['expected']}, not {given!r}"
    elif kind == "string_pattern_mismatch":
        said = f"'{given}' does not match {error['ctx']['pattern']}"
    return line, f"{subject}: {said}", "see docs/contracts.md for what may stand there"


def dotted(place: Sequence[str | int]) -> str:
    """A place as a person would say it: `needs.cap_add[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def known_keys(model: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    """The keys that may stand at `place` of a document of this model, in the model's order."""
    kind: Any = model
    for part in place:
        kind = _plain(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = {field.alias or name: field for name, field in kind.model_fields.items()}
            if str(part) not in fields:
                return []
            kind = fields[str(part)].annotation
        else:
            kind = (get_args(kind) or (None, None))[0 if isinstance(part, int) else -1]
    kind = _plain(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [field.alias or name for name, field in kind.model_fields.items()]
    return []


def _plain(kind: Any) -> Any:
    """A type without `Annotated` and `| None`."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
            continue
        rest = [one for one in get_args(kind) if one is not type(None)]
        if type(None) in get_args(kind) and len(rest) == 1:
            kind = rest[0]
            continue
        return kind

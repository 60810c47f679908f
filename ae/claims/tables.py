"""Reads claims.yaml: defaults and tables written out as claims, held against the recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Strict

from ae.claims.expressions import parse_expression
from ae.claims.judge import Claim
from ae.errors import nearest
from ae.model import Part
from ae.recipe.load import load_recipe
from ae.recipe.models import Recipe
from ae.recipe.yamlfile import Document, Place, read_yaml, validate

Parts = list[tuple[Mapping[str, Any], Place]]  # of a claim, later ones win; where they stand
_TEXTS = ("sentence", "expression", "figure", "fact", "unit")  # {name} stands for the row's


class _Part(Part, extra="allow"):
    """A part of the file whose other keys are those of a claim."""


class _Row(_Part):
    """A row of a table: labels that its cells share, and what the paper prints, by column."""

    name: str = ""
    paper: dict[str, float] = Field(default_factory=dict)


class _Column(_Part):
    """`paper` names the value of the rows that a cell is compared with, by default the column's
    name, or is that of all rows; null: nothing is printed, and the cell is an ordering."""

    paper: str | float | None = None


class _Item(_Part):
    """A claim, or with `table` one for every row and column, called `<table>.<row>-<column>`."""

    table: str | None = None
    rows: dict[str, _Row] = Field(default_factory=dict)
    columns: dict[str, _Column] = Field(default_factory=dict)


class _File(Part):
    schema_version: Literal[2] = Field(alias="schema")
    defaults: dict[str, Any] = Field(default_factory=dict)
    claims: Annotated[tuple[_Item, ...], Strict(False)]


class _Claims(BaseModel):
    claims: tuple[Claim, ...]


def load_claims(root: Path, recipe: Recipe | str) -> tuple[Claim, ...]:
    """Read the claims.yaml of a recipe or its name; without that file there are no claims.

    The quantifiers of their expressions name every cell that the recipe has. Raises UsageError for
    an unknown recipe, RecipeError with file and line for the rest.
    """
    recipe = load_recipe(root, recipe) if isinstance(recipe, str) else recipe
    path = root / "recipes" / recipe.name / "claims.yaml"
    if not path.is_file():
        return ()
    document = written_out(read_yaml(path, root))
    found: dict[str, Claim] = {}
    for index, claim in enumerate(validate(document, _Claims).claims):
        try:
            if claim.id in found:
                raise _Wrong("id", "another claim has this id", "rename one")
            found[claim.id] = _checked(claim, recipe)
        except _Wrong as wrong:
            key, why, fix = wrong.args
            raise document.fault(("claims", index, key), f"{claim.id}: {why}", fix=fix) from wrong
    return tuple(found.values())


def written_out(document: Document) -> Document:
    """The same document with one claim for each cell of a table, and defaults in all of them."""
    file = validate(document, _File)
    claims: list[dict[str, Any]] = []
    lines: dict[Place, int] = {(): 1}
    for index, item in enumerate(file.claims):
        here: Place = ("claims", index)
        parts: Parts = [(file.defaults, ("defaults",)), (item.model_extra or {}, here)]
        cells = [(parts, here)]
        if item.table is not None and not (cells := list(_cells(item, parts, here, document))):
            fix = "write `rows` with what the paper prints, and `columns` of the same names"
            raise document.fault(here, f"the table {item.table} has no cells", fix=fix)
        for cell, place in cells:
            claims.append(_merged([data for data, _ in cell]))
            number: Place = ("claims", len(claims) - 1)
            lines[number] = document.line(place)
            for data, at in cell:
                lines |= {(*number, key): document.line((*at, key)) for key in data}
    return Document(document.name, {"claims": claims}, lines)


def _cells(
    item: _Item, parts: Parts, here: Place, document: Document
) -> Iterator[tuple[Parts, Place]]:
    """What makes up the claim of each cell, and where the cell stands."""
    for column, about in item.columns.items():
        of_column = (*here, "columns", column)
        wanted = about.paper if "paper" in about.model_fields_set else column
        if isinstance(wanted, str) and not any(wanted in row.paper for row in item.rows.values()):
            message = f"{item.table}: no row has a value of the paper for '{wanted}'"
            fix = "write it in a row's `paper`, or `paper: null` in the column for an ordering"
            raise document.fault(of_column, message, fix=fix)
        shared: Parts = [*parts, (about.model_extra or {}, of_column)]
        for row, values in item.rows.items():
            if isinstance(wanted, str) and wanted not in values.paper:
                continue  # the paper prints nothing there
            reference = values.paper[wanted] if isinstance(wanted, str) else wanted
            name = f"{item.table}.{row}" + (f"-{column}" if column else "")
            own: dict[str, Any] = {"id": name, "reference": reference}
            mine = [*shared, (values.model_extra or {}, (*here, "rows", row))]
            data = _merged([part for part, _ in mine])
            words = {"row": row, "column": column, "name": values.name, **data.get("where", {})}
            for key in _TEXTS:
                try:
                    own |= {key: data[key].format_map(words)} if key in data else {}
                except (LookupError, ValueError, AttributeError) as error:
                    message = f"{name}: {key} has a placeholder that nothing fills: {error}"
                    fix = f"there are: {', '.join(map(str, words))}"
                    raise document.fault((*of_column, key), message, fix=fix) from error
            yield [*mine, (own, of_column)], of_column


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Later ones win; labels of `where` add up, and a band stands for the bounds or they for it."""
    data: dict[str, Any] = {}
    for part in parts:
        gone = ["lower", "upper"] if "band" in part else []
        gone += ["band"] if {"lower", "upper"} & set(part) else []
        labels = [one["where"] for one in (data, part) if isinstance(one.get("where"), dict)]
        data = {k: v for k, v in data.items() if k not in gone} | dict(part)
        if len(labels) == 2:
            data["where"] = labels[0] | labels[1]
    return data


class _Wrong(Exception):
    """A key of a claim, what is wrong there, and how to put it right."""


def _checked(claim: Claim, recipe: Recipe) -> Claim:
    """The claim with every cell of its expression written out. Raises _Wrong."""
    unread = "`transcribed: false` when nobody could read it in the paper"
    bounds = [key for key in ("lower", "upper") if getattr(claim, key) is not None]
    if claim.lower is not None and claim.upper is not None and claim.lower > claim.upper:
        raise _Wrong("lower", "lower is above upper", "swap them")
    if claim.transcribed and claim.expression is None:
        raise _Wrong("expression", "missing key 'expression'", f"write it, or {unread}")
    if claim.transcribed and claim.reference is None and bounds:
        raise _Wrong("reference", "a number without its reference", f"write it, or {unread}")
    if claim.expression is None:
        return claim
    try:
        expression = parse_expression(claim.expression)
        written = expression.with_cells(partial(_values, claim, recipe))
    except ValueError as error:
        raise _Wrong("expression", str(error), "see docs/contracts.md, Claims") from error
    known = {name: list(axis.values) for name, axis in recipe.axes.items()}
    known |= {"variant": list(recipe.variants), "experiment": list(recipe.experiments)}
    for key, labels in (("where", claim.where.items()), ("expression", expression.labels())):
        for label, value in labels:
            if label in known and value not in known[label]:
                why = f"unknown {label} '{value}'; {nearest(value, known[label])}"
                raise _Wrong(key, why, f"name a {label} of the recipe")
    if expression.kind == "boolean":
        for key in (*bounds, *(["direction"] if claim.direction else [])):
            raise _Wrong(key, f"an ordering has no {key}", "drop it, or write a number expression")
    elif claim.transcribed and not bounds:
        why = "neither lower nor upper, so nothing could fail"
        raise _Wrong("expression", why, "write one of them, or a band")
    return claim.model_copy(update={"expression": written.text})


def _values(claim: Claim, recipe: Recipe, label: str, named: frozenset[str]) -> Sequence[str]:
    """The values of a label that the recipe's default runs have in the named experiments."""
    asked = named or {claim.where[key] for key in ("experiment",) if key in claim.where}
    about = [name for name in recipe.experiments if name in asked] or list(recipe.experiments)
    if label == "variant":
        order = list(recipe.variants)
        each = [recipe.variants_of(name) for name in about]
    elif label in recipe.axes:
        order = list(recipe.axes[label].values)
        own = [name for name in about if label in recipe.experiments[name].axes]
        each = [recipe.values_of(name, label) for name in own]
    else:
        raise ValueError(
            f"the recipe does not know the values of '{label}': write {label}=[a, b], or "
            f"{label}=found for those that the records have"
        )
    sets = [set(one) for one in each] or [set(order)]
    there = set.intersection(*sets) if asked else set.union(*sets)
    return [value for value in order if value in there]

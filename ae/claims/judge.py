"""Claims of a paper: read, and judged against records."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

from ae import statistics
from ae.claims.expressions import Answer, NoAnswer, WrongEvidence, parse_expression
from ae.errors import nearest
from ae.recipe.load import load_recipe
from ae.recipe.models import Recipe, Words
from ae.recipe.yamlfile import read_yaml, validate
from ae.records.files import Environment, Evidence, Row

_DIRECTION = r"^\s*(<=|>=|<|>)\s*(-?\d+(?:\.\d+)?)\s*$"
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Verdict(StrEnum):
    """What became of a claim, in a word; in the order in which they are shown."""

    NOT_REPRODUCED = "not reproduced"
    REPRODUCED = "reproduced"
    DIRECTION = "direction holds"  # magnitude not to be judged on this hardware
    NOT_COMPARABLE = "not comparable"
    NOT_RUN = "not run"
    NOT_TRANSCRIBED = "not transcribed"  # nobody could read the value in the paper


class Claim(BaseModel):
    """One checkable statement. `lower` and `upper` are in `unit`, as is `reference`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True
    )

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    figure: str
    sentence: Annotated[str, Field(min_length=1)]
    kind: Literal["ratio", "value", "ordering", "exact"]
    reference: float | None = None
    lower: float | None = None
    upper: float | None = None
    unit: str = ""
    paper_hardware: str
    scored_on: Annotated[Words, Field(min_length=1)]
    source: Literal["paper", "abstract", "artifact", "calculated", "third_party", "ours"]
    evidence: Annotated[tuple[Evidence, ...], Field(min_length=1), Strict(False)] = ("measured",)
    expression: str | None = None
    direction: Annotated[str, Field(pattern=_DIRECTION)] | None = None
    transcribed: bool = True

    @property
    def is_number(self) -> bool:
        """Whether the expression gives a number to be compared with bounds."""
        return self.kind in ("ratio", "value")


class _ClaimsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: Literal[1] = Field(alias="schema")
    claims: Annotated[tuple[Claim, ...], Strict(False)]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A claim and what became of it. `low`, `high`: bootstrap 95 % interval of `value`."""

    claim: Claim
    verdict: Verdict
    reason: str  # one sentence
    value: float | None = None  # in the claim's unit; None for orderings and what was not run
    low: float | None = None  # None too where a record has too few samples for an interval
    high: float | None = None
    hardware: tuple[str, ...] = ()  # what the records were taken on; empty for static ones
    evidence: tuple[str, ...] = ()  # of the records that served
    n: int = 0  # samples in them

    @property
    def id(self) -> str:
        """The claim's id."""
        return self.claim.id


def load_claims(root: Path, recipe: Recipe | str) -> tuple[Claim, ...]:
    """Read the claims.yaml of a recipe or its name; without that file there are no claims.

    Raises UsageError for an unknown recipe, RecipeError with file and line for the rest.
    """
    recipe = load_recipe(root, recipe) if isinstance(recipe, str) else recipe
    path = root / "recipes" / recipe.name / "claims.yaml"
    if not path.is_file():
        return ()
    document = read_yaml(path, root)
    claims = validate(document, _ClaimsFile).claims
    for index, claim in enumerate(claims):
        if any(claim.id == other.id for other in claims[:index]):
            message = f"the claim '{claim.id}' stands twice"
            raise document.fault(("claims", index, "id"), message, fix="rename one")
        for key, why, fix in _faults(claim, recipe):
            raise document.fault(("claims", index, key), f"{claim.id}: {why}", fix=fix)
    return claims


def judge(
    claims: Sequence[Claim],
    rows: Sequence[Row],
    environment: Environment | Mapping[str, Any] | None = None,
    *,
    reduced: Sequence[str] = (),
) -> list[Judgement]:
    """Judge every claim against records.

    Hardware is read from the environment of the point that a record belongs to, else from
    `environment`. `reduced` says in what all of them are smaller than the paper's, `Row.reduced`
    says it of one: then only claims about static facts are judged.
    """
    known = Environment.model_validate(environment or {})
    rows = [
        replace(row, environment=row.environment or known, reduced=(*reduced, *row.reduced))
        for row in rows
    ]
    return [_judge_one(claim, rows) for claim in claims]


def _faults(claim: Claim, recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """What is wrong with a claim: the key that it stands at, what, and how to put it right."""
    unread = "`transcribed: false` when nobody could read it in the paper"
    if claim.direction is not None and not claim.is_number:
        yield "direction", f"a claim of kind {claim.kind} has no direction", "drop it"
    if claim.lower is not None and claim.upper is not None and claim.lower > claim.upper:
        yield "lower", "lower is above upper", "swap them"
    if claim.expression is not None:
        try:
            expression = parse_expression(claim.expression)
        except ValueError as error:
            yield "expression", str(error), "see docs/contracts.md, Claims"
            return
        wanted = "number" if claim.is_number else "boolean"
        if expression.kind != wanted:
            why = f"a claim of kind {claim.kind} needs a {wanted} expression"
            yield "expression", why, f"this one gives a {expression.kind}"
        known = {name: list(axis.values) for name, axis in recipe.axes.items()}
        known |= {"variant": list(recipe.variants), "experiment": list(recipe.experiments)}
        for label, value in expression.labels():
            if label in known and value not in known[label]:
                why = f"unknown {label} '{value}'; {nearest(value, known[label])}"
                yield "expression", why, f"name a {label} of the recipe"
    if not claim.transcribed:
        return
    if claim.expression is None:
        yield "expression", "missing key 'expression'", f"write it, or {unread}"
    if claim.is_number and claim.reference is None:
        yield "reference", "a number without its reference", f"write it, or {unread}"
    if claim.is_number and claim.lower is None and claim.upper is None:
        yield "lower", "neither lower nor upper, so nothing could fail", "write one of them"


def _judge_one(claim: Claim, rows: Sequence[Row]) -> Judgement:
    if not claim.transcribed or claim.expression is None:
        why = "nobody could read the value in the paper"
        return Judgement(claim=claim, verdict=Verdict.NOT_TRANSCRIBED, reason=why)
    try:
        answer = parse_expression(claim.expression).answer(rows, claim.evidence)
    except WrongEvidence as wrong:
        why = f"{wrong}, and only {' or '.join(claim.evidence)} ones may serve"
        return Judgement(claim=claim, verdict=Verdict.NOT_COMPARABLE, reason=why)
    except NoAnswer as missing:
        return Judgement(claim=claim, verdict=Verdict.NOT_RUN, reason=str(missing))
    moving = [row for row in answer.rows if row.evidence != "static"]
    places = [row.environment for row in moving if row.environment]
    judged = Judgement(
        claim=claim,
        verdict=Verdict.NOT_RUN,
        reason="the expression gives no finite number",
        hardware=tuple(sorted({place.gpu_name or "CPU" for place in places})),
        evidence=tuple(sorted({row.evidence for row in answer.rows})),
        n=sum(len(row.samples) for row in answer.rows),
    )
    if claim.is_number:
        finite = answer.values[abs(answer.values) < inf]
        if not isfinite(answer.values[0]):
            return judged
        value, low, high = statistics.interval(finite)
        judged = replace(judged, value=value)
        if not _few(moving):
            judged = replace(judged, low=low, high=high)
    smaller = dict.fromkeys(word for row in moving for word in row.reduced)
    verdict, reason = _decide(claim, answer, judged, tuple(smaller))
    return replace(judged, verdict=verdict, reason=reason)


def _few(rows: Iterable[Row]) -> bool:
    """Whether a label set has fewer samples than an interval takes (repeats are put together)."""
    counts: Counter[object] = Counter()
    for row in rows:
        counts[row.metric, row.experiment, frozenset(row.labels.items())] += len(row.samples)
    return any(n < statistics.FEWEST for n in counts.values())


def _decide(
    claim: Claim, answer: Answer, judged: Judgement, reduced: Sequence[str]
) -> tuple[Verdict, str]:
    if judged.hardware and reduced:
        return Verdict.NOT_COMPARABLE, f"not at the paper's size: {', '.join(reduced)}"
    scored = {"any", "static"} & set(claim.scored_on) or (
        judged.hardware
        and all(any(word in name for word in claim.scored_on) for name in judged.hardware)
    )
    if not scored:
        return _decide_direction(claim, judged)
    if judged.value is None:  # an ordering, or an exact one
        holds, share = bool(answer.values[0]), float(answer.values[1:].mean())
        doubt = f", in {share:.0%} of the bootstrap draws" if 0 < share < 1 else ""
        word = Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED
        return word, ("holds" if holds else "does not hold") + doubt
    inside = _within(judged.value, claim)
    reason = f"{_bounds(claim)} expected"
    if claim.source != "ours":
        reason += f"; {claim.source.replace('_', ' ')}: {_amount(claim.reference, claim)}"
    edges = [_within(edge, claim) for edge in (judged.low, judged.high) if edge is not None]
    if any(edge != inside for edge in edges):
        reason += "; the 95 % interval crosses the bound"
    return (Verdict.REPRODUCED if inside else Verdict.NOT_REPRODUCED), reason


def _decide_direction(claim: Claim, judged: Judgement) -> tuple[Verdict, str]:
    """On hardware that the magnitude may not be judged on."""
    where = ", ".join(judged.hardware) or "no GPU"
    unscored = f"judged on {', '.join(claim.scored_on)} only, this is {where}"
    if "CPU" in judged.hardware or not judged.hardware or claim.direction is None:
        return Verdict.NOT_COMPARABLE, unscored
    match = re.match(_DIRECTION, claim.direction)
    assert match is not None
    assert judged.value is not None
    if _OPERATORS[match[1]](judged.value, float(match[2])):
        return Verdict.DIRECTION, f"{claim.direction} holds; magnitude {unscored}"
    return Verdict.NOT_REPRODUCED, f"{claim.direction} does not hold on {where}"


def _within(value: float, claim: Claim) -> bool:
    above = claim.lower is None or value >= claim.lower
    return above and (claim.upper is None or value <= claim.upper)


def _bounds(claim: Claim) -> str:
    if claim.upper is None:
        return f"at least {_amount(claim.lower, claim)}"
    if claim.lower is None:
        return f"at most {_amount(claim.upper, claim)}"
    return f"{claim.lower:g} to {_amount(claim.upper, claim)}"


def _amount(value: float | None, claim: Claim) -> str:
    return f"{value:g} {claim.unit}".strip() if value is not None else "unknown"

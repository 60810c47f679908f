"""Claims of a paper: read, judged against the records of a run, and written down."""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, Strict

from ae import statistics
from ae.claims.expressions import Answer, Expression, NoAnswer, WrongEvidence, parse_expression
from ae.errors import ExitCode, nearest
from ae.recipe.load import load_recipe
from ae.recipe.models import Recipe, Words
from ae.recipe.yamlfile import Document, read_yaml, validate
from ae.records.files import EVIDENCE, Row, gpu_name

_DIRECTION = re.compile(r"\s*(<=|>=|<|>)\s*(-?\d+(?:\.\d+)?)\s*")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SMALL_RUN = "not at the paper's size"


class Judgement(StrEnum):
    """What became of a claim."""

    REPRODUCED = "reproduced"
    DIRECTION = "direction holds"  # magnitude not to be judged on this hardware
    NOT_REPRODUCED = "not reproduced"
    NOT_COMPARABLE = "not comparable"
    NOT_RUN = "not run"
    NOT_TRANSCRIBED = "not transcribed"  # nobody could read the value in the paper


class Claim(BaseModel):
    """One checkable statement. `lower` and `upper` are in `unit`, as is `reference`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

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
    evidence: Annotated[Words, Field(min_length=1)] = ("measured",)
    expression: str | None = None
    direction: str | None = None
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
class Verdict:
    """A judged claim. `low` and `high` are the bootstrap 95 % interval of `value`, in `unit`."""

    id: str
    figure: str
    sentence: str
    kind: str
    verdict: Judgement
    reason: str  # one sentence
    value: float | None = None  # None for orderings and for what was not run
    low: float | None = None
    high: float | None = None
    unit: str = ""
    reference: float | None = None
    lower: float | None = None
    upper: float | None = None
    source: str = ""
    paper_hardware: str = ""
    scored_on: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()  # what the records were taken on; empty for static ones
    evidence: tuple[str, ...] = ()  # of the records that served
    n: int = 0  # samples in them


def load_claims(root: Path, name: str) -> tuple[Claim, ...]:
    """Read `recipes/<name>/claims.yaml`; without that file there are no claims.

    Raises UsageError for an unknown recipe, RecipeError with file and line for the rest.
    """
    recipe = load_recipe(root, name)
    path = root / "recipes" / name / "claims.yaml"
    if not path.is_file():
        return ()
    document = read_yaml(path, root)
    claims = validate(document, _ClaimsFile).claims
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        place = ("claims", index, "id")
        if claim.id in seen:
            raise document.fault(place, f"the claim '{claim.id}' stands twice", fix="rename one")
        seen.add(claim.id)
        _check_claim(claim, document, index, recipe)
    return claims


def judge(
    claims: Sequence[Claim],
    rows: Sequence[Row],
    environment: Mapping[str, Any],
    *,
    reduced: Sequence[str] = (),
) -> list[Verdict]:
    """Judge every claim against the records of a run.

    Hardware is read from the environment of the point that a record belongs to, else from
    `environment`, the run's. `reduced` says in what the run is smaller than the paper's (the
    plan's selection names it): then only claims about static facts are judged.
    """
    return [_judge_one(claim, rows, environment, reduced) for claim in claims]


def exit_code(verdicts: Sequence[Verdict]) -> ExitCode:
    """1 when a claim was not reproduced, else 0."""
    failed = any(one.verdict is Judgement.NOT_REPRODUCED for one in verdicts)
    return ExitCode.CLAIM if failed else ExitCode.OK


def to_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The contents of claims.json: how many of each verdict, then every claim."""
    words = [str(one.verdict) for one in verdicts]
    return {
        "schema": 1,
        "counts": {str(word): words.count(word) for word in Judgement},
        "claims": [
            {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(one).items()}
            for one in verdicts
        ],
    }


def write_claims(run_dir: Path, verdicts: Sequence[Verdict]) -> Path:
    """Write `claims.json` into a run's folder, atomically. Raises OSError."""
    path = run_dir / "claims.json"
    temporary = path.with_name(f".claims.json.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(to_json(verdicts), indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def _check_claim(claim: Claim, document: Document, index: int, recipe: Recipe) -> None:
    def fault(key: str, message: str, fix: str) -> Exception:
        return document.fault(("claims", index, key), f"{claim.id}: {message}", fix=fix)

    unread = "`transcribed: false` when nobody could read it in the paper"
    for word in claim.evidence:
        if word not in EVIDENCE:
            raise fault("evidence", f"unknown evidence '{word}'; {nearest(word, EVIDENCE)}",
                        f"one of: {', '.join(EVIDENCE)}")  # fmt: skip
    if claim.direction is not None:
        if not claim.is_number:
            raise fault("direction", f"a claim of kind {claim.kind} has no direction", "drop it")
        if _DIRECTION.fullmatch(claim.direction) is None:
            raise fault("direction", f"'{claim.direction}' is not a direction", 'write "> 1"')
    if claim.lower is not None and claim.upper is not None and claim.lower > claim.upper:
        raise fault("lower", "lower is above upper", "swap them")
    if claim.expression is not None:
        try:
            expression = parse_expression(claim.expression)
        except ValueError as error:
            raise fault("expression", str(error), "see docs/contracts.md, Claims") from error
        _check_expression(claim, expression, recipe, fault)
    if not claim.transcribed:
        return
    if claim.expression is None:
        raise fault("expression", "missing key 'expression'", f"write it, or {unread}")
    if claim.is_number and claim.reference is None:
        raise fault("reference", "a number without its reference", f"write it, or {unread}")
    if claim.is_number and claim.lower is None and claim.upper is None:
        raise fault("lower", "neither lower nor upper, so nothing could fail", "write one of them")


def _check_expression(
    claim: Claim,
    expression: Expression,
    recipe: Recipe,
    fault: Callable[[str, str, str], Exception],
) -> None:
    wanted = "number" if claim.is_number else "boolean"
    if expression.kind != wanted:
        raise fault("expression", f"a claim of kind {claim.kind} needs a {wanted} expression",
                    f"this one gives a {expression.kind}")  # fmt: skip
    known: dict[str, Sequence[str]] = {
        name: list(axis.values) for name, axis in recipe.axes.items()
    }
    known |= {"variant": list(recipe.variants), "experiment": list(recipe.experiments)}
    for label, value in expression.labels():
        if label in known and value not in known[label]:
            raise fault("expression", f"unknown {label} '{value}'; {nearest(value, known[label])}",
                        f"name a {label} of the recipe")  # fmt: skip


def _judge_one(
    claim: Claim, rows: Sequence[Row], environment: Mapping[str, Any], reduced: Sequence[str]
) -> Verdict:
    verdict = _blank(claim)
    if not claim.transcribed or claim.expression is None:
        return verdict
    try:
        answer = parse_expression(claim.expression).answer(rows, claim.evidence)
    except WrongEvidence as wrong:
        why = f"{wrong}, and only {' or '.join(claim.evidence)} ones may serve"
        return replace(verdict, verdict=Judgement.NOT_COMPARABLE, reason=why)
    except NoAnswer as missing:
        return replace(verdict, verdict=Judgement.NOT_RUN, reason=str(missing))
    verdict = _with_facts(verdict, claim, answer, environment)
    if claim.is_number and not np.isfinite(answer.values[0]):
        why = "the expression gives no finite number"
        return replace(verdict, verdict=Judgement.NOT_RUN, reason=why, value=None)
    word, reason = _decide(claim, answer, verdict, reduced)
    return replace(verdict, verdict=word, reason=reason)


def _blank(claim: Claim) -> Verdict:
    """What is known of a claim before a run; the verdict holds for claims nobody could read."""
    return Verdict(
        verdict=Judgement.NOT_TRANSCRIBED,
        reason="nobody could read the value in the paper",
        **{
            key: getattr(claim, key)
            for key in ("id", "figure", "sentence", "kind", "unit", "reference", "lower", "upper",
                        "source", "paper_hardware", "scored_on")
        },
    )  # fmt: skip


def _with_facts(
    verdict: Verdict, claim: Claim, answer: Answer, environment: Mapping[str, Any]
) -> Verdict:
    moving = [row for row in answer.rows if row.evidence != "static"]
    hardware = {gpu_name(row.environment or environment) or "CPU" for row in moving}
    facts = replace(
        verdict,
        hardware=tuple(sorted(hardware)),
        evidence=tuple(sorted({row.evidence for row in answer.rows})),
        n=sum(len(row.samples) for row in answer.rows),
    )
    if not claim.is_number:
        return facts
    finite = answer.values[np.isfinite(answer.values)]
    middle = statistics.interval(finite) if finite.size else (None, None, None)
    return replace(facts, value=middle[0], low=middle[1], high=middle[2])


def _decide(
    claim: Claim, answer: Answer, verdict: Verdict, reduced: Sequence[str]
) -> tuple[Judgement, str]:
    if verdict.hardware and reduced:
        return Judgement.NOT_COMPARABLE, f"{_SMALL_RUN}: {', '.join(reduced)}"
    scored = {"any", "static"} & set(claim.scored_on) or (
        verdict.hardware
        and all(any(word in name for word in claim.scored_on) for name in verdict.hardware)
    )
    if not scored:
        return _decide_direction(claim, verdict)
    if not claim.is_number:
        holds, share = bool(answer.values[0]), float(np.mean(answer.values[1:]))
        doubt = f", in {share:.0%} of the bootstrap draws" if 0 < share < 1 else ""
        word = Judgement.REPRODUCED if holds else Judgement.NOT_REPRODUCED
        return word, ("holds" if holds else "does not hold") + doubt
    assert verdict.value is not None
    inside = _within(verdict.value, claim)
    reason = f"{_bounds(claim)} expected"
    if claim.source != "ours":
        reason += f"; {claim.source.replace('_', ' ')}: {_amount(claim.reference, claim)}"
    edges = [_within(edge, claim) for edge in (verdict.low, verdict.high) if edge is not None]
    if any(edge != inside for edge in edges):
        reason += "; the 95 % interval crosses the bound"
    return (Judgement.REPRODUCED if inside else Judgement.NOT_REPRODUCED), reason


def _decide_direction(claim: Claim, verdict: Verdict) -> tuple[Judgement, str]:
    """On hardware that the magnitude may not be judged on."""
    where = ", ".join(verdict.hardware) or "no GPU"
    unscored = f"judged on {', '.join(claim.scored_on)} only, this is {where}"
    if "CPU" in verdict.hardware or not verdict.hardware or claim.direction is None:
        return Judgement.NOT_COMPARABLE, unscored
    match = _DIRECTION.fullmatch(claim.direction)
    assert match is not None
    assert verdict.value is not None
    if _OPERATORS[match[1]](verdict.value, float(match[2])):
        return Judgement.DIRECTION, f"{claim.direction} holds; magnitude {unscored}"
    return Judgement.NOT_REPRODUCED, f"{claim.direction} does not hold on {where}"


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

"""Claims judged against records."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, isnan
from typing import Any

from ae import statistics
from ae.claims.evaluate import Answer, NoAnswer, WrongEvidence, evaluate
from ae.claims.expressions import parse_expression
from ae.claims.models import DIRECTION, Claim, Judgement, Verdict
from ae.claims.tables import load_claims
from ae.plan.selection import is_protocol
from ae.records.files import Environment, Row

__all__ = ["Claim", "Judgement", "Verdict", "judge", "load_claims"]

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OTHERS = {"ti", "super", "laptop", "mobile", "mig"}  # after its name, they make another product


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


def runs_on(name: str, wanted: str) -> bool:
    """Whether a GPU's name has the words of `wanted` in a row: an A100-SXM4-40GB is an A100; an
    RTX A1000 is none, a GH200 no H200, a 2080 Ti no 2080, a MIG slice no whole GPU."""
    words, asked = (re.findall(r"[a-z0-9]+", text.lower()) for text in (name, wanted))
    size = len(asked)
    there = any(
        words[at : at + size] == asked and not _OTHERS & set(words[at + size : at + size + 1])
        for at in range(len(words) - size + 1)
    )
    return there and ("mig" in asked or "mig" not in words)


def _judge_one(claim: Claim, rows: Sequence[Row]) -> Judgement:
    if not claim.transcribed or claim.expression is None:
        why = "nobody could read the value in the paper"
        return Judgement(claim=claim, verdict=Verdict.NOT_TRANSCRIBED, reason=why)
    expression = parse_expression(claim.expression)
    try:
        answer = evaluate(expression, rows, claim.evidence, claim.where)
    except WrongEvidence as wrong:
        why = f"{wrong}, and only {' or '.join(claim.evidence)} ones may serve"
        return Judgement(claim=claim, verdict=Verdict.NOT_COMPARABLE, reason=why)
    except NoAnswer as missing:
        return Judgement(claim=claim, verdict=Verdict.NOT_RUN, reason=str(missing))
    moving = [row for row in answer.rows if row.evidence != "static"]
    places = [row.environment for row in moving if row.environment]
    found = statistics.interval(answer.values.astype(float), answer.basis)
    judged = Judgement(
        claim=claim,
        verdict=Verdict.NOT_RUN,
        reason="the expression gives no finite number",
        spread=found.spread,
        processes=found.processes,
        hosts=found.hosts,
        hardware=tuple(sorted({place.gpu_name or "CPU" for place in places})),
        evidence=tuple(sorted({row.evidence for row in answer.rows})),
        n=sum(len(row.samples) for row in answer.rows),
    )
    if expression.kind == "number":
        if not isfinite(found.value):
            return judged
        judged = replace(judged, value=found.value)
        if found.spread != "none":
            judged = replace(judged, low=found.low, high=found.high)
    smaller = list(dict.fromkeys(word for row in moving for word in row.reduced))
    if judged.hardware and (size := [word for word in smaller if not is_protocol(word)]):
        why = f"not at the paper's size: {', '.join(size)}"
        return replace(judged, verdict=Verdict.NOT_COMPARABLE, reason=why)
    verdict, reason = _decide(claim, answer, judged, undefined=isnan(found.low))
    notes = [reason]
    if found.processes == 1:
        notes.append("1 process")
    elif found.processes and found.spread == "none" and not isnan(found.low):
        notes.append(f"fewer than {statistics.FEWEST} samples")
    notes += [f"a reduced run: {', '.join(smaller)}"] if smaller else []
    return replace(judged, verdict=verdict, reason="; ".join(notes))


def _decide(
    claim: Claim, answer: Answer, judged: Judgement, *, undefined: bool
) -> tuple[Verdict, str]:
    scored = {"any", "static"} & set(claim.scored_on) or (
        judged.hardware
        and all(any(runs_on(name, word) for word in claim.scored_on) for name in judged.hardware)
    )
    if judged.value is None:  # an ordering, or an exact one
        return _decide_order(answer, judged) if scored else _elsewhere(claim, judged)
    if not scored:
        return _decide_direction(claim, judged, undefined=undefined)
    reason = f"{_bounds(claim)} expected"
    if claim.source != "ours":
        reason += f"; {claim.source.replace('_', ' ')}: {_amount(claim.reference, claim)}"
    above = -inf if claim.lower is None else claim.lower
    below = inf if claim.upper is None else claim.upper
    if undefined:
        return Verdict.UNDECIDED, f"{reason}; the interval is undefined, since a draw is"
    low, high = (judged.value if end is None else end for end in (judged.low, judged.high))
    if above <= low and high <= below:
        return Verdict.REPRODUCED, reason
    if high < above or low > below:
        return Verdict.NOT_REPRODUCED, reason
    return Verdict.UNDECIDED, f"{reason}; the {_ENDS[judged.spread]} crosses the bound"


_ENDS = {"ci95": "95 % interval", "range": "range of the processes", "none": "value"}


def _decide_order(answer: Answer, judged: Judgement) -> tuple[Verdict, str]:
    """As of a number, 2.5 % of the draws may fall on the other side; of a range none may."""
    holds = bool(answer.values[0])
    share = float(answer.values[1:].mean()) if judged.spread != "none" else float(holds)
    said = "holds" if holds else "does not hold"
    if 0 < share < 1:
        said += f", in {share:.0%} of the draws"
    doubt = 0.025 if judged.spread == "ci95" else 0.0
    if (share < 1 - doubt) if holds else (share > doubt):
        return Verdict.UNDECIDED, said
    return (Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED), said


def _elsewhere(claim: Claim, judged: Judgement) -> tuple[Verdict, str]:
    where = ", ".join(judged.hardware) or "no GPU"
    return Verdict.NOT_COMPARABLE, f"judged on {', '.join(claim.scored_on)} only, this is {where}"


def _decide_direction(claim: Claim, judged: Judgement, *, undefined: bool) -> tuple[Verdict, str]:
    """On hardware that the magnitude may not be judged on."""
    verdict, unscored = _elsewhere(claim, judged)
    if "CPU" in judged.hardware or not judged.hardware or claim.direction is None:
        return verdict, unscored
    match = re.match(DIRECTION, claim.direction)
    assert match is not None
    ends = [judged.value if end is None else end for end in (judged.low, judged.high)]
    each = {_OPERATORS[match[1]](end, float(match[2])) for end in ends if end is not None}
    where = ", ".join(judged.hardware)
    if undefined or len(each) > 1:
        return Verdict.UNDECIDED, f"{claim.direction} does not hold in all draws; {unscored}"
    if each == {True}:
        return Verdict.DIRECTION, f"{claim.direction} holds; magnitude {unscored}"
    return Verdict.NOT_REPRODUCED, f"{claim.direction} does not hold on {where}"


def _bounds(claim: Claim) -> str:
    if claim.upper is None:
        return f"at least {_amount(claim.lower, claim)}"
    if claim.lower is None:
        return f"at most {_amount(claim.upper, claim)}"
    return f"{claim.lower:g} to {_amount(claim.upper, claim)}"


def _amount(value: float | None, claim: Claim) -> str:
    return f"{value:g} {claim.unit}".strip() if value is not None else "unknown"

"""A claim, judged against records: what became of it, and all of them counted and written down."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite, isnan
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, Strict, model_validator

from ae import statistics
from ae.claims.evaluate import Answer, NoAnswer, Records, WrongEvidence, evaluate
from ae.claims.expressions import parse_expression
from ae.errors import ExitCode
from ae.model import Part
from ae.plan.selection import is_protocol
from ae.recipe.models import Words
from ae.records.files import Evidence, Row

Tag = Literal["magnitude", "order", "arithmetic", "ours"]
Label = Annotated[str, Strict(False), Field(coerce_numbers_to_str=True)]  # `gpus: 2` too
TAGS: tuple[Tag, ...] = get_args(Tag)
DIRECTION = r"^\s*(<=|>=|<|>)\s*(-?\d+(?:\.\d+)?)\s*$"
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OTHERS = "ti|super|laptop|mobile|mig"  # after its name, they make another product
_UNSAID = {"band", "evidence", "where", "expression", "direction", "transcribed"}  # in claims.json


class Verdict(StrEnum):
    """What became of a claim, in a word; in the order in which they are shown."""

    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"  # the interval crosses the bound, or the ordering flips
    REPRODUCED = "reproduced"
    DIRECTION = "direction holds"  # magnitude not to be judged on this hardware
    NOT_COMPARABLE = "not comparable"
    NOT_RUN = "not run"
    NOT_TRANSCRIBED = "not transcribed"  # nobody could read the value in the paper


class Claim(Part):
    """One checkable statement. `lower`, `upper` and `reference` are in `unit`."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    figure: str
    sentence: Annotated[str, Field(min_length=1)]
    tag: Tag
    fact: str = ""  # claims of one fact count once; default: the id
    reference: float | None = None
    band: float | str | tuple[float | str | None, float | str | None] | None = None
    lower: float | None = None
    upper: float | None = None
    unit: str = ""
    paper_hardware: str
    scored_on: Annotated[Words, Field(min_length=1)]
    source: Literal["paper", "abstract", "artifact", "calculated", "third_party", "ours"]
    evidence: Annotated[tuple[Evidence, ...], Field(min_length=1), Strict(False)] = ("measured",)
    where: dict[str, Label] = Field(default_factory=dict)
    expression: str | None = None
    direction: Annotated[str, Field(pattern=DIRECTION)] | None = None
    transcribed: bool = True

    @model_validator(mode="before")
    @classmethod
    def _band(cls, data: Any) -> Any:
        """`band` in words of `lower` and `upper`: how far below and above `reference`."""
        if not isinstance(data, Mapping) or data.get("band") is None:
            return data
        band, reference = data["band"], data.get("reference")
        ends = band if isinstance(band, list | tuple) else (band, band)
        if len(ends) != 2 or not isinstance(reference, int | float):
            raise ValueError("a band is one amount or two, [below, above], around a reference")
        lower, upper = (
            None if end is None else round(reference + sign * _amount(end, reference), 9)
            for end, sign in zip(ends, (-1, 1), strict=True)
        )
        return {**data, "band": tuple(ends), "lower": lower, "upper": upper}


def _amount(end: object, reference: float) -> float:
    """`15 %` of the reference, or so much."""
    share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", end) if isinstance(end, str) else None
    if share:
        return float(share[1]) / 100 * abs(reference)
    if isinstance(end, str | bool) or not isinstance(end, int | float) or end < 0:
        raise ValueError(f"a band is a number or a share such as '15 %', not {end!r}")
    return float(end)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A claim and what became of it. `low`, `high`: the ends that `spread` names, in its unit."""

    claim: Claim
    verdict: Verdict
    reason: str  # one sentence
    value: float | None = None  # in the claim's unit; None for orderings and what was not run
    low: float | None = None  # None too where there is no spread
    high: float | None = None
    spread: statistics.Spread = "none"
    processes: int = 0  # the fewest behind a record that served; 0: known without any
    devices: int = 0
    hardware: tuple[str, ...] = ()  # what the records were taken on; empty for static ones
    evidence: tuple[str, ...] = ()  # of the records that served
    n: int = 0  # samples in them
    closest: str = ""  # of an ordering: the comparison that decides it, with its numbers

    @property
    def id(self) -> str:
        """The claim's id."""
        return self.claim.id


def judge(claims: Sequence[Claim], rows: Sequence[Row]) -> list[Judgement]:
    """Judge every claim against records.

    A record's environment says on which hardware it was taken. Of those that are smaller than the
    paper's (`Row.reduced`) only static facts are judged.
    """
    records = Records(rows)
    return [_judge_one(claim, records) for claim in claims]


def runs_on(name: str, wanted: str) -> bool:
    """Whether a GPU's name has the words of `wanted` in a row: an A100-SXM4-40GB is an A100; an
    RTX A1000 is none, a GH200 no H200, a 2080 Ti no 2080, a MIG slice no whole GPU."""
    words, asked = (" ".join(re.findall(r"[a-z0-9]+", text.lower())) for text in (name, wanted))
    there = re.search(rf"\b{asked}\b(?! (?:{_OTHERS})\b)", words) is not None
    return there and ("mig" in asked.split() or "mig" not in words.split())


def _judge_one(claim: Claim, records: Records) -> Judgement:
    if not claim.transcribed or claim.expression is None:
        why = "nobody could read the value in the paper"
        return Judgement(claim=claim, verdict=Verdict.NOT_TRANSCRIBED, reason=why)
    expression = parse_expression(claim.expression)
    try:
        answer = evaluate(expression, records, claim.evidence, claim.where)
        if not answer.rows:
            raise NoAnswer("the expression reads no record")
    except WrongEvidence as wrong:
        why = f"{wrong}, and only {' or '.join(claim.evidence)} ones may serve"
        return Judgement(claim=claim, verdict=Verdict.NOT_COMPARABLE, reason=why)
    except NoAnswer as missing:
        return Judgement(claim=claim, verdict=Verdict.NOT_RUN, reason=str(missing))
    moving = [row for row in answer.rows if row.evidence != "static"]
    found = statistics.interval(answer.values.astype(float), answer.basis)
    judged = Judgement(
        claim=claim, verdict=Verdict.NOT_RUN, reason="the expression gives no finite number",
        spread=found.spread, processes=found.processes, devices=found.devices,
        hardware=tuple(sorted({row.hardware for row in moving})),
        evidence=tuple(sorted({row.evidence for row in answer.rows})),
        n=sum(len(row.samples) for row in answer.rows), closest=answer.closest,
    )  # fmt: skip
    if expression.kind == "number":
        if not isfinite(found.value):
            return judged
        low, high = (None, None) if found.spread == "none" else (found.low, found.high)
        judged = replace(judged, value=found.value, low=low, high=high)
    smaller = list(dict.fromkeys(word for row in moving for word in row.reduced))
    if judged.hardware and (size := [word for word in smaller if not is_protocol(word)]):
        why = f"not at the paper's size: {', '.join(size)}"
        return replace(judged, verdict=Verdict.NOT_COMPARABLE, reason=why)
    verdict, reason = _decide(answer, judged, undefined=isnan(found.low))
    few = found.processes > 1 and found.spread == "none" and not isnan(found.low)
    apart = statistics.unpaired(map(vars, answer.rows))
    if apart and verdict in (Verdict.REPRODUCED, Verdict.NOT_REPRODUCED):
        verdict = Verdict.UNDECIDED
    notes = [reason, *["1 process"] * (found.processes == 1)]
    notes += [f"fewer than {statistics.FEWEST} samples"] * few
    notes += ["variants of one point are of several runs, so not paired"] * apart
    notes += [f"a reduced run: {', '.join(smaller)}"] * bool(smaller)
    return replace(judged, verdict=verdict, reason="; ".join(notes))


def _decide(answer: Answer, judged: Judgement, *, undefined: bool) -> tuple[Verdict, str]:
    claim = judged.claim
    scored = {"any", "static"} & set(claim.scored_on) or (
        judged.hardware
        and all(any(runs_on(name, word) for word in claim.scored_on) for name in judged.hardware)
    )
    if judged.value is None:  # an ordering, or an exact one
        return _decide_order(answer, judged) if scored else _elsewhere(judged)
    if not scored:
        return _decide_direction(judged, undefined=undefined)
    reason = f"{bounds(claim)} expected"
    if claim.source != "ours":
        reason += f"; {claim.source.replace('_', ' ')}: {_in_unit(claim.reference, claim)}"
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
        said += f", {'as' if holds else 'but does'} in {int(share * 1e3) / 10}% of the draws"
    doubt = 0.025 if judged.spread == "ci95" else 0.0
    if (share < 1 - doubt) if holds else (share > doubt):
        return Verdict.UNDECIDED, said
    return (Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED), said


def _elsewhere(judged: Judgement) -> tuple[Verdict, str]:
    words, where = ", ".join(judged.claim.scored_on), ", ".join(judged.hardware) or "no GPU"
    return Verdict.NOT_COMPARABLE, f"judged on {words} only, this is {where}"


def _decide_direction(judged: Judgement, *, undefined: bool) -> tuple[Verdict, str]:
    """On hardware that the magnitude may not be judged on."""
    verdict, unscored = _elsewhere(judged)
    direction = judged.claim.direction
    if "CPU" in judged.hardware or not judged.hardware or direction is None:
        return verdict, unscored
    match = re.match(DIRECTION, direction)
    assert match is not None
    ends = [judged.value if end is None else end for end in (judged.low, judged.high)]
    each = {_OPERATORS[match[1]](end, float(match[2])) for end in ends if end is not None}
    if undefined or len(each) > 1:
        return Verdict.UNDECIDED, f"{direction} does not hold in all draws; {unscored}"
    if each == {True}:
        return Verdict.DIRECTION, f"{direction} holds; magnitude {unscored}"
    return Verdict.NOT_REPRODUCED, f"{direction} does not hold on {', '.join(judged.hardware)}"


def bounds(claim: Claim) -> str:
    """Where the value of a claim must be."""
    if claim.upper is None:
        return f"at least {_in_unit(claim.lower, claim)}"
    if claim.lower is None:
        return f"at most {_in_unit(claim.upper, claim)}"
    return f"{claim.lower:g} to " * (claim.lower != claim.upper) + _in_unit(claim.upper, claim)


def _in_unit(value: float | None, claim: Claim) -> str:
    return f"{value:g} {claim.unit}".strip() if value is not None else "unknown"


def exit_code(judgements: Iterable[Judgement]) -> ExitCode:
    """1 when a claim was not reproduced, else 0."""
    failed = any(one.verdict is Verdict.NOT_REPRODUCED for one in judgements)
    return ExitCode.CLAIM if failed else ExitCode.OK


def scoreboard(judgements: Iterable[Judgement]) -> dict[str, dict[str, int]]:
    """How many facts of each tag got which verdict; of a fact's claims the first in the order of
    verdicts counts, so that one that fails is never hidden by one that holds."""
    facts: dict[tuple[Tag, str], Verdict] = {}
    order = list(Verdict)
    for one in judgements:
        key = one.claim.tag, one.claim.fact or one.id
        facts[key] = min(one.verdict, facts.get(key, one.verdict), key=order.index)
    counts = Counter((tag, verdict) for (tag, _), verdict in facts.items())
    return {tag: {str(word): counts[tag, word] for word in Verdict} for tag in TAGS}


def to_json(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The contents of claims.json: counts of claims and of facts by tag, then every claim."""
    words = [one.verdict for one in judgements]
    return {
        "schema": 2,
        "counts": {str(word): words.count(word) for word in Verdict},
        "scoreboard": scoreboard(judgements),
        "claims": [
            one.claim.model_dump(mode="json", exclude=_UNSAID)
            | {name: value for name, value in vars(one).items() if name != "claim"}
            for one in judgements
        ],
    }


def verdict_lines(judgements: Iterable[Judgement]) -> str:
    """The contents of verdicts.txt: a claim's id and its verdict a line."""
    return "".join(f"{one.id} {one.verdict}\n" for one in judgements)

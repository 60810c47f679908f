"""A claim, what became of it, and all of them counted and written down."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from ae.errors import ExitCode
from ae.recipe.models import Words
from ae.records.files import Evidence
from ae.statistics import Spread

Tag = Literal["magnitude", "order", "arithmetic", "ours"]
TAGS: tuple[Tag, ...] = get_args(Tag)
DIRECTION = r"^\s*(<=|>=|<|>)\s*(-?\d+(?:\.\d+)?)\s*$"
_SHOWN = {
    "id", "figure", "sentence", "tag", "fact", "unit", "reference", "lower", "upper", "source",
    "paper_hardware", "scored_on",
}  # fmt: skip


class Verdict(StrEnum):
    """What became of a claim, in a word; in the order in which they are shown."""

    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"  # the interval crosses the bound, or the ordering flips
    REPRODUCED = "reproduced"
    DIRECTION = "direction holds"  # magnitude not to be judged on this hardware
    NOT_COMPARABLE = "not comparable"
    NOT_RUN = "not run"
    NOT_TRANSCRIBED = "not transcribed"  # nobody could read the value in the paper


def _texts(value: object) -> object:
    return {key: str(one) for key, one in value.items()} if isinstance(value, dict) else value


class Claim(BaseModel):
    """One checkable statement. `lower`, `upper` and `reference` are in `unit`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

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
    where: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(default_factory=dict)
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
    spread: Spread = "none"
    processes: int = 0  # the fewest behind a record that served; 0: known without any
    hosts: int = 0
    hardware: tuple[str, ...] = ()  # what the records were taken on; empty for static ones
    evidence: tuple[str, ...] = ()  # of the records that served
    n: int = 0  # samples in them

    @property
    def id(self) -> str:
        """The claim's id."""
        return self.claim.id


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
            one.claim.model_dump(mode="json", include=_SHOWN)
            | {name: value for name, value in vars(one).items() if name != "claim"}
            for one in judgements
        ],
    }


def verdict_lines(judgements: Iterable[Judgement]) -> str:
    """The contents of verdicts.txt: a claim's id and its verdict a line."""
    return "".join(f"{one.id} {one.verdict}\n" for one in judgements)

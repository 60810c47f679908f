"""What two results have in common, in what they were not measured alike, and what changed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ae.claims.judge import Judgement, Verdict
from ae.records.files import Row
from ae.records.results import Results
from ae.statistics import Samples, by_process

_Key = tuple[str, str, frozenset[tuple[str, str]]]
# The verdicts between which a claim can flip, the worst first.
_RANKS = (Verdict.NOT_REPRODUCED, Verdict.UNDECIDED, Verdict.DIRECTION, Verdict.REPRODUCED)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One value of A and of B, with its samples in `unit`; `differs` says what forbids a verdict;
    `static`: it is read from code or arithmetic, so it is exact."""

    experiment: str
    metric: str
    labels: Mapping[str, str]
    unit: str
    static: bool
    a: Samples
    b: Samples
    differs: tuple[str, ...] = ()


def by_place(rows: Iterable[Row]) -> dict[_Key, list[Row]]:
    """Records by experiment, metric and labels."""
    found: dict[_Key, list[Row]] = {}
    for row in rows:
        place = row.experiment, row.metric, frozenset(row.labels.items())
        found.setdefault(place, []).append(row)
    return found


def pair(a: Iterable[Row], b: Iterable[Row]) -> list[Cell]:
    """The cells that both have, in the order of A."""
    others = by_place(b)
    return [
        Cell(
            experiment=rows[0].experiment,
            metric=rows[0].metric,
            labels=rows[0].labels,
            unit=rows[0].unit,
            static={row.evidence for row in (*rows, *others[place])} == {"static"},
            a=by_process(map(vars, rows)),
            b=by_process(map(vars, others[place])),
            differs=_differences(rows, others[place]),
        )
        for place, rows in by_place(a).items()
        if place in others
    ]


def _differences(a: Sequence[Row], b: Sequence[Row]) -> tuple[str, ...]:
    """In what two cells were not measured alike, as `name A / B`."""
    facts = [_conditions(rows) for rows in (a, b)]
    found = [f"{k} {facts[0][k]} / {facts[1][k]}" for k in facts[0] if facts[0][k] != facts[1][k]]
    commands = [{row.repeat: row.argv for row in rows} for rows in (a, b)]
    both = commands[0].keys() & commands[1].keys()
    numbers = [min(both or each) for each in commands]  # of processes: each is told its own
    words = [each[number] for each, number in zip(commands, numbers, strict=True)]
    before = ""
    for one, other in zip_longest(*words, fillvalue="nothing"):
        if one != other and [one, other] != [*map(str, numbers)]:
            found.append(f"{before.lstrip('-') or 'command'} {one} / {other}")
            if one.startswith("-") or other.startswith("-"):  # from here on they are others
                break
        before = one
    return tuple(found)


def _conditions(rows: Sequence[Row]) -> dict[str, str]:
    """What must be the same on both sides. What is static needs no hardware."""
    moving = [row for row in rows if row.evidence != "static"]
    told = [(row.hardware, row.environment) for row in moving]
    facts = {
        "unit": {row.unit for row in rows},
        "evidence": {row.evidence for row in rows},
        "hardware": {
            (known and known.cpu) or name if name == "CPU" else name for name, known in told
        },
        "driver": {((known and known.driver) or "").partition(".")[0] for _, known in told},
    }
    return {name: ", ".join(sorted(filter(None, values))) or "-" for name, values in facts.items()}


def facts_of(results: Results) -> dict[str, str]:
    """What may explain a change: sources of the images, revision, driver, clocks ...."""
    done = [point for point in results.points if point.done]
    origins = {one.origin.run: one.origin for one in done}.values()
    known = [env for point in done if (env := point.found.environment)]
    sources = [origin.provenance.source for origin in origins]
    words = {
        "image": {content[:12] for one in origins for content in one.images.values()},
        "revision": {
            (one.stated_revision or one.revision or "")[:12]
            + (" with changes" if one.dirty and not one.stated_revision else "")
            for one in sources
        },
        "driver": {env.driver or "" for env in known},
        "engine": {origin.provenance.engine.get("name", "") for origin in origins},
        "host": {origin.provenance.host.name for origin in origins},
    }
    ends = [env.clocks.get("end") for env in known if isinstance(env.clocks, Mapping)]
    for name in ("sm", "memory", "throttle"):  # as images/common writes them
        seen = {str(end[name]) for end in ends if isinstance(end, Mapping) and name in end}
        words[f"{name} clock" if name != "throttle" else name] = seen
    return {name: ", ".join(sorted(filter(None, found))) or "-" for name, found in words.items()}


def flips(a: Sequence[Judgement], b: Sequence[Judgement]) -> list[tuple[Judgement, Judgement]]:
    """The claims that both decide or could have decided, otherwise; those that got worse first."""
    pairs = [
        pair for pair in zip(a, b, strict=True)
        if pair[0].verdict != pair[1].verdict and all(one.verdict in _RANKS for one in pair)
    ]  # fmt: skip
    return sorted(pairs, key=lambda pair: not got_worse(*pair))


def got_worse(a: Judgement, b: Judgement) -> bool:
    """Whether a claim's verdict on B is worse than that on A."""
    return _RANKS.index(b.verdict) < _RANKS.index(a.verdict)

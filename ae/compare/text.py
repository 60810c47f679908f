"""A comparison as text, and as data for CSV and JSON. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ae.claims.judge import Judgement
from ae.compare.cells import facts_of, got_worse
from ae.compare.decide import FALSE, LEAST, Finding, Word, one_way
from ae.records.results import Results
from ae.report.tables import clean
from ae.report.text import grid, number, span
from ae.statistics import FEWEST
from ae.units import folded

SCREEN_ROWS = 24  # so many cells are all shown; of more, what changed
_CHANGES = (Word.SLOWER, Word.FASTER, Word.HIGHER, Word.LOWER)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """B compared with A."""

    a: Results
    b: Results
    findings: Sequence[Finding]  # in the order of words
    flips: Sequence[tuple[Judgement, Judgement]]  # of claims, on A and on B
    margins: Mapping[str, float]  # r by metric
    repeats: Sequence[str]  # the runs beside A that r is from
    alone: Mapping[str, int]  # cells that only A has, or only B

    @property
    def worse(self) -> bool:
        """Whether something is slower, or a claim's verdict worse."""
        slower = any(one.word is Word.SLOWER for one in self.findings)
        return slower or any(got_worse(*pair) for pair in self.flips)

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """What may explain a change: its name, as it is in A, and in B."""
        a, b = facts_of(self.a), facts_of(self.b)
        return [(name, a[name], b[name]) for name in a]


def comparison_text(made: Comparison, width: int = 100) -> str:
    """Flipped claims, what changed, the cells (of many those that changed), and how many of each
    experiment and metric got which word."""
    parts = [f"{made.a.recipe}: B {made.b.name} against A {made.a.name}"]
    if flips := [[a.id, str(a.verdict), str(b.verdict), b.reason] for a, b in made.flips]:
        parts.append(grid(["claim flipped", "A", "B", "why, of B"], flips, width=width))
    if changed := [fact for fact in made.facts if fact[1] != fact[2]]:
        parts.append(grid(["changed", "A", "B"], changed, width=width))
    if same := ", ".join(name for name, a, b in made.facts if a == b != "-"):
        parts.append(folded(clean(f"the same in both: {same}"), width))
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in made.findings:
        groups.setdefault((one.cell.experiment, one.cell.metric), []).append(one)
    few = len(made.findings) <= SCREEN_ROWS
    shown = {at: [x for x in part if few or x.word in _CHANGES] for at, part in groups.items()}
    parts += [_cells_text(part, width) for part in shown.values() if part]
    if not few:
        parts.append(_counts_text(groups, width))
    return "\n\n".join([*parts, "\n".join(folded(clean(line), width) for line in _notes(made))])


def _cells_text(part: Sequence[Finding], width: int) -> str:
    labels = dict.fromkeys(name for one in part for name in one.cell.labels)
    rows = [
        [
            f"{one.word}" + (f", {one.needed} needed" if one.needed else ""),
            number(one.ratio.value) if one.ratio else "",
            span(one.ratio.low, one.ratio.high, one.ratio.spread) if one.ratio else "",
            number(one.a),
            number(one.b),
            " ".join(one.cell.labels.get(name, "-") for name in labels),
        ]
        for one in part
    ]
    cell = part[0].cell
    header = ["B is", "B / A", "95 % interval", "A", "B", " ".join(labels) or "-"]
    shown = grid(header, rows, width=width, right=range(1, 5))
    return f"{cell.experiment}: {cell.metric} [{cell.unit}]\n{shown}"


def _counts_text(groups: Mapping[tuple[str, str], Sequence[Finding]], width: int) -> str:
    words = [word for word in Word if any(x.word is word for part in groups.values() for x in part)]
    rows = []
    for place, part in groups.items():
        counts, ratios = Counter(x.word for x in part), [x.ratio.value for x in part if x.ratio]
        ends = (span(min(ratios), max(ratios)) or number(ratios[0])) if ratios else "-"
        more = max(one.needed or 0 for one in part)
        rows.append([*place, *(str(counts[word] or "-") for word in words), str(more or "-"), ends])
    header = ["experiment", "metric", *(word or "no word" for word in words), "needed", "B / A"]
    return grid(header, rows, width=width, right=range(2, 3 + len(words)))


def _notes(made: Comparison) -> list[str]:
    """What was left out, what the words mean here, and whether it is the machine."""
    cells = [one.cell for one in made.findings]
    reasons = Counter(why for cell in cells for why in cell.differs)
    notes = [f"not measured alike: {why} ({count} cells)" for why, count in reasons.most_common()]
    notes += [f"only in {side}: {count} cells" for side, count in made.alone.items() if count]
    judged = [one for one in made.findings if one.word]
    if not judged:
        return [*notes, "ratios alone: no verdicts"]
    few = sum(min(len(one.cell.a), len(one.cell.b)) < FEWEST and not one.cell.static
              for one in judged)  # fmt: skip
    if few:
        notes.append(f"{few} cells have fewer than {FEWEST} processes in A or B: no interval")
    if any(one.needed for one in judged):
        notes.append("needed: processes of each side that would decide, by their spread: --repeat")
    wider = [f"{name} {value:.1%}" for name, value in made.margins.items() if value > LEAST]
    names = ", ".join(made.repeats)
    source = f"from {names}" if names else "A has no repeats to take it from"
    notes.append(f"same: within {LEAST:.0%}; {'; '.join([*wider, source])}")
    notes.append(f"false discovery rate of changes, and of the same: {FALSE:.0%}")
    if found := one_way(judged):
        notes.append(
            f"warning: {found[1]} of {found[2]} ratios {found[0]}, no change the other way: the "
            f"machine may differ; ae run {made.a.recipe} --against {made.a.name} measures in turns"
        )
    counts = Counter(one.word for one in made.findings)
    words = (f"{counts[word]} {word or 'without a verdict'}" for word in Word if counts[word])
    return [*notes, ", ".join(words)]


def rows_of(made: Comparison) -> list[dict[str, Any]]:
    """Every cell as plain data; `a` and `b` are medians over processes in `unit`."""
    return [
        {"experiment": one.cell.experiment, **one.cell.labels, "metric": one.cell.metric}
        | {"unit": one.cell.unit, "word": str(one.word), "a": one.a, "b": one.b}
        | dict(zip(("ratio", "low", "high", "spread"), one.ratio or [None] * 4, strict=False))
        | {"processes_a": len(one.cell.a), "processes_b": len(one.cell.b), "margin": one.margin}
        | {"needed": one.needed, "differs": "; ".join(one.cell.differs)}
        for one in made.findings
    ]


def to_json(made: Comparison) -> dict[str, Any]:
    """All of it, for a program."""
    return {
        "schema": 1,
        "recipe": made.a.recipe,
        "a": made.a.name,
        "b": made.b.name,
        "worse": made.worse,
        "flips": [{"id": a.id, "a": a.verdict, "b": b.verdict} for a, b in made.flips],
        "facts": {name: {"a": a, "b": b} for name, a, b in made.facts},
        "one_way": one_way(made.findings),
        "only_in": made.alone,
        "repeats": made.repeats,
        "cells": rows_of(made),
    }

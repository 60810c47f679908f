"""Which points a claim is decided by: those that can write the records that it asks for. Pure.

A point can write a record whose labels are not at odds with its experiment, axes and variants; of a
metric that reference results have, experiments that wrote it there, which also tell of variants
that come unasked, as baselines do. What else a program writes is not known before it has run, so a
claim may get too many points, never too few.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ae.claims.expressions import FOUND, OVER, parse_expression, word_of, words_of
from ae.claims.judge import Claim, Judgement, Verdict, runs_on
from ae.model import Point
from ae.plan.selection import is_protocol
from ae.records.files import Row
from ae.records.models import PlannedPoint

Place = Point | PlannedPoint
Writers = Mapping[str, Collection[str]]  # metric, or variant=V unasked -> who writes it


def writers(rows: Iterable[Row]) -> Writers:
    """The experiments that wrote each metric, and each variant that a command did not name."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.metric, set()).add(row.experiment)
        variant = row.labels.get("variant")
        if variant and not any(variant in word.split(",") for word in row.argv):
            found.setdefault(f"variant={variant}", set()).add(row.experiment)
    return found


def cells(claim: Claim) -> list[dict[str, str]]:
    """Metric and labels of every record that a claim asks for; without those that are `found`."""
    if not claim.transcribed or claim.expression is None:
        return []
    asked = _asked(parse_expression(claim.expression).tree, claim.where)
    return [dict(cell) for cell in dict.fromkeys(tuple(sorted(one.items())) for one in asked)]


def _asked(node: ast.AST, bound: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    if not isinstance(node, ast.Call):
        for inner in ast.iter_child_nodes(node):
            yield from _asked(inner, bound)
        return
    words = {str(one.arg): words_of(one.value) for one in node.keywords}
    if isinstance(node.func, ast.Name) and node.func.id in OVER:
        closed = {label: values for label, values in words.items() if values != [FOUND]}
        for values in itertools.product(*closed.values()):
            yield from _asked(node.args[-1], {**bound, **dict(zip(closed, values, strict=True))})
    else:
        for side in (0, -1):  # of this/that
            own = {label: values[side] for label, values in words.items()}
            yield {**bound, **own, "metric": word_of(node.args[0])}


def deciding(claim: Claim, points: Sequence[Place], known: Writers) -> frozenset[str]:
    """The ids of the points that a claim needs; none where a record has no point to come from."""
    each = _points(claim, points, known)
    return frozenset[str]().union(*each) if all(each) else frozenset()


def incomplete(
    judgements: Sequence[Judgement], missing: Sequence[Place], known: Writers
) -> list[Judgement]:
    """The judgements, but those over values that are `found` while points that may have more of
    them are `missing`: those are not run. What others have broken stays broken."""

    def after(one: Judgement) -> Judgement:
        over = one.verdict in passed and f"={FOUND}" in (one.claim.expression or "")
        need = set[str]().union(*_points(one.claim, missing, known)) if over else ()
        why = f"it is over points that are not run: {', '.join(sorted(need))}"
        return replace(one, verdict=Verdict.NOT_RUN, reason=why) if need else one

    passed = (Verdict.REPRODUCED, Verdict.DIRECTION, Verdict.UNDECIDED)
    return [after(one) for one in judgements]


def _points(claim: Claim, points: Sequence[Place], known: Writers) -> list[set[str]]:
    """The ids of the points that can write each record that a claim asks for."""
    return [{point.id for point in points if _writes(point, cell, known)} for cell in cells(claim)]


def _writes(point: Place, cell: Mapping[str, str], known: Writers) -> bool:
    wrote = [cell["experiment"]] if "experiment" in cell else known.get(cell["metric"], ())
    unasked = known.get(f"variant={cell.get('variant')}", ())
    at_odds = any(cell.get(name, value) != value for name, value in point.labels.items())
    varied = not point.variants or cell.get("variant", point.variants[0]) in point.variants
    written = not wrote or point.experiment in wrote
    return written and not at_odds and (varied or point.experiment in unasked)


def can_be_judged(claim: Claim, hardware: Collection[str], reduced: Sequence[str]) -> bool:
    """Whether records taken on this hardware, so much smaller than the paper's, can give a verdict
    that is not *not comparable*, as ae.claims.judge has it."""
    if claim.evidence != ("static",) and not all(map(is_protocol, reduced)):
        return False
    if {"any", "static"} & set(claim.scored_on):
        return True
    scored = all(any(runs_on(name, word) for word in claim.scored_on) for name in hardware)
    return scored or (claim.direction is not None and "CPU" not in hardware)

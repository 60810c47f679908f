"""What a time is spent on: what a plan's claims need, what its points take, what is said of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ae.claims.deciding import can_be_judged, cells, deciding, writers
from ae.claims.judge import Claim
from ae.claims.tables import load_claims
from ae.model import Machine, Plan, Point
from ae.plan.budget import Budget, Choice
from ae.plan.selection import is_protocol
from ae.recipe.models import Recipe
from ae.records.folder import Run
from ae.records.models import StatusRecord
from ae.records.results import Results, load_reference, reference_sets
from ae.run.display import Display

Needs = Mapping[str, frozenset[str]]  # claim -> points
Kind = tuple[str, frozenset[tuple[str, str]], frozenset[str]]  # experiment, labels, command


def budget_of(root: Path, recipe: Recipe, plan: Plan, machine: Machine, limit_s: float) -> Budget:
    """What a plan's claims need, and how long its points take."""
    sets = [load_reference(path) for path in reference_sets(root, recipe.name).values()]
    here = {gpu.name for gpu in machine.gpus}
    sets.sort(key=lambda one: one.environment.gpu_name not in here)
    known = _times(sets) if all(map(is_protocol, plan.reduced)) else {}
    measured = {p.id: known[_kind(p)] for p in plan.points if _kind(p) in known}
    points = [replace(p, expected_s=measured.get(p.id, (p.expected_s, ""))[0]) for p in plan.points]
    claims = load_claims(root, recipe)
    wrote = writers(row for one in sets for row in one.rows)
    needs = {claim.id: deciding(claim, points, wrote) for claim in claims}
    elsewhere = next((one.environment.gpu_name for one in sets if one.environment.gpu), None)
    gpus = {point.id: _hardware(point, machine, elsewhere or "GPU") for point in points}
    judged = {
        claim.id: need
        for claim in claims
        if (need := needs[claim.id])
        and can_be_judged(claim, {name for one in need for name in gpus[one]}, plan.reduced)
    }
    return Budget(
        limit_s=limit_s,
        points=points,
        needs=judged or {claim: need for claim, need in needs.items() if need},
        measured=frozenset(measured),
        notes=list(_notes([gpu for _, gpu in measured.values()], points, claims, needs, judged)),
    )


def took(run: Run | None, plan: Plan) -> dict[str, float]:
    """The seconds of the points of a plan that are done."""
    done = run.finished() if run else {}
    return {point.id: done[point.key].seconds for point in plan.points if point.key in done}


def spend(
    budget: Budget, done: Callable[[], dict[str, float]], display: Display, width: int
) -> Iterator[Point]:
    """The points to run, one after another; what is chosen and left out is said on the way."""
    said: list[int] = []

    def watch(choice: Choice) -> None:
        points = {point.id: point for point in budget.points}
        display.expect([points[name] for name in choice.points])
        if not said:
            display.say(budget.text(choice, width))
        elif not choice.steps:
            count = f"{len(choice.claims)} of {len(budget.needs)} claims have all their points"
            display.say("\n".join([f"budget: {count}", *budget.left_out(choice)]))
        elif said[-1] != len(choice.claims):
            display.say(f"budget: {len(choice.claims)} claims fit now, not {said[-1]}")
        said.append(len(choice.claims))

    return budget.order(done, time.monotonic, watch)


def _kind(one: Point | StatusRecord) -> Kind:
    return one.experiment, frozenset(one.labels.items()), frozenset(one.argv)


def _times(sets: Sequence[Results]) -> dict[Kind, tuple[float, str]]:
    """The seconds of every kind of point in the first reference set that has it, and its GPU."""
    found: dict[Kind, tuple[float, str]] = {}
    for one in sets:
        each: dict[Kind, list[float]] = {}
        for status in (point.status for point in one.points if point.done):
            each.setdefault(_kind(status), []).append(status.seconds)
        gpu = one.environment.gpu_name or "a CPU"
        found = {kind: (median(seconds), gpu) for kind, seconds in each.items()} | found
    return found


def _hardware(point: Point, machine: Machine, elsewhere: str) -> set[str]:
    """The names of a point's GPUs; of GPUs that are not here, that of the reference results."""
    if point.needs.gpus is None:
        return {"CPU"}
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    return {names.get(device.index, elsewhere) for device in point.needs.gpus.devices}


def _notes(
    gpus: Sequence[str],
    points: Sequence[Point],
    claims: Sequence[Claim],
    needs: Needs,
    judged: Needs,
) -> Iterator[str]:
    """Where the times are from (`gpus`, one a measured point), and which claims do not count."""
    words = [f"{len(gpus)} as measured on {', '.join(sorted(set(gpus)))}"] if gpus else []
    rest = len(points) - len(gpus)
    words += [f"{rest} as the recipe says"] if rest else []
    yield f"times of points: {', '.join(words)}; then at the pace of those that have ended here"
    if others := [claim for claim in claims if cells(claim) and not needs[claim.id]]:
        names = {cell.get("experiment", "") for claim in others for cell in cells(claim)}
        names -= {"", *(point.experiment for point in points)}
        where = ", ".join(sorted(names)) or "no experiment of this run"
        yield f"{len(others)} claims need what this run does not measure: {where}"
    if unscored := sum(bool(needs[claim.id]) and claim.id not in judged for claim in claims):
        few = "" if judged else "; here a claim counts as decided when it gets a value"
        yield f"{unscored} claims cannot be judged at this size or on this machine{few}"
    if unread := sum(not cells(claim) for claim in claims):
        yield f"{unread} claims are not transcribed, so nothing can be run for them"

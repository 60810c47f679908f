"""`ae run --against`: the image of another run and this tree's, point by point, A B B A."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from ae.engines.base import Engine, Outcome, Sink
from ae.engines.secrets import Mask
from ae.errors import EnvironmentFault, Interrupted, UsageError
from ae.host import owner
from ae.host.processes import watched
from ae.images.lockfile import locked
from ae.images.registry import place
from ae.model import ImageRef, Plan, Point
from ae.records.folder import Run, RunStore, results_dir
from ae.records.models import gather
from ae.records.results import Results
from ae.run.display import Display
from ae.run.loop import Work, execute, prepare


def image_of(other: Results, image: ImageRef, engine: Engine, sink: Sink) -> ImageRef:
    """The image that `other` ran in, by its id: tags move. Raises UsageError, EnvironmentFault."""
    origin = other.origins[-1]
    reference = replace(image, override=None).reference
    if (content := origin.images.get(reference)) is None:
        raise UsageError(
            f"{other.name} did not run in {reference}, but in {', '.join(origin.images)}",
            fix="name a run of the same lane on the same kind of machine, without --image",
        )
    wanted = replace(image, content=content, override=None)
    found = engine.made_from(wanted)
    if found is None and locked(wanted) and place(image.root):
        engine.prepare(wanted, sink)
        found = engine.made_from(wanted)
    if found is None:
        source = origin.provenance.source
        revision = source.stated_revision or source.revision or "its revision"
        raise EnvironmentFault(
            f"engine {engine.name} has no image of the sources of {other.name} ({content[:12]})",
            fix=f"check out {revision}, `ae build {image.name}` with Docker, and come back here",
        )
    return replace(wanted, override=found)


def orders(points: Sequence[Point]) -> Iterator[bool]:
    """Whether A goes first, for every point: by turns along the points, and for each of them from
    one process to the next."""
    seen: Counter[int] = Counter()
    for point in points:
        yield (point.repeat + seen[point.repeat]) % 2 == 0
        seen[point.repeat] += 1


def by_turns(
    root: Path,
    secrets: Mapping[str, Path],
    engine: Engine,
    plan: Plan,
    other: Results,
    *,
    verbose: bool,
) -> list[tuple[Run, dict[str, Outcome]]]:
    """Run every point in the image of `other` (A) and as planned (B), each into a run of its own,
    both by the commands of this tree's recipe. Raises as `execute` does; what ended is kept."""
    display = Display([*plan.points] * 2, verbose=verbose)
    theirs = {one: image_of(other, one, engine, display) for one in {p.image for p in plan.points}}
    keys = [f"{point.key} {theirs[point.image].content}".encode() for point in plan.points]
    points = tuple(replace(point, image=theirs[point.image], key=sha256(key).hexdigest())
                   for point, key in zip(plan.points, keys, strict=True))  # fmt: skip
    note = f"measured by turns with another image, at the commands of this tree; see {other.name}"
    found = engine.available()
    about = {"name": engine.name, "detail": found.detail, **found.facts}
    facts = gather(root, about, engine.machine)
    old = facts.model_copy(update={"source": other.origins[-1].provenance.source})
    store = RunStore(results_dir(root))
    twin = replace(plan, points=points, notes=(*plan.notes, note))
    runs = [store.create(twin, old), store.create(plan, facts)]
    stamps = [owner.stamp({owner.RUN: one.name, owner.RECIPE: plan.recipe}) for one in runs]
    folder, mask = root / "recipes" / plan.recipe, Mask(secrets)
    works = [Work(engine, run, display, stamp, folder, secrets, mask)
             for run, stamp in zip(runs, stamps, strict=True)]  # fmt: skip
    outcomes: list[dict[str, Outcome]] = [{}, {}]
    for word in plan.notes:
        display.say(f"note: {word}")
    display.say(f"run {runs[0].name}: A, the image of {other.name}, by turns with")
    display.say(f"run {runs[1].name}: B, as planned; {len(points)} points of each")
    with ExitStack() as stack:
        for run in runs:
            stack.callback(run.close)
            stack.enter_context(watched(run.name))
        stack.callback(display.close)
        if busy := stack.enter_context(owner.measuring(f"{plan.recipe} {runs[1].name}")):
            display.say(f"warning: {busy} measures on this machine, too: timings will be off")
        prepare(plan.points, works[1])
        try:
            for a, b, a_first in zip(points, plan.points, orders(plan.points), strict=True):
                for side in (0, 1) if a_first else (1, 0):
                    outcomes[side] |= execute([(a, b)[side]], works[side])
        except KeyboardInterrupt as stop:
            again = f"ae compare {plan.recipe} {runs[0].name} {runs[1].name} compares what is done"
            raise Interrupted(f"interrupted; {again}, the same command measures anew") from stop
    return list(zip(runs, outcomes, strict=True))

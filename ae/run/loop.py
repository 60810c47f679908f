"""Runs a plan: every point through an engine into the run folder, one after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ae.engines.base import Engine, Job, Outcome
from ae.engines.secrets import Mask
from ae.errors import EnvironmentFault, WorkloadError
from ae.model import Plan, Point, Status
from ae.records.files import read_point
from ae.records.folder import Run
from ae.run.display import Display
from ae.run.logs import LogFiles
from ae.run.parse import parse_point


@dataclass(frozen=True)
class Result:
    """How the points of one run ended."""

    outcomes: Mapping[str, Outcome]  # point id -> outcome, of the points that ran now
    kept: tuple[str, ...]  # points an earlier attempt had finished

    def count(self, *statuses: Status) -> int:
        """Number of points that ended in one of the statuses."""
        return sum(outcome.status in statuses for outcome in self.outcomes.values())

    @property
    def failures(self) -> dict[str, Outcome]:
        """The points whose workload failed, by id."""
        good = (Status.DONE, Status.SKIPPED)
        return {name: o for name, o in self.outcomes.items() if o.status not in good}


def execute(
    plan: Plan,
    engine: Engine,
    run: Run,
    display: Display,
    labels: Mapping[str, str],
    recipe_dir: Path,
    secrets: Mapping[str, Path] | None = None,
) -> Result:
    """Run every point that `run` has not finished. A failed point does not stop the others.

    `recipe_dir` is the recipe's folder, whose parse.py reads the logs of programs not ours;
    `secrets` are the files that the person gave, by name.

    Raises EnvironmentFault (from the engine) and KeyboardInterrupt; finished points are kept.
    """
    finished = run.finished()
    kept = tuple(point.id for point in plan.points if point.key in finished)
    outcomes: dict[str, Outcome] = {}
    files = secrets or {}
    work = _Work(engine, run, display, labels, recipe_dir, files, Mask(files))
    for image in {point.image.reference: point.image for point in plan.points}.values():
        todo = any(p.image == image and p.key not in finished for p in plan.points)
        if todo and not engine.has_image(image):
            display.say(f"preparing {image.reference} for engine {engine.name}")
            engine.prepare(image, display)
    for point in plan.points:
        if point.key not in finished:
            outcomes[point.id] = _execute_one(point, work)
    return Result(outcomes, kept)


@dataclass(frozen=True)
class _Work:
    """What is the same for every point of a run."""

    engine: Engine
    run: Run
    display: Display
    labels: Mapping[str, str]
    recipe_dir: Path
    secrets: Mapping[str, Path]
    mask: Mask


def _execute_one(point: Point, work: _Work) -> Outcome:
    out = work.run.begin(point)
    outcome: Outcome | None = None
    why = "stopped early"
    job = Job(point=point, out=out, labels=work.labels, secrets=work.secrets)
    try:
        work.display.begin(point)
        try:
            with LogFiles(out, work.display) as logs:
                outcome = work.engine.run(job, work.mask.sink(logs), timeout_s=point.timeout_s)
        finally:
            for path in work.mask.strike_out(out):
                work.display.say(f"a secret was struck out of {path.name}, which {point.id} wrote")
        outcome = replace(outcome, reason=work.mask.text(outcome.reason))
        outcome = _validated(outcome, point, out, work.recipe_dir)
        return outcome
    except EnvironmentFault as fault:
        why = fault.message
        raise
    except BrokenPipeError:  # `ae run 2>&1 | head`
        why = "nobody reads the launcher's output any more"
        raise
    except OSError as error:  # of the logs, most often: the disk is full
        why = f"the launcher could not go on: {error.strerror or error}"
        raise EnvironmentFault(
            f"{point.id} was stopped, because its folder cannot be written to: "
            f"{error.strerror or error}",
            fix=f"free disk space, then: ae run {point.recipe} --resume",
        ) from error
    finally:
        # KeyboardInterrupt and EnvironmentFault pass through: the folder still says what happened.
        if outcome is None:
            outcome = Outcome(status=Status.INTERRUPTED, exit_code=None, seconds=0.0, reason=why)
        work.run.finish(point, outcome)
        work.display.end(point, outcome)


def _validated(outcome: Outcome, point: Point, out: Path, recipe_dir: Path) -> Outcome:
    """A point whose log or records cannot be read, or that has none, is not done."""
    if outcome.status is not Status.DONE:
        return outcome
    try:
        if point.parser is not None:
            parse_point(recipe_dir, point, out)
        found = read_point(out)
    except WorkloadError as error:
        return replace(outcome, status=Status.FAILED, reason=error.message)
    if not found.records and not found.skipped:
        return replace(
            outcome,
            status=Status.FAILED,
            reason="the log holds no measurement"
            if point.parser
            else "the workload exited 0 but wrote no record into $AE_OUT/records.jsonl",
        )
    return outcome

"""Runs a plan: every point through an engine into the run folder, one after another."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ae.engines.base import Engine, Job, Outcome, Sink
from ae.engines.secrets import Mask
from ae.errors import EnvironmentFault, WorkloadError
from ae.host import signals
from ae.model import ALL_SKIPPED, Point, Status
from ae.recipe.code import function_of, load_code
from ae.records.files import read_point
from ae.records.folder import Run
from ae.run.display import Display


@dataclass(frozen=True)
class Work:
    """What is the same for every point of a run."""

    engine: Engine
    run: Run
    display: Display
    labels: Mapping[str, str]
    recipe_dir: Path  # its parse.py reads the logs of programs not ours
    secrets: Mapping[str, Path]  # the files that the person gave, by name
    mask: Mask

    def job(self, point: Point, out: Path) -> Job:
        """A point as engines take it."""
        return Job(point=point, out=out, labels=self.labels, secrets=self.secrets)


def prepare(todo: Sequence[Point], work: Work) -> None:
    """Make what points run in. Raises EnvironmentFault."""
    for image in {point.image.reference: point.image for point in todo}.values():
        if not work.engine.has_image(image):
            work.display.say(f"preparing {image.reference} for engine {work.engine.name}")
            work.engine.prepare(image, work.display)


def execute(points: Iterable[Point], work: Work) -> dict[str, Outcome]:
    """Run points for which all is prepared, and return how they ended, by id.

    A failed point does not stop the others. Raises EnvironmentFault (from the engine) and
    KeyboardInterrupt; finished points are kept.
    """
    return {point.id: _execute_one(point, work) for point in points}


def _execute_one(point: Point, work: Work) -> Outcome:
    out = work.run.begin(point)
    outcome = Outcome(status=Status.INTERRUPTED, exit_code=None, seconds=0, reason="stopped early")
    job, started = work.job(point, out), time.monotonic()
    try:
        work.display.begin(point)
        with closing(LogFiles(out, work.display, work.mask)) as logs:
            ended = work.engine.run(job, logs, timeout_s=point.timeout_s)
        ended = replace(ended, reason=work.mask.text(ended.reason))
        outcome = _validated(ended, point, out, work.recipe_dir)
    except EnvironmentFault as fault:
        outcome = replace(outcome, reason=fault.message)
        raise
    except BrokenPipeError:  # `ae run 2>&1 | head`
        outcome = replace(outcome, reason="nobody reads the launcher's output any more")
        raise
    except OSError as error:  # of the logs, most often: the disk is full
        why = error.strerror or error
        outcome = replace(outcome, reason=f"the launcher could not go on: {why}")
        raise EnvironmentFault(
            f"{point.id} was stopped, because its folder cannot be written to: {why}",
            fix=f"free disk space, then: ae run {work.run.name} --resume",
        ) from error
    finally:
        # Whatever passes through, Ctrl-C too: the folder still says what happened.
        with signals.shielded():
            if outcome.status is Status.INTERRUPTED:
                outcome = replace(outcome, seconds=time.monotonic() - started)
            work.run.finish(point, outcome)
            work.display.end(point, outcome)
    work.engine.kept(job)
    return outcome


class LogFiles:
    """A sink that writes `stdout.log` and `stderr.log` whole and passes every line on, both without
    what secrets hold."""

    def __init__(self, folder: Path, forward: Sink, mask: Mask) -> None:
        self._files = {
            name: (folder / f"{name}.log").open("w", encoding="utf-8", errors="replace")
            for name in ("stdout", "stderr")
        }
        self._forward, self._mask = forward, mask
        self._lock = threading.Lock()

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        text = self._mask.text(text)
        with self._lock:
            print(text, file=self._files[stream], flush=True)
        self._forward.line(stream, text)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _validated(outcome: Outcome, point: Point, out: Path, recipe_dir: Path) -> Outcome:
    """A point whose log or records cannot be read, or that has none, is not done."""
    if outcome.status is not Status.DONE:
        return outcome
    try:
        parse_point(recipe_dir, point, out)
        found = read_point(out)
    except WorkloadError as error:
        return replace(outcome, status=Status.FAILED, reason=error.message)
    if found.empty:
        why = "the workload exited 0 but wrote no record into $AE_OUT/records.jsonl"
        why = "the log holds no measurement" if point.parser else why
        return replace(outcome, status=Status.FAILED, reason=why)
    return outcome if found.records else replace(outcome, reason=ALL_SKIPPED)


def parse_point(recipe_dir: Path, point: Point, folder: Path) -> None:
    """Append the records that the recipe's parser finds in `folder` to its records.jsonl.

    The authors' programs print; they do not write our records. Raises WorkloadError when the log
    does not hold what it should, RecipeError when there is no such parser.
    """
    if point.parser is None:
        return
    module = load_code(recipe_dir, "parse", fix=f"write it, with a function {point.parser}")
    function = function_of(module, point.parser)
    try:
        found = function(folder, dict(point.labels))
        lines = [json.dumps(record, allow_nan=False) for record in found]  # type: ignore[attr-defined]
    except ValueError as error:  # how a parser says that the log is not what it knows
        said = f"the log of {point.id} could not be read: {error}"
        raise WorkloadError(said, fix="see the point's stdout.log") from error
    except Exception as error:
        said = f"the parser {point.parser} of {point.recipe} failed on the log of {point.id}"
        said += f": {type(error).__name__}: {error}"
        raise WorkloadError(said, fix=f"mend recipes/{point.recipe}/parse.py") from error
    with (folder / "records.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)

"""The store of run folders: made once, written atomically, never losing what was measured.

`<results>/runs/<recipe>/<utc>-<hash>/` as in docs/contracts.md. What an earlier attempt at a point
left is moved to the run's `attempts/` folder, not deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ae.errors import EnvironmentFault, RecipeError, UsageError, nearest
from ae.host.files import write_atomic
from ae.model import Outcome, Plan, Point, Status
from ae.plan.describe import describe
from ae.records.models import (
    PlanRecord,
    Provenance,
    Resumed,
    RunRecord,
    StatusRecord,
    read,
)


def results_dir(root: Path) -> Path:
    """Where results go: $AE_RESULTS, else `results/` below `root`."""
    return Path(os.environ.get("AE_RESULTS") or root / "results").absolute()


@dataclass
class Run:
    """One run's folder. One launcher at a time writes points into it."""

    path: Path
    _record: RunRecord | None = field(default=None, repr=False, compare=False)
    _started: dict[str, str] = field(default_factory=dict, repr=False)
    _lock: int | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The folder's name, `<utc>-<hash>`."""
        return self.path.name

    @property
    def record(self) -> RunRecord:
        """What run.json holds, read once. Raises UsageError."""
        if self._record is None:
            try:
                self._record = read(self.path / "run.json", RunRecord)
            except (OSError, RecipeError) as error:
                why = error.message if isinstance(error, RecipeError) else "it has no run.json"
                raise UsageError(
                    f"{self.path} is not a run that can be read: {why}",
                    fix="see the other runs there: `ae runs`",
                ) from error
        return self._record

    @property
    def began(self) -> bool:
        """Whether any point was ever started."""
        folder = self.path / "points"
        return folder.is_dir() and any(folder.iterdir())

    def is_claimed(self) -> bool:
        """Whether a launcher writes into it now."""
        try:
            with (self.path / ".lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # never written into, or a file system without locks
            return False
        return False

    def begin(self, point: Point) -> Path:
        """Return the empty folder that a point's output goes to. Raises EnvironmentFault."""
        self._claim()
        folder = self._temporary(point)
        with _writing(self.path):
            if folder.exists():  # a launcher was killed here
                self._set_aside(folder, point.id)
            folder.mkdir(parents=True)
        self._started[point.id] = _now()
        return folder

    def finish(self, point: Point, outcome: Outcome) -> Path:
        """Write status.json and give the point's folder its final name. Raises EnvironmentFault."""
        temporary, final = self._temporary(point), self.path / "points" / point.id
        status = StatusRecord(
            id=point.id,
            key=point.key,
            status=outcome.status,
            exit_code=outcome.exit_code,
            seconds=outcome.seconds,
            reason=outcome.reason,
            started=self._started.get(point.id),
            ended=_now(),
            attempt=self._attempts(point.id) + (2 if final.exists() else 1),
            experiment=point.experiment,
            labels=dict(point.labels),
            variants=point.variants,
            repeat=point.repeat,
            argv=point.argv,
            image=point.image.reference,
            image_id=outcome.image_id,
            honoured=dict(outcome.honoured),
        )
        with _writing(self.path):
            write_atomic(temporary / "status.json", status.text())
            if final.exists():
                self._set_aside(final, point.id)
            temporary.rename(final)
        return final

    def statuses(self) -> dict[str, StatusRecord]:
        """The status of every point that has ended, by id; a damaged one counts as not run."""
        found = {}
        for path in sorted((self.path / "points").glob("[!.]*/status.json")):
            try:
                found[path.parent.name] = read(path, StatusRecord)
            except (OSError, RecipeError):
                continue
        return found

    def finished(self) -> dict[str, StatusRecord]:
        """The status of every point that is done, by point key."""
        return {s.key: s for s in self.statuses().values() if s.status is Status.DONE}

    def resume(self, plan: Plan, provenance: Provenance) -> None:
        """Put the plan that is now followed into run.json, and where it is resumed from."""
        self._claim()
        earlier = self.record.resumed
        self.update(
            plan=PlanRecord.model_validate(describe(plan)),
            resumed=(*earlier, Resumed(at=_now(), provenance=provenance)),
        )

    def update(self, **facts: Any) -> None:
        """Write run.json with other fields of RunRecord. Raises EnvironmentFault."""
        record = self.record.model_copy(update=facts)
        with _writing(self.path):
            write_atomic(self.path / "run.json", record.text())
        self._record = record

    def close(self) -> None:
        """Let another launcher write into this run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _claim(self) -> None:
        """Hold the run's lock until `close` or the end of this process."""
        if self._lock is not None:
            return
        with _writing(self.path):
            lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise UsageError(
                f"another `ae run` is writing into {self.name}",
                fix="wait until it ends, or start a run of its own without --resume",
            ) from error
        except OSError:  # a file system without locks: as before, only unguarded
            os.close(lock)
            return
        self._lock = lock

    def _temporary(self, point: Point) -> Path:
        return self.path / "points" / f".{point.id}.tmp"

    def _attempts(self, point_id: str) -> int:
        folder = self.path / "attempts" / point_id
        return len(list(folder.iterdir())) if folder.is_dir() else 0

    def _set_aside(self, folder: Path, point_id: str) -> None:
        number = self._attempts(point_id) + 1
        while (target := self.path / "attempts" / point_id / str(number)).exists():
            number += 1
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)


@dataclass(frozen=True)
class RunStore:
    """All runs below a results folder."""

    results: Path

    def folder(self, recipe: str) -> Path:
        """Where the runs of a recipe lie."""
        return self.results / "runs" / recipe

    def create(self, plan: Plan, provenance: Provenance) -> Run:
        """Make a run folder with a name of its own and its run.json. Raises EnvironmentFault."""
        created = _now()
        utc = created[:19].replace("-", "").replace(":", "") + "Z"
        described = describe(plan)
        parent = self.folder(plan.recipe)
        with _writing(self.results):
            parent.mkdir(parents=True, exist_ok=True)
            attempt = 0
            while True:
                seed = json.dumps([described, created, os.getpid(), attempt], sort_keys=True)
                name = f"{utc}-{hashlib.sha256(seed.encode()).hexdigest()[:8]}"
                try:
                    (parent / name).mkdir()
                    break
                except FileExistsError:
                    attempt += 1
            record = RunRecord(
                recipe=plan.recipe,
                name=name,
                created=created,
                plan=PlanRecord.model_validate(described),
                provenance=provenance,
            )
            write_atomic(parent / name / "run.json", record.text())
            (parent / name / "points").mkdir()
        return Run(parent / name, record)

    def list(self, recipe: str) -> list[Run]:
        """The runs of a recipe, oldest first; what cannot be read is no run."""
        runs = []
        for path in self.folder(recipe).glob("*/run.json"):
            try:
                runs.append(Run(path.parent, read(path, RunRecord)))
            except (OSError, RecipeError):
                continue
        return sorted(runs, key=lambda run: run.record.created)

    def latest(self, recipe: str) -> Run | None:
        """The newest run of a recipe that started a point."""
        return next((run for run in reversed(self.list(recipe)) if run.began), None)

    def find(self, recipe: str, name: str | Path | None = None) -> Run:
        """The run of that name or folder, by default the latest. Raises UsageError."""
        if name is None:
            run = self.latest(recipe)
            if run is None:
                raise UsageError(
                    f"there is no run of {recipe} yet", fix=f"start one: ae run {recipe}"
                )
            return run
        for path in (self.folder(recipe) / str(name), Path(name)):
            if (path / "run.json").is_file():
                run = Run(path.resolve())
                if run.record.recipe != recipe:
                    raise UsageError(
                        f"{name} is a run of {run.record.recipe}, not of {recipe}",
                        fix=f"name a run of {recipe}",
                    )
                return run
        known = [run.name for run in self.list(recipe)]
        raise UsageError(
            f"there is no run '{name}' of {recipe}; {nearest(str(name), known)}",
            fix=f"the runs lie in {self.folder(recipe)}",
        )


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise EnvironmentFault(
            f"cannot write {where}: {error.strerror or error}",
            fix="free disk space or mend the permissions there, or set AE_RESULTS elsewhere",
        ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")

"""The store of run folders: made once, written atomically, never losing what was measured.

`<results>/runs/<recipe>/<utc>-<hash>/` as in docs/contracts.md. What an earlier attempt at a point
left is moved to the run's `attempts/` folder, not deleted.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from ae.errors import EnvironmentFault, UsageError, nearest
from ae.host import owner
from ae.host.files import lock, write_atomic
from ae.model import Outcome, Plan, Point, Status
from ae.records.files import RecordsFault, read_object, read_point
from ae.records.models import PlanRecord, Provenance, Resumed, RunRecord, StatusRecord, describe

NAME = "AE_RUN_NAME"  # the next run's, from a launcher that has made its folder
RESERVE_BYTES = 1 << 16  # held while a point runs: its status is written also on a full disk


def results_dir(root: Path) -> Path:
    """Where results go: $AE_RESULTS, else `results/` below `root`."""
    return Path(os.environ.get("AE_RESULTS") or root / "results").absolute()


def is_locked(path: Path) -> bool:
    """Whether somebody holds a lock on a file."""
    try:
        with path.open() as file:
            return not lock(file, fcntl.LOCK_SH)
    except OSError:  # never written into
        return False


def new_name(created: str = "") -> str:
    """A name that no other run has, `<utc>-<hash>`."""
    utc = (created or _now())[:19].replace("-", "").replace(":", "") + "Z"
    return f"{utc}-{secrets.token_hex(4)}"


@dataclass
class Run:
    """One run's folder. One launcher at a time writes points into it."""

    path: Path
    _started: dict[str, str] = field(default_factory=dict, repr=False)
    _lock: int | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The folder's name, `<utc>-<hash>`."""
        return self.path.name

    @cached_property
    def record(self) -> RunRecord:
        """What run.json holds. Raises RecordsFault."""
        return read_object(self.path / "run.json", RunRecord)

    @property
    def created(self) -> str:
        """UTC, ISO 8601; where run.json cannot be read, as the name says, else the folder's age."""
        with suppress(RecordsFault):
            return self.record.created
        with suppress(ValueError):  # the last of its second
            second = datetime.fromisoformat(self.name.partition("-")[0])
            return second.replace(microsecond=999_999).isoformat()
        return datetime.fromtimestamp(self.path.stat().st_mtime, UTC).isoformat()

    @property
    def began(self) -> bool:
        """Whether any point was ever started."""
        return any((self.path / "points").glob("*"))

    def is_claimed(self) -> bool:
        """Whether a launcher writes into it now."""
        return is_locked(self.path / ".lock")

    def begin(self, point: Point) -> Path:
        """Return the empty folder that a point's output goes to. Raises EnvironmentFault."""
        self.claim()
        folder = self.folder_of(point)
        with _writing(self.path):
            if folder.exists():  # a launcher was killed here
                self._set_aside(folder, point.id)
            with (self.path / ".reserve").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
            folder.mkdir(parents=True)
        self._started[point.id] = _now()
        return folder

    def finish(self, point: Point, outcome: Outcome) -> Path:
        """Write status.json and give the point's folder its final name. Raises EnvironmentFault."""
        temporary, final = self.folder_of(point), self.path / "points" / point.id
        now = {
            "started": self._started.get(point.id),
            "ended": _now(),
            "attempt": self._attempts(point.id) + (2 if final.exists() else 1),
            "image": point.image.reference,
        }
        status = StatusRecord.model_validate(vars(point) | vars(outcome) | now)
        with _writing(self.path):
            (self.path / ".reserve").unlink(missing_ok=True)
            write_atomic(temporary / "status.json", status.text())
            if final.exists():
                self._set_aside(final, point.id)
            temporary.rename(final)
        return final

    def statuses(self) -> dict[str, StatusRecord]:
        """The status of every point that has ended, by id.

        A damaged one, or a done one whose records are damaged or gone, counts as not run.
        """
        found = {}
        for path in sorted((self.path / "points").glob("[!.]*/status.json")):
            with suppress(RecordsFault):
                status = read_object(path, StatusRecord)
                if status.status is not Status.DONE or not read_point(path.parent).empty:
                    found[path.parent.name] = status
        return found

    def finished(self) -> dict[str, StatusRecord]:
        """The status of every point that is done, by point key."""
        return {s.key: s for s in self.statuses().values() if s.status is Status.DONE}

    def resume(self, plan: Plan, provenance: Provenance) -> None:
        """Put the plan that is now followed into run.json, and where it is resumed from."""
        self.claim()
        again = Resumed(at=_now(), provenance=provenance)
        plan_now = PlanRecord.model_validate(describe(plan))
        update = {"plan": plan_now, "resumed": (*self.record.resumed, again)}
        self.record = self.record.model_copy(update=update)
        self.write()

    def write(self) -> None:
        """Write run.json. Raises EnvironmentFault."""
        with _writing(self.path):
            write_atomic(self.path / "run.json", self.record.text())

    def close(self) -> None:
        """Let another launcher write into this run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def claim(self) -> None:
        """Hold the run's lock, which says whose it is, until `close` or this process' end."""
        if self._lock is not None:
            return
        with _writing(self.path):
            file = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        if not lock(file):
            os.close(file)
            fix = f"ae wait {self.name}, or start a run of its own without --resume"
            raise UsageError(f"another `ae run` is writing into {self.name}", fix=fix)
        os.truncate(file, 0)
        os.write(file, owner.to_environment(owner.stamp({owner.RUN: self.name})).encode())
        (self.path / "exit").unlink(missing_ok=True)  # of an earlier launcher
        self._lock = file

    def folder_of(self, point: Point) -> Path:
        """Where a point's output goes while it runs."""
        return self.path / "points" / f".{point.id}.tmp"

    def _attempts(self, point_id: str) -> int:
        return len(list((self.path / "attempts" / point_id).glob("*")))

    def _set_aside(self, folder: Path, point_id: str) -> None:
        target = self.path / "attempts" / point_id / str(self._attempts(point_id) + 1)
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)


@dataclass(frozen=True)
class RunStore:
    """All runs below a results folder."""

    results: Path

    def create(self, plan: Plan, provenance: Provenance) -> Run:
        """Make a run folder with a name of its own and its run.json. Raises EnvironmentFault."""
        created = _now()
        path = self.results / "runs" / plan.recipe / (os.environ.pop(NAME, "") or new_name(created))
        run = Run(path)
        run.record = RunRecord(
            recipe=plan.recipe,
            name=path.name,
            created=created,
            plan=PlanRecord.model_validate(describe(plan)),
            provenance=provenance,
        )
        with _writing(self.results):
            (path / "points").mkdir(parents=True)
        run.write()
        return run

    def list(self, recipe: str) -> list[Run]:
        """The runs of a recipe, oldest first, also those whose run.json cannot be read."""
        runs = [Run(path.parent) for path in self.results.glob(f"runs/{recipe}/*/run.json")]
        return sorted(runs, key=lambda run: (run.created, run.name))

    def latest(self, recipe: str) -> Run | None:
        """The newest run of a recipe that started a point."""
        return next((run for run in reversed(self.list(recipe)) if run.began), None)

    def resumable(self, word: str, recipes: Collection[str]) -> Run:
        """The latest run of the recipe of that name, else the run. Raises UsageError."""
        return self.find(word) if word in recipes else self.find("*", word, recipes, "recipe")

    def find(
        self, recipe: str, name: str | None = None, others: Collection[str] | None = None,
        kind: str = "reference set",
    ) -> Run:  # fmt: skip
        """The run of that name or folder; without a name the latest of `recipe`. `*` is any recipe,
        `others` of that kind could be meant, too. Raises UsageError."""
        found = [one.parent for one in self.results.glob("runs/*/*/run.json")]
        if name is None:
            if run := self.latest(recipe):
                return run
            raise UsageError(f"no run of {recipe} has begun yet", fix=f"ae run {recipe}")
        known = [path for path in found if recipe in ("*", path.parent.name)]
        path = {one.name: one for one in (*found, *known)}.get(name) or Path(name).resolve()
        if not (path / "run.json").is_file():
            of = "" if others is None else f" or {kind}" + f" of {recipe}" * (recipe != "*")
            names = [*(one.name for one in known), *(others or ())]
            said = f"'{name}' is no run{of}; {nearest(name, names)}"
            raise UsageError(said, fix=f"runs lie in {self.results / 'runs'}")
        run = Run(path)
        if recipe not in ("*", run.record.recipe):
            said = f"{name} is a run of {run.record.recipe}, not of {recipe}"
            raise UsageError(said, fix=f"name a run of {recipe}, as `ae runs {recipe}` lists them")
        return run


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

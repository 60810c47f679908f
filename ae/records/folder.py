"""The store of run folders: made once, written atomically, never losing what was measured.

`<results>/runs/<recipe>/<utc>-<hash>/` as in docs/contracts.md. What an earlier attempt at a point
left is moved to the run's `attempts/` folder, not deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ae.errors import EnvironmentFault, UsageError, nearest
from ae.model import Plan, Point, Status
from ae.plan.planner import describe

if TYPE_CHECKING:
    from ae.engines.base import Outcome

SCHEMA = 1
_RESERVE = 64 * 1024  # bytes kept free while a point runs, so that its end can be written down


def results_dir(root: Path) -> Path:
    """Where results go: $AE_RESULTS, else `results/` below `root`."""
    return Path(os.environ.get("AE_RESULTS") or root / "results").absolute()


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

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return str(self.facts["recipe"])

    @property
    def facts(self) -> dict[str, Any]:
        """What run.json holds (recipe, created, plan, provenance ...). Raises UsageError."""
        try:
            data = json.loads((self.path / "run.json").read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.path} is not a run: run.json cannot be read", fix="see the other runs there"
            ) from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise UsageError(
                f"{self.path}/run.json is not of schema {SCHEMA}",
                fix="read it with the revision of ae that wrote it",
            )
        return data

    def begin(self, point: Point) -> Path:
        """Return the empty folder that a point's output goes to. Raises EnvironmentFault."""
        self._claim()
        folder = self._temporary(point)
        with _writing(self.path):
            if folder.exists():  # a launcher was killed here
                self._set_aside(folder, point.id)
            folder.mkdir(parents=True)
            with self._reserve.open("wb") as file:
                file.write(bytes(_RESERVE))
        self._started[point.id] = _now()
        return folder

    def finish(self, point: Point, outcome: Outcome) -> Path:
        """Write status.json and give the point's folder its final name. Raises EnvironmentFault."""
        temporary, final = self._temporary(point), self.path / "points" / point.id
        status = {
            "schema": SCHEMA,
            "id": point.id,
            "key": point.key,
            "status": str(outcome.status),
            "exit_code": outcome.exit_code,
            "seconds": outcome.seconds,
            "reason": outcome.reason,
            "started": self._started.get(point.id),
            "ended": _now(),
            "attempt": self._attempts(point.id) + (2 if final.exists() else 1),
            "experiment": point.experiment,
            "labels": dict(point.labels),
            "variants": list(point.variants),
            "repeat": point.repeat,
            "argv": list(point.argv),
            "image": point.image.reference,
            "image_id": outcome.image_id,
            "honoured": dict(outcome.honoured),
        }
        self._reserve.unlink(missing_ok=True)
        with _writing(self.path):
            _write_json(temporary / "status.json", status)
            if final.exists():
                self._set_aside(final, point.id)
            temporary.rename(final)
        return final

    def statuses(self) -> dict[str, dict[str, Any]]:
        """The status of every point that has ended, by point id."""
        found = {}
        for path in sorted((self.path / "points").glob("[!.]*/status.json")):
            try:
                found[path.parent.name] = json.loads(path.read_bytes())
            except ValueError:  # damaged: the point counts as not run
                continue
        return found

    def finished(self) -> dict[str, dict[str, Any]]:
        """The status of every point that is done, by point key."""
        return {s["key"]: s for s in self.statuses().values() if s["status"] == Status.DONE}

    def resume(self, plan: Plan, provenance: Mapping[str, Any]) -> None:
        """Put the plan that is now followed into run.json, and where it is resumed from."""
        self._claim()
        earlier = self.facts.get("resumed", [])
        now = {"at": _now(), "provenance": dict(provenance)}
        self.update(plan=describe(plan), resumed=[*earlier, now])

    def update(self, **facts: Any) -> None:
        """Put further facts into run.json, e.g. what resumed it. Raises EnvironmentFault."""
        data = self.facts | facts
        with _writing(self.path):
            _write_json(self.path / "run.json", data)

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

    @property
    def _reserve(self) -> Path:
        return self.path / ".reserve"

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

    def create(self, recipe: str, plan: Plan, provenance: Mapping[str, Any]) -> Run:
        """Make a run folder with a name of its own and its run.json. Raises EnvironmentFault."""
        created = _now()
        utc = created[:19].replace("-", "").replace(":", "") + "Z"
        described = describe(plan)
        parent = self.folder(recipe)
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
            run = Run(parent / name)
            facts = {
                "schema": SCHEMA,
                "recipe": recipe,
                "name": name,
                "created": created,
                "plan": described,
                "provenance": dict(provenance),
            }
            _write_json(run.path / "run.json", facts)
            (run.path / "points").mkdir()
        return run

    def list(self, recipe: str) -> list[Run]:
        """The runs of a recipe, oldest first."""
        folder = self.folder(recipe)
        if not folder.is_dir():
            return []
        created = {}
        for path in folder.iterdir():
            try:
                created[path] = str(Run(path).facts["created"])
            except UsageError:  # not a run, or one of another schema
                continue
        return [Run(path) for path in sorted(created, key=lambda path: created[path])]

    def latest(self, recipe: str) -> Run | None:
        """The newest run of a recipe."""
        runs = self.list(recipe)
        return runs[-1] if runs else None

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
                if run.facts["recipe"] != recipe:
                    raise UsageError(
                        f"{name} is a run of {run.facts['recipe']}, not of {recipe}",
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


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file that is either the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(data, indent=2, default=str) + "\n", encoding="utf-8")
    temporary.replace(path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")

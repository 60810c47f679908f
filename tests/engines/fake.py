"""An engine without processes: it performs acts in memory, and keeps the whole contract."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ae.engines.base import Engine, Job, Leftover
from ae.engines.output import LastWords, classify
from ae.errors import EnvironmentFault
from ae.host import owner
from ae.host.machine import require_disk
from ae.model import Availability, Flavour, ImageRef, Machine, Outcome, Point, Sink
from tests.engines.acts import PROGRAM


class FakeEngine(Engine):
    """Performs the acts of tests/engines/acts.py; `gpus` says whether it grants any."""

    name = "fake"
    grace_s = 0.3

    def __init__(self, *, gpus: int = 0) -> None:
        super().__init__()
        self._gpus = gpus
        self._images: set[tuple[str, Flavour, str]] = set()
        self._running: dict[str, dict[str, str]] = {}
        self._removed: dict[str, threading.Event] = {}
        self._numbers = itertools.count()
        self.machine = Machine()

    def _answer(self) -> Availability:
        return Availability(ok=True, detail="fake engine", facts={"endpoint": "memory"})

    def has_image(self, image: ImageRef) -> bool:
        return (image.reference, image.flavour, image.content) in self._images

    def prepare(self, image: ImageRef, sink: Sink) -> None:
        if image.override == "ae/none:cpu":
            raise EnvironmentFault("there is no such image", fix="name another")
        sink.line("stdout", f"prepared {image.reference}")
        self._images.add((image.reference, image.flavour, image.content))

    def run(self, job: Job, sink: Sink, timeout_s: float) -> Outcome:
        require_disk(job.out, job.point.disk_bytes, f"point {job.point.id}")
        wanted = job.point.needs.gpus
        if wanted is not None and wanted.count > self._gpus:
            raise EnvironmentFault(f"{wanted.count} GPUs asked for, {self._gpus} there", fix="--")
        name = f"fake-{next(self._numbers)}"
        self._running[name] = owner.stamp(job.labels)
        self._removed[name] = threading.Event()
        words = LastWords(sink)
        started = time.monotonic()
        try:
            performance = _Performance(job, words, started + timeout_s, self._removed[name])
            code = performance.play(self.grace_s)
        finally:
            del self._running[name], self._removed[name]
        status, reason = classify(
            code,
            oom=performance.oom,
            timed_out=performance.timed_out,
            timeout_s=timeout_s,
            last_words=words.last,
        )
        return Outcome(
            status=status,
            exit_code=code,
            seconds=time.monotonic() - started,
            reason=reason,
            image_id="fake",
            honoured={"engine": self.name},
        )

    def leftovers(self) -> list[Leftover]:
        return [
            Leftover(
                engine=self.name,
                kind="process",
                id=name,
                run=labels[owner.RUN],
                owner_alive=owner.alive(labels),
            )
            for name, labels in self._running.items()
        ]

    def remove(self, leftover: Leftover) -> None:
        if event := self._removed.get(leftover.id):
            event.set()

    def equivalent(self, job: Job) -> tuple[str, ...]:
        return job.point.argv

    def shell(
        self, point: Point, out: Path, files: Mapping[str, Path] | None = None
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        return ("sh",), {"PATH": "/usr/bin:/bin", "AE_OUT": str(out)}


class _Performance:
    """One job: plays its acts one after another and knows how it ended."""

    def __init__(self, job: Job, sink: Sink, deadline: float, removed: threading.Event) -> None:
        self._job = job
        self._sink = sink
        self._deadline = deadline
        self._removed = removed
        self._listens = self._deaf = False
        self.timed_out = self.oom = False

    def play(self, grace_s: float) -> int:
        """Return the exit code as a shell says it."""
        argv = self._job.point.argv
        if argv[:3] != ("python3", "-c", PROGRAM):
            self._sink.line("stderr", f"{argv[0]}: not found")
            return 127
        return next((code for code in self._codes(argv[3:], grace_s) if code is not None), 0)

    def _codes(self, acts: tuple[str, ...], grace_s: float) -> Iterator[int | None]:
        for act in acts:
            name, _, rest = act.partition(":")
            yield self._sleep(float(rest), grace_s) if name == "sleep" else self._do(name, rest)

    def _do(self, name: str, rest: str) -> int | None:
        job = self._job
        own = {"AE_OUT": str(job.out), "AE_POINT": job.point.id, **job.point.env}
        prints = {
            "print": rest,
            "env": own.get(rest, "unset"),
            "home": "home ok",
            "noise": "\ufffd",
        }
        if name in prints:
            self._sink.line("stdout", prints[name])
        elif name == "error":
            self._sink.line("stderr", rest)
        elif name == "write":
            file, _, text = rest.partition(":")
            (job.out / file).write_text(text)
        elif name == "eat":
            limit = job.point.needs.memory_bytes
            self.oom = limit is not None and int(rest) > limit
            return 137 if self.oom else None
        self._listens |= name == "listen"
        self._deaf |= name == "deaf"
        codes = {"exit": rest, "signal": str(128 + int(rest)) if name == "signal" else ""}
        return int(codes[name]) if name in codes else None

    def _sleep(self, seconds: float, grace_s: float) -> int | None:
        """Sleep until the end, the deadline or the removal; a Ctrl-C is told to who listens."""
        try:
            return self._wait(seconds, grace_s)
        except KeyboardInterrupt:
            if self._listens:
                (self._job.out / "cleaned").touch()
            raise

    def _wait(self, seconds: float, grace_s: float) -> int | None:
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            if self._removed.wait(min(0.02, end - now)):
                return 137
            if now >= self._deadline:
                self.timed_out = True
                if self._listens:
                    (self._job.out / "cleaned").touch()
                    return 9
                if not self._deaf:
                    return 143
                time.sleep(grace_s)
                return 137
        return None

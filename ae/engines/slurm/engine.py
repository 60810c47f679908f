"""The engine `slurm`: points are batch jobs, which go on when the launcher ends.

A job works in a folder of its own beside the points of the run, `.slurm/ae-<run>-<point>-<try>`,
which is made before the job is handed in. Its end is the file `end.json` there. A launcher that
comes later finds the folder, and takes the job up instead of handing it in again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ae.engines.base import Availability, Check, Engine, Job, Leftover, Outcome, Shell, Sink
from ae.engines.local import LocalEngine
from ae.engines.output import LastWords, classify
from ae.engines.slurm import folder as files
from ae.engines.slurm import probe, queue, script
from ae.engines.slurm.follow import Follower
from ae.engines.slurm.images import Images
from ae.engines.slurm.script import Batch, Share
from ae.engines.spec import refused_by
from ae.errors import EnvironmentFault
from ae.host import owner
from ae.host.files import write_atomic
from ae.host.machine import require_disk
from ae.images.content import BuildOptions
from ae.model import ImageRef, Machine, Point
from ae.records.folder import Run

AHEAD = 50  # jobs that are handed in at a time


class SlurmEngine(Engine):
    """Runs points as jobs of the cluster whose sbatch, squeue and scancel are on PATH."""

    name = "slurm"
    outlives = True
    no_gpus = (
        "Slurm lists no GPU in this partition",
        "name another: SBATCH_PARTITION; see `sinfo -o '%P %N %G'`",
    )

    def __init__(self, *, build: BuildOptions | None = None) -> None:
        super().__init__(build=build)
        self._coming: list[Job] = []  # may be handed in before they are asked for
        self._open: dict[Path, Batch] = {}  # by the point's folder: its outcome is not kept yet

    @cached_property
    def _follower(self) -> Follower:
        return Follower(queue.wanted().poll_s)

    # -- the cluster -----------------------------------------------------------------------------

    def available(self) -> Availability:
        return self._available

    @cached_property
    def _available(self) -> Availability:
        return super().available()

    def _answer(self) -> Availability:
        facts = queue.facts()
        gpus = "GPUs" if facts["gpu_route"] else "no GPU"
        said = f"Slurm {facts['version']}, {facts['endpoint']}, {gpus}"
        return Availability(ok=True, detail=said, facts=facts)

    @cached_property
    def _found(self) -> probe.Found:
        return self._look()

    def _look(self, *, fresh: bool = False) -> probe.Found:
        if not (found := self.available()).ok:
            raise EnvironmentFault(found.detail, fix=found.fix)
        return probe.look(self._follower, gpus=bool(found.facts["gpu_route"]), fresh=fresh)

    @cached_property
    def machine(self) -> Machine:
        return self._found.machine()

    def findings(self) -> list[Check]:
        self._found = self._look(fresh=True)
        return list(probe.findings(self._found, self.available().facts, queue.wanted().runtime))

    # -- images ----------------------------------------------------------------------------------

    @cached_property
    def _runtime(self) -> str:
        return queue.wanted().runtime or self._found.runtimes[0]

    @cached_property
    def _images(self) -> Images:
        return Images(self._runtime, self._build)

    def has_image(self, image: ImageRef) -> bool:
        if self._runtime == "none":
            return image.override is None and LocalEngine().has_image(image)
        return self._images.has(image)

    def prepare(self, image: ImageRef, sink: Sink) -> None:
        if self._runtime == "none":
            LocalEngine(build=self._build).prepare(image, sink)
        else:
            self._images.make(image, sink)

    # -- points ----------------------------------------------------------------------------------

    def ahead(self, jobs: Sequence[Job]) -> None:
        self._coming = list(jobs)
        self._hand_in_ahead()

    def run(self, job: Job, sink: Sink, timeout_s: float) -> Outcome:
        require_disk(job.out, job.point.disk_bytes, f"point {job.point.id}")
        self._coming = [one for one in self._coming if one.out != job.out]
        try:
            for _ in range(2):
                batch = self._handed_in(job, timeout_s)
                words = LastWords(sink)
                if (end := self._follower.end_of(batch, words)) is not None:
                    return self._outcome(batch, end, words.last, job)
                files.close(batch.folder, "lost")
                sink.line("stderr", f"ae: {batch.name} is lost: Slurm has forgotten it")
                del self._open[job.out]
            end = {"why": "lost twice: Slurm has forgotten it, and it left no end file"}
            return self._outcome(batch, end, "", job)
        except BaseException:
            # All at once: what waits behind a job that is cancelled alone would begin.
            here, left = self._open.get(job.out), list(self._open.values())
            if not self._cancel(left):
                sink.line("stderr", "ae: jobs of this run may be left: `ae clean` removes them")
            if here:
                with suppress(OSError):  # a full disk may be why we are here
                    files.fetch(here.folder, job.out)
            raise

    def kept(self, job: Job) -> None:
        if batch := self._open.pop(job.out, None):
            files.drop(batch.folder)
        self._hand_in_ahead()

    def close(self) -> None:
        """Cancel what was handed in ahead of its turn."""
        self._coming = []
        self._cancel(list(self._open.values()))

    def _handed_in(self, job: Job, timeout_s: float) -> Batch:
        """The job of a point: the one that was handed in, by whatever launcher, else a new one."""
        stem = re.sub(r"[^\w.-]", "-", f"ae-{job.labels.get(owner.RUN, '')}-{job.point.id}")
        top = job.out.parent / ".slurm"
        ends = (path.name.removeprefix(f"{stem}-") for path in top.glob(f"{stem}-*"))
        last = max((int(end) for end in ends if end.isdigit()), default=0)
        earlier = self._batch(job, top / f"{stem}-{last}", timeout_s)
        path = earlier.folder / "job.sh"
        if path.is_file() and not files.is_closed(earlier.folder):
            if script.identity(path.read_text()) == script.identity(script.script(earlier)):
                self._open[job.out] = earlier
                self._follower.hand_in(earlier)
                return earlier
            self._cancel([earlier])  # of other sources, another node or another image
        batch = replace(earlier, folder=top / f"{stem}-{last + 1}")
        batch.folder.mkdir(parents=True)
        self._open[job.out] = batch
        write_atomic(batch.folder / "job.sh", script.script(batch))
        self._follower.hand_in(batch)
        return batch

    def _hand_in_ahead(self) -> None:
        """Hand in what comes next, for the cluster to run meanwhile."""
        while self._coming and len(self._open) < AHEAD:
            job = self._coming.pop(0)
            try:
                self._handed_in(job, job.point.timeout_s)
            except EnvironmentFault:  # a limit, most often: it is handed in, or said, in its turn
                self._cancel([one for one in (self._open.get(job.out),) if one])
                self._coming = []

    def _cancel(self, batches: Sequence[Batch]) -> bool:
        """Cancel jobs; whether all are gone. What is complete is for a later launcher to take."""
        running = [one for one in batches if not files.read_end(one.folder)]
        gone = not batches or self._follower.cancel(batches)
        for one in running:
            end = files.read_end(one.folder)
            if gone and (end is None or end["stopped"]):
                files.close(one.folder, "cancelled")
        for one in batches:
            self._open.pop(one.job.out, None)
        return gone

    def _batch(self, job: Job, folder: Path, timeout_s: float) -> Batch:
        point, image, ident = job.point, "", ""
        gpus = point.needs.gpus.count if point.needs.gpus else 0
        if self._runtime != "none":
            image, ident, _ = self._images.about(point.image)
        elif needed := [one.name for one in point.needs.secrets if not one.optional]:
            raise EnvironmentFault(
                f"{point.id} needs the secret '{needed[0]}', which only a container can be given",
                fix="use nodes with apptainer, pyxis or podman; see `ae doctor --engine slurm`",
            )
        share = self._found.share(gpus, point.needs.memory_bytes, shared=queue.wanted().shared)
        return Batch(
            job=job, folder=folder, share=share, runtime=self._runtime, image=image,
            image_id=ident, timeout_s=timeout_s, grace_s=self.grace_s,
            beat_s=self._follower.poll_s,
        )  # fmt: skip

    def _outcome(self, batch: Batch, end: Mapping[str, Any], last: str, job: Job) -> Outcome:
        """An end in the words of the run, with what the job has made."""
        stopped, code, why = end.get("stopped"), end.get("code"), end.get("why", "")
        gpus = files.gpus(batch.folder)
        refused, fix = end.get("refused"), "see `ae doctor --engine slurm`"
        known = {gpu.name for gpu in self.machine.gpus}
        if other := {name for name in gpus.values() if known and name not in known}:
            refused = f"its GPUs are {', '.join(other)}, and the plan is for {', '.join(known)}"
            fix = "name nodes of one kind: SBATCH_CONSTRAINT, SBATCH_PARTITION"
        if refused:
            files.close(batch.folder, "refused")
            raise EnvironmentFault(f"{job.point.id} on {end.get('node')}: {refused}", fix=fix)
        state = end.get("state") or ""
        late = bool(end.get("late") or state == "TIMEOUT" or (stopped and end.get("limit")))
        shown = 143 if stopped and not code else 1 if code is None else code
        status, reason = classify(
            shown,
            oom=state == "OUT_OF_MEMORY" or (code == 137 and end.get("oom", 0) > 0),
            timed_out=late,
            timeout_s=batch.timeout_s,
            last_words=last,
        )
        if stopped and not late:
            why = f"stopped by Slurm{f' ({state})' * bool(state)}: cancelled, or the node is needed"
        files.fetch(batch.folder, job.out)
        asked = script.asked_in((batch.folder / "job.sh").read_text())
        facts: dict[str, object] = {
            "engine": f"Slurm {self.available().facts['version']}",
            "runtime": batch.runtime,
            "shared_node": "--exclusive" not in asked,
            "asked": asked,
            "gpus": gpus,
            "refused": refused_by(batch.runtime, job.point),
        }
        ident = f"environment {job.point.image.name}-{job.point.image.content[:12]}"
        if batch.runtime != "none":
            _, made_of, digest = self._images.about(job.point.image)
            ident, facts["file_sha256"] = made_of or f"sha256:{digest}", digest
        kept = ("job", "node", "restarts", "cpus", "memory", "state")
        return Outcome(
            status=status,
            exit_code=code,
            reason=why or reason,
            image_id=ident,
            seconds=max(0.0, end.get("ended", 0.0) - end.get("started", 0.0)),
            honoured=facts | {key: end[key] for key in kept if key in end},
        )

    # -- what earlier launchers left, and by hand ------------------------------------------------

    def leftovers(self) -> list[Leftover]:
        """Jobs that wait or run, of living launchers too, and of those that may come back."""
        found = []
        for folder, one in queue.jobs().items():
            if one.lives and (labels := owner.from_environment(one.comment)):
                left = Leftover.of(self.name, "job", str(folder), labels)
                again = Run(folder.parents[2]).is_claimed()  # another launcher has taken it up
                found.append(replace(left, owner_alive=left.owner_alive or again))
        return found

    def remove(self, leftover: Leftover) -> None:
        folder = Path(leftover.id)
        queue.cancel({folder})
        if folder.is_dir() and files.read_end(folder) is None:
            files.close(folder, "cancelled")

    def equivalent(self, job: Job) -> tuple[str, ...]:
        gpus = job.point.needs.gpus.count if job.point.needs.gpus else 0
        batch = Batch(
            job=job, folder=job.out.parent / f"ae-{job.point.id}", runtime="none",
            share=Share(gpus=gpus, cpus=1, memory=0), timeout_s=job.point.timeout_s,
            grace_s=self.grace_s, beat_s=self._follower.poll_s,
        )  # fmt: skip
        return ("srun", *script.options(batch), *LocalEngine().equivalent(job))

    def shell(self, point: Point, out: Path, files: Mapping[str, Path] | None = None) -> Shell:
        terminal = sys.stdin.isatty()
        point = replace(point, argv=("sh", "-i") if terminal else ("sh",))
        job = Job(point=point, out=out.resolve(), labels={}, secrets=files or {})
        batch = self._batch(job, out.resolve() / f"ae-shell-{os.getpid()}", 0)
        (batch.folder / "out").mkdir(parents=True)
        return script.interactive(batch, terminal=terminal), dict(queue.environment())

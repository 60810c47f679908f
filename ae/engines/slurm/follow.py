"""Follows a job from the script to its end, through outages of the controller."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ae.engines.base import Sink
from ae.engines.slurm import queue
from ae.engines.slurm.folder import Tail, close, read_end, sign_of_life
from ae.engines.slurm.script import Batch
from ae.errors import EnvironmentFault
from ae.host import owner, signals

_LOOK_S = 0.5  # between two looks at the files of a job
_OUTAGE = 20  # polls that a controller may be away while a job is handed in
_DOWN = 8  # refusals for want of nodes; those of a controller that has just started come back
_SILENT = 6  # polls without a heartbeat, of which the job makes one each; before the first: 30
_UNANSWERED = 3  # questions in a row, until a launcher that cancels its jobs gives up
_LOST = 4  # answers of squeue without the job; also after its end, so that its files can arrive


class Follower:
    """What is known of the queue, asked every `poll_s`."""

    def __init__(self, poll_s: float) -> None:
        self.poll_s = poll_s
        self._queue = queue.Queue(poll_s)

    def hand_in(self, batch: Batch) -> None:
        """Hand a job in, once: an answer that did not come says neither yes nor no. Raises
        EnvironmentFault; a node that is down for a moment is waited for."""
        sent = batch.folder / "sent"
        comment = owner.to_environment(owner.stamp(batch.job.labels))
        away = down = 0
        while True:
            try:
                # What has begun was handed in, if by a launcher that died before it said so.
                if not (sent.exists() or (batch.folder / "heartbeat").exists()):
                    queue.admits(batch.folder / "job.sh")
                    if batch.folder not in queue.jobs():
                        queue.submit(batch.folder / "job.sh", comment)
                    sent.touch()
                return
            except queue.Away:
                if (away := away + 1) == _OUTAGE:
                    raise
            except queue.NoNode:
                if (down := down + 1) == _DOWN:
                    raise
            time.sleep(self.poll_s)

    def end_of(self, batch: Batch, sink: Sink) -> dict[str, Any] | None:
        """What the end file says, with Slurm's `state` where the job was stopped; without one what
        Slurm says of that, as `state` and `why`; None: Slurm has lost it. Raises EnvironmentFault
        for a job that would wait for ever."""
        tail = Tail(batch.folder, sink)
        beat, since, said = (-1, 0.0), 0.0, ""
        answers = 0  # in a row, without a job that runs
        while True:
            if end := read_end(batch.folder):
                tail.pump(last=True)
                end["state"] = state = self._left(batch, stopped=end["stopped"])
                if not end["stopped"] or state not in ("PENDING", None):
                    return end
                if state is None:  # Slurm has forgotten it, and ended what it found on the node
                    return None
                (batch.folder / "end.json").unlink()  # it is to run again
            tail.pump()
            if (now := sign_of_life(batch.folder)) != beat:
                beat, since = now, time.monotonic()
            if self._queue.look():
                one, listed = self._queue.find(batch.folder)
                answers = answers + 1 if one is None or one.over or not listed else 0
                if answers >= _LOST and not read_end(batch.folder):
                    if one is None or not one.over or _mistaken(one, batch):
                        return None
                    return {"state": one.state, "why": _explained(one, batch)}
                if listed and one and one.state == "PENDING" and one.reason != said:
                    said = one.reason
                    _waits(batch, said, sink)
                limit = _SILENT * (max(self.poll_s, beat[1]) if beat[0] else 5 * self.poll_s)
                if not listed or one is None or one.state != "RUNNING":
                    since = time.monotonic()
                elif (silent := time.monotonic() - since) > limit:
                    close(batch.folder, "silent")
                    self.cancel([batch])
                    why = f"no sign of life for {silent:.0f} s while Slurm says RUNNING: cancelled"
                    return {"state": "RUNNING", "why": why}
            time.sleep(min(_LOOK_S, self.poll_s))

    def _left(self, batch: Batch, *, stopped: bool) -> str | None:
        """See to it that a job whose end is there leaves the queue; without its slurmstepd it
        never would. Slurm's word for it, empty where Slurm does not answer; None: it is unknown."""
        with suppress(EnvironmentFault):
            for number in range(120):
                one = queue.jobs().get(batch.folder)
                word = one.state if one else None
                if word == "RUNNING" and number == 10:
                    queue.cancel({batch.folder})
                    break
                if word != "RUNNING" and not (stopped and word == "COMPLETING"):
                    return word
                time.sleep(_LOOK_S)
        return ""

    def cancel(self, batches: Sequence[Batch]) -> bool:
        """Cancel jobs and wait until they are gone; whether they are. One that has ended leaves by
        itself; what is still there after a while is cancelled again, ended or not."""
        left = {one.folder for one in batches}
        end = time.monotonic() + 60 + max((one.grace_s for one in batches), default=0)
        away = looks = 0
        with signals.shielded():
            while time.monotonic() < end and away < _UNANSWERED:
                with suppress(EnvironmentFault):
                    away += 1
                    seen = queue.jobs()
                    if not (left := {one for one in left if one in seen and not seen[one].over}):
                        return True
                    if looks % 20 == 0:
                        queue.cancel({one for one in left if looks or not read_end(one)})
                    looks, away = looks + 1, 0
                time.sleep(_LOOK_S)
        return False


def _waits(batch: Batch, reason: str, sink: Sink) -> None:
    """Say why a job waits. Raises EnvironmentFault where it would do so for ever."""
    if fix := queue.NEVER.get(reason):
        raise EnvironmentFault(f"{batch.job.point.id} would wait for ever: {reason}", fix=fix)
    if reason not in ("None", "Priority", "Resources"):
        sink.line("stderr", f"ae: {batch.name} waits: {reason}")


def _mistaken(seen: queue.Seen, batch: Batch) -> bool:
    """Whether Slurm took the end of another job for that of this one, which never began: a
    controller that has lost a job gives its number to the next."""
    if seen.state != "CANCELLED" or (batch.folder / "heartbeat").exists():
        return False
    others = (read_end(path) for path in batch.folder.parent.iterdir() if path != batch.folder)
    return any(str(end.get("job")) == seen.ident for end in others if end)


def _explained(seen: queue.Seen, batch: Batch) -> str:
    """Why there is no end file, with what Slurm wrote into the job's log."""
    log = batch.folder / "slurm.log"
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    said = next((f"; {text.strip()[:300]}" for text in reversed(lines) if text.strip()), "")
    return f"Slurm says {seen.state} and the job left no end file{said}"

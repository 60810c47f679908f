"""Sessions to fail on purpose: jobs for spawned ranks, and what is left of processes afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any

from rap_training.config import Config, ConfigError
from rap_training.launcher import run_session
from rap_training.rank import Rank
from rap_training.sharing import probes
from rap_training.train.collectives import Collectives

SMALL = Config(
    experiment="fig10", gpus=2, batch=32, scale=0.0001, iterations=4, warmup=1, repeats=1,
    batches=2, variants=("sequential", "ideal"), patience=60.0,
)  # fmt: skip


class Told:
    """Keeps a session's messages with the time they came, and the processes that then lived."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.pids: set[int] = set()
        self.last = time.monotonic()  # ranks that are slow to start have said nothing yet

    def __call__(self, kind: str, what: Mapping[str, Any]) -> None:
        self.messages.append((kind, dict(what)))
        self.pids |= {child.pid for child in active_children() if child.pid}
        self.last = time.monotonic()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [what for one, what in self.messages if one == kind]

    @property
    def since_last(self) -> float:
        return time.monotonic() - self.last


def session(job: str, told: Told, **changes: Any) -> None:
    config = replace(SMALL, **changes)
    run_session(config, f"rap_sessions:{job}", told, variants=config.variants)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def living(pids: Sequence[int] | set[int], seconds: float = 5.0) -> set[int]:
    """Those of `pids` that still run after `seconds`; none of them ends the wait."""
    end = time.monotonic() + seconds
    while (left := {pid for pid in pids if alive(pid)}) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def of_session(leader: int) -> set[int]:
    """All processes of the operating system's session that `leader` began."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(words[3]) == leader and words[0] not in "ZX":
            found.add(int(stat.parent.name))
    return found


# Jobs.


def greet(rank: Rank, names: Sequence[str]) -> None:
    """Messages to the very end of a rank's life: none may be lost."""
    rank.collectives.barrier()
    for number in range(200):
        rank.tell("fact", name="number", value=number)


def second_raises(rank: Rank, names: Sequence[str]) -> None:
    rank.tell("fact", name="alive", value=True)
    rank.collectives.barrier()
    if rank.rank == 1:
        raise ValueError("the second rank has\nhad enough")
    _for_ever(rank)


def all_are_misused(rank: Rank, names: Sequence[str]) -> None:
    raise ConfigError("the batch is too small; fix: a larger one")


def second_is_killed(rank: Rank, names: Sequence[str]) -> None:
    workers = rank.workers
    pids = [process.pid for process in workers._processes] if workers else []
    everyone = rank.collectives.gather(pids)
    rank.tell("fact", name="workers", value=[pid for each in everyone for pid in each])
    if rank.rank == 1:
        time.sleep(0.3)  # the other waits for it in a collective by then
        os.kill(os.getpid(), signal.SIGKILL)
    _for_ever(rank)


def first_is_killed_telling(rank: Rank, names: Sequence[str]) -> None:
    if rank.rank == 1:
        _for_ever(rank)
    for number in range(50):
        rank.tell("fact", name="number", value=number)
    os.kill(os.getpid(), signal.SIGKILL)


def first_exits(rank: Rank, names: Sequence[str]) -> None:
    if rank.rank == 0:
        os._exit(3)
    _for_ever(rank)


def all_are_silent(rank: Rank, names: Sequence[str]) -> None:
    rank.tell("fact", name="alive", value=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a rank that is stuck
    time.sleep(600)


def second_is_slower(rank: Rank, names: Sequence[str]) -> None:
    """The second rank's kernels take far longer, as it says, and its host queues late."""
    if rank.rank == 1:
        measured, run, sent = probes.latency_us, rank.trainer.run, Collectives.all_to_all
        probes.latency_us = lambda call, device: 50.0 * measured(call, device)

        def late(stage: str, slot: int) -> None:
            time.sleep(0.002)
            run(stage, slot)

        def sent_late(*given: Any) -> None:
            time.sleep(0.002)
            sent(*given)

        rank.trainer.run = late  # type: ignore[method-assign]
        Collectives.all_to_all = sent_late  # type: ignore[method-assign]
    found = [(p.stage, p.us, p.probe_us, p.capacity.probes) for p in rank.stage_probes]
    exchange = probes.exchange_costs(rank.collectives, rank.device)
    rank.tell("fact", name="found", value=rank.collectives.gather((found, exchange)))


def _for_ever(rank: Rank) -> None:
    while True:
        rank.collectives.barrier()

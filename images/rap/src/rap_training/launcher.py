"""Starts a session's processes and ends them: the first that fails ends all, with its error.

A session is the ranks, and for variants with a second process a preprocessor a rank, under MPS or
not. The parent uses no GPU.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from reprokit.errors import ConfigError, Failure

from rap_training.config import Config
from rap_training.processes import die_with
from rap_training.sharing.mps import PERCENTAGE, Mps, MpsError, assert_absent

_POLL_S = 0.05
_GRACE_S = 5.0
_STACK_S = 0.5  # for a process to print where it is
# Ranks are on one host: the loopback is enough, and a container without a network has no more.
_LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class SessionFailed(Failure):
    """A process of a session failed; the message is its error, `exit_code` that error's own."""

    def __init__(self, message: str, exit_code: int = Failure.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


Handle = Callable[[str, Mapping[str, Any]], object]


def run_session(
    config: Config, job: str, handle: Handle, *, session: str = "one_process",
    variants: Sequence[str] = (),
) -> None:  # fmt: skip
    """Run `job`, "module:function", on every rank.

    `handle` gets rank 0's messages. Raises SessionFailed when a process fails or dies; no process
    of the session is alive afterwards. Raises MpsError where a daemon is needed and cannot be had.
    """
    from torch import multiprocessing

    context = multiprocessing.get_context("spawn")
    pairs = session != "one_process"
    with ExitStack() as stack:
        environment: dict[str, str] = {
            name: value for name, value in _LOCAL.items() if name not in os.environ
        }
        daemon = None
        if session == "mps":
            daemon = stack.enter_context(Mps())
            environment |= daemon.environment
        elif config.device == "cuda":
            assert_absent(os.environ)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rap-"))
        place = str(Path(folder) / "rendezvous")
        messages = context.SimpleQueue()
        processes: dict[str, Any] = {}
        stack.callback(_end, processes)
        # Kept here until the end: a semaphore goes with the last reference in its maker.
        all_ends = [_ends(context) if pairs else None for _ in range(config.gpus)]
        for rank, ends in enumerate(all_ends):
            arguments = (
                os.getpid(), config, rank, place, job, tuple(variants), ends, messages, environment,
            )  # fmt: skip
            processes[f"rank {rank}"] = context.Process(target=_rank, args=arguments)
            if ends:
                share = {PERCENTAGE: str(config.mps_percentage)} if session == "mps" else {}
                own = (os.getpid(), config, rank, ends, messages, environment | share)
                process = context.Process(target=_preprocessor, args=own)
                processes[f"preprocessor {rank}"] = process
        for process in processes.values():
            process.start()
        _supervise(processes, messages, handle, daemon, config.patience)


def _supervise(
    processes: Mapping[str, Any], messages: Any, handle: Handle, daemon: Mps | None,
    patience: float,
) -> None:  # fmt: skip
    heard = time.monotonic()
    checked = daemon is None
    waiting = dict(processes)
    while waiting:
        # Looked at before the messages are read: then all that an ended process said is there.
        ended = {name: each for name, each in waiting.items() if each.exitcode is not None}
        while not messages.empty():
            heard = time.monotonic()
            who, kind, what = messages.get()
            if kind == "error":
                _blame_the_dead(processes, daemon)
                raise SessionFailed(f"{who}: {what['text']}", what["exit_code"])
            if kind == "measuring" and daemon is not None:
                _assert_registered(daemon, len(processes))
                checked = True
            elif kind != "measuring":
                handle(kind, what)
        for name, process in ended.items():
            del waiting[name]
            if process.exitcode:
                _blame_the_dead(processes, daemon)
                raise SessionFailed(_how(name, process.exitcode))
        if time.monotonic() - heard > patience:
            silent = ", ".join(waiting)
            for process in waiting.values():
                os.kill(process.pid, signal.SIGUSR1)
                time.sleep(_STACK_S)
            raise SessionFailed(
                f"{silent} said nothing for {patience:.0f} s; fix: see above where each stood"
            )
        time.sleep(_POLL_S)
    if not checked:
        raise MpsError("no process of the session measured under the MPS daemon")


def _blame_the_dead(processes: Mapping[str, Any], daemon: Mps | None) -> None:
    """Raise for a dead daemon or killed process: errors of the others only follow from that.

    NCCL aborts ranks whose peer is gone, so SIGABRT explains nothing.
    """
    if daemon is not None:
        daemon.ask("get_server_list")  # raises MpsError if it is dead
    time.sleep(_POLL_S)  # a connection closes a moment before its process has ended
    for name, process in processes.items():
        code = process.exitcode or 0
        if code < 0 and code != -signal.SIGABRT:
            raise SessionFailed(_how(name, code))


def _how(name: str, code: int) -> str:
    how = f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{name} {how}; fix: see its output above"


def _assert_registered(daemon: Mps, expected: int) -> None:
    """A client that did not reach the daemon runs without it and says nothing."""
    clients = daemon.clients()
    if len(clients) < expected:
        raise MpsError(
            f"{len(clients)} of {expected} processes registered with the MPS daemon; "
            "fix: run as one user, with the GPU in default compute mode"
        )


def _ends(context: Any) -> Any:
    from rap_training.sharing.shared import Ends

    return Ends.make(context)


def _end(processes: Mapping[str, Any]) -> None:
    started = [process for process in processes.values() if process.pid is not None]
    for process in started:
        if process.exitcode is None:
            process.terminate()
    end = time.monotonic() + _GRACE_S
    for process in started:
        process.join(timeout=max(0.1, end - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()


def _rank(
    parent: int, config: Config, rank: int, place: str, job: str, variants: tuple[str, ...],
    ends: Any, messages: Any, environment: Mapping[str, str],
) -> None:  # fmt: skip
    _begin(parent, environment)
    os.environ["RAP_RENDEZVOUS"] = place

    def work() -> None:
        from rap_training.rank import Rank

        def tell(kind: str, **what: Any) -> None:
            if rank == 0 or kind == "error":
                messages.put((f"rank {rank}", kind, what))

        there = Rank(config, rank, tell, ends)
        try:
            _function(job)(there, variants)
        finally:
            # After an error the others may wait in a collective for ever: the parent ends them.
            if sys.exc_info()[0] is None:
                there.close()

    _guarded(f"rank {rank}", work, messages)


def _function(job: str) -> Callable[..., object]:
    module, _, name = job.rpartition(":")
    return getattr(importlib.import_module(module), name)


def _preprocessor(
    parent: int, config: Config, rank: int, ends: Any, messages: Any,
    environment: Mapping[str, str],
) -> None:  # fmt: skip
    _begin(parent, environment)

    def work() -> None:
        from rap_training.preprocessor import preprocessor

        preprocessor(config, rank, ends)

    _guarded(f"preprocessor {rank}", work, messages)


def _begin(parent: int, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    faulthandler.register(signal.SIGUSR1)  # prints the stacks of all threads
    die_with(parent)


def _guarded(who: str, work: Callable[[], None], messages: Any) -> None:
    """Run `work`; its error goes to the parent as one line, which says all of a usage error.

    Any other goes to standard error too, as it is.
    """
    try:
        work()
    except KeyboardInterrupt:
        os._exit(130)
    except BaseException as error:  # noqa: BLE001 - handed to the parent, which raises it
        if not isinstance(error, ConfigError):
            traceback.print_exc()
        text = " ".join(str(error).split()) or type(error).__name__
        code = error.exit_code if isinstance(error, Failure) else Failure.exit_code
        messages.put((who, "error", {"text": text, "exit_code": code}))
        sys.stderr.flush()
        time.sleep(_POLL_S)
        os._exit(1)

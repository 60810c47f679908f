"""`ae run --detach`, `ae wait` and `ae cancel`: launchers that are left alone, on any engine.

A detached launcher is the same `ae run` in a session of its own. In the run's folder `launcher.log`
has what it prints, and is locked until it has ended; `exit` has its exit code then.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from ae.commands.options import print_data
from ae.commands.results import about_run, points_of
from ae.engines import choose as engines
from ae.engines.base import Engine, Leftover
from ae.errors import EnvironmentFault, ExitCode, Interrupted, UsageError
from ae.host import owner, processes
from ae.host.files import lock
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.records.folder import NAME, Run, RunStore, is_locked, new_name, results_dir

RunName = Annotated[str, typer.Argument(metavar="RUN", help="a run's name or folder")]
_CODES = {"finished": ExitCode.OK, "failed": ExitCode.WORKLOAD}  # of a run that nobody detached
_LOOK_S = 0.1
_GONE_S = 90.0  # in which what was removed is gone: a job has its grace, and Slurm its own
_LAUNCH = 'trap "" HUP; trap : INT TERM; "$@"; echo $? >"$0/exit.part"; mv "$0/exit.part" "$0/exit"'


def detach(recipes: Sequence[str], *, resume: bool, as_json: bool) -> int:
    """Start this command line again, without --detach, and return when it has its run."""
    root = find_root()
    if len(set(recipes)) > 1:
        fix = "start one, `ae wait RUN`, then the next"
        raise UsageError("--detach starts one paper's run", fix=fix)
    results, (name, *_) = results_dir(root), recipes
    new = None if resume else results / "runs" / load_recipe(root, name).name / new_name()
    path = new or RunStore(results).resumable(name, list_recipes(root)).path
    path.mkdir(parents=True, exist_ok=True)
    before = _stamp(path)
    argv = (sys.executable, "-m", "ae", *(word for word in sys.argv[1:] if word != "--detach"))
    with (path / "launcher.log").open("a+b") as log:
        if not lock(log):  # for all who will write to it
            fix = f"ae wait {path.name}, or a run of its own without --resume"
            raise UsageError(f"run {path.name} goes on already", fix=fix)
        begin = log.seek(0, os.SEEK_END)
        child = processes.start(
            ("sh", "-c", _LAUNCH, str(path), *argv), env=os.environ | {NAME: path.name},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        while child.poll() is None and _stamp(path) == before:
            time.sleep(_LOOK_S)
        if _stamp(path) == before:  # it has ended without
            said = (path / "launcher.log").read_bytes()[begin:]
            sys.stderr.write(said.decode("utf-8", "replace"))
            return int((path / "exit").read_text())
    except BaseException:
        processes.stop_group(child.pid)
        raise
    finally:
        if not (path / "run.json").is_file():
            shutil.rmtree(path)
    about = {"recipe": path.parent.name, "run": path.name, "folder": str(path)}
    text = f"run {path.name} goes on alone: ae wait {path.name}, ae cancel {path.name}, ae runs"
    print_data(as_json, about, text)
    return ExitCode.OK


def wait(run_name: RunName) -> int:
    """Show what a detached run prints until it is over; exit with its exit code."""
    run = RunStore(results_dir(find_root())).find("*", run_name)
    log, shown, over = run.path / "launcher.log", 0, False
    try:
        while not over:
            over = not _goes_on(run)
            if log.is_file():
                with log.open("rb") as file:
                    file.seek(shown)
                    shown += sys.stdout.buffer.write(file.read())
                sys.stdout.buffer.flush()
            if not over:
                time.sleep(_LOOK_S)
    except KeyboardInterrupt as stop:
        said = f"interrupted; run {run.name} goes on: ae wait {run.name}, ae cancel {run.name}"
        raise Interrupted(said) from stop
    about = about_run(run)
    print(f"run {run.name}: {about['state']}, {points_of(about)}")
    code = run.path / "exit"
    ended = _CODES.get(about["state"], ExitCode.INTERRUPTED)
    return int(code.read_text()) if code.is_file() else ended


def cancel(run_name: RunName) -> None:
    """Stop a run as Ctrl-C does, and wait until it is over; finished points are kept.

    Where its launcher is gone, what it left of this run is removed.
    """
    run = RunStore(results_dir(find_root())).find("*", run_name)
    if _goes_on(run):
        _interrupt(run)
        print(f"run {run.name} is cancelled; to go on: ae run {run.name} --resume")
        return
    engine = engines.choose(run.record.provenance.engine["name"], gpus=False)
    found = _remove(engine, run.name)
    for one in found:
        print(f"removed {one.kind} {Path(one.id).name[:60]} of run {run.name} ({one.engine})")
    if not found:
        print(f"nothing of run {run.name} runs")


def _interrupt(run: Run) -> None:
    """Send the launcher what Ctrl-C sends, and wait until it has ended."""
    labels = owner.from_environment(_stamp(run.path))
    if labels and labels[owner.HOST] != socket.gethostname():
        said = f"the launcher of {run.name} runs on {labels[owner.HOST]}"
        raise EnvironmentFault(said, fix=f"there: ae cancel {run.name}")
    if not labels or not owner.alive(labels):
        said = f"the launcher of {run.name} is just starting, or just ending"
        raise EnvironmentFault(said, fix="try again")
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(int(labels[owner.PID]), signal.SIGINT)
    while owner.alive(labels) or is_locked(run.path / "launcher.log"):
        time.sleep(_LOOK_S)


def _goes_on(run: Run) -> bool:
    """Whether its launcher runs. Some network disks have no locks: then only this machine knows."""
    log, labels = run.path / "launcher.log", owner.from_environment(_stamp(run.path))
    here = log.is_file() and labels.get(owner.HOST) == socket.gethostname()
    return is_locked(log) or run.is_claimed() or (here and owner.alive(labels))


def _remove(engine: Engine, run: str) -> list[Leftover]:
    """Remove what runs of a run that has no launcher; return it when it is gone."""
    removed: dict[str, Leftover] = {}
    end = time.monotonic() + _GONE_S
    while found := [one for one in engine.leftovers() if one.run == run]:
        for one in found:
            if one.id not in removed:
                removed[one.id] = one
                engine.remove(one)
        if time.monotonic() > end:
            said = f"{found[0].kind} {found[0].id} of {run} does not end"
            raise EnvironmentFault(said, fix="try again")
        time.sleep(_LOOK_S)
    return list(removed.values())


def _stamp(path: Path) -> str:
    """Who writes into a run, or did last, as `owner.to_environment` says it."""
    lock = path / ".lock"
    return lock.read_text() if lock.is_file() else ""

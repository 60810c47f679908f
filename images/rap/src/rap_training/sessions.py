"""An experiment from the parent's side: sessions to run, records to write.

Rank 0 tells what all ranks took: a sample is of the slowest, and there is one record for a launch,
on however many GPUs. The launch counts as one process, and so do sessions of a point, which run one
after another on the same GPUs: what their variants took is compared in pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from rap_training.config import Config
from rap_training.inputs import load_plan, place_plan
from rap_training.launcher import run_session
from rap_training.planner.solvers import check_licence, mounted_licence
from rap_training.rank import Rank
from rap_training.sharing.mps import MpsError
from rap_training.sharing.variants import VARIANTS
from rap_training.train.torchrec import check_installed


class Job(Protocol):
    """What an experiment does on each rank."""

    __module__: str
    __name__: str

    def __call__(self, rank: Rank, names: Sequence[str], /) -> None:
        """`names`: the variants of this session."""


def run_sessions(config: Config, out: RecordWriter, job: Job, *, steps: int = 0) -> None:
    """Run `job` on each rank, one session for all variants that can be measured in it.

    job: a function of an importable module, called with the rank and its variants; steps: of the
    progress, else a step a sample. Raises SessionFailed, PlanError, LicenceError or PlacementError.
    """
    # What cannot be run is refused before any process starts.
    plan = load_plan(config)
    licence = mounted_licence() if config.solver == "gurobi" else None
    if licence:
        check_licence(licence)
    config = _with_memory(config, out.facts)
    if config.experiment != "predictor":  # which makes no tables
        place_plan(plan, config)
    if config.trainer == "torchrec":
        check_installed()
    sessions = _sessions(config)
    total = sum(map(len, sessions.values())) * config.repeats
    receiver = _Receiver(out, Progress(steps or total))
    for session, names in sessions.items():
        there = replace(config, variants=tuple(names))
        if session != "one_process" and config.device == "cpu":
            _skip_all(config, out, names, "two processes that share a GPU need a GPU")
            continue
        if session != "one_process" and config.experiment in ("ratio", "timeline"):
            _skip_all(config, out, names, f"{config.experiment} measures one process a GPU")
            continue
        try:
            where = f"{job.__module__}:{job.__name__}"
            run_session(there, where, receiver, session=session, variants=names)
        except MpsError as error:
            _skip_all(config, out, names, str(error))
    out.environment(**receiver.facts)


def _with_memory(config: Config, facts: Mapping[str, Any]) -> Config:
    """The configuration with what a rank's memory holds. Leaves where GPUs are missing."""
    if config.device == "cpu":
        return replace(config, memory=_available() // config.gpus)
    _check_gpus(config)
    return replace(config, memory=_bytes(facts.get("gpu_memory", "")))


def _sessions(config: Config) -> dict[str, list[str]]:
    """The variants of each session; experiments that measure no variants need one process."""
    if config.experiment in ("predictor", "capacity"):
        return {"one_process": list(config.variants)}
    found: dict[str, list[str]] = defaultdict(list)
    for name in config.variants:
        found[VARIANTS[name].session].append(name)
    return found


class _Receiver:
    """Turns rank 0's messages into records, skips, facts and progress."""

    def __init__(self, out: RecordWriter, progress: Progress) -> None:
        self.out, self.progress = out, progress
        self.facts: dict[str, Any] = {}

    def __call__(self, kind: str, what: Mapping[str, Any]) -> None:
        if kind == "record":
            self.out.write(**what)
        elif kind == "skip":
            self.out.skip(what["labels"], what["reason"])
        elif kind == "fact":
            self.facts[what["name"]] = what["value"]
        elif kind == "step":
            self.progress.step(what["words"])
        elif kind == "total":
            self.progress.total = what["steps"]
        elif kind == "progress":
            print(what["words"], flush=True)


def _skip_all(config: Config, out: RecordWriter, names: list[str], reason: str) -> None:
    for name in names:
        out.skip({**config.labels, "variant": name}, reason)


def _bytes(memory: str) -> int:
    """Bytes of the driver's "143771 MiB"; 0 for anything else."""
    number, _, unit = memory.partition(" ")
    return int(number) << 20 if number.isdecimal() and unit == "MiB" else 0


def _available() -> int:
    """Bytes of host memory that can be had now; 0 where the kernel does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(found[0][1]) << 10 if found else 0


def _check_gpus(config: Config) -> None:
    """Leave with the reason when there are fewer GPUs than asked for. Makes no CUDA context."""
    import torch

    found = torch.cuda.device_count()
    if found == 0:
        cannot_run("no GPU was found; fix: run on a machine with one, or with --device cpu")
    if found < config.gpus:
        cannot_run(
            f"{config.gpus} GPUs were asked for and {found} found; "
            f"fix: --gpus {found}, or a machine with more"
        )

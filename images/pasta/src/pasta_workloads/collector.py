"""Runs the target, alone or under `accel-trace`, and says how it went."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reprokit.skip import EXIT_CODE, cannot_run

from pasta_workloads.config import Config
from pasta_workloads.errors import RunFailed
from pasta_workloads.mapping import check_whole
from pasta_workloads.pinned import ENVIRONMENT
from pasta_workloads.target import REGION

PROBE_SECONDS = 600.0  # the first one may compile
_TOOK = re.compile(r"^iteration \d+ took (\d+\.\d+) s$", re.MULTILINE)


@dataclass(frozen=True)
class Ran:
    """One process that ended well: what it printed, its wall time, and the collector's folder."""

    stdout: str
    seconds: float
    folder: Path

    @property
    def iterations(self) -> list[float]:
        """Seconds of every measured iteration. Raises RunFailed when it printed none."""
        found = [float(word) for word in _TOOK.findall(self.stdout)]
        if not found:
            raise RunFailed("the target ended well and printed no iteration")
        return found


def target(
    config: Config, mode: str, *, size: str = "", iterations: int = 0, warmup: int = -1
) -> list[str]:
    """The command line of the model that is profiled. Empty or negative: the Config's own."""
    words = [sys.executable, "-m", "pasta_workloads", "model", "--device", config.device]
    words += ["--model", config.model, "--mode", mode, "--size", size or config.scale]
    words += ["--iterations", str(iterations or config.iterations)]
    words += ["--warmup", str(config.warmup if warmup < 0 else warmup)]
    return [*words, "--seed", str(config.seed)]


def trace_argv(
    tool: str, folder: Path, command: Sequence[str], settings: Mapping[str, object], *,
    region: str = REGION, options: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """`accel-trace run` around a command; only launches inside `region` are analysed.

    `options` are more of its own, such as `--distinct 50`.
    """
    words = [sys.executable, "-m", "accel_trace", "run", "--tool", tool, "--out", str(folder)]
    words += ["--no-probe"]  # require_collector has probed
    words += ["--region", region] if region else []
    words += options
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    return [*words, "--", *command]


def run_alone(command: Sequence[str], folder: Path, patience: float) -> Ran:
    """Run a command without the collector. Raises RunFailed; leaves with 77 where it does."""
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=patience,
            stdin=subprocess.DEVNULL, env=_environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunFailed(f"it did not end within {patience:g} s: {' '.join(command)}") from None
    seconds = time.perf_counter() - start
    words = done.stderr.strip().splitlines() or ["it said nothing"]
    if done.returncode == EXIT_CODE:
        cannot_run(words[-1])
    if done.returncode:
        raise RunFailed(f"'{' '.join(command)}' ended with {done.returncode}: {words[-1]}")
    return Ran(done.stdout, seconds, folder)


def run_traced(
    tool: str, folder: Path, command: Sequence[str], settings: Mapping[str, object],
    patience: float, *, region: str = REGION, options: Sequence[str] = (),
) -> Ran:  # fmt: skip
    """Run a command under one tool of the collector, in a folder that is emptied first.

    Raises RunFailed also where the collector lost events, or its report failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    argv = trace_argv(tool, folder, command, settings, region=region, options=options)
    ran = run_alone(argv, folder, patience)
    check_whole(folder)
    return ran


def require_gpus(count: int = 1) -> None:
    """Leave with 77 and the reason when there are fewer GPUs. Makes no CUDA context."""
    import torch

    found = torch.cuda.device_count()
    if found < count:
        want = "a GPU" if count == 1 else f"{count} GPUs"
        cannot_run(f"this needs {want} and {found or 'none'} was found; fix: run where there is")


def require_collector(*, patches: bool = True) -> None:
    """Leave with 77 when accel-trace is not installed, or `patches` are needed and cannot be had.

    Raises RunFailed when the probe itself fails.
    """
    if importlib.util.find_spec("accel_trace") is None:
        cannot_run("this image lacks accel-trace (images/collector), which does the profiling")
    if patches:
        words = [sys.executable, "-m", "accel_trace", "probe"]
        run_alone(words, Path(), PROBE_SECONDS)


def _environment() -> dict[str, str]:
    """The target's: ours, and what is pinned."""
    return {**os.environ, **ENVIRONMENT}

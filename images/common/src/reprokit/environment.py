"""Facts of the machine that belong to a measurement: CPU, GPU, driver, clocks, library versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_GPU_FACTS = {
    "gpu": "name",
    "gpu_uuid": "uuid",
    "gpu_memory": "memory.total",
    "compute_capability": "compute_cap",
    "driver": "driver_version",
    "mig": "mig.mode.current",
    "clock_max_sm": "clocks.max.sm",
    "power_limit": "power.limit",
}
_CLOCK_FACTS = {
    "sm": "clocks.sm",
    "memory": "clocks.mem",
    "temperature": "temperature.gpu",
    "power": "power.draw",
    "throttle": "clocks_event_reasons.active",
    "throttle_hw_thermal": "clocks_event_reasons.hw_thermal_slowdown",
    "throttle_power_cap": "clocks_event_reasons.sw_power_cap",
}
_QUERY_SECONDS = 20


def machine_facts(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return CPU, caches, Python, package versions, and the first visible GPU's facts.

    Keys a machine cannot answer are left out; `gpu` and `driver` are there only with a GPU.
    """
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu_model(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "caches": cpu_caches(),
        "packages": package_versions(packages),
    }
    gpu = _query(_GPU_FACTS)
    facts.update(gpu)
    versions = facts["packages"]
    if "torch" in versions:
        facts["torch"] = versions["torch"]
    return facts


def gpu_clocks() -> dict[str, str]:
    """Return the GPU's clocks (MHz), temperature (C), power (W) and throttle reasons right now.

    Empty without a GPU. Reads only: no setting of the GPU is ever changed.
    """
    return _query(_CLOCK_FACTS)


def cpu_model() -> str:
    """Return the processor's name as the kernel reports it."""
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def cpu_caches() -> dict[str, int]:
    """Return the data caches of the first CPU as {"L1d": bytes, "L2": bytes, "L3": bytes}."""
    caches: dict[str, int] = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = "".join(_lines(folder / "type"))
        level = "".join(_lines(folder / "level"))
        size = "".join(_lines(folder / "size"))
        if kind != "Instruction" and size[:-1].isdigit():
            name = f"L{level}d" if kind == "Data" else f"L{level}"
            caches[name] = int(size[:-1]) * {"K": 1024, "M": 1024**2}.get(size[-1], 1)
    return caches


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those of `packages` that are installed."""
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _query(facts: dict[str, str]) -> dict[str, str]:
    """Ask nvidia-smi for the first GPU's `facts`, one by one if it refuses them together.

    Field names come and go with the driver, so an unknown one must not cost the others.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    together = _ask(tool, ",".join(facts.values()))
    if together is not None and len(together) == len(facts):
        return _known(dict(zip(facts, together, strict=True)))
    singles = {key: _ask(tool, field) for key, field in facts.items()}
    return _known({key: answer[0] for key, answer in singles.items() if answer})


def _known(answers: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in answers.items() if value and "N/A" not in value}


def _ask(tool: str, fields: str) -> list[str] | None:
    """Return the first GPU's values of comma separated `fields`, None when it has no answer."""
    argv = [tool, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=_QUERY_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode or not done.stdout.strip():
        return None
    return [word.strip() for word in done.stdout.splitlines()[0].split(",")]

"""Turns what the authors' benchmark and our overhead runs print into records. Times are seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

_LINE = re.compile(r"([\w.]+)/([\w-]+)(?:/([\w.<>:, ]+))?: (\S+)s")
TOTALS = {"gpu_kernel_time": "gpu_kernel_time", "gpu_mem_time": "gpu_memory_time"}


def read_speedups(folder: Path, labels: Mapping[str, str]) -> list[dict[str, object]]:
    """Kernel, memory and total times of every version of `labels['case']`; `base` is the original.

    Raises ValueError when a version has no times, or a line is not of the script's form.
    """
    times: dict[tuple[str, str, str], list[float]] = {}
    for case, version, name, seconds in _lines(folder, labels):
        known = "base" if version == "None" else version
        if not name:
            key = ("elapsed_time", known, "")
        elif name in TOTALS:
            key = (TOTALS[name], known, "")
        else:
            key = ("kernel_time", known, name)
        times.setdefault(key, []).append(seconds)
        assert case
    versions = {version for _, version, _ in times}
    for version in sorted(versions | {"base"}):
        if ("gpu_kernel_time", version, "") not in times:
            raise ValueError(f"there is no gpu_kernel_time of the version {version}")
    if len(versions) < 2:
        raise ValueError("the script has timed the original alone and no optimised version")
    return [
        _record(metric, samples, {"version": version} | ({"kernel": name} if name else {}))
        for (metric, version, name), samples in times.items()
    ]


def read_overhead(folder: Path, labels: Mapping[str, str]) -> list[dict[str, object]]:
    """Seconds of the sample alone and under gvprof. Raises ValueError when one is missing."""
    times: dict[str, list[float]] = {}
    for _, run, name, seconds in _lines(folder, labels):
        if name == "seconds":
            times.setdefault(run, []).append(seconds)
    for run in ("alone", labels["mode"]):
        if run not in times:
            raise ValueError(f"the log has no time of the sample {run}")
    counts = {len(samples) for samples in times.values()}
    if len(times) != 2 or len(counts) != 1:
        raise ValueError("the log is cut off: alone and profiled were not timed equally often")
    return [
        _record("seconds", samples, {"run": "alone" if run == "alone" else "profiled"})
        for run, samples in times.items()
    ]


def _lines(folder: Path, labels: Mapping[str, str]) -> list[tuple[str, str, str, float]]:
    path = folder / "stdout.log"
    if not path.is_file():
        raise ValueError("stdout.log is missing")
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None or match[1] != labels["case"]:
            continue
        try:
            seconds = float(match[4])
        except ValueError as error:
            raise ValueError(f"'{line[:80]}' has no time") from error
        if not isfinite(seconds) or seconds <= 0:
            raise ValueError(f"'{line[:80]}' has no time above zero")
        found.append((match[1], match[2], match[3] or "", seconds))
    if not found:
        raise ValueError(f"the log has no time of {labels['case']}")
    return found


def _record(metric: str, samples: list[float], labels: dict[str, str]) -> dict[str, object]:
    return {
        "metric": metric, "unit": "s", "samples": samples, "labels": labels, "evidence": "measured",
    }  # fmt: skip

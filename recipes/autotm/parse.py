"""Turns the line that the driver's Julia prints into records. Runs outside the container."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

MARK = "AUTOTM-RUN "
METRICS = {
    "actual_runtime": "iteration_time",  # the least of at least three iterations and five seconds
    "predicted_runtime": "predicted_time",  # what the integer programme promised
    "oracle_time": "oracle_time",  # the sum of the fastest kernels, without any move
    "managed_runtime": "managed_time",  # the same network in managed memory
}
CALCULATED = ("predicted_time", "oracle_time")  # from profiled kernels
NOTE = "the authors keep the least time of a run, not its samples"


def read_run(folder: Path, labels: Mapping[str, str]) -> list[dict[str, object]]:
    """The times of one network under one formulation.

    Raises ValueError when the line is missing, stands twice, or holds something else.
    """
    path = folder / "stdout.log"
    lines = (
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    )
    found = [line[len(MARK) :] for line in lines if line.startswith(MARK)]
    if len(found) != 1:
        raise ValueError(f"the log of {labels['net']} has {len(found)} results, expected 1")
    try:
        data = json.loads(found[0])
    except ValueError as error:
        raise ValueError(f"the result of {labels['net']} is cut off") from error
    if not isinstance(data, dict) or set(data) != set(METRICS):
        raise ValueError(f"the result of {labels['net']} has other fields than expected")
    records = []
    for name, metric in METRICS.items():
        value = data[name]
        if value is None and name == "oracle_time":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is no number")
        if not isfinite(value) or value <= 0:
            raise ValueError(f"{name} is {value}, no time")
        records.append(
            {
                "metric": metric, "unit": "s", "samples": [float(value)], "labels": {},
                "evidence": "simulated" if metric in CALCULATED else "measured",
                "note": NOTE,
            }
        )  # fmt: skip
    return records


def read_nothing(folder: Path, labels: Mapping[str, str]) -> list[dict[str, object]]:
    """Persistent memory is never changed here, so there is nothing to read."""
    raise ValueError(f"mode {labels['mode']} was only described: see stdout.log in {folder.name}")

"""Turns the result file of an authors' program into a record. Runs outside the container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_LINE = re.compile(
    r"rank:0, avg_latency:(\d+\.\d+) ms/iter, throughput:(\d+\.\d+) iters/s, "
    r"total_throughput:(\d+\.\d+)"
)
NOTE = "rank 0 alone: iterations/s x GPUs x batch, as the authors count; one number per run"


def read_throughput(folder: Path, labels: Mapping[str, str]) -> list[dict[str, object]]:
    """Samples per second of one cell: the authors' total_throughput times the batch per GPU.

    `labels` hold `batch`. Raises ValueError when result.log is missing or not of their form.
    """
    path = folder / "result.log"
    if not path.is_file():
        raise ValueError("result.log is missing: the program left no result")
    found = _LINE.findall(path.read_text(encoding="utf-8", errors="replace"))
    if len(found) != 1:
        raise ValueError(f"result.log holds {len(found)} results of rank 0, expected 1")
    latency, each, total = (float(word) for word in found[0])
    if not (latency > 0 and each > 0 and total > 0):
        raise ValueError("result.log holds a time or throughput of zero")
    gpus = round(total / each)
    if abs(total - gpus * each) > 0.01 * total or gpus not in (2, 4, 8):
        raise ValueError(f"result.log is inconsistent: {total} is no multiple of {each}")
    samples = total * int(labels["batch"])
    return [
        _record("throughput", "samples/s", samples, gpus),
        _record("iteration_time", "ms", latency, gpus),
    ]


def _record(metric: str, unit: str, value: float, gpus: int) -> dict[str, object]:
    return {
        "metric": metric,
        "unit": unit,
        "samples": [value],
        "labels": {"gpus": str(gpus)},
        "evidence": "measured",
        "note": NOTE,
    }

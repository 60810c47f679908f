"""Reads back what an experiment wrote, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def records(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder."""
    text = (folder / "records.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def samples(folder: Path, metric: str, **labels: str) -> list[float]:
    """The samples of a metric with these labels: of one record, or of one for each process."""
    found = [
        record
        for record in records(folder)
        if record["metric"] == metric and labels.items() <= record["labels"].items()
    ]
    processes = {record.get("process", "") for record in found}
    assert len(found) == len(processes) > 0, f"{len(found)} records of {metric} with {labels}"
    return [sample for record in found for sample in record["samples"]]

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
    """The samples of the one record of a metric that has these labels."""
    found = [
        record["samples"]
        for record in records(folder)
        if record["metric"] == metric and labels.items() <= record["labels"].items()
    ]
    assert len(found) == 1, f"{len(found)} records of {metric} with {labels}"
    return list(found[0])

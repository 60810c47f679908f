"""Reads the log of the toy's program that only prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def read_log(folder: Path, labels: Mapping[str, str]) -> list[dict[str, object]]:
    """One record of all timings. Raises ValueError when a line is not a timing."""
    lines = (folder / "stdout.log").read_text().splitlines()
    found = [re.fullmatch(r"added \d+ numbers in ([\d.]+) us", line) for line in lines]
    if not all(found) or not found:
        raise ValueError("a line is not of the form 'added N numbers in T us'")
    samples = [float(match[1]) for match in found if match]
    return [
        {
            "metric": "adding_time",
            "unit": "us",
            "samples": samples,
            "labels": {**labels, "variant": "slow"},
            "evidence": "measured",
        }
    ]

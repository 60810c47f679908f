"""The files a workload leaves in `$AE_OUT`: records, skips and environment facts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

SCHEMA = 1
Evidence = Literal["measured", "scaled", "emulated", "simulated", "inferred", "static"]
_EVIDENCE = frozenset(get_args(Evidence))


def output_folder(default: str = "") -> Path:
    """Return the folder results go to: `$AE_OUT`, else `default`, else `ae-out` here."""
    return Path(os.environ.get("AE_OUT") or default or "ae-out")


class RecordWriter:
    """Writes `records.jsonl`, `skipped.jsonl` and `environment.json` into one folder.

    A line reaches the disk as soon as it is written, so what was measured before a crash stays.
    """

    def __init__(self, out_dir: str | Path) -> None:
        """Open the folder, making it when missing. Raises OSError if it cannot be written."""
        self.out_dir = Path(out_dir)
        self.out_dir.mkdir(parents=True, exist_ok=True)
        self._facts: dict[str, Any] = {}

    def write(
        self,
        metric: str,
        unit: str,
        samples: Iterable[float],
        labels: Mapping[str, object],
        evidence: Evidence = "measured",
        warmup: int | None = None,
        note: str | None = None,
        process: str | None = None,
    ) -> None:
        """Append one record: all `samples` of `metric` in `unit`, in the order they were taken.

        `warmup` is how many samples were dropped before these. Label values become strings.
        `process`, for a point that starts several, is the one that took them: a record for each.
        Raises ValueError for no samples, a sample that is not finite, unknown evidence, or a
        process without a name.
        """
        values = [float(sample) for sample in samples]
        if not values:
            raise ValueError(f"record '{metric}' has no samples")
        if not all(map(math.isfinite, values)):
            raise ValueError(f"record '{metric}' has a sample that is not a finite number")
        if evidence not in _EVIDENCE:
            raise ValueError(f"record '{metric}' has unknown evidence '{evidence}'")
        if process == "":
            raise ValueError(f"record '{metric}' is of a process without a name")
        line: dict[str, Any] = {
            "schema": SCHEMA,
            "metric": metric,
            "unit": unit,
            "samples": values,
            "labels": _texts(labels),
            "evidence": evidence,
        }
        if warmup is not None:
            line["warmup"] = int(warmup)
        if note:
            line["note"] = note
        if process is not None:
            line["process"] = process
        self._append("records.jsonl", line)

    def skip(self, labels: Mapping[str, object], reason: str) -> None:
        """Append one skip: a part of the point that this hardware or image cannot run."""
        if not reason.strip():
            raise ValueError("a skip needs a reason")
        self._append("skipped.jsonl", {"labels": _texts(labels), "reason": reason.strip()})

    def environment(self, **facts: Any) -> None:
        """Merge `facts` into `environment.json`; the file is replaced atomically on every call."""
        self._facts.update(facts)
        target = self.out_dir / "environment.json"
        temporary = target.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(self._facts, indent=2, sort_keys=True) + "\n")
        temporary.replace(target)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What `environment.json` holds by now."""
        return self._facts

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, allow_nan=False) + "\n"
        with (self.out_dir / name).open("a", encoding="utf-8") as file:
            file.write(text)


def _texts(labels: Mapping[str, object]) -> dict[str, str]:
    return {str(key): str(value) for key, value in labels.items()}

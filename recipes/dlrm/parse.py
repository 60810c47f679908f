"""Makes records of what the authors' load_emb.py printed (lane upstream).

Reads two files of a point's folder: `load_emb.log`, the standard output of load_emb.py, and
`upstream.json`, which our driver writes beside it. The artifact's own parser takes groups of 144
times, drops the first of each, and then always divides by zero; here a log that is not whole is an
error in one sentence.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = dict[str, object]

WARMUP_LAUNCHES = 1  # as the artifact: the first launch of a process loads the kernel, some 5 ms
WARMUP_BATCHES = 8  # as the artifact: load_emb.py averages the batches after the eighth
_DIGITS = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_NUMBER = rf"({_DIGITS})"
# The lines that stand in a log once: how each begins, and the rest of it.
_ONCE = {
    "device": ("Device:", r" (\w+)"),
    "trace": ("Hotness:", r" (.*)"),
    "batches": ("Num batches:", r" (\d+)"),
    "batch": ("Batch Size:", r" (\d+)"),
    "tables": ("Table config:", r" (\d+(?:-\d+)*)"),
    "dim": ("Embedding Dimension", r" (\d+)"),
    "pooling": ("Lookups per sample:", r" (\d+)"),
    "made": ("Time elapsed(s) in model and data gen:", rf" *{_NUMBER}"),
    "loaded": ("Model loading time(s):", rf" *{_NUMBER}"),
    "total": ("Time elapsed(s):", rf" *{_NUMBER}"),
    "each": ("[", rf"({_DIGITS}(?:, {_DIGITS})*)\]"),
    "average": ("Average Batch Latency(s):", rf" *{_NUMBER}"),
}
# An SM of sm_80 and sm_90 has 64 warps and 64 Ki registers in four parts, given to warps in
# granules of 256. The artifact's kernel has blocks of 8 warps.
_WARPS, _BLOCK_WARPS, _PARTS, _PART_REGISTERS, _GRANULE = 64, 8, 4, 16384, 256


class Log:
    """What load_emb.py printed: kernel times in ms as printed, in the order of launches, the pinned
    sizes beside them, and the lines that stand there once."""

    def __init__(self) -> None:
        self.latencies: list[str] = []
        self.pinned: list[int] = []
        self.once: dict[str, str] = {}


def load_emb(folder: Path, labels: Mapping[str, str]) -> list[Record]:
    """The records of one point: one design on one dataset.

    Raises ValueError, one sentence, when log or facts are not whole or disagree.
    """
    facts = _read_facts(folder / "upstream.json")
    log = _read_log(folder / "load_emb.log")
    _check(log, facts)
    design = facts["design"]
    hot_list = facts["hot_list"]
    common = {
        **labels,
        "variant": design["variant"],
        "dataset": facts["dataset"],
        "launch": "one_table",
        "cap": str(design["cap"] or "none"),
        "trace": facts["trace"]["source"],
    }
    if hot_list:
        common["hot_list"] = hot_list["as"]
    records = [_kernel_time(log, common, hot_list), _batch_time(log, common, hot_list)]
    if hot_list:
        records.append(_record("pinned_rows", "rows", [hot_list["rows"]], common))
        records.append(_record("pinned_share", "%", [hot_list["share_percent"]], common))
    records.append(_record("sums_crc32", "crc32", [facts["sums"]["crc32"]], common))
    for arch, usage in sorted(design["kernel"].items()):
        labelled = {**common, "arch": arch}
        registers = usage["registers"]
        records += [
            _record("registers", "registers", [registers], labelled, evidence="static"),
            _record("occupancy", "%", [occupancy(registers)], labelled, evidence="static"),
        ]
    return records


def occupancy(registers: int) -> float:
    """Theoretical occupancy in % of the artifact's kernel (blocks of 8 warps) on sm_80 and sm_90,
    as far as registers limit it; 74 give 37.5, 42 give 62.5."""
    if not 1 <= registers <= 255:
        raise ValueError(f"a kernel cannot take {registers} registers")
    per_warp = math.ceil(registers * 32 / _GRANULE) * _GRANULE
    warps = _PARTS * (_PART_REGISTERS // per_warp) // _BLOCK_WARPS * _BLOCK_WARPS
    return 100 * min(warps, _WARPS) / _WARPS


def _kernel_time(log: Log, labels: Mapping[str, str], hot_list: Mapping[str, Any] | None) -> Record:
    digits = max(len(text.partition(".")[2]) for text in log.latencies)
    note = "CUDA events around launch, kernel and the host's wait for it"
    if digits <= 3:
        note += "; printed in whole microseconds"
    if hot_list:
        note += "; pinning not counted"
        if not hot_list["rows"]:
            note += "; the blank in the list's path left nothing pinned"
    samples = [float(text) * 1000 for text in log.latencies[WARMUP_LAUNCHES:]]
    return _record("kernel_time", "us", samples, labels, warmup=WARMUP_LAUNCHES, note=note)


def _batch_time(log: Log, labels: Mapping[str, str], hot_list: Mapping[str, Any] | None) -> Record:
    samples = [1000 * seconds for seconds in _batches(log)[WARMUP_BATCHES:]]
    note = "host time of all tables of a batch, with the print of every launch"
    if hot_list:
        note += ", and reading the list of hot rows from its file at every launch"
    return _record("batch_time", "ms", samples, labels, warmup=WARMUP_BATCHES, note=note)


def _record(
    metric: str,
    unit: str,
    samples: list[float],
    labels: Mapping[str, str],
    *,
    evidence: str = "measured",
    warmup: int = 0,
    note: str = "",
) -> Record:
    record: Record = {
        "metric": metric, "unit": unit, "samples": samples, "labels": dict(labels),
        "evidence": evidence,
    }  # fmt: skip
    if warmup:
        record["warmup"] = warmup
    if note:
        record["note"] = note
    return record


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"there is no {path.name}: the driver did not reach its end") from error
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON") from error
    try:
        if facts["schema"] != 1:
            raise ValueError(f"{path.name} has the schema {facts['schema']} and not 1")
        for name in ("variant", "cap", "kernel"):
            facts["design"][name]
        for name in ("tables", "rows", "dim", "batch", "pooling", "batches"):
            int(facts["sizes"][name])
        float(facts["sums"]["crc32"])
        facts["trace"]["source"], facts["dataset"], facts["prints_pinned"]
        if facts["hot_list"]:
            for name in ("as", "rows", "share_percent"):
                facts["hot_list"][name]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path.name} lacks {error}") from error
    return dict(facts)


def _read_log(path: Path) -> Log:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"there is no {path.name}: load_emb.py was not reached") from error
    log = Log()
    for number, line in enumerate(lines, start=1):
        _read_line(log, line.rstrip(), number)
    missing = [name for name in _ONCE if name not in log.once]
    if missing:
        raise ValueError(
            f"the log ends before load_emb.py did: it lacks the line '{_ONCE[missing[0]][0]}'"
        )
    return log


def _read_line(log: Log, line: str, number: int) -> None:
    if not line:
        return
    if match := re.fullmatch(rf"Latency of Embedding Bag kernel {_NUMBER} ms", line):
        log.latencies.append(match[1])
        return
    if match := re.fullmatch(r"Pinned size: (\d+)", line):
        log.pinned.append(int(match[1]))
        return
    for name, (start, rest) in _ONCE.items():
        if match := re.fullmatch(re.escape(start) + rest, line):
            if name in log.once:
                raise ValueError(f"line {number} begins '{start}' a second time")
            log.once[name] = match[1]
            return
    raise ValueError(f"line {number} is none of load_emb.py's: {line[:60]!r}")


def _check(log: Log, facts: Mapping[str, Any]) -> None:
    sizes = facts["sizes"]
    for name in ("batches", "batch", "dim", "pooling"):
        if int(log.once[name]) != sizes[name]:
            raise ValueError(f"the log says {name} {log.once[name]}, the driver {sizes[name]}")
    if log.once["tables"] != "-".join([str(sizes["rows"])] * sizes["tables"]):
        raise ValueError("the log's table config is not the one that the driver asked for")
    expected = sizes["tables"] * sizes["batches"]
    if len(log.latencies) != expected or expected <= WARMUP_LAUNCHES:
        raise ValueError(f"the log has {len(log.latencies)} kernel times where {expected} are due")
    if not all(float(text) > 0 for text in log.latencies):
        raise ValueError("the log says that a kernel took no time")
    _check_batches(log, sizes["batches"])
    pinned = facts["hot_list"]["rows"] if facts["hot_list"] else None
    due = expected if facts["prints_pinned"] else 0
    if len(log.pinned) != due:
        raise ValueError(
            f"the log says {len(log.pinned)} times how many rows were pinned, not {due}"
        )
    if due and set(log.pinned) != {pinned}:
        raise ValueError(
            f"the log says that {log.pinned[0]} rows were pinned, the list has {pinned}"
        )


def _check_batches(log: Log, batches: int) -> None:
    times = _batches(log)
    if len(times) != batches or batches <= WARMUP_BATCHES:
        raise ValueError(f"the log has {len(times)} batch times where {batches} are due")
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in times):
        raise ValueError("the log has a batch time that is no time")
    counted = times[WARMUP_BATCHES:]
    average = sum(counted) / len(counted)
    if abs(average - float(log.once["average"])) > 1e-6:  # printed with six digits
        raise ValueError(
            f"the log's average batch latency is {log.once['average']} s, "
            f"that of its batches {average:.6f} s"
        )


def _batches(log: Log) -> list[float]:
    return [float(text) for text in log.once["each"].split(", ")]

"""Turns the logs of the authors' profiler into records. Runs outside the container.

A function per experiment of the lane upstream. Each reads the logs that the driver kept in the
point's folder under the artifact's names, and raises ValueError with one sentence when a log is
missing, cut off, or not of the form that the authors' own scripts read (their python/ folder).
Sizes are MiB, times seconds.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ae.recipe.code import load_code

logs = load_code(Path(__file__).parent, "logs")

Record = dict[str, Any]
MIB = 2**20
MODES = ("train", "test")
KEPT_NAMES = 20  # the figure counts the others together
CELLS = 24  # of the heat map, each way
TAIL = 20  # lines at the end of a log among which the timers are, as the authors' scripts have it
PARTS = ("collection", "transfer", "analysis")
_TIMER = re.compile(r"Trace (collection|transfer|analysis) time\D*(\d+(?:\.\d+)?)")


def working_sets(folder: Path, labels: Mapping[str, str]) -> list[Record]:
    """Figure 7 and Table V: every kernel's working set, in training and in inference.

    As in the authors' python/table_v and figure_7: percentiles over kernels, footprint as the mean
    over kernels of what the driver had allocated at launch, names up to the first `<`.
    """
    model = _label(labels, "model")
    found = []
    for mode in MODES:
        logs.require_measured(folder / f"{mode}_{model}.accelprof.log")
        kernels = logs.read_kernels(folder / f"{mode}_{model}_app_analysis.log")
        sizes = np.array([kernel.working_set for kernel in kernels]) / MIB
        footprint = float(np.mean([kernel.footprint for kernel in kernels])) / MIB
        where = {"mode": mode}
        found.append(_record("kernels", "launches", len(kernels), where))
        found.append(_record("footprint", "MiB", footprint, where))
        for stat, value in (
            ("max", sizes.max()), ("min", sizes.min()), ("mean", sizes.mean()),
            ("median", np.median(sizes)), ("p90", np.percentile(sizes, 90)),
        ):  # fmt: skip
            found.append(_record("working_set", "MiB", float(value), where | {"stat": stat}))
        counts = Counter(logs.short_name(kernel.name) for kernel in kernels).most_common()
        top = sum(count for _, count in counts[:5])
        found.append(_record("top5_share", "%", 100 * top / len(kernels), where))
        found += [
            _record("kernel_launches", "launches", count, where | {"kernel": name})
            for name, count in counts[:KEPT_NAMES]
        ]
        if rest := sum(count for _, count in counts[KEPT_NAMES:]):
            where = where | {"kernel": "(others)"}
            found.append(_record("kernel_launches", "launches", rest, where))
    return found


def overhead(folder: Path, labels: Mapping[str, str]) -> list[Record]:
    """Figure 9: time under a variant of the profiler over time without it.

    The CPU variants profile one launch in N. `scaling=authors` multiplies the whole time by N, as
    their scripts do, start-up included; `scaling=sound` scales only what profiling added, by the
    launches there were over the launches that were profiled.
    """
    model, variant = _label(labels, "model"), _label(labels, "variant")
    point = _point(folder)
    plain = logs.read_elapsed(folder / f"run_{model}.accelprof.log")
    log = folder / f"test_{_short(variant)}_{model}.accelprof.log"
    tooled = logs.read_elapsed(log)
    if plain == 0:
        raise ValueError("the run without a tool took 0 s by a clock of 1 s: no ratio can be had")
    found = [
        _record("elapsed", "s", plain, {"run": "untooled"}),
        _record("elapsed", "s", tooled, {"run": "tooled"}),
    ]
    if variant == "cs_gpu":
        return [*found, _record("slowdown", "x", tooled / plain, {"scaling": "none"})]
    if tooled < plain:
        raise ValueError(f"{variant} took {tooled} s and the run without a tool {plain} s")
    rate = _rate(point)
    monitored, skipped = logs.count_launches(log)
    factor, why = float(rate), f"1 in {rate}"
    if monitored and skipped:
        launches = monitored + skipped
        factor, why = launches / monitored, f"{monitored} of {launches} launches"
    sound = (plain + (tooled - plain) * factor) / plain
    where = {"sampling": str(point["sampling"])}
    return [
        *found,
        _record("slowdown", "x", tooled * rate / plain, where | {"scaling": "authors"}, "scaled",
                note=f"whole time x {rate}"),
        _record("slowdown", "x", sound, where | {"scaling": "sound"}, "scaled",
                note=f"profiled: {why}"),
    ]  # fmt: skip


def breakdown(folder: Path, labels: Mapping[str, str]) -> list[Record]:
    """Figure 10: execution, collection, transfer and analysis, the latter times N as theirs."""
    model, variant = _label(labels, "model"), _label(labels, "variant")
    point = _point(folder)
    rate = 1 if variant == "cs_gpu" else _rate(point)
    log = folder / f"test_{_short(variant)}_{model}.accelprof.log"
    logs.read_elapsed(log)
    timers: dict[str, float] = {}
    for line in logs.lines_of(log)[-TAIL:]:
        if found := _TIMER.search(line):
            timers[found[1]] = float(found[2])
    if missing := [part for part in PARTS if part not in timers]:
        raise ValueError(
            f"{log.name} has no time for {' and '.join(missing)}: the profiler was not built from "
            "the branches oh-breakdown"
        )
    execution = logs.read_elapsed(folder / f"run_{model}.accelprof.log")
    kind = "measured" if rate == 1 else "scaled"
    where = {} if rate == 1 else {"sampling": str(point["sampling"])}
    return [
        _record("tool_time", "s", execution, where | {"part": "execution"}),
        *(_record("tool_time", "s", timers[part] * rate, where | {"part": part}, kind)
          for part in PARTS),
    ]  # fmt: skip


def hotness(folder: Path, _labels: Mapping[str, str]) -> list[Record]:
    """Figure 13: accesses per memory block and window of a million accesses, for BERT.

    Blocks that were never touched are left out, as in the authors' plot. The heat map is the sums
    over a grid of at most 24 x 24 cells.
    """
    log = folder / "bert_time_hotness_cpu.log"
    lines = logs.lines_of(log)
    rows = [logs.integers(line, log) for line in lines]
    if len(rows) < 2 or not rows[0]:
        raise ValueError(f"{log.name} holds no window of accesses")
    if any(len(row) != len(rows[0]) for row in rows):
        raise ValueError(f"{log.name} is cut off: its lines hold different numbers of blocks")
    counts = np.array(rows[1:])
    counts = counts[:, counts.sum(axis=0) > 0]
    if counts.shape[1] == 0:
        raise ValueError(f"{log.name} counts no access at all")
    windows, blocks = counts.shape
    where = {"blocks": str(_point(folder).get("blocks", "as-is"))}
    active = (counts > 0).mean(axis=0)
    shares = {
        "always": float((active >= 0.9).mean()), "burst": float((active <= 0.1).mean()),
    }  # fmt: skip
    found = [
        _record("hot_windows", "windows", windows, where),
        _record("hot_blocks", "blocks", blocks, where),
        *(_record("block_share", "%", 100 * share, where | {"activity": name})
          for name, share in shares.items()),
    ]  # fmt: skip
    across = np.array_split(np.arange(windows), min(CELLS, windows))
    down = np.array_split(np.arange(blocks), min(CELLS, blocks))
    for x, part in enumerate(across):
        for y, group in enumerate(down):
            cell = where | {"window": str(x), "block": str(y)}
            total = int(counts[np.ix_(part, group)].sum())
            found.append(_record("accesses", "accesses", total, cell))
    return found


def memory(folder: Path, _labels: Mapping[str, str]) -> list[Record]:
    """Figure 14, NVIDIA: what PyTorch had allocated after every tensor event of GPT-2 training."""
    log = folder / "gpt2_app_analysis.accelprof.log"
    logs.read_elapsed(log)
    events = [(kind, size) for kind, size, _ in logs.tensor_events(log)]
    if not events:
        raise ValueError(f"{log.name} has no tensor event: the profiler was built without PyTorch")
    return _timeline(events, {})


def parallel(folder: Path, labels: Mapping[str, str]) -> list[Record]:
    """Figure 15: the same per GPU, for one kind of parallelism."""
    log = folder / f"{_label(labels, 'parallelism')}.accelprof.log"
    logs.read_elapsed(log)
    devices: dict[str, list[tuple[str, int]]] = {}
    for kind, size, rest in logs.tensor_events(log):
        numbers = re.findall(r"\d+", rest)
        if not numbers:
            raise ValueError(f"{log.name} has tensor events that name no device")
        devices.setdefault(numbers[-1], []).append((kind, size))
    if len(devices) != 2:
        raise ValueError(f"{log.name} has tensor events of {len(devices)} GPUs, expected 2")
    return [
        record
        for device in sorted(devices)
        for record in _timeline(devices[device], {"device": device})
    ]


def _timeline(events: Sequence[tuple[str, int]], where: Mapping[str, str]) -> list[Record]:
    """Peak, number of events, and the allocated memory at every percent of the events."""
    sizes = [size for _, size in events]
    kinds = Counter(kind for kind, _ in events)
    found = [_record("peak_allocated", "MiB", max(sizes) / MIB, where)]
    found += [
        _record("tensor_events", "events", kinds[kind], {**where, "kind": kind})
        for kind in ("malloc", "free")
    ]
    for percent in range(101):
        index = round(percent / 100 * (len(sizes) - 1))
        place = {**where, "progress": str(percent)}
        found.append(_record("allocated", "MiB", sizes[index] / MIB, place))
    return found


def _point(folder: Path) -> Mapping[str, Any]:
    """What the driver wrote about the point."""
    path = folder / "point.json"
    if not path.is_file():
        raise ValueError("there is no point.json, which the driver writes first")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"point.json is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("point.json is not an object")
    return found


def _rate(point: Mapping[str, Any]) -> int:
    rate = point.get("sampling_rate")
    if not isinstance(rate, int) or rate < 1 or not isinstance(point.get("sampling"), str):
        raise ValueError("point.json does not say at which rate launches were profiled")
    return rate


def _label(labels: Mapping[str, str], name: str) -> str:
    if name not in labels:
        raise ValueError(f"the point has no label {name}")
    return labels[name]


def _short(variant: str) -> str:
    """The word in the artifact's log names: gpu, cpu or nvbit."""
    words = {"cs_gpu": "gpu", "cs_cpu": "cpu", "nvbit_cpu": "nvbit"}
    if variant not in words:
        raise ValueError(f"there is no variant {variant} of the profiler")
    return words[variant]


def _record(
    metric: str,
    unit: str,
    value: float,
    labels: Mapping[str, str],
    evidence: str = "measured",
    note: str = "",
) -> Record:
    record = {
        "metric": metric, "unit": unit, "samples": [value], "labels": dict(labels),
        "evidence": evidence,
    }  # fmt: skip
    return record | ({"note": note} if note else {})

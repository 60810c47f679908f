"""Hardware counters of one launch per variant, by Nsight Compute run on this very program."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import torch
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from dlrm_inference.config import PINNING, Config
from dlrm_inference.cuda import launch
from dlrm_inference.cuda.bench import Bench, one_table
from dlrm_inference.cuda.timing import tool
from dlrm_inference.cuda.tuning import choose

CHILD = "AE_DLRM_PROFILED"  # set in the process that Nsight Compute watches
SEPARATOR = "nothing"  # kernels/tools.cu: stands between the variants' launches
COUNTERS = {
    "gpu__time_duration.sum": ("profiled_time", "us", {"nsecond": 1e-3, "ns": 1e-3, "us": 1.0}),
    "lts__t_sector_hit_rate.pct": ("l2_hit_rate", "%", {}),
    "dram__bytes.sum.per_second": (
        "dram_throughput",
        "GB/s",
        {"byte/second": 1e-9, "byte/s": 1e-9, "Gbyte/second": 1.0, "Tbyte/second": 1e3},
    ),
    "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct": ("long_scoreboard", "%", {}),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("achieved_occupancy", "%", {}),
}
NOTE = "one launch under Nsight Compute, caches flushed before every pass, clocks left alone"


def run(config: Config, out: RecordWriter) -> None:
    """Write L2 hit rate (%), DRAM throughput (GB/s), long-scoreboard stalls (% of active warps),
    achieved occupancy (%) and the profiled time (us) of every variant.

    Leaves with exit code 77 where Nsight Compute is missing or may not read counters.
    """
    if os.environ.get(CHILD):
        _launch_each(config, out)
        return
    ncu = shutil.which("ncu")
    if ncu is None:
        cannot_run("Nsight Compute (ncu) is not in this image")
    names = []
    for name in config.variants:
        if name in PINNING:
            reason = "Nsight Compute flushes the L2 between passes, and pinning with it"
            out.skip({"variant": name, "dataset": config.dataset}, reason)
        else:
            names.append(name)
    with tempfile.TemporaryDirectory() as scratch:
        text = _watch(ncu, names, scratch)
    Bench(config, out).finish()
    for name, counters in _read(text, names):
        labels = {"variant": name, "dataset": config.dataset}
        for metric, unit, value in counters:
            out.write(metric, unit, [value], labels, note=NOTE)


def _watch(ncu: str, names: Sequence[str], scratch: str) -> str:
    arguments = [*sys.argv[1:]]
    arguments[arguments.index("--variants") + 1] = ",".join(names)
    argv = [
        *(ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv"),
        *("--print-units", "base", "--metrics", ",".join(COUNTERS), "--target-processes", "all"),
        *(sys.executable, "-m", "dlrm_inference", *arguments),
    ]
    environment = {**os.environ, CHILD: "1", "AE_OUT": scratch, "TMPDIR": scratch}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        cannot_run("the driver lets only administrators read GPU counters (RmProfilingAdminOnly)")
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        cannot_run(f"Nsight Compute exited {done.returncode}: {' '.join(words)}")
    return done.stdout


def _launch_each(config: Config, out: RecordWriter) -> None:
    """In the watched process: one launch of every variant between separators."""
    bench = Bench(config, out)
    separator, nothing = tool(SEPARATOR, bench.device), launch.Values(())
    for variant in choose(bench, out).values():
        calls = one_table(bench, variant).calls
        for call in calls[:4]:
            call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        separator.launch((1, 1, 1), (32, 1, 1), nothing)
        calls[4 % len(calls)]()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        print(f"::profiled {variant.name}", flush=True)


def _read(text: str, names: Sequence[str]) -> Iterator[tuple[str, list[tuple[str, str, float]]]]:
    """Yield each variant's counters: those of the longest kernel after its separator."""
    profiled = [
        line.removeprefix("::profiled ") for line in text.splitlines() if line.startswith("::prof")
    ]
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        cannot_run("Nsight Compute gave no table of counters")
    launches: dict[str, dict[str, float]] = {}
    kernels: dict[str, str] = {}
    for row in csv.DictReader(io.StringIO("\n".join(_table(lines[start:])))):
        metric = row["Metric Name"]
        if metric not in COUNTERS:
            continue
        scale = COUNTERS[metric][2].get(row["Metric Unit"], 1.0)
        value = float(row["Metric Value"].replace(",", "")) * scale
        launches.setdefault(row["ID"], {})[metric] = value
        kernels[row["ID"]] = row["Kernel Name"]
    groups: list[list[dict[str, float]]] = []
    for number, counters in launches.items():
        if kernels[number].startswith(SEPARATOR):
            groups.append([])
        elif groups:
            groups[-1].append(counters)
    for name, group in zip(profiled or names, groups, strict=False):
        longest = max(group, key=lambda c: c.get("gpu__time_duration.sum", 0.0))
        yield name, [(*COUNTERS[metric][:2], value) for metric, value in longest.items()]


def _table(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.startswith('"')]

"""Records of the experiments, from numbers made by hand."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pasta_workloads.collector import Ran
from pasta_workloads.config import Config
from pasta_workloads.errors import RunFailed
from pasta_workloads.exact import KNOWN
from pasta_workloads.experiments import distinct, overhead, uvm
from pasta_workloads.experiments.counts import write_counts
from pasta_workloads.experiments.hotness import write_heat
from pasta_workloads.experiments.overhead import series_of
from pasta_workloads.experiments.table_v import attention_of, write_maps, write_row
from pasta_workloads.lines import write_timeline
from pasta_workloads.mapping import Heat, Launch
from pasta_written import records, samples
from reprokit.records import RecordWriter

MIB = 2**20


def launch(kernel: str, ws: int) -> Launch:
    return Launch(kernel, ws * MIB, ws * MIB, 10 * ws * MIB, 100 * MIB)


def test_a_row_of_table_v(tmp_path: Path) -> None:
    first = [launch("void im2col<float>(x)", 4), launch("gemm", 1), launch("gemm", 2)]
    second = [launch("gemm", 8), launch("other", 6)]
    write_row([first, second], {"model": "bert", "mode": "test"}, RecordWriter(tmp_path))
    assert samples(tmp_path, "kernels") == [3, 2]
    assert samples(tmp_path, "footprint") == [100, 100]
    assert samples(tmp_path, "working_set", stat="max") == [4, 8]
    assert samples(tmp_path, "working_set", stat="median") == [2, 7]
    assert samples(tmp_path, "working_set_object", stat="min") == [10, 60]
    assert samples(tmp_path, "kernel_launches", kernel="gemm") == [2, 1]
    assert samples(tmp_path, "kernel_launches", kernel="other") == [0, 1]
    assert samples(tmp_path, "im2col") == [1, 0]
    found, again = (r for r in records(tmp_path)
                    if r["metric"] == "working_set" and r["labels"]["stat"] == "max")  # fmt: skip
    assert (found["process"], again["process"]) == ("1", "2")
    assert found["note"] == "im2col, launch 1 of 3"
    assert found["labels"] == {"model": "bert", "mode": "test", "stat": "max"}


def test_launches_by_tensor_maps_are_counted_and_those_that_are_not_known(tmp_path: Path) -> None:
    plain, known = launch("gemm", 1), replace(launch("gemm", 1), described=True)
    partly = replace(known, unseen=True)
    runs = [[plain, known, partly], [plain, known]]
    write_maps(runs, [0, 2], {"model": "bert"}, RecordWriter(tmp_path))
    assert samples(tmp_path, "tensor_map_launches", model="bert") == [2, 1]
    assert samples(tmp_path, "not_seen") == [1, 2]


def test_attention_as_a_tool_without_asynchronous_copies_sees_it() -> None:
    whole = [launch("gemm", 9), launch("fmha_cutlassF_f32_aligned_64x64_rf_sm80(x)", 8)]
    seen = [launch("gemm", 3), launch("fmha_cutlassF_f32_aligned_64x64_rf_sm80(x)", 2)]
    assert attention_of(seen, whole) == [whole[0], seen[1]]
    with pytest.raises(RunFailed, match="different kernels"):
        attention_of(seen[:1], whole)


def test_inferred_iterations_are_compared_with_an_exact_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cell, each iteration with itself: what it holds may be another's by exact analysis."""
    exact = [launch("gemm", 1), launch("gemm", 2), launch("add", 6)]
    other = [launch("gemm", 1), launch("gemm", 2), launch("add", 9)]
    found = distinct.compare([(exact, exact), (other, exact), (exact, exact)])
    assert found == pytest.approx(
        {"kernels": 0, "footprint": 0, "max": 3, "min": 0, "mean": 1, "median": 0, "p90": 2.4}
    )
    assert not any(distinct.compare([(exact, exact), (other, other)]).values())
    assert distinct.compare([(exact[:2], exact)])["kernels"] == 1
    with pytest.raises(RunFailed, match="no iteration was analysed again"):
        distinct.compare([])
    with pytest.raises(RunFailed, match="has no launch"):
        distinct.compare([(exact, exact), ([], exact)])

    asked = []

    def ran(command: list[str], folder: Path, *words: Any, **more: Any) -> Ran:
        asked.append((command[command.index("--iterations") + 1], more.get("options", ())))
        return Ran(f"iteration 0 took {3.0 if more else 2.0} s\n", 9.0, folder)

    def traced(tool: str, folder: Path, command: list[str], *words: Any, **more: Any) -> Ran:
        return ran(command, folder, **more)

    counts = {"inferred": 290.0, "unmatched": 1.0, "checked": 3.0, "mismatches": 0.0,
              "unchecked": 0.0, "partly_known": 1.0}  # fmt: skip
    for name, stand_in in (
        ("require_gpus", lambda: None), ("require_collector", lambda: None), ("run_alone", ran),
        ("run_traced", traced), ("check_tensors", lambda *_: None),
        ("count_of", lambda _, which: counts[which]),
        ("note_of", lambda _, which: "1 of k: why" if which == "unmatched" else None),
        ("checks_of", lambda _: [(exact, exact), (other, exact)]),
    ):  # fmt: skip
        monkeypatch.setattr(distinct, name, stand_in)
    config = Config(experiment="distinct", modes=("test",), repeats=2)
    distinct.run(config, RecordWriter(tmp_path))
    assert asked == [("100", ()), ("100", ("--distinct", "50")), ("100", ("--distinct", "10"))] * 2
    assert samples(tmp_path, "slowdown", variant="distinct", model="bert", mode="test") == [1.5] * 2
    assert samples(tmp_path, "cells_that_differ") == [3, 3]
    assert samples(tmp_path, "cell_difference", cell="max") == [3, 3]
    assert {name: samples(tmp_path, name)[0] for name in counts} == counts
    assert any(r["metric"] == "unmatched" and "of k" in r["note"] for r in records(tmp_path))


def test_series_keep_the_cpu_variants_small() -> None:
    config = Config(experiment="overhead")
    full, small = series_of(config)
    assert (full.size, small.size) == ("full", "small")
    assert not set(full.variants) & {"cs_cpu", "cs_cpu_mt"}
    assert small.variants == ("native", "empty", "cs_gpu", "cs_cpu", "cs_cpu_mt")
    sampled = series_of(Config(experiment="overhead", sample=50))[2]
    assert (sampled.size, sampled.sample) == ("full", 50)
    (only,) = series_of(Config(experiment="overhead", variants=("cs_gpu",)))
    assert only.variants == ("native", "cs_gpu")


def test_a_small_run_is_one_series() -> None:
    """Two of one size would write two records with the same labels."""
    variants = ("events", "cs_gpu", "cs_cpu")
    (only,) = series_of(Config(experiment="overhead", size="small", variants=variants))
    assert only.variants == ("native", "events", "cs_gpu", "empty", "cs_cpu", "cs_cpu_mt")


@pytest.fixture
def fake_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Every process takes the time of its variant; returns what was asked of the collector."""
    seconds = {"native": 2.0, "empty": 3.0, "touch": 4.0, "trace": 12.0}
    asked: list[dict[str, Any]] = []

    def ran(mode: str) -> Ran:
        return Ran(f"iteration 0 took {seconds[mode]:.9f} s\n", 30.0, tmp_path)

    def traced(tool: str, folder: Path, command: list[str], settings: Any, patience: float) -> Ran:
        asked.append({"tool": tool, "command": command, **settings})
        return ran(settings["mode"])

    monkeypatch.setattr(overhead, "require_gpus", lambda: None)
    monkeypatch.setattr(overhead, "require_collector", lambda: None)

    def alone(command: list[str], folder: Path, patience: float) -> Ran:
        asked.append({"command": command, "mode": "native"})
        return ran("native")

    monkeypatch.setattr(overhead, "run_alone", alone)
    monkeypatch.setattr(overhead, "run_traced", traced)
    stages = {"collection": 1.0, "transfer": 0.5, "analysis": 0.25}
    monkeypatch.setattr(overhead, "stages_of", lambda _: stages)
    monkeypatch.setattr(overhead, "region_launches", lambda _: (500, 10))
    return asked


def test_overhead(tmp_path: Path, fake_processes: list[dict[str, Any]]) -> None:
    config = Config(
        experiment="overhead", variants=("native", "empty", "cs_gpu", "cs_cpu"), repeats=2,
        sample=50,
    )  # fmt: skip
    overhead.run(config, RecordWriter(tmp_path))
    where = {"size": "full", "model": "bert"}
    assert samples(tmp_path, "slowdown", variant="cs_gpu", scaling="none", **where) == [2, 2]
    assert samples(tmp_path, "slowdown", variant="cs_cpu", size="small") == [6, 6]
    # 2 s natively, 10 s added by 10 of 500 launches: 500 s for all of them.
    assert samples(tmp_path, "slowdown", variant="cs_cpu", scaling="sound") == [251, 251]
    assert samples(tmp_path, "slowdown", variant="cs_cpu", scaling="authors") == [300, 300]
    parts = {"execution": 2, "collection": 0.25, "transfer": 0.5, "analysis": 0.25}
    for part, seconds in parts.items():
        found = samples(tmp_path, "tool_time", variant="empty", part=part, **where)
        assert found == [seconds, seconds], part
    assert samples(tmp_path, "iteration_time", variant="native", sample="0") == [2, 2]
    scaled = [r for r in records(tmp_path) if r["evidence"] == "scaled"]
    assert {r["labels"]["scaling"] for r in scaled} == {"sound", "authors"}
    sampled = [one for one in fake_processes if one.get("sample") == 50]
    assert len(sampled) == 4
    cores = len(os.sched_getaffinity(0))
    traced = [one["workers"] for one in fake_processes if one["mode"] == "trace"]
    assert traced.count(1) >= 4
    assert set(traced) == {1, cores}
    # Variants of one series are measured alike.
    loops = {
        tuple(one["command"][one["command"].index(name) + 1] for name in ("--size", "--iterations"))
        for one in fake_processes
    }
    assert loops == {("full", "5"), ("small", "1"), ("full", "1")}


def test_a_slow_turn_is_slow_with_and_without_the_profiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_processes: list[dict[str, Any]]
) -> None:
    """Ratios are taken within a turn, and all of a turn bear its name."""
    alone, traced = overhead.run_alone, overhead.run_traced

    def slower(ran: Ran, mode: str) -> Ran:
        """Iterations of turn n take n times as long; the last of them again twice that."""
        turn = sum(one["mode"] == mode for one in fake_processes)
        first = turn * ran.iterations[0]
        lines = [f"iteration {i} took {s:.9f} s" for i, s in enumerate((first, first, 2 * first))]
        return Ran("\n".join(lines), ran.seconds, ran.folder)

    monkeypatch.setattr(overhead, "run_alone", lambda *words: slower(alone(*words), "native"))
    monkeypatch.setattr(overhead, "run_traced", lambda *words: slower(traced(*words), "touch"))
    config = Config(experiment="overhead", variants=("native", "cs_gpu"), repeats=3)
    overhead.run(config, RecordWriter(tmp_path))
    times = {
        (r["labels"]["variant"], r["process"]): r["samples"]
        for r in records(tmp_path)
        if r["metric"] == "iteration_time"
    }
    assert times["native", "1"] == [2, 2, 4]
    assert times["cs_gpu", "3"] == [12, 12, 24]
    assert samples(tmp_path, "slowdown", variant="cs_gpu") == [2, 2, 2]
    names = [r["process"] for r in records(tmp_path) if r["metric"] == "slowdown"]
    assert names == ["1", "2", "3"]
    assert all("process" in r for r in records(tmp_path))


def test_heat_map(tmp_path: Path) -> None:
    counts = np.zeros((4, 20))
    counts[0] = 2  # always
    counts[1, :2] = 5  # one burst
    counts[2, ::2] = 1
    write_heat(Heat(counts, 1_000_000), {"model": "bert"}, RecordWriter(tmp_path))
    assert samples(tmp_path, "hot_blocks") == [3]
    assert samples(tmp_path, "hot_windows") == [20]
    assert samples(tmp_path, "block_share", activity="always") == [pytest.approx(100 / 3)]
    assert samples(tmp_path, "block_share", activity="burst") == [pytest.approx(100 / 3)]
    assert samples(tmp_path, "accesses", block="0", window="3") == [2]
    cells = [r["samples"][0] for r in records(tmp_path) if r["metric"] == "accesses"]
    assert sum(cells) == counts.sum()
    with pytest.raises(RunFailed, match="no access was counted"):
        write_heat(Heat(np.zeros((2, 2)), 1), {}, RecordWriter(tmp_path))


def test_timeline(tmp_path: Path) -> None:
    changes = [4 * MIB, 4 * MIB, -2 * MIB, -2 * MIB]
    allocated = [4 * MIB, 8 * MIB, 6 * MIB, 4 * MIB]
    write_timeline(changes, allocated, {"level": "tensor"}, RecordWriter(tmp_path))
    assert samples(tmp_path, "peak_allocated") == [8]
    assert samples(tmp_path, "tensor_events", kind="malloc") == [2]
    assert samples(tmp_path, "allocated", progress="0") == [4]
    assert samples(tmp_path, "allocated", progress="33") == [8]
    assert samples(tmp_path, "allocated", progress="100") == [4]
    assert samples(tmp_path, "peak_position") == [pytest.approx(100 / 3)]
    with pytest.raises(RunFailed, match="no memory event"):
        write_timeline([], [], {}, RecordWriter(tmp_path))


def test_counts_say_how_far_off_they_are(tmp_path: Path) -> None:
    exact = {known.kernel: [known.counts(1000)] for known in KNOWN}
    off = {**exact, "pasta_add": [exact["pasta_add"][0] | {"global_reads": 1999}]}
    write_counts([exact, off], 1000, RecordWriter(tmp_path))
    where = {"kernel": "pasta_add", "counter": "global_reads"}
    assert samples(tmp_path, "expected", **where) == [2000]
    assert samples(tmp_path, "count_error", **where) == [0, -1]
    assert samples(tmp_path, "count_error", kernel="pasta_shared", counter="shared_writes") == [
        0,
        0,
    ]
    assert KNOWN[0].counts(100_000)["global_bytes_read"] == 800_000
    assert dict(KNOWN[3].counts(1000))["shared_writes"] == 1024
    with pytest.raises(RunFailed, match="pasta_add was counted"):
        write_counts([{}], 1000, RecordWriter(tmp_path))


def result(seconds: float, asked: int, **more: int) -> dict[str, Any]:
    return {"seconds": seconds, "asked_bytes": asked, "prefetches": 3, "gone": 1, "strangers": 0,
            "mismatches": 2, "driver_prefetch": 1, "faults": 7, **more}  # fmt: skip


def test_policies(tmp_path: Path) -> None:
    found = {
        "none": [
            result(2.0, 0, moved_in=MIB, moved_out=0),
            result(4.0, 0, moved_in=MIB, moved_out=0),
        ],
        "object": [result(1.0, 5 * MIB), result(1.0, 5 * MIB)],
    }
    uvm.write_policies(found, {"model": "bert"}, RecordWriter(tmp_path))
    assert samples(tmp_path, "normalized_time", policy="object") == [0.5, 0.25]
    assert samples(tmp_path, "prefetch_asked", policy="object") == [5, 5]
    assert samples(tmp_path, "moved", policy="none", direction="in") == [1, 1]
    assert samples(tmp_path, "advice_misses", policy="none") == [3, 3]
    assert [r["process"] for r in records(tmp_path)
            if r["metric"] == "normalized_time"] == ["1", "2"] * 2  # fmt: skip
    assert not [r for r in records(tmp_path)
                if r["metric"] == "moved" and r["labels"]["policy"] == "object"]  # fmt: skip
    assert {r["labels"]["driver_prefetch"] for r in records(tmp_path)} == {"on"}


def test_the_replays_command_line(tmp_path: Path) -> None:
    config = Config(experiment="uvm", model="gpt2")
    words = uvm.command(config, "tensor", advice=tmp_path / "advice.json", leave=5)
    flags = dict(zip(words[4::2], words[5::2], strict=True))
    assert flags["--policies"] == "tensor"
    assert flags["--leave"] == "5"
    assert "--advice" not in uvm.command(config, "none")
    ran = Ran('noise\nmanaged {"seconds": 1.5}\n', 2.0, tmp_path)
    assert uvm.result_of(ran) == {"seconds": 1.5}
    with pytest.raises(RunFailed, match="printed no result"):
        uvm.result_of(Ran("", 1.0, tmp_path))

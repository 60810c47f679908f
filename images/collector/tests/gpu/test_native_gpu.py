"""Exact counts and pieces on a real GPU, and programs that run as ever with the tool in them.

Each sample is run without the tool and with it: output and exit code must be the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from accel_trace import build, toolchain
from accel_trace import events as ev
from native_support import NATIVE, Log, built, parse, touched

pytestmark = pytest.mark.gpu
THREADS = 8192  # of the kernels in accesses.cu
MODES = ["events", "sync", "empty", "count", "touch", "hot", "trace"]


@cache
def capability() -> int:
    """Of the first GPU, as in 90 for 9.0."""
    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return int(said.split("\n")[0].replace(".", ""))


@cache
def library() -> Path:
    return build.ensure_built() / build.LIBRARY


@cache
def sample(name: str) -> Path:
    tools = toolchain.find_toolchain()

    def make(folder: Path) -> None:
        subprocess.run(
            [str(tools.nvcc), "-std=c++17", f"-arch=sm_{capability()}",
             str(NATIVE / "samples" / f"{name}.cu"), "-o", str(folder / name)],
            check=True, timeout=300,
        )  # fmt: skip

    sources = [(NATIVE / "samples" / file).read_bytes() for file in (f"{name}.cu", "sample.h")]
    return built(f"sample-{name}", make, tools, capability(), *sources) / name


@dataclass(frozen=True)
class Traced:
    """The logs of a run with the tool, and the memory that the sample says it took."""

    returncode: int
    logs: list[Log]
    pieces: dict[str, tuple[int, int]]  # name -> (address, size)
    statuses: list[dict[str, object]]

    @property
    def log(self) -> Log:
        (only,) = self.logs
        return only

    def launches(self, name: str) -> list[ev.Launch]:
        return [x for log in self.logs for x in log.of(ev.Launch) if x.name.startswith(name)]

    def counts(self, name: str) -> list[ev.Counts]:
        numbers = {x.launch for x in self.launches(name)}
        return [c for c in self.log.of(ev.Counts) if c.launch in numbers]


def run(command: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )


@cache
def plain(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """A sample without the tool, once."""
    return run(command, {})


def trace(
    folder: Path, name: str, *arguments: str, mode: str = "touch", inject: str = "preload",
    **settings: object,
) -> Traced:  # fmt: skip
    """Runs a sample without and with the tool, and compares what a user sees of it."""
    command = (str(sample(name)), *arguments)
    alone = plain(command)
    out = folder / f"{name}-{mode}-{len(list(folder.iterdir()))}"
    out.mkdir()
    env = {"ACCEL_TRACE_OUT": str(out), "ACCEL_TRACE_MODE": mode,
           "SAMPLE_PIECES": str(out / "pieces")}  # fmt: skip
    env |= {f"ACCEL_TRACE_{key.upper()}": str(value) for key, value in settings.items()}
    if inject in ("preload", "both"):
        env["LD_PRELOAD"] = str(library())
    if inject in ("cuda", "both"):
        env["CUDA_INJECTION64_PATH"] = str(library())
    traced = run(command, env)
    assert (traced.returncode, traced.stdout, traced.stderr) == (
        alone.returncode, alone.stdout, alone.stderr,
    )  # fmt: skip
    pieces = {}
    if (out / "pieces").exists():
        for line in (out / "pieces").read_text().splitlines():
            word, address, size = line.split()
            pieces[word] = (int(address), int(size))
    statuses = [json.loads(path.read_text()) for path in sorted(out.glob("*.status"))]
    logs = [parse(path) for path in sorted(out.glob("*.atl"))]
    return Traced(traced.returncode, logs, pieces, statuses)


@pytest.mark.parametrize("inject", ["preload", "cuda", "both"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_and_way_in(tmp_path: Path, mode: str, inject: str) -> None:
    traced = trace(tmp_path, "vector_add", "100000", mode=mode, inject=inject)
    log = traced.log
    assert log.whole
    assert [x.name.split("(")[0] for x in log.of(ev.Launch)] == ["fill", "fill", "vector_add"]
    assert traced.launches("vector_add")[0].grid_x == 391
    live = {(a.address, a.size) for a in log.of(ev.Alloc)}
    assert set(traced.pieces.values()) <= live
    assert {m.address: m.size for m in log.of(ev.Memset)} == dict(traced.pieces.values())
    assert any(m.direction == 3 and m.size == 400_000 for m in log.of(ev.Memcpy))
    waits = next(t.count for t in log.of(ev.Timer) if t.stage == "collection")
    assert (waits == 0) == (mode in ("events", "empty"))


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("count", {}),
        ("trace", {"analysis": "count"}),
        ("trace", {"analysis": "count", "workers": 4}),
    ],
)
def test_vector_add_counts(tmp_path: Path, mode: str, settings: dict[str, object]) -> None:
    (got,) = trace(tmp_path, "vector_add", "100000", mode=mode, **settings).counts("vector_add")
    assert (got.global_reads, got.global_writes, got.global_atomics) == (200_000, 100_000, 0)
    assert got.global_bytes_read + got.global_bytes_written == 1_200_000
    assert (got.outside, got.shared_reads, got.local_reads) == (0, 0, 0)


@pytest.mark.parametrize("mode", ["count", "trace"])
def test_counts_of_each_kind_of_access(tmp_path: Path, mode: str) -> None:
    def counts(which: str, kernel: str) -> ev.Counts:
        (only,) = trace(
            tmp_path, "accesses", which, mode=mode, analysis="count"
        ).counts(kernel)  # fmt: skip
        return only

    strided = counts("strided", "strided")
    assert (strided.global_reads, strided.global_bytes_read) == (THREADS, 8 * THREADS)
    assert (strided.global_writes, strided.global_bytes_written) == (THREADS, 2 * THREADS)
    atomic = counts("atomic", "atomics")
    assert (atomic.global_atomics, atomic.global_writes) == (2 * THREADS, THREADS)
    assert atomic.global_reads == 0
    shared = counts("shared", "shared_words")
    assert (shared.shared_reads, shared.shared_writes) == (THREADS, THREADS)
    assert (shared.global_reads, shared.global_writes) == (THREADS, THREADS)
    local = counts("local", "local_words")
    assert (local.local_reads, local.local_writes) == (16 * THREADS, 16 * THREADS)
    assert (local.global_reads, local.global_writes, local.outside) == (0, THREADS, 0)


@pytest.mark.parametrize("mode", ["count", "trace"])
def test_asynchronous_copies(tmp_path: Path, mode: str) -> None:
    if capability() < 80:
        pytest.skip("cp.async needs compute capability 8.0")
    (got,) = trace(tmp_path, "async_copy", mode=mode, analysis="count").counts("async_copy")
    assert (got.async_copies, got.async_bytes) == (4096, 65_536)
    assert (got.global_reads, got.global_writes) == (0, 4096)
    touch = trace(tmp_path, "async_copy")
    number = touch.launches("async_copy")[0].launch
    assert set(touched(touch.log, number)) == {touch.pieces["in"], touch.pieces["out"]}


@pytest.mark.parametrize("mode", ["count", "trace"])
def test_bulk_copies(tmp_path: Path, mode: str) -> None:
    if capability() < 90:
        pytest.skip("bulk copies need compute capability 9.0")
    (got,) = trace(tmp_path, "bulk_copy", mode=mode, analysis="count").counts("bulk_copy")
    assert (got.bulk_copies, got.bulk_bytes) == (128, 128 * 4096)
    touch = trace(tmp_path, "bulk_copy")
    number = touch.launches("bulk_copy")[0].launch
    assert set(touched(touch.log, number)) == {touch.pieces["in"], touch.pieces["out"]}


def test_copies_by_tensor_map(tmp_path: Path) -> None:
    """What comes in is known by the map that was used where patches see it, else by all maps."""
    if capability() < 90:
        pytest.skip("tensor maps need compute capability 9.0")
    facts = json.loads((library().parent / "build.json").read_text())
    patched = facts["features"]["AT_TENSOR"]
    (got,) = trace(tmp_path, "tensor_copy", mode="count").counts("brings_in")
    assert got.bulk_copies == (2 if patched else 0)
    traced = trace(tmp_path, "tensor_copy")
    came, went = (x.launch for x in traced.log.of(ev.Launch))
    used = ["a", "b", "out"] if patched else ["out"]
    assert set(touched(traced.log, came)) == {traced.pieces[name] for name in used}
    described = {(m.launch, m.address) for m in traced.log.of(ev.TensorMap)}
    among = {(came, traced.pieces[name][0]) for name in ("a", "unused")}
    assert described == {(went, traced.pieces["back"][0])} | (set() if patched else among)
    assert touched(traced.log, went) == []


def test_distributed_shared_memory(tmp_path: Path) -> None:
    if capability() < 90:
        pytest.skip("clusters need compute capability 9.0")
    (got,) = trace(tmp_path, "clusters", mode="count").counts("exchange")
    assert (got.shared_reads, got.shared_writes) == (2 * THREADS, 2 * THREADS)
    assert (got.global_writes, got.outside) == (THREADS, 0)


@pytest.mark.parametrize("mode", ["touch", "trace"])
def test_touched_pieces_have_their_full_sizes(tmp_path: Path, mode: str) -> None:
    traced = trace(tmp_path, "vector_add", "100000", mode=mode)
    first, second, add = traced.log.of(ev.Launch)
    assert touched(traced.log, first.launch) == [traced.pieces["a"]]
    assert touched(traced.log, second.launch) == [traced.pieces["b"]]
    assert set(touched(traced.log, add.launch)) == set(traced.pieces.values())
    assert sum(size for _, size in touched(traced.log, add.launch)) == 1_200_000


def test_static_host_and_managed_memory(tmp_path: Path) -> None:
    traced = trace(tmp_path, "accesses", "memory")
    number = traced.launches("other_memory")[0].launch
    pieces = touched(traced.log, number)
    assert set(traced.pieces.values()) <= set(pieces)
    flags = {t.address: t.flags for t in traced.log.of(ev.Touched) if t.launch == number}
    names = ev.MEMORY_FLAGS
    assert flags[traced.pieces["managed"][0]] & names["managed"]
    assert flags[traced.pieces["host"][0]] & names["host_pinned"]
    # CUDA 13.0's Sanitizer tells of no static memory of modules that are loaded lazily: it is then
    # outside of all that is known, and that is told too.
    static = [address for address, flag in flags.items() if flag & names["module"]]
    assert len(static) == 1 or (0, 0) in pieces


def test_hot_blocks(tmp_path: Path) -> None:
    traced = trace(tmp_path, "vector_add", "1000000", mode="hot")
    number = traced.launches("vector_add")[0].launch
    hot = {h.block: h.count for h in traced.log.of(ev.Hot) if h.launch == number}
    assert sum(hot.values()) == 3_000_000
    want: dict[int, int] = {}
    for address, size in traced.pieces.values():
        for at in range(address >> 21, (address + size - 1 >> 21) + 1):
            begin, end = max(address, at << 21), min(address + size, at + 1 << 21)
            want[at] = want.get(at, 0) + (end - begin) // 4
    assert hot == want


@pytest.mark.parametrize("mode", ["events", "count", "touch", "trace"])
def test_streams(tmp_path: Path, mode: str) -> None:
    traced = trace(tmp_path, "process", "streams", mode=mode, analysis="touch")
    launches = traced.launches("bump")
    assert len(launches) == 120
    assert len({x.stream for x in launches}) == 6
    if mode == "count":
        assert {c.global_reads for c in traced.counts("bump")} == {1024}
    if mode in ("touch", "trace"):
        for i, x in enumerate(launches):
            assert touched(traced.log, x.launch) == [traced.pieces[f"s{i % 6}"]]
        assert "table_moves" not in traced.log.facts()  # no launch waited for another stream


@pytest.mark.parametrize("mode", ["count", "touch"])
def test_one_kernel_on_two_streams_at_once(tmp_path: Path, mode: str) -> None:
    traced = trace(tmp_path, "process", "overlap", mode=mode)
    launches = traced.launches("slow_bump")
    assert len({x.stream for x in launches}) == 2
    if mode == "count":
        assert [c.global_reads for c in traced.counts("slow_bump")] == [1024] * 6
    else:
        pieces = [[traced.pieces["o0"]], [traced.pieces["o1"]]] * 3
        assert [touched(traced.log, x.launch) for x in launches] == pieces


@pytest.mark.parametrize("mode", ["events", "touch", "trace"])
def test_contexts(tmp_path: Path, mode: str) -> None:
    traced = trace(tmp_path, "process", "contexts", mode=mode)
    log = traced.log
    launches = traced.launches("bump")
    assert len({x.context for x in launches}) == 2
    assert [c.created for c in log.of(ev.Context)][:3] == [1, 1, 0]
    # Each context is told of the other's memory: that makes no allocation, and ends none.
    assert {(a.address, a.size) for a in log.of(ev.Alloc)} >= set(traced.pieces.values())
    counts = Counter((a.address, a.size) for a in log.of(ev.Alloc))
    assert {counts[piece] for piece in traced.pieces.values()} == {1}
    ended = Counter((f.address, f.size) for f in log.of(ev.Free))
    assert (ended[traced.pieces["brief"]], ended[traced.pieces["second"]]) == (1, 1)
    if mode != "events":
        names = ["first", "second", "second", "first"]
        assert [touched(log, x.launch) for x in launches] == [[traced.pieces[n]] for n in names]


@pytest.mark.parametrize("which", ["graph_loaded", "graph"])
@pytest.mark.parametrize("mode", ["events", "count", "touch", "trace"])
def test_graphs(tmp_path: Path, mode: str, which: str) -> None:
    """A graph launch is exact as a whole where the Sanitizer takes a state; else that is said.

    The module is loaded, and so patched, before the capture or within it.
    """
    traced = trace(tmp_path, "process", which, mode=mode, analysis="touch")
    launches = traced.launches("bump")
    assert len(launches) == 16
    nodes, last = launches[:15], launches[15]
    assert last.analysed == (0 if mode == "events" else 1)
    if mode == "events":
        assert {x.analysed for x in nodes} == {3}
        return
    states = [x.analysed for x in nodes]
    assert states in ([2, 4, 4] * 5, [3] * 15)
    if 3 in states:
        assert "CUDA graphs are not analysed" in traced.log.notes()
        return
    if mode == "count":
        assert [c.global_reads for c in traced.counts("bump")] == [3072] * 5 + [1024]
    else:
        a, b = traced.pieces["a"], traced.pieces["b"]
        together = [sorted([a, b]), [], []]
        assert [sorted(touched(traced.log, x.launch)) for x in launches] == [*together * 5, [a]]


@pytest.mark.timed
@pytest.mark.parametrize("mode", ["events", "empty", "count", "touch", "hot"])
def test_no_launch_waits_for_the_gpu(tmp_path: Path, mode: str) -> None:
    """Fifty launches and changes of memory behind a kernel of a third of a second."""
    submitted_us = []
    while len(submitted_us) < 3 and min(submitted_us, default=150_000) >= 150_000:
        # A CPU that others use is late now and then; a launch that waits is late every time.
        traced = trace(tmp_path, "process", "ahead", mode=mode)
        submitted_us.append(traced.pieces["submitted"][0])
    assert min(submitted_us) < 150_000


@pytest.mark.parametrize("mode", ["events", "touch", "trace"])
def test_memory_that_ends_while_kernels_run(tmp_path: Path, mode: str) -> None:
    traced = trace(tmp_path, "process", "reuse", mode=mode)
    launches = traced.launches("slow_bump")
    assert len(launches) == 41
    if mode == "events":
        return
    names = [f"r{i}" for i in range(40)] + ["late"]
    for name, x in zip(names, launches, strict=True):
        # A pool's block may be larger than what was asked for; its start is the same.
        (piece,) = touched(traced.log, x.launch)
        assert piece[0] == traced.pieces[name][0]
        assert piece[1] >= traced.pieces[name][1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("which", "code", "whole"),
    [("crash", 3, True), ("exit", 5, True), ("leave", 6, True), ("abort", -signal.SIGABRT, False)],
)
def test_ends(tmp_path: Path, which: str, code: int, whole: bool, mode: str) -> None:
    traced = trace(tmp_path, "process", which, mode=mode)
    assert traced.returncode == code
    assert traced.log.whole == whole
    assert len(traced.launches("bump")) == (2 if which == "crash" else 1)
    if mode == "touch" and which in ("exit", "leave"):
        assert touched(traced.log, 0) == [traced.pieces["a"]]


@pytest.mark.parametrize("mode", ["events", "touch", "trace"])
def test_forks(tmp_path: Path, mode: str) -> None:
    traced = trace(tmp_path, "process", "fork", mode=mode)
    assert len(traced.logs) == 2, "the child that did not use CUDA has no log"
    assert all(log.whole for log in traced.logs)
    if mode != "events":
        pieces = sorted(touched(log, 0)[0] for log in traced.logs)
        assert sorted(traced.pieces.values(), key=lambda p: p[1]) == sorted(
            pieces, key=lambda p: p[1]
        )


def test_filters(tmp_path: Path) -> None:
    traced = trace(tmp_path, "vector_add", "1000", mode="count", kernels="vector_add")
    assert [x.analysed for x in traced.log.of(ev.Launch)] == [0, 0, 1]
    assert len(traced.log.of(ev.Counts)) == 1
    traced = trace(tmp_path, "vector_add", "1000", mode="touch", range="1:2")
    assert {t.launch for t in traced.log.of(ev.Touched)} == {1}


def test_two_tools_at_once(tmp_path: Path) -> None:
    """A copy of the library is another tool: the second gives up, and the target runs on."""
    other = tmp_path / "libother.so"
    other.write_bytes(library().read_bytes())
    (tmp_path / build.PATCHES).write_bytes((library().parent / build.PATCHES).read_bytes())
    out = tmp_path / "out"
    out.mkdir()
    done = run([str(sample("vector_add")), "1000"], {
        "ACCEL_TRACE_OUT": str(out), "ACCEL_TRACE_MODE": "events",
        "LD_PRELOAD": f"{library()} {other}",
    })  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "sum 3000\n", "")
    (log,) = [parse(path) for path in out.glob("*.atl")]
    assert log.of(ev.Launch)
    assert log.whole


def test_what_the_tool_takes_of_the_gpu_is_said(tmp_path: Path) -> None:
    log = trace(tmp_path, "vector_add", "1000").log
    assert 1 << 20 < int(log.facts()["device_bytes"]) < 64 << 20

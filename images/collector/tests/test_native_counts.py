"""Exact counts of modes count, hot and trace, by launches whose accesses are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from accel_trace import events as ev
from native_support import PREFETCH, READ, START, SYSTEM, WRITE, bench, launch, play

N = 100_000
A, B, C = 0x7F0000000000, 0x7F0000080000, 0x7F0000100000
VECTORS = [f"alloc 1 {base:#x} {4 * N}" for base in (A, B, C)]
ADD = launch(
    f"global {READ} 4 {A:#x} 4 {N}", f"global {READ} 4 {B:#x} 4 {N}",
    f"global {WRITE} 4 {C:#x} 4 {N}", name="_Z3addPKfS0_Pf",
)  # fmt: skip
ANALYSES = [("count", {}), ("trace", {"analysis": "count"}),
            ("trace", {"analysis": "count", "workers": 3, "buffer": 256})]  # fmt: skip


def counts(run_log: object) -> ev.Counts:
    (only,) = run_log.of(ev.Counts)  # type: ignore[attr-defined]
    return only


@pytest.mark.parametrize(("mode", "settings"), ANALYSES)
def test_vector_add_counts_two_reads_and_a_write_per_element(
    tmp_path: Path, mode: str, settings: dict[str, object]
) -> None:
    log = play([*START, *VECTORS, *ADD], tmp_path, mode, **settings).log
    got = counts(log)
    assert (got.global_reads, got.global_writes, got.global_atomics) == (2 * N, N, 0)
    assert got.global_bytes_read + got.global_bytes_written == 1_200_000
    assert got.outside == 0
    (start,) = log.of(ev.Launch)
    assert (start.name, start.analysed, start.block_x) == (
        "add(float const*, float const*, float*)",
        1,
        32,
    )
    assert log.whole
    assert log.status["state"] == "closed"


@pytest.mark.parametrize(("mode", "settings"), ANALYSES)
def test_kinds_are_told_by_flags_alone(
    tmp_path: Path, mode: str, settings: dict[str, object]
) -> None:
    accesses = [
        f"global {READ} 8 {A:#x} 64 10", f"global {WRITE} 16 {A:#x} 64 20",
        f"global {READ | WRITE} 4 {A:#x} 4 30", f"global {PREFETCH} 4 {A:#x} 4 1000",
        f"shared {READ} 4 0 4 40", f"shared {WRITE} 2 0 4 50", f"shared {READ | WRITE} 4 0 4 3",
        f"local {READ} 8 0 8 60", f"local {WRITE} 1 0 8 70",
        f"global {READ} 4 {A + 4 * N:#x} 4 5",  # just behind the end
        "global 1 4 0x1000 4 2",  # far away
    ]  # fmt: skip
    got = counts(play([*START, VECTORS[0], *launch(*accesses)], tmp_path, mode, **settings).log)
    assert (got.global_reads, got.global_writes, got.global_atomics) == (17, 20, 30)
    assert (got.global_bytes_read, got.global_bytes_written) == (10 * 8 + 7 * 4, 20 * 16)
    assert (got.shared_reads, got.shared_writes) == (43, 53)
    assert (got.local_reads, got.local_writes) == (60, 70)
    assert got.outside == 7


def test_a_system_wide_atomic_is_an_atomic(tmp_path: Path) -> None:
    script = [*START, VECTORS[0], *launch(f"global {WRITE | SYSTEM} 4 {A:#x} 4 9")]
    got = counts(play(script, tmp_path, "count").log)
    assert (got.global_writes, got.global_atomics) == (0, 9)


@pytest.mark.parametrize(("mode", "settings"), ANALYSES)
def test_distributed_shared_memory_counts_as_shared(
    tmp_path: Path, mode: str, settings: dict[str, object]
) -> None:
    accesses = ["remote 1 4 16 4 7", "shared 1 4 16 4 5", "remote 2 4 16 4 3"]
    got = counts(play([*START, *VECTORS, *launch(*accesses)], tmp_path, mode, **settings).log)
    assert (got.shared_reads, got.shared_writes, got.global_reads) == (12, 3, 0)


@pytest.mark.parametrize(("mode", "settings"), ANALYSES)
def test_asynchronous_and_bulk_copies(
    tmp_path: Path, mode: str, settings: dict[str, object]
) -> None:
    accesses = [
        f"async 0 16 {A:#x} 16 100", "async 0 4 0 0 7",  # without a source: zeros only
        f"bulk_load 0 4096 {A:#x} 4096 5", f"bulk_store 0 2048 {B:#x} 2048 3",
        f"bulk_reduce 0 1024 {C:#x} 1024 2",
    ]  # fmt: skip
    got = counts(play([*START, *VECTORS, *launch(*accesses)], tmp_path, mode, **settings).log)
    assert (got.async_copies, got.async_bytes) == (107, 1600)
    assert (got.bulk_copies, got.bulk_bytes) == (10, 5 * 4096 + 3 * 2048 + 2 * 1024)
    assert (got.global_reads, got.outside) == (0, 0)


@pytest.mark.parametrize("oldest", [False, True])
@pytest.mark.parametrize(("mode", "settings"), ANALYSES)
def test_copies_by_tensor_map_are_counted_where_the_headers_have_them(
    tmp_path: Path, mode: str, settings: dict[str, object], oldest: bool
) -> None:
    there = bench(oldest=oldest).features["AT_TENSOR"]
    accesses = ["tensor_load 0 0 0 0 3", "tensor_store 0 0 0 0 1"]
    script = [*START, *VECTORS, *launch(*accesses)]
    log = play(script, tmp_path, mode, oldest=oldest, **settings).log
    assert counts(log).bulk_copies == (4 if there else 0)
    assert ("whose addresses the interface does not tell" in log.notes()) == there
    assert "the code of a module could not be read" in log.notes()  # it has none here


@pytest.mark.parametrize("oldest", [False, True])
def test_what_newer_headers_tell_of_copied_bytes_is_used(tmp_path: Path, oldest: bool) -> None:
    features = bench(oldest=oldest).features
    assert not (oldest and any(features[name] for name in features if name != "AT_BULK"))
    accesses = [f"async 12 16 {A:#x} 16 10", f"bulk_store 255 160 {A:#x} 0 1"]
    script = [*START, VECTORS[0], *launch(*accesses)]
    got = counts(play(script, tmp_path, "count", oldest=oldest).log)
    assert got.async_bytes == (40 if features["AT_ASYNC_ZERO_FILL"] else 160)
    assert got.bulk_bytes == (80 if features["AT_BULK_BYTE_MASK"] else 160)


def test_classes_choose_what_is_patched(tmp_path: Path) -> None:
    accesses = [f"global {READ} 4 {A:#x} 4 10", "shared 1 4 0 4 20", f"async 0 4 {A:#x} 4 30"]
    script = [*START, VECTORS[0], *launch(*accesses)]
    got = counts(play(script, tmp_path, "count", classes="shared,async").log)
    assert (got.global_reads, got.shared_reads, got.async_copies) == (0, 20, 30)


@pytest.mark.parametrize(
    ("mode", "settings"), [("hot", {}), ("trace", {"analysis": "hot", "workers": 2})]
)
def test_hot_blocks(tmp_path: Path, mode: str, settings: dict[str, object]) -> None:
    block = A >> 21
    accesses = [
        f"global {READ} 4 {A:#x} 4 1000", f"global {WRITE} 4 {A + (1 << 20):#x} 4 500",  # odd MiB
        f"global {READ} 4 {A + (2 << 21):#x} 4 7", f"async 0 16 {A:#x} 16 3",
        f"global {READ} 4 {A + (9 << 21):#x} 4 2",  # nothing lives in that block
    ]  # fmt: skip
    script = [*START, f"alloc 1 {A:#x} {5 << 20}", *launch(*accesses), *launch()]
    log = play(script, tmp_path, mode, **settings).log
    assert [(h.launch, h.block, h.count) for h in log.of(ev.Hot)] == [
        (0, 0, 2), (0, block, 1503), (0, block + 2, 7),
    ]  # fmt: skip


def test_many_hot_blocks_come_and_go(tmp_path: Path) -> None:
    """More blocks at once than a row has room for at first, then other addresses."""
    size = 9000 << 21
    script = list(START)
    for i in range(3):
        base = A + i * size
        last = base + size - 4
        script += [f"alloc 1 {base:#x} {size}", *launch(f"global 1 4 {last:#x} 0 {i + 1}"),
                   f"free 1 {base:#x}"]  # fmt: skip
    log = play(script, tmp_path, "hot").log
    assert [(h.block, h.count) for h in log.of(ev.Hot)] == [
        ((A + (i + 1) * size - 4) >> 21, i + 1) for i in range(3)
    ]


def test_the_tools_own_work_is_never_reported(tmp_path: Path) -> None:
    """The synthetic Sanitizer reports the tool's allocations and waits back to it."""
    run = play([*START, *VECTORS, *ADD, "flush", "own"], tmp_path, "count")
    assert "own callbacks 1" in run.stdout
    assert len(run.log.of(ev.Alloc)) == 3
    assert not run.log.of(ev.Sync)
    assert not run.log.of(ev.Free)
    (module,) = run.log.of(ev.Module)
    assert module.size == 4242

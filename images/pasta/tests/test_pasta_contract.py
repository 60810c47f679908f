"""Our reading of the collector's files, against its own tools on a log made here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from accel_trace.cli import main
from accel_trace.events import (
    Alloc,
    Counts,
    Event,
    Fact,
    Hot,
    Launch,
    TensorAlloc,
    TensorFree,
    Timer,
    Touched,
)
from accel_trace.log_writer import LogWriter
from pasta_workloads.errors import RunFailed
from pasta_workloads.mapping import (
    check_followed,
    check_whole,
    counts_of,
    heat_of,
    launches_of,
    own_memory,
    region_launches,
    stages_of,
    timelines_of,
)

MIB = 2**20
BASE = 1 << 40
_PLACE = ("device", "stream", "context", "thread", "grid_x", "grid_y", "grid_z", "block_x",
          "block_y", "block_z")  # fmt: skip


def launch(number: int, region: str, *, analysed: int = 1) -> Launch:
    values = dict.fromkeys(_PLACE, 0)
    return Launch(
        launch=number, name="void im2col<float>(int)", analysed=analysed, operator="conv",
        region=region, **values,
    )  # fmt: skip


def tensor(kind: type[TensorAlloc | TensorFree], offset: int, size: int, left: int) -> Event:
    return kind(
        address=BASE + offset, size=size, allocated=left, reserved=20 * MIB, device=0, stream=0
    )


EVENTS: tuple[Event, ...] = (
    Alloc(address=BASE, size=20 * MIB, device=0, flags=0, stream=0),
    tensor(TensorAlloc, 0, MIB, MIB),
    tensor(TensorAlloc, MIB, 2 * MIB, 3 * MIB),
    launch(0, "warmup"),
    launch(1, "iteration"),
    launch(2, "iteration", analysed=0),
    Touched(launch=0, address=BASE, size=MIB, what=1, flags=0),
    Touched(launch=1, address=BASE, size=MIB, what=1, flags=0),
    Touched(launch=1, address=BASE + MIB, size=2 * MIB, what=1, flags=0),
    Hot(launch=1, block=BASE >> 21, count=1000),
    Hot(launch=1, block=(BASE >> 21) + 1, count=500),
    Counts(
        launch=1, global_reads=7, global_writes=3, global_atomics=0, global_bytes_read=28,
        global_bytes_written=12, shared_reads=0, shared_writes=0, local_reads=0, local_writes=0,
        async_copies=0, async_bytes=0, bulk_copies=0, bulk_bytes=0, outside=0,
    ),
    *(Timer(stage=stage, total_ns=10**9, count=1)
      for stage in ("collection", "transfer", "analysis")),
    tensor(TensorFree, MIB, 2 * MIB, MIB),
    Fact(name="device_bytes", value=str(12 * MIB)),
)  # fmt: skip


def reported(folder: Path, tool: str, events: Iterable[Event] = EVENTS) -> Path:
    """A folder with a log, after the tool has read it."""
    with LogWriter(folder / "trace-5.atl", pid=5) as log:
        for event in events:
            log.write(event)
    assert main(["report", str(folder), "--tool", tool]) == 0
    check_whole(folder)
    return folder


def test_working_set(tmp_path: Path) -> None:
    (found,) = launches_of(reported(tmp_path, "working_set"))
    assert found.short == "im2col"
    assert (found.ws, found.ws_tensor, found.ws_object) == (3 * MIB, 3 * MIB, 20 * MIB)
    assert found.footprint == 20 * MIB
    assert own_memory(tmp_path) == 12 * MIB


def test_memory_timeline(tmp_path: Path) -> None:
    found = timelines_of(reported(tmp_path, "memory_timeline"))
    assert found["0", "tensor"].allocated == [MIB, 3 * MIB, MIB]
    assert found["0", "tensor"].changes == [MIB, 2 * MIB, -2 * MIB]
    assert found["0", "object"].allocated == [20 * MIB]


def test_hotness(tmp_path: Path) -> None:
    found = heat_of(reported(tmp_path, "hotness"))
    assert found.counts.sum() == 1500
    assert found.counts.shape[0] == 2


def test_access_counts(tmp_path: Path) -> None:
    (found,) = counts_of(reported(tmp_path, "access_counts"))["im2col"]
    assert (found["global_reads"], found["global_bytes_written"]) == (7, 12)


def test_overhead(tmp_path: Path) -> None:
    found = stages_of(reported(tmp_path, "overhead"))
    assert found == {"collection": 1.0, "transfer": 1.0, "analysis": 1.0}


def test_a_working_set_that_would_be_wrong_is_refused(tmp_path: Path) -> None:
    """Launches that were left out, and tensors that nobody followed."""
    whole = [event for event in EVENTS if getattr(event, "analysed", 1)]
    untold = [event for event in whole if not isinstance(event, TensorAlloc | TensorFree)]
    untold = [
        replace(event, size=20 * MIB, address=BASE, what=0) if isinstance(event, Touched) else event
        for event in untold
    ]
    for name, events, match in (
        ("left", EVENTS, "1 of 2 launches were not analysed"),
        ("untold", untold, "1 of 1 kernels touched no tensor, as im2col"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises(RunFailed, match=match):
            check_followed(reported(tmp_path / name, "working_set", events))
    (tmp_path / "whole").mkdir()
    check_followed(reported(tmp_path / "whole", "working_set", whole))


def test_launches_inside_the_region(tmp_path: Path) -> None:
    assert region_launches(reported(tmp_path, "kernel_frequency")) == (2, 1)

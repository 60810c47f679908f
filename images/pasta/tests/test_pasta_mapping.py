"""From the collector's files to our numbers, on files made by hand."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from accel_trace import events as ev
from accel_trace.log_writer import LogWriter
from pasta_workloads.errors import RunFailed
from pasta_workloads.mapping import (
    check_whole,
    checks_of,
    counts_of,
    heat_of,
    launches_of,
    own_memory,
    short_name,
    stages_of,
    timelines_of,
)

SETS = ("process", "launch", "kernel", "device", "grid", "block", "ws", "ws_tensor", "ws_object",
        "footprint", "tensor_footprint", "pieces", "accesses_elsewhere", "operator",
        "region", "by_descriptor", "not_seen")  # fmt: skip


def table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A CSV file as the collector's tools write it."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def launch(
    number: int, kernel: str, ws: int, region: str, described: str = "", not_seen: str = ""
) -> tuple[object, ...]:
    return ("7", number, kernel, 0, "1x1x1", "32x1x1", ws, ws, 4 * ws, 1000, 900, 2, 0, "", region,
            described, not_seen)  # fmt: skip


def test_launches_of_the_iteration_alone(tmp_path: Path) -> None:
    rows = [
        launch(0, "void at::native::init<float>(int)", 1, ""),
        launch(1, "void at::native::im2col_kernel<float>(long)", 512, "iteration"),
        launch(2, "nvjet_tst_128x64_nn", 1024, "iteration", "read or written", "tensor maps"),
        launch(3, "warm", 5, "warmup"),
    ]
    table(tmp_path / "working-set.csv", SETS, rows)
    found = launches_of(tmp_path)
    assert [one.short for one in found] == ["at::native::im2col_kernel", "nvjet_tst_128x64_nn"]
    assert [one.ws for one in found] == [512, 1024]
    assert [one.ws_object for one in found] == [2048, 4096]
    assert found[0].footprint == 1000
    assert [(one.described, one.unseen) for one in found] == [(False, False), (True, True)]


def test_without_any_region_all_launches_count(tmp_path: Path) -> None:
    table(tmp_path / "working-set.csv", SETS, [launch(0, "a", 1, ""), launch(1, "b", 2, "")])
    assert len(launches_of(tmp_path)) == 2


def test_iterations_that_were_analysed_again_come_as_inferred_and_as_analysed(
    tmp_path: Path,
) -> None:
    """The first one is what they are inferred from; one that matches nothing is not inferred."""
    names = ("stream", "context", "thread", "device", "grid_x", "grid_y", "grid_z", "block_x",
             "block_y", "block_z")  # fmt: skip
    with LogWriter(tmp_path / "trace-7.atl", pid=7) as log:
        log.write(ev.Alloc(address=4096, size=4096, clock=1, flags=0, device=0, stream=0))
        for iteration, second in enumerate(("b", "b", "other")):
            analysed = int(iteration != 1)
            log.write(ev.Iteration(iteration=iteration, began=1, analysed=analysed))
            for number, name in enumerate(("a", second), 2 * iteration):
                fields: dict[str, int] = dict.fromkeys(names, 0) | {"analysed": analysed}
                log.write(ev.Launch(launch=number, name=name, operator="", region="", **fields))
                if analysed:
                    log.write(ev.Touched(launch=number, address=4096, size=4096, what=0, flags=0))
            log.write(ev.Iteration(iteration=iteration, began=0, analysed=analysed))
    ((inferred, exact),) = checks_of(tmp_path)
    assert [(one.kernel, one.ws, one.footprint) for one in inferred] == [("a", 4096, 4096)]
    assert [one.kernel for one in exact] == ["a", "other"]


def test_no_launch_no_table_and_bad_numbers_are_said(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"left no working-set\.csv"):
        launches_of(tmp_path)
    table(tmp_path / "working-set.csv", SETS, [])
    with pytest.raises(RunFailed, match="no launch of the iteration"):
        launches_of(tmp_path)
    table(tmp_path / "working-set.csv", SETS, [[*launch(0, "a", 1, "")[:6], "x"]])
    with pytest.raises(RunFailed, match="no whole number 'ws'"):
        launches_of(tmp_path)


def test_timelines_by_device_and_level(tmp_path: Path) -> None:
    header = ("process", "device", "level", "index", "ns", "change", "allocated", "reserved")
    rows = [(0, 0, "object", 0, 0, 100, 100, 0), (0, 0, "tensor", 0, 1, 10, 10, 100),
            (0, 0, "tensor", 1, 2, -10, 0, 100), (1, 1, "tensor", 0, 2, 7, 7, 9)]  # fmt: skip
    table(tmp_path / "memory-timeline.csv", header, rows)
    found = timelines_of(tmp_path)
    assert found.keys() == {("0", "object"), ("0", "tensor"), ("1", "tensor")}
    assert found["0", "tensor"].changes == [10, -10]
    assert found["0", "tensor"].allocated == [10, 0]
    table(tmp_path / "memory-timeline.csv", header, [])
    with pytest.raises(RunFailed, match="no allocation"):
        timelines_of(tmp_path)


def test_heat(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="0 processes"):
        heat_of(tmp_path)
    np.savez(tmp_path / "hotness-5.npz", counts=np.ones((2, 3)), window=1000, blocks=[1, 2])
    found = heat_of(tmp_path)
    assert found.counts.shape == (2, 3)
    assert found.window == 1000
    (tmp_path / "hotness-5.npz").write_bytes(b"cut")
    with pytest.raises(RunFailed, match="cannot be read"):
        heat_of(tmp_path)


def test_counts_by_kernel(tmp_path: Path) -> None:
    header = ("process", "launch", "kernel", "global_reads", "outside")
    rows = [(7, 0, "pasta_add", 5, 0), (7, 1, "void f<int>(x)", 1, 0), (7, 2, "pasta_add", 6, 1)]
    table(tmp_path / "access-counts.csv", header, rows)
    found = counts_of(tmp_path)
    assert found["pasta_add"] == [
        {"global_reads": 5, "outside": 0}, {"global_reads": 6, "outside": 1}
    ]  # fmt: skip
    assert found["f"][0]["global_reads"] == 1


def test_stages(tmp_path: Path) -> None:
    def write(stages: Sequence[str]) -> None:
        lines = [
            {"metric": "stage_time", "unit": "s", "samples": [2.0], "labels": {"stage": stage}}
            for stage in stages
        ]
        (tmp_path / "records.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))

    write(["collection", "transfer", "analysis", "execution"])
    assert stages_of(tmp_path) == {"collection": 2.0, "transfer": 2.0, "analysis": 2.0}
    write(["collection"])
    with pytest.raises(RunFailed, match="timed no transfer, analysis"):
        stages_of(tmp_path)
    (tmp_path / "records.jsonl").write_text("{")
    with pytest.raises(RunFailed, match="cannot be read"):
        stages_of(tmp_path)


def npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, counts=np.ones((2, 3)), window=5)
    return file.getvalue()


def altered(data: bytes, at: int, to: int) -> bytes:
    return data[:at] + bytes([to]) + data[at + 1 :]


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


@pytest.mark.parametrize(
    ("read", "name", "content"),
    [
        (launches_of, "working-set.csv", b"process,launch\n1,2\n"),
        (launches_of, "working-set.csv", b"kernel,region\n\xff,\xfe\n"),
        (launches_of, "working-set.csv", b"kernel,region\n" + b"a" * 200_000 + b",\n"),
        (timelines_of, "memory-timeline.csv", b"a,b\n1,2\n"),
        (timelines_of, "memory-timeline.csv", b""),
        (counts_of, "access-counts.csv", b"process,launch\n1,2\n"),
        (heat_of, "hotness-1.npz", b""),
        (heat_of, "hotness-1.npz", npz()[:200]),
        (heat_of, "hotness-1.npz", npz().replace(b"window", b"widths")),
        (heat_of, "hotness-1.npz", altered(npz(), npz().index(b"counts.npy") + 30, 0xFF)),
        (heat_of, "hotness-1.npz", altered(npz(), npz().index(b"PK\1\2") + 10, 99)),
        (heat_of, "hotness-1.npz", npy()),
        (stages_of, "records.jsonl", b'{"metric": "stage_time", "samples": [1]}\n'),
        (stages_of, "records.jsonl", b'{"metric": "stage_time", "samples": [1], "labels": []}\n'),
        (check_whole, "records.jsonl", b'{"metric": "damaged_logs", "labels": {}}\n'),
        (own_memory, "records.jsonl", b'{"metric": "device_bytes", "samples": ["a"]}\n'),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else None,
)
def test_a_cut_or_altered_file_is_named(
    tmp_path: Path, read: Callable[[Path], object], name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunFailed, match=rf"{name} cannot be read: ") as failed:
        read(tmp_path)
    assert "\n" not in str(failed.value)


def test_a_row_that_is_cut_before_its_kernel_is_told(tmp_path: Path) -> None:
    (tmp_path / "access-counts.csv").write_text("process,launch,kernel,reads\n7,1\n")
    with pytest.raises(RunFailed, match="no whole number 'reads'"):
        counts_of(tmp_path)


def test_a_log_is_whole_only_where_the_collector_says_so(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").touch()
    with pytest.raises(RunFailed, match=r"does not say damaged_logs in .*records\.jsonl"):
        check_whole(tmp_path)


def test_short_names_are_the_figures() -> None:
    assert short_name("void at::native::f<float, 4>(int)") == "at::native::f"
    assert short_name("ampere_sgemm_128x64_nn") == "ampere_sgemm_128x64_nn"
    assert short_name("void <lambda>") == "(nameless)"

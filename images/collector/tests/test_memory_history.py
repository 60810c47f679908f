"""The allocator's history: parsed snapshots of the documented shape, whole and cut."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from accel_trace.events import Dropped, Event, Note, TensorAlloc, TensorFree
from accel_trace.handlers import memory_history
from accel_trace.handlers.memory_history import parse
from accel_trace.handlers.sink import LogSink
from torch_support import events_of, run_python

MIB = 1 << 20
KIB = 1 << 10


def entry(us: int, action: str, addr: int, size: int, stream: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": us,
            "frames": []}  # fmt: skip


def segment(address: int, total: int, *blocks: tuple[int, str], device: int = 0) -> dict[str, Any]:
    listed = [{"size": size, "requested_size": size, "state": state} for size, state in blocks]
    active = sum(size for size, state in blocks if state != "inactive")
    return {"address": address, "total_size": total, "device": device, "stream": 0,
            "segment_type": "large", "allocated_size": active, "active_size": active,
            "blocks": listed}  # fmt: skip


def tensors(events: list[Event]) -> list[tuple[str, int, int, int, int, int]]:
    return [
        (type(e).__name__, e.address, e.size, e.allocated, e.reserved, e.device)
        for e in events
        if isinstance(e, TensorAlloc | TensorFree)
    ]


def kinds(events: list[Event], kind: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def test_a_whole_history() -> None:
    trace = [
        entry(1, "segment_alloc", 0, 2 * MIB),
        entry(2, "alloc", 0, 1000),
        entry(3, "alloc", 1024, 4 * KIB),
        entry(4, "free_requested", 0, 1000),
        entry(4, "free_completed", 0, 1000),
        entry(5, "alloc", 0, 100, stream=7),
        entry(6, "snapshot", 0, 0),
    ]
    held = segment(
        0, 2 * MIB, (512, "active_allocated"), (512, "inactive"), (4 * KIB, "active_allocated"),
        (2 * MIB - 5 * KIB, "inactive"),
    )  # fmt: skip
    events = list(parse({"segments": [held], "device_traces": [trace]}, shift_ns=50))
    assert tensors(events) == [
        ("TensorAlloc", 0, 1024, 1024, 2 * MIB, 0),
        ("TensorAlloc", 1024, 4 * KIB, 5 * KIB, 2 * MIB, 0),
        ("TensorFree", 0, 1024, 4 * KIB, 2 * MIB, 0),
        ("TensorAlloc", 0, 512, 4 * KIB + 512, 2 * MIB, 0),
    ]
    assert [e.ns for e in events if isinstance(e, TensorAlloc)] == [2050, 3050, 5050]
    assert [e.stream for e in events if isinstance(e, TensorAlloc)] == [0, 0, 7]
    assert not kinds(events, Dropped)
    assert not kinds(events, Note)


def test_a_free_that_waits_for_another_stream_stands_where_it_was_completed() -> None:
    trace = [
        entry(1, "segment_alloc", 0, 2 * MIB),
        entry(2, "alloc", 0, 512),
        entry(3, "free_requested", 0, 512),
        entry(4, "alloc", 512, 512),
        entry(5, "free_completed", 0, 512),
    ]
    events = list(parse({"segments": [], "device_traces": [trace]}))
    assert [(name, allocated) for name, _, _, allocated, _, _ in tensors(events)] == [
        ("TensorAlloc", 512), ("TensorAlloc", 1024), ("TensorFree", 512),
    ]  # fmt: skip


def test_devices_have_their_own_totals_and_one_order_of_time() -> None:
    first = [entry(1, "segment_alloc", 0, 2 * MIB), entry(5, "alloc", 0, 512)]
    second = [entry(2, "segment_alloc", 0, 20 * MIB), entry(3, "alloc", 0, 2 * MIB)]
    snapshot = {
        "segments": [
            segment(0, 2 * MIB, (512, "active_allocated")),
            segment(0, 20 * MIB, (2 * MIB, "active_allocated"), device=1),
        ],
        "device_traces": [first, second],
    }
    events = list(parse(snapshot))
    assert tensors(events) == [
        ("TensorAlloc", 0, 2 * MIB, 2 * MIB, 20 * MIB, 1),
        ("TensorAlloc", 0, 512, 512, 2 * MIB, 0),
    ]
    assert not kinds(events, Note)


def test_a_full_record_is_told_and_its_totals_are_right_all_the_same() -> None:
    # Lost: the segment, a block of 1 KiB that was there, and one of 2 KiB that is still there.
    trace = [
        entry(8, "alloc", 4 * KIB, 512),
        entry(9, "free_completed", 0, 1024),
    ]
    held = segment(
        0, 2 * MIB, (1 * KIB, "inactive"), (2 * KIB, "active_allocated"), (1 * KIB, "inactive"),
        (512, "active_allocated"), (2 * MIB - 4 * KIB - 512, "inactive"),
    )  # fmt: skip
    events = list(parse({"segments": [held], "device_traces": [trace]}, max_entries=2))
    (lost,) = kinds(events, Dropped)
    assert lost == Dropped(what="allocator history of GPU 0", count=2)
    assert tensors(events) == [
        ("TensorAlloc", 4 * KIB, 512, 3 * KIB + 512, 2 * MIB, 0),
        ("TensorFree", 0, 1024, 2 * KIB + 512, 2 * MIB, 0),
    ]


def test_a_segment_that_went_back_is_taken_off() -> None:
    trace = [
        entry(1, "segment_alloc", 0, 20 * MIB),
        entry(2, "alloc", 0, 5 * MIB),
        entry(3, "free_completed", 0, 5 * MIB),
        entry(4, "segment_free", 0, 20 * MIB),
        entry(5, "segment_map", 1 << 30, 20 * MIB),
        entry(6, "alloc", 1 << 30, 20 * MIB - 512),
    ]
    held = segment(1 << 30, 20 * MIB, (20 * MIB - 512, "active_allocated"), (512, "inactive"))
    events = list(parse({"segments": [held], "device_traces": [trace]}))
    assert [(size, reserved) for _, _, size, _, reserved, _ in tensors(events)] == [
        (5 * MIB, 20 * MIB), (5 * MIB, 20 * MIB), (20 * MIB - 512, 20 * MIB),
    ]  # fmt: skip
    assert not kinds(events, Note)


def test_totals_that_do_not_end_where_pytorch_does_are_told() -> None:
    trace = [entry(1, "segment_alloc", 0, 2 * MIB), entry(2, "alloc", 0, 512)]
    held = segment(0, 2 * MIB, (1024, "active_allocated"), (2 * MIB - 1024, "inactive"))
    (note,) = kinds(list(parse({"segments": [held], "device_traces": [trace]})), Note)
    assert isinstance(note, Note)
    assert "allocated ends at 512 bytes, PyTorch says 1024" in note.text


def test_an_empty_snapshot_is_no_error() -> None:
    assert tensors(list(parse({"segments": [], "device_traces": []}))) == []
    assert tensors(list(parse({"segments": [], "device_traces": [[], []]}))) == []


def test_recording_is_started_once_and_written_at_the_end(tmp_path: Path) -> None:
    calls: list[dict[str, Any]] = []
    trace = [entry(1, "segment_alloc", 0, 2 * MIB), entry(2, "alloc", 0, 512)]
    held = segment(0, 2 * MIB, (512, "active_allocated"))
    memory = SimpleNamespace(
        _record_memory_history=lambda **options: calls.append(options),
        _snapshot=lambda: {"segments": [held], "device_traces": [trace]},
    )
    torch = SimpleNamespace(cuda=SimpleNamespace(memory=memory))
    sink = LogSink(str(tmp_path))
    memory_history.record(torch, sink)  # type: ignore[arg-type]
    assert calls == [
        {"enabled": "all", "context": None, "stacks": "python",
         "max_entries": memory_history.MAX_ENTRIES}
    ]  # fmt: skip
    assert not list(tmp_path.iterdir())
    sink.close()
    sink.close()
    (events,) = events_of(tmp_path).values()
    assert [size for _, _, size, _, _, _ in tensors(events)] == [512]


def test_a_pytorch_that_cannot_record_leaves_a_note(tmp_path: Path) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(memory=SimpleNamespace()))
    sink = LogSink(str(tmp_path))
    memory_history.record(torch, sink)  # type: ignore[arg-type]
    sink.close()
    (events,) = events_of(tmp_path).values()
    assert isinstance(events[0], Note)
    assert "does not record its allocator's history" in events[0].text


def test_a_snapshot_that_fails_at_the_end_does_not_fail_the_program(tmp_path: Path) -> None:
    code = """
import accel_trace.handlers.sink as sink
log = sink.log_sink()
log.before_close(lambda: 1 / 0)
print("done")
"""
    result = run_python(code, tmp_path, environ={"ACCEL_TRACE_HANDLERS": "none"})
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")
    (events,) = events_of(tmp_path).values()
    assert "ZeroDivisionError" in events[0].text  # type: ignore[attr-defined]

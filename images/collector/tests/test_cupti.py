"""CUPTI's records as events: with made-up records of its shape, and with its own classes."""

from __future__ import annotations

import ctypes
import enum
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from accel_trace.events import (
    MEMORY_FLAGS,
    Alloc,
    CopyTime,
    Dropped,
    Fact,
    Free,
    KernelTime,
    ManagedCounter,
    Note,
    Sync,
)
from accel_trace.handlers import cupti
from accel_trace.handlers.cupti import Collector, CuptiError
from accel_trace.handlers.sink import LogSink
from torch_support import events_of, run_python

Kind = enum.IntEnum(
    "Kind",
    {"MEMCPY": 1, "MEMSET": 2, "CONCURRENT_KERNEL": 10, "MEMCPY2": 22,
     "UNIFIED_MEMORY_COUNTER": 25, "SYNCHRONIZATION": 38, "MEMORY2": 49},
)  # fmt: skip


class _Cupti(ModuleType):
    """The part of cupti.cupti that is used. `records` is what a flush delivers."""

    ActivityKind = Kind
    ActivityMemoryOperationType = enum.IntEnum("Operation", {"ALLOCATION": 1, "RELEASE": 2})
    ActivityUnifiedMemoryCounterKind = enum.IntEnum(
        "Counter", {name: number for number, name in enumerate(cupti._COUNTERS, 1)}
    )
    ActivityUnifiedMemoryCounterScope = enum.IntEnum("Scope", {"PROCESS_SINGLE_DEVICE": 1})
    Result = enum.IntEnum("Result", {"ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": 39})

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.enabled: list[int] = []
        self.records: list[Any] = []
        self.lost = 0
        self.refuse: Exception | None = None
        self.buffers: Callable[[], tuple[int, int]] | None = None
        self.completed: Callable[[list[Any]], None] | None = None

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        self.buffers, self.completed = requested, completed

    def activity_enable(self, kind: int) -> None:
        if self.refuse is not None and kind == Kind.MEMORY2:
            raise self.refuse
        self.enabled.append(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.remove(kind)

    def get_timestamp(self) -> int:
        return 1_000

    def activity_flush_all(self, flag: int) -> None:
        assert flag == 1
        assert self.completed is not None
        self.completed(self.records)

    def activity_get_num_dropped_records(self, context: int, stream: int, where: int) -> None:
        ctypes.c_size_t.from_address(where).value = self.lost


def kernel(correlation: int, start: int, name: Any = "k", **fields: int) -> SimpleNamespace:
    values = {"device_id": 0, "stream_id": 7, "end": start + 10} | fields
    return SimpleNamespace(
        kind=Kind.CONCURRENT_KERNEL, name=name, start=start, correlation_id=correlation, **values
    )


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> _Cupti:
    found = _Cupti()
    package = ModuleType("cupti")
    package.cupti = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", found)
    monkeypatch.setattr(cupti.time, "monotonic_ns", lambda: 5_000)
    return found


def collect(binding: _Cupti, *records: Any) -> list[Any]:
    collector = Collector()
    collector.start()
    binding.records = list(records)
    events = collector.finish()
    assert not binding.enabled
    return events


def test_kernels_are_numbered_in_the_order_of_their_calls(binding: _Cupti) -> None:
    # Two streams: the second call's kernel ran first; call 9 is a CUDA graph of two nodes.
    events = collect(
        binding, kernel(5, 300, "b"), kernel(9, 900, "d"), kernel(9, 800, b"c"), kernel(2, 400, "a")
    )
    assert [(e.launch, e.name, e.start_ns) for e in events] == [
        (0, "a", 400), (1, "b", 300), (2, "c", 800), (3, "d", 900),
    ]  # fmt: skip
    assert events[0] == KernelTime(
        launch=0, name="a", start_ns=400, end_ns=410, device=0, stream=7, correlation=2, ns=4_400
    )


def test_copies_have_the_direction_of_our_events(binding: _Cupti) -> None:
    def copy(kind: int, number: int = Kind.MEMCPY) -> SimpleNamespace:
        return SimpleNamespace(
            kind=number, copy_kind=kind, start=10, end=20, bytes=64, device_id=1, stream_id=3
        )

    memset = SimpleNamespace(kind=Kind.MEMSET, start=30, end=35, bytes=8, device_id=0, stream_id=0)
    kinds = {1: 2, 2: 3, 8: 4, 9: 1, 10: 4, 0: 0}
    events = collect(binding, *map(copy, kinds), copy(10, Kind.MEMCPY2), memset)
    assert [e.direction for e in events] == [*kinds.values(), 4, 0]
    assert events[0] == CopyTime(
        what="memcpy", direction=2, start_ns=10, end_ns=20, size=64, device=1, stream=3, ns=4_010
    )
    assert (events[-1].what, events[-1].size) == ("memset", 8)


def test_allocations_and_frees_have_flags(binding: _Cupti) -> None:
    def memory(operation: int, kind: int, at: int, is_async: int = 0) -> SimpleNamespace:
        return SimpleNamespace(
            kind=Kind.MEMORY2, memory_operation_type=operation, memory_kind=kind, address=4096,
            bytes=512, device_id=0, stream_id=9, timestamp=at, is_async=is_async,
        )  # fmt: skip

    events = collect(binding, memory(2, 5, 40), memory(1, 5, 20), memory(1, 3, 30, is_async=1))
    assert [type(e) for e in events] == [Alloc, Alloc, Free]  # by time
    assert [e.flags for e in events] == [MEMORY_FLAGS["managed"], 0, MEMORY_FLAGS["managed"]]
    assert [e.stream for e in events] == [0, 9, 0]


def test_waits_for_streams_and_contexts_are_told_and_others_not(binding: _Cupti) -> None:
    def wait(kind: int) -> SimpleNamespace:
        return SimpleNamespace(
            kind=Kind.SYNCHRONIZATION, type=kind, start=kind, stream_id=4_294_967_295
        )

    events = collect(binding, *map(wait, (1, 2, 3, 4)))
    assert [(type(e), e.what, e.stream) for e in events] == [
        (Sync, 1, 4_294_967_295), (Sync, 2, 0),
    ]  # fmt: skip


def test_counters_of_managed_memory_name_the_gpu_they_are_about(binding: _Cupti) -> None:
    def counter(kind: int, source: int, target: int) -> SimpleNamespace:
        return SimpleNamespace(
            kind=Kind.UNIFIED_MEMORY_COUNTER, counter_kind=kind, value=65536, start=kind, end=9,
            address=4096, src_id=source, dst_id=target,
        )  # fmt: skip

    host = 0xFFFFFFFF
    events = collect(
        binding, counter(1, host, 1), counter(2, 1, host), counter(3, host, host),
        counter(4, 2, host), counter(5, 0b100, host), counter(42, 3, 0),
    )  # fmt: skip
    assert all(isinstance(e, ManagedCounter) and e.value == 65536 for e in events)
    assert [(e.what, e.device) for e in events] == [
        ("BYTES_TRANSFER_HTOD", 1), ("BYTES_TRANSFER_DTOH", 1), ("CPU_PAGE_FAULT_COUNT", 0),
        ("GPU_PAGE_FAULT", 2), ("THRASHING", 2), ("kind 42", 3),
    ]  # fmt: skip


def test_records_that_cupti_dropped_are_counted(binding: _Cupti) -> None:
    binding.lost = 12
    events = collect(binding, kernel(1, 1))
    assert events[-1] == Dropped(what="CUPTI records", count=12)


def test_a_second_tool_is_named_and_nothing_stays_on(binding: _Cupti) -> None:
    class Refused(Exception):
        status = 39

    binding.refuse = Refused()
    with pytest.raises(CuptiError, match="ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"):
        Collector().start()
    assert not binding.enabled


def test_buffers_are_large(binding: _Cupti) -> None:
    Collector().start()
    assert binding.buffers is not None
    assert binding.buffers() == (8 << 20, 0)


def test_the_log_gets_the_events_when_the_process_ends(binding: _Cupti, tmp_path: Path) -> None:
    sink = LogSink(str(tmp_path))
    cupti.start(sink)
    binding.records = [kernel(1, 100)]
    assert not list(tmp_path.iterdir())
    sink.close()
    (events,) = events_of(tmp_path).values()
    assert [type(e) for e in events[:2]] == [Fact, KernelTime]


def test_a_program_without_cuda_leaves_no_log(binding: _Cupti, tmp_path: Path) -> None:
    sink = LogSink(str(tmp_path))
    cupti.start(sink)
    sink.close()
    assert not list(tmp_path.iterdir())


def test_a_missing_binding_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cupti", "cupti.cupti"):  # which other tests may have loaded
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CuptiError, match="pip install cupti-python"):
        Collector()


def test_missing_in_a_program_it_becomes_a_note(tmp_path: Path) -> None:
    code = "import sys; print('runs')"
    broken = tmp_path / "packages" / "cupti"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no libcupti here')")
    out = tmp_path / "out"
    out.mkdir()
    environ = {"ACCEL_TRACE_HANDLERS": "cupti", "PYTHONPATH": str(broken.parent)}
    result = run_python(code, out, environ=environ)
    assert (result.returncode, result.stdout, result.stderr) == (0, "runs\n", "")
    (events,) = events_of(out).values()
    assert isinstance(events[0], Note)
    assert events[0].text.startswith("handler cupti is off: cupti-python is missing")
    assert "no libcupti here" in events[0].text


def test_it_refuses_beside_the_sanitizer(tmp_path: Path) -> None:
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer,cupti"}
    result = run_python("print('runs')", tmp_path, environ=environ)
    assert (result.returncode, result.stdout, result.stderr) == (0, "runs\n", "")
    (events,) = events_of(tmp_path).values()
    assert isinstance(events[0], Note)
    assert cupti.ONE_CLIENT in events[0].text


_REAL = """
import cupti.cupti as api
from accel_trace.handlers import cupti
collector = cupti.Collector()
assert [k.name for k in api.ActivityUnifiedMemoryCounterKind][1:9] == list(cupti._COUNTERS)
keep = []
for name, kind in (
    ("ActivityKernel10", "CONCURRENT_KERNEL"), ("ActivityMemcpy6", "MEMCPY"),
    ("ActivityMemcpyPtoP4", "MEMCPY2"), ("ActivityMemset4", "MEMSET"),
    ("ActivityMemory4", "MEMORY2"),
    ("ActivitySynchronization2", "SYNCHRONIZATION"),
    ("ActivityUnifiedMemoryCounter3", "UNIFIED_MEMORY_COUNTER"),
):
    record = getattr(api, name)()
    keep.append(record)
    record.kind = getattr(api.ActivityKind, kind)
    if kind == "CONCURRENT_KERNEL":
        record.name = "_Z6kernelPf"
    if kind == "SYNCHRONIZATION":
        record.type = api.ActivitySynchronizationType.STREAM_SYNCHRONIZE
    event = collector._event(record)
    print(type(event).__name__, getattr(event, "name", ""))
import os, sys
sys.stdout.flush()
os._exit(0)  # records that no buffer of CUPTI's holds cannot be freed
"""


def test_the_real_classes_have_the_fields_that_are_read(tmp_path: Path) -> None:
    if not find_spec("cupti"):
        pytest.skip("cupti-python is not installed")
    result = run_python(_REAL, tmp_path, environ={"ACCEL_TRACE_HANDLERS": "none"})
    assert result.stdout.splitlines() == [
        "KernelTime kernel(float*)", "CopyTime ", "CopyTime ", "CopyTime ", "Free ", "Sync ",
        "ManagedCounter ",
    ], result.stderr  # fmt: skip

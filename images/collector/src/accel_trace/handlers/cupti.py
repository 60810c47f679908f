"""GPU times, copies, synchronisations, allocations and unified-memory counters, through CUPTI.

Works in any Python program, by NVIDIA's `cupti-python`. CUPTI and the Compute Sanitizer cannot both
be in one process, so this refuses where the other is. Records come from the GPU in any order; they
are kept until the end and written in the order of launches (the correlation number of the call).
A program that is killed loses those that were not written.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from accel_trace.events import (
    MEMORY_FLAGS,
    Alloc,
    CopyTime,
    Dropped,
    Event,
    Fact,
    Free,
    KernelTime,
    ManagedCounter,
    Sync,
)
from accel_trace.handlers.sink import LogSink
from accel_trace.handlers.stacks import demangled

ONE_CLIENT = (
    "CUPTI and the Compute Sanitizer cannot both follow one process; "
    "run once with each and join the runs on the launch index"
)
BUFFER_BYTES = 8 << 20
_KINDS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET", "MEMORY2", "SYNCHRONIZATION")
_COUNTERS = (  # CUpti_ActivityUnifiedMemoryCounterKind from 1 on
    "BYTES_TRANSFER_HTOD", "BYTES_TRANSFER_DTOH", "CPU_PAGE_FAULT_COUNT", "GPU_PAGE_FAULT",
    "THRASHING", "THROTTLING", "REMOTE_MAP", "BYTES_TRANSFER_DTOD",
)  # fmt: skip
# CUpti_ActivityMemcpyKind to the direction of events.Memcpy; arrays are on the device.
_DIRECTION = {1: 2, 2: 3, 3: 2, 4: 3, 5: 4, 6: 4, 7: 4, 8: 4, 9: 1, 10: 4}
# CUpti_ActivityMemoryKind to the flags of events.Alloc
_FLAGS = {
    2: MEMORY_FLAGS["host_pinned"],
    5: MEMORY_FLAGS["managed"],
    6: MEMORY_FLAGS["module"],
    7: MEMORY_FLAGS["module"] | MEMORY_FLAGS["managed"],
}
_SYNC = {3: 1, 4: 2}  # CUpti_ActivitySynchronizationType to events.Sync; waits for events are not


class _Counter(ctypes.Structure):
    """CUpti_ActivityUnifiedMemoryCounterConfig."""

    _fields_ = (
        ("scope", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("device", ctypes.c_uint32),
        ("enable", ctypes.c_uint32),
    )


class CuptiError(RuntimeError):
    """CUPTI cannot be used; one sentence with what helps."""


class Collector:
    """Follows the process from `start` to `finish`; `finish` returns the events.

    Raises CuptiError where CUPTI or the driver is missing. With `managed`, unified-memory counters
    of the first `devices` GPUs too: that starts the driver, so that the process must not fork and
    use CUDA afterwards.
    """

    def __init__(self, *, managed: bool = False, devices: int = 1) -> None:
        self.managed = managed
        self.devices = devices
        self._cupti = _binding()
        self._kinds: list[Any] = []
        self._records: list[tuple[int, Event]] = []
        self._kernels: list[tuple[int, int, KernelTime]] = []
        self._lock = threading.Lock()
        self._shift = 0

    def start(self) -> None:
        """Have CUPTI record from now on."""
        api = self._cupti
        kinds = [getattr(api.ActivityKind, name) for name in _KINDS]
        try:
            if self.managed:
                self._configure_counters()
                kinds.append(api.ActivityKind.UNIFIED_MEMORY_COUNTER)
            api.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._take)
            for kind in kinds:
                api.activity_enable(kind)
                self._kinds.append(kind)
            self._shift = time.monotonic_ns() - int(api.get_timestamp())
        except Exception as error:
            self._disable()
            raise CuptiError(f"CUPTI does not start: {_words(api, error)}") from error

    def finish(self) -> list[Event]:
        """Stop, and return the events: kernels in the order of launches, then the rest by time."""
        dropped = ctypes.c_size_t()
        self._cupti.activity_flush_all(1)
        self._disable()
        try:
            self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(dropped))
        except Exception:  # noqa: BLE001  # no context was ever made
            dropped.value = 0
        return list(self._events(int(dropped.value)))

    def _disable(self) -> None:
        while self._kinds:
            self._cupti.activity_disable(self._kinds.pop())

    def _configure_counters(self) -> None:
        try:
            result = ctypes.CDLL("libcuda.so.1").cuInit(0)  # counters are set up after the driver
        except OSError as error:
            raise CuptiError("there is no NVIDIA driver (libcuda.so.1)") from error
        if result:
            raise CuptiError(f"the driver does not start: cuInit gave {result}")
        kinds = self._cupti.ActivityUnifiedMemoryCounterKind
        scope = int(self._cupti.ActivityUnifiedMemoryCounterScope.PROCESS_SINGLE_DEVICE)
        wanted = [
            _Counter(scope, int(getattr(kinds, name)), device, 1)
            for device in range(self.devices)
            for name in _COUNTERS
        ]
        table = (_Counter * len(wanted))(*wanted)
        self._cupti.activity_configure_unified_memory_counter(ctypes.addressof(table), len(wanted))

    def _take(self, records: Iterable[Any]) -> None:
        """Called with the records of a full buffer, from a thread of CUPTI's; valid only here."""
        kernels, others = [], []
        for record in records:
            event = self._event(record)
            if isinstance(event, KernelTime):
                kernels.append((event.correlation, event.start_ns, event))
            elif event is not None:
                others.append((event.ns, event))
        with self._lock:
            self._kernels += kernels
            self._records += others

    def _event(self, record: Any) -> Event | None:
        kinds = self._cupti.ActivityKind
        kind = int(record.kind)
        if kind == kinds.CONCURRENT_KERNEL:
            return KernelTime(
                launch=0,
                name=demangled(_text(record.name)),  # as the other handler says it
                start_ns=record.start,
                end_ns=record.end,
                device=record.device_id,
                stream=record.stream_id,
                correlation=record.correlation_id,
                ns=self._ns(record.start),
            )
        if kind in (kinds.MEMCPY, kinds.MEMCPY2, kinds.MEMSET):
            copy = kind != kinds.MEMSET
            return CopyTime(
                what="memcpy" if copy else "memset",
                direction=_DIRECTION.get(int(record.copy_kind), 0) if copy else 0,
                start_ns=record.start,
                end_ns=record.end,
                size=record.bytes,
                device=record.device_id,
                stream=record.stream_id,
                ns=self._ns(record.start),
            )
        if kind == kinds.MEMORY2:
            operation = self._cupti.ActivityMemoryOperationType
            made = int(record.memory_operation_type) == operation.ALLOCATION
            return (Alloc if made else Free)(
                address=record.address,
                size=record.bytes,
                device=record.device_id,
                flags=_FLAGS.get(int(record.memory_kind), 0),
                stream=record.stream_id if record.is_async else 0,
                ns=self._ns(record.timestamp),
            )
        if kind == kinds.SYNCHRONIZATION and int(record.type) in _SYNC:
            what = _SYNC[int(record.type)]
            stream = record.stream_id if what == 1 else 0
            return Sync(what=what, stream=stream, ns=self._ns(record.start))
        if kind == kinds.UNIFIED_MEMORY_COUNTER:
            return self._counter(record)
        return None

    def _counter(self, record: Any) -> ManagedCounter:
        kind = int(record.counter_kind)
        what = _COUNTERS[kind - 1] if 0 < kind <= len(_COUNTERS) else f"kind {kind}"
        return ManagedCounter(
            what=what,
            value=record.value,
            start_ns=record.start,
            end_ns=record.end,
            address=record.address,
            device=_device(what, int(record.src_id), int(record.dst_id)),
            ns=self._ns(record.start),
        )

    def _ns(self, timestamp: int) -> int:
        """CUPTI's clock as the process' monotonic one."""
        return max(int(timestamp) + self._shift, 1)

    def _events(self, dropped: int) -> Iterator[Event]:
        with self._lock:
            kernels, records = self._kernels, self._records
            self._kernels, self._records = [], []
        for launch, (_, _, kernel) in enumerate(sorted(kernels, key=lambda item: item[:2])):
            yield KernelTime(
                launch=launch,
                name=kernel.name,
                start_ns=kernel.start_ns,
                end_ns=kernel.end_ns,
                device=kernel.device,
                stream=kernel.stream,
                correlation=kernel.correlation,
                ns=kernel.ns,
            )
        for _, event in sorted(records, key=lambda item: item[0]):
            yield event
        if dropped:
            yield Dropped(what="CUPTI records", count=dropped)


def start(sink: LogSink, *, managed: bool = False) -> None:
    """Follow this process into `sink` until it ends. Raises CuptiError."""
    collector = Collector(managed=managed)
    collector.start()

    def finish() -> None:
        events = collector.finish()
        if events:  # a program without CUDA leaves no log
            sink.write(Fact(name="cupti", value="counters" if managed else "activities"))
        for event in events:
            sink.write(event)

    sink.before_close(finish)


def _device(what: str, source: int, target: int) -> int:
    """The GPU that a counter is about; CUPTI's meaning of the two ids differs by counter."""
    if what in ("BYTES_TRANSFER_HTOD", "REMOTE_MAP"):
        return target
    if what == "CPU_PAGE_FAULT_COUNT":
        return 0  # neither id is set
    if what == "THRASHING":  # a mask of those that fight for the page
        return max((source & -source).bit_length() - 1, 0)
    return source


def _binding() -> ModuleType:
    try:
        return importlib.import_module("cupti.cupti")
    except Exception as error:
        raise CuptiError(
            f"cupti-python is missing or does not load ({error}); pip install cupti-python"
        ) from error


def _words(api: ModuleType, error: Exception) -> str:
    """An error of CUPTI's by its name."""
    status = getattr(error, "status", None)
    try:
        return str(api.Result(status).name) if status is not None else str(error)
    except (AttributeError, ValueError):
        return str(error)


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name or "")

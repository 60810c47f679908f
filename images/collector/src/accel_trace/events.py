"""The one event model: what every handler reports.

An event is a frozen dataclass. Its fields, in order, are its layout in the log: little-endian,
without padding, by the type that the annotation names. `clock` is the logical clock of the process
(every event advances it by one), `ns` its monotonic clock in nanoseconds. Addresses and sizes are
bytes; sizes are positive for allocations and frees alike. Strings are written once and then named
by their number (`Text`). The C++ side has the same table in native/events.h; a test holds the two
against each other. Source: PASTA, section 3.1 (normalised events with a logical clock).
What CUPTI adds is in `gpu_times`, what no patch sees in `unpatched`, what is of values in `moved`.
"""

from __future__ import annotations

from dataclasses import dataclass

from accel_trace.fields import I32, U32, U64, Event, Text
from accel_trace.gpu_times import CopyTime, KernelTime, ManagedCounter
from accel_trace.moved import Code, Compared, Kept, Recorded
from accel_trace.unpatched import (
    Argument,
    Iteration,
    Lost,
    Nothing,
    Refused,
    TensorMap,
    Uses,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact(Event):
    """A fact about the process or the handler: a mode, a version, a driver."""

    kind = 2
    name: Text
    value: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Event):
    """A CUDA context was made (created 1) or destroyed (0)."""

    kind = 3
    context: U64
    device: U32
    created: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class Module(Event):
    """A module was loaded (1) or unloaded (0); `patched` 1 when it was, `result` the API's code."""

    kind = 4
    module: U64
    context: U64
    loaded: U32
    patched: U32
    result: I32
    size: U64  # of the cubin, bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Alloc(Event):
    """Driver-level memory was allocated. `flags` as in MEMORY_FLAGS."""

    kind = 5
    address: U64
    size: U64
    device: U32
    flags: U32
    stream: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Free(Event):
    """Driver-level memory was freed."""

    kind = 6
    address: U64
    size: U64
    device: U32
    flags: U32
    stream: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Memcpy(Event):
    """A copy was started. `direction`: 0 unknown, 1 HtoH, 2 HtoD, 3 DtoH, 4 DtoD."""

    kind = 7
    destination: U64
    source: U64
    size: U64
    direction: U32
    asynchronous: U32
    stream: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Memset(Event):
    """A memset was started; `size` in bytes, `value` of one element of `element` bytes."""

    kind = 8
    address: U64
    size: U64
    value: U32
    element: U32
    asynchronous: U32
    stream: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync(Event):
    """The host waited: `what` 1 for a stream, 2 for a context."""

    kind = 9
    what: U32
    stream: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Event):
    """A kernel was launched; `launch` counts from 0 in the process.

    `analysed`: 0 not (filtered out), 1 yes; of nodes of a CUDA graph: 2 yes, and what the graph's
    later nodes touched is told of this one too; 4 together with such a node; 3 no. `operator` and
    `region` are what was innermost at the launch.
    """

    kind = 10
    launch: U64
    name: Text
    device: U32
    stream: U64
    context: U64
    grid_x: U32
    grid_y: U32
    grid_z: U32
    block_x: U32
    block_y: U32
    block_z: U32
    analysed: U32
    thread: U64
    operator: Text
    region: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnd(Event):
    """The launch call returned (not: the kernel ended).

    Told in modes that analyse launches or wait for them.
    """

    kind = 11
    launch: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAlloc(Event):
    """The framework's allocator handed out a block; totals are those after it, in bytes."""

    kind = 12
    address: U64
    size: U64
    allocated: U64
    reserved: U64
    device: U32
    stream: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFree(Event):
    """The framework's allocator took a block back; totals are those after it, in bytes."""

    kind = 13
    address: U64
    size: U64
    allocated: U64
    reserved: U64
    device: U32
    stream: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStart(Event):
    """A framework operator began on a thread; `index` counts operators of the process from 0."""

    kind = 14
    name: Text
    index: U64
    thread: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEnd(Event):
    """A framework operator ended on a thread."""

    kind = 15
    name: Text
    index: U64
    thread: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionStart(Event):
    """`with region(name):` was entered."""

    kind = 16
    name: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionEnd(Event):
    """`with region(name):` was left."""

    kind = 17
    name: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched(Event):
    """One piece of memory that a launch touched: what 0 an object (driver level), 1 a tensor.

    Comes after its launch, at the latest when the log ends. `address` and `size` are the whole
    piece's, as it was when the kernel was launched; 0 and 0: accesses that fell outside all.
    """

    kind = 18
    launch: U64
    address: U64
    size: U64
    what: U32
    flags: U32  # of the driver-level allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(Event):
    """What one launch did, counted per thread (an instruction of 32 active lanes counts 32)."""

    kind = 19
    launch: U64
    global_reads: U64
    global_writes: U64
    global_atomics: U64  # counted in neither of the two above
    global_bytes_read: U64
    global_bytes_written: U64
    shared_reads: U64
    shared_writes: U64
    local_reads: U64
    local_writes: U64
    async_copies: U64  # cp.async
    async_bytes: U64
    bulk_copies: U64  # bulk and TMA copies, both directions
    bulk_bytes: U64  # those whose size the interface tells
    outside: U64  # global accesses in no piece of memory that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Hot(Event):
    """Accesses of one launch to one 2 MiB block of addresses, counted per thread."""

    kind = 20
    launch: U64
    block: U64  # address >> 21
    count: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer(Event):
    """Time that the tool itself took: `stage` collection, transfer or analysis; a running total."""

    kind = 21
    stage: Text
    total_ns: U64
    count: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Event):
    """What was lost: `what` names it (events, accesses), `count` is a running total."""

    kind = 22
    what: Text
    count: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(Event):
    """The call stack of a launch, innermost first, one frame a line: `python:` or `native:`."""

    kind = 23
    launch: U64
    text: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Event):
    """Something a person should know: level 1 remark, 2 warning, 3 the handler gave up."""

    kind = 24
    level: U32
    text: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Event):
    """The log was closed in order; `frames` before this one. Without it a log is truncated."""

    kind = 255
    frames: U64


MEMORY_FLAGS = {
    "module": 0x1, "managed": 0x2, "host_mapped": 0x4, "host_pinned": 0x8, "peer": 0x10,
    "peer_atomic": 0x20, "cooperative_groups": 0x40, "dynamic_parallelism": 0x80,
}  # fmt: skip
EVENTS: tuple[type[Event], ...] = (
    Fact, Context, Module, Alloc, Free, Memcpy, Memset, Sync, Launch, LaunchEnd, TensorAlloc,
    TensorFree, OperatorStart, OperatorEnd, RegionStart, RegionEnd, Touched, Counts, Hot, Timer,
    Dropped, Stack, Note, KernelTime, CopyTime, ManagedCounter, TensorMap,
    Uses, Lost, Nothing, Iteration,
    Argument, Refused, Recorded, Compared, Kept, Code, End,
)  # fmt: skip

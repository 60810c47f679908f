"""Events that CUPTI tells, with times of the GPU's own clock (see `events`)."""

from __future__ import annotations

from dataclasses import dataclass

from accel_trace.fields import U32, U64, Event, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime(Event):
    """A kernel's time on the GPU (CUPTI), ns of the GPU's clock; `launch` in order of launches."""

    kind = 25
    launch: U64
    name: Text
    start_ns: U64
    end_ns: U64
    device: U32
    stream: U32
    correlation: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTime(Event):
    """A copy's or memset's time on the GPU (CUPTI): `what` memcpy or memset, `size` in bytes."""

    kind = 26
    what: Text
    direction: U32  # as in Memcpy
    start_ns: U64
    end_ns: U64
    size: U64
    device: U32
    stream: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedCounter(Event):
    """A unified-memory counter (CUPTI): `what` as CUPTI names it; `value` bytes or a count."""

    kind = 27
    what: Text
    value: U64
    start_ns: U64
    end_ns: U64
    address: U64
    device: U32

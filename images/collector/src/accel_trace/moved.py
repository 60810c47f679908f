"""Events about values: what of a launch was recorded, and what copies and fills found in place."""

from __future__ import annotations

from dataclasses import dataclass

from accel_trace.fields import U32, U64, Event, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(Event):
    """Mode values: of `accesses` of an analysed launch `kept` were recorded.

    Of its blocks one in `blocks` was looked at. `reads` and `writes` count copies (cp.async, bulk)
    whose values are not seen, by what they do to global memory.
    """

    kind = 60
    launch: U64
    accesses: U64
    kept: U64
    reads: U64
    writes: U64
    blocks: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Event):
    """Mode copies: a copy or fill, told just before, against what its destination held.

    Of `size` bytes `unchanged` were there already; `zeros` 1 when all that came is zero. A copy
    that could not be compared has no such event.
    """

    kind = 61
    size: U64
    unchanged: U64
    zeros: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Event):
    """Mode copies with ACCEL_TRACE_SNAPSHOT: a piece that a launch got, against what it held.

    `writes` says how it is known that the kernel may write it: 0 it may not, by its type, 1 by its
    type, 2 it is an argument and no more is known. Of `size` bytes `unchanged` are as before,
    written again or not written; `zeros` 1 when all are zero now. Two pieces of one size and one
    hash hold the same (native/compare.h; no cryptographic hash).
    """

    kind = 62
    launch: U64
    address: U64
    size: U64
    unchanged: U64
    writes: U32
    zeros: U32
    hash_low: U64
    hash_high: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(Event):
    """Mode values: where the code of a recorded kernel lies in memory.

    It is the function of that (mangled) name in `code-<pid>-<file>.cubin` beside the log.
    """

    kind = 66
    file: U64
    function: Text
    address: U64
    size: U64

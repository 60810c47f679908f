"""What every operation did to every object, byte by byte, against a shadow of the memory.

An operation is an allocation, a copy, a fill or a kernel. A byte that nobody has written yet counts
as changed by whatever writes it, also where memory happens to hold that value. So does a byte that
somebody may have written unseen: a launch that was not recorded whole leaves no byte known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from accel_trace.values.accesses import Accesses
from accel_trace.values.intervals import merge

ALLOC, UPLOAD, DOWNLOAD, COPY, FILL, KERNEL = (
    "alloc", "upload", "download", "copy", "fill", "kernel",
)  # fmt: skip
WORD = 4  # bytes of an element of a copy or a fill, whose type nobody tells
MOST = 1 << 29  # bytes of memory that are followed; each takes seven on the host
SEEN, READS_UNSEEN, WRITES_UNSEEN = range(3)  # what a record lacks of a launch
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Thing:
    """An allocation: `number` counts from 0, `context` is where the program made it."""

    number: int
    address: int
    size: int
    context: str


@dataclass
class Effect:
    """What one operation did to one object; all but counts are bytes.

    `unchanged` of `written` bytes had their value before. Of a download `written` is what went to
    the host, and `unchanged` what the host had already. `dead` grows later: bytes that were
    overwritten before anybody read them.
    """

    number: int  # of the operation
    kind: str
    context: str
    thing: Thing
    read: int = 0
    written: int = 0
    unchanged: int = 0
    elements: int = 0
    unchanged_elements: int = 0
    intervals: int = 0
    zeros: bool = False  # all that was written
    source: Thing | None = None  # of a copy on the device
    digest: str = ""  # SHA-256 of the whole object afterwards; "" of an object that is not whole
    dead: int = 0


@dataclass(eq=False)
class _Held:
    thing: Thing
    content: Bytes
    known: NDArray[np.bool_]
    writer: NDArray[np.int32]  # index of the effect that wrote a byte, -1: nobody, or not known
    read: NDArray[np.bool_]  # whether anybody read it since
    shared: bool  # with the CPU, which may write it unseen
    fresh: bool = True  # nothing is known of it

    def forget(self, values: bool) -> None:
        """Nobody knows who wrote it last and, with `values`, what it holds."""
        if not self.fresh:
            self.writer[:] = -1
            if values:
                self.known[:] = False
                self.fresh = True


@dataclass
class Shadow:
    """A copy of the device's memory, and what became of it: `effects`, in order of operations."""

    effects: list[Effect] = field(default_factory=list)
    _live: dict[int, _Held] = field(default_factory=dict)
    _things: int = 0
    _operations: int = 0
    outside: int = 0  # bytes of accesses that fell into no object that is followed
    unfollowed: int = 0  # bytes of objects that are not, for want of room

    def alloc(self, address: int, size: int, context: str, shared: bool = False) -> Thing:
        """An object begins; one at the same address has ended. `shared`: the CPU writes it, too."""
        thing = Thing(self._things, address, size, context)
        self._things += 1
        self._live.pop(address, None)
        if size + sum(held.thing.size for held in self._live.values()) > MOST:
            self.unfollowed += size
            return thing
        self._live[address] = _Held(
            thing, np.zeros(size, np.uint8), np.zeros(size, bool), np.full(size, -1, np.int32),
            np.zeros(size, bool), shared,
        )  # fmt: skip
        self._add(ALLOC, context, thing)
        self._operations += 1
        return thing

    def free(self, address: int) -> None:
        """An object ends."""
        self._live.pop(address, None)

    def find(self, address: int) -> Thing | None:
        """The object that holds an address."""
        held = self._find(address)
        return held.thing if held else None

    def peek(self, address: int, size: int) -> Bytes:
        """What the shadow holds, zeros where it never knew; of one object."""
        held = self._find(address)
        at = address - held.thing.address if held else 0
        return held.content[at : at + size].copy() if held else np.zeros(size, np.uint8)

    def things(self) -> list[Thing]:
        """All objects that live now."""
        return [held.thing for held in self._live.values()]

    def upload(self, address: int, data: Bytes, context: str) -> None:
        """Host to device."""
        self._write_range(UPLOAD, address, data, context)

    def lose(self, address: int, size: int) -> None:
        """Bytes were written, and what is not known."""
        held = self._find(address)
        if held is not None:
            at = address - held.thing.address
            held.known[at : at + size] = False
            held.writer[at : at + size] = -1

    def fill(self, address: int, pattern: bytes, size: int, context: str) -> None:
        """`size` bytes of an element's bytes, again and again."""
        whole = np.frombuffer(pattern * (-(-size // len(pattern))), np.uint8)[:size]
        self._write_range(FILL, address, whole, context)

    def copy(self, destination: int, source: int, size: int, context: str) -> None:
        """Device to device."""
        held = self._find(source)
        if held is None:
            self._operations += 1
            self.outside += size
            return
        at = source - held.thing.address
        size = min(size, held.thing.size - at)
        data, known = held.content[at : at + size].copy(), held.known[at : at + size].copy()
        held.read[at : at + size] = True
        self._write_range(COPY, destination, data, context, held.thing, known)

    def download(self, address: int, before: Bytes, context: str) -> None:
        """Device to host; `before` is what the host's buffer held."""
        held = self._find(address)
        if held is None:
            self.outside += len(before)
        else:
            at = address - held.thing.address
            data = held.content[at : at + len(before)]
            before = before[: len(data)]
            held.read[at : at + len(data)] = True
            effect = self._add(DOWNLOAD, context, held.thing)
            effect.read = effect.written = len(data)
            same = (data == before) & held.known[at : at + len(data)]
            effect.unchanged = int(same.sum())
            effect.elements, effect.unchanged_elements = _words(same)
            effect.intervals = 1
            effect.digest = _digest(held)
        self._operations += 1

    def kernel(self, accesses: Accesses, context: str, lacks: int = SEEN) -> None:
        """What a launch's accesses to global memory did, in one operation.

        Atomics count as reads; what they leave is not known, and their bytes are forgotten. With
        READS_UNSEEN nothing that was written before is said to be unread, with WRITES_UNSEEN
        nothing is known of any byte afterwards.
        """
        first = len(self.effects)
        if lacks != SEEN:
            for held in self._live.values():
                held.forget(values=False)
        starts = accesses.address.astype(np.int64)
        left = np.ones(len(accesses), bool)
        for held in list(self._live.values()):
            begin = held.thing.address
            mine = left & (starts >= begin) & (starts < begin + held.thing.size)
            if mine.any():
                left &= ~mine
                self._touch(held, accesses.take(mine), context)
        if lacks == WRITES_UNSEEN:
            for held in self._live.values():
                held.forget(values=True)
            for effect in self.effects[first:]:
                effect.digest, effect.zeros = "", False
        self.outside += int(accesses.size[left].sum())
        self._operations += 1

    def _touch(self, held: _Held, accesses: Accesses, context: str) -> None:
        starts = accesses.address.astype(np.int64) - held.thing.address
        sizes = accesses.size.astype(np.int64)
        effect = self._add(KERNEL, context, held.thing)
        plain = ~accesses.writes
        ranges = merge(starts[plain], sizes[plain])
        effect.read = ranges.bytes
        for start, end in ranges.pairs():
            held.read[start:end] = True
        store = np.flatnonzero(accesses.writes)
        if len(store):
            after = held.content.copy()
            touched = np.zeros(held.thing.size, bool)
            values = np.stack([accesses.low, accesses.high], axis=1)[store].astype("<u8")
            octets = values.view(np.uint8).reshape(len(store), 16)
            for byte in range(16):  # the last store to a byte stays
                wide = sizes[store] > byte
                after[starts[store][wide] + byte] = octets[wide, byte]
                touched[starts[store][wide] + byte] = True
            same = (after == held.content) & held.known
            effect.zeros = not after[touched].any()
            self._write(held, effect, touched, after, same)
            effect.intervals = len(merge(starts[store], sizes[store]))
            unit = accesses.unit[store].astype(np.int64)
            begin = np.unique(np.stack([starts[store], np.maximum(unit, 1)]), axis=1)
            effect.elements = begin.shape[1]
            effect.unchanged_elements = sum(same[a : a + n].all() for a, n in begin.T)
        for start, end in merge(starts[accesses.atomics], sizes[accesses.atomics]).pairs():
            held.known[start:end] = False
            held.writer[start:end] = -1
        effect.digest = _digest(held)

    def _write_range(
        self, kind: str, address: int, data: Bytes, context: str, source: Thing | None = None,
        known: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        held = self._find(address)
        if held is None:
            self.outside += len(data)
        else:
            at = address - held.thing.address
            data = data[: held.thing.size - at]
            touched = np.zeros(held.thing.size, bool)
            touched[at : at + len(data)] = True
            after = held.content.copy()
            after[at : at + len(data)] = data
            same = (after == held.content) & held.known
            sure = np.ones(len(data), bool) if known is None else known[: len(data)]
            same[at : at + len(data)] &= sure
            effect = self._add(kind, context, held.thing)
            effect.source = source
            effect.zeros = bool(sure.all()) and not data.any()
            effect.intervals = int(len(data) > 0)
            self._write(held, effect, touched, after, same)
            held.known[at : at + len(data)] &= sure
            effect.elements, effect.unchanged_elements = _words(same[at : at + len(data)])
            effect.digest = _digest(held)
        self._operations += 1

    def _write(
        self, held: _Held, effect: Effect, touched: NDArray[np.bool_], after: Bytes,
        same: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        effect.written = int(touched.sum())
        effect.unchanged = int((touched & same).sum())
        gone = held.writer[touched & ~held.read & (held.writer >= 0)]
        for number, count in zip(*np.unique(gone, return_counts=True), strict=True):
            self.effects[number].dead += int(count)
        held.fresh = False
        held.content = after
        held.known[touched] = not held.shared
        held.read[touched] = False
        held.writer[touched] = len(self.effects) - 1  # `effect` is the last

    def _find(self, address: int) -> _Held | None:
        for held in self._live.values():
            if held.thing.address <= address < held.thing.address + held.thing.size:
                return held
        return None

    def _add(self, kind: str, context: str, thing: Thing) -> Effect:
        effect = Effect(self._operations, kind, context, thing)
        self.effects.append(effect)
        return effect


def _words(same: NDArray[np.bool_]) -> tuple[int, int]:
    whole = len(same) // WORD
    rest = int(len(same) % WORD > 0)
    equal = int(same[: whole * WORD].reshape(whole, WORD).all(axis=1).sum())
    return whole + rest, equal + (rest and int(same[whole * WORD :].all()))


def _digest(held: _Held) -> str:
    return hashlib.sha256(held.content.tobytes()).hexdigest() if held.known.all() else ""


def duplicates(effects: Iterable[Effect]) -> list[tuple[Thing, Thing, str]]:
    """Pairs of objects that held the same bytes: `total` if always, each having held one content.

    Only contents of whole objects count; objects of different sizes never match.
    """
    seen: dict[Thing, list[str]] = {}
    for effect in effects:
        if effect.digest and effect.kind != ALLOC:
            digests = seen.setdefault(effect.thing, [])
            if effect.digest not in digests:
                digests.append(effect.digest)
    things = list(seen)
    found = []
    for i, left in enumerate(things):
        for right in things[i + 1 :]:
            if left.size == right.size and set(seen[left]) & set(seen[right]):
                total = len(seen[left]) == len(seen[right]) == 1
                found.append((left, right, "total" if total else "partial"))
    return found

"""Mode copies: what copies and fills found in place, without a look into any kernel."""

from __future__ import annotations

from dataclasses import dataclass

from accel_trace.events import Alloc, Event, Free, Launch, Memcpy, Memset
from accel_trace.moved import Compared
from accel_trace.session import Process
from accel_trace.values.recorded import ON_DEVICE, TO_DEVICE, TO_HOST, Replay, calls
from accel_trace.values.shadow import ALLOC, COPY, DOWNLOAD, FILL, UPLOAD, Effect, Thing

_KINDS = {TO_DEVICE: UPLOAD, TO_HOST: DOWNLOAD, ON_DEVICE: COPY}


@dataclass
class _Held:
    thing: Thing
    launches: int  # before it was allocated
    written: bool = False  # by a copy or fill


class Copies:
    """Turns copies and fills into effects on the objects that live then."""

    def __init__(self) -> None:
        self.found = Replay()
        self._live: dict[int, _Held] = {}
        self._launches = self._things = self._operations = 0

    def take(self, event: Event, context: str, told: Compared | None) -> None:
        """One event in its context, and what was told just before it."""
        if isinstance(event, Launch):
            self._launches += 1
        elif isinstance(event, Alloc):
            thing = Thing(self._things, event.address, event.size, context)
            self._things += 1
            self._live[event.address] = _Held(thing, self._launches)
            self._add(ALLOC, context, thing)
        elif isinstance(event, Free):
            self._live.pop(event.address, None)
        elif isinstance(event, Memset):
            self._moved(FILL, event.address, context, told)
        elif isinstance(event, Memcpy) and event.direction in _KINDS:
            kind = _KINDS[event.direction]
            on_gpu = event.source if kind == DOWNLOAD else event.destination
            source = self._find(event.source) if kind == COPY else None
            self._moved(kind, on_gpu, context, told, source.thing if source else None)

    def _moved(
        self, kind: str, address: int, context: str, told: Compared | None,
        source: Thing | None = None,
    ) -> None:  # fmt: skip
        held = self._find(address)
        if told is None or held is None:
            self.found.uncompared += 1
            return
        # What memory happens to hold that nobody has written yet is no reason to leave a copy out.
        written = held.written or held.launches < self._launches
        effect = self._add(kind, context, held.thing)
        effect.written, effect.unchanged = told.size, told.unchanged if written else 0
        effect.zeros, effect.source = bool(told.zeros), source
        if kind == DOWNLOAD:
            effect.read = told.size
        else:
            held.written = True

    def _add(self, kind: str, context: str, thing: Thing) -> Effect:
        effect = Effect(self._operations, kind, context, thing)
        self._operations += 1
        self.found.shadow.effects.append(effect)
        return effect

    def _find(self, address: int) -> _Held | None:
        for held in self._live.values():
            if held.thing.address <= address < held.thing.address + held.thing.size:
                return held
        return None


def was_compared(process: Process) -> bool:
    """Whether a process ran in mode copies, and no kernels were looked at in their place."""
    return process.facts.get("mode") == "copies" and "snapshot" not in process.facts


def compared(process: Process) -> Replay:
    """The effects of a process' copies and fills; of its kernels nothing is known."""
    copies = Copies()
    told: Compared | None = None
    for event, context, _ in calls(process, Compared):
        if isinstance(event, Compared):
            told = event
            continue
        copies.take(event, context, told)
        told = None
    return copies.found

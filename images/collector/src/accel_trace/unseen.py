"""What a record cannot tell, counted per launch, and what it tells by descriptor alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from accel_trace.events import Event, Lost, Refused, TensorMap, Touched, Uses
from accel_trace.objects import MemoryIndex
from accel_trace.unpatched import TENSOR_MAP_USES, USES

KINDS: tuple[type[Event], ...] = (TensorMap, Uses, Lost, Refused)
_STORES = USES["tensor map stores"] | USES["tensor map reductions"]


@dataclass
class Unseen:
    """Of one process, by launch; `add` every event of KINDS.

    With --distinct they are told of all launches, analysed or not.
    """

    maps: Counter[int] = field(default_factory=Counter)  # launch to its tensor maps
    uses: dict[int, int] = field(default_factory=dict)  # launch to bits of USES
    lost: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)  # launches; in none of the others

    def add(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, TensorMap):
            self.maps[event.launch] += 1
        elif isinstance(event, Uses):
            self.uses[event.launch] = self.uses.get(event.launch, 0) | event.what
        elif isinstance(event, Lost):
            self.lost.add(event.launch)
        elif isinstance(event, Refused):
            self.refused.add(event.launch)
            self.maps.pop(event.launch, None)
            self.uses.pop(event.launch, None)

    def undescribed(self, launch: int) -> bool:
        """Whether it copies by tensor maps of which none was found."""
        return bool(self.uses.get(launch, 0) & TENSOR_MAP_USES) and launch not in self.maps

    def described(self, launch: int) -> str:
        """How its tensor maps are used: "", "read", or "read or written"."""
        if launch not in self.maps:
            return ""
        what = self.uses.get(launch, _STORES)
        return "read or written" if what & _STORES else "read"

    def lines(self, analysis: str) -> Iterator[str]:
        """Yield the first lines of a report; `analysis` is `touch`, `count` or `hot`."""
        copies = [launch for launch, what in self.uses.items() if what & TENSOR_MAP_USES]
        blind = sum(map(self.undescribed, copies))
        if analysis != "touch" and copies:
            yield (
                f"not counted: {len(copies)} launches copy by tensor map (TMA), of whose bytes no "
                "patch is told: their numbers lack them"
            )
        elif self.maps:
            yield (
                f"by descriptor: {len(self.maps)} launches got tensor maps (TMA) by which no patch "
                "sees all accesses: each is taken to touch the tensors that its maps name"
            )
        if analysis == "touch" and blind:
            yield (
                f"not seen: {blind} launches copy by tensor map (TMA), and no map was found among "
                "their parameters (it was made on the GPU, say): what they touch so is unknown"
            )
        for name in ("texture reads", "surface accesses"):
            count = sum(bool(what & USES[name]) for what in self.uses.values())
            if count:
                yield f"not seen: {name} of {count} launches, whose code has some"
        if self.lost:
            yield f"unknown: what {len(self.lost)} launches did was lost with the GPU's context"
        if self.refused:
            yield (
                f"refused: {len(self.refused)} launches, by the driver: nothing ran, and no other "
                "number counts them"
            )


def touched_by_map(event: TensorMap, memory: MemoryIndex) -> list[Touched]:
    """Return the tensors and objects in the span of a tensor map, as `memory` is at its launch."""
    return [
        Touched(
            launch=event.launch, address=piece.address, size=piece.size, what=piece.what,
            flags=piece.flags,
        )
        for index in (memory.objects, memory.tensors)
        for piece in index.overlapping(event.address, event.address + event.span)
    ]  # fmt: skip

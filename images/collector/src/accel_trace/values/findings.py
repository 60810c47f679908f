"""What is worth a change: every pattern with its bytes at stake, a bound on the gain, and the fix.

The bound is a roofline's: a kernel that only moved the bytes that are left, at the same rate, would
take that share of its time. It is an upper bound, since other work may take the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accel_trace.values.shadow import (
    COPY,
    DOWNLOAD,
    FILL,
    KERNEL,
    UPLOAD,
    Effect,
    Thing,
    duplicates,
)

REDUNDANT = 0.9  # share of an operation's bytes from which on it is for nothing
LEAST = 64  # bytes of an operation that is worth a word
FIXES = {
    "redundant_upload": "copy only when the host's data has changed",
    "redundant_download": "drop the copy: the host has these bytes",
    "redundant_copy": "drop the copy: the destination has these bytes",
    "redundant_fill": "drop the fill: the memory has this value, or let the producer overwrite it",
    "redundant_write": "test before the store, or drop the kernel: it writes what is there",
    "zero_upload": "fill on the device (cudaMemsetAsync) in place of copying zeros",
    "dead_write": "drop it: all of it is overwritten before anybody reads it",
    "duplicate_objects": "keep one of them, or copy on the device in place of from the host",
    "single_value": "pass the value as an argument, and load or store nothing",
    "single_zero": "test for zero on the host and skip the work, or the load, of these elements",
    "frequent_values": "test for the frequent value, or store a small code and look it up",
    "heavy_type": "store the narrower type, after a check of the range",
    "structured": "compute the value from the index in place of loading it",
    "approximate": "if the error is acceptable, skip or reuse; report the error",
}  # fmt: skip
_OF_KIND = {
    UPLOAD: "redundant_upload", DOWNLOAD: "redundant_download", COPY: "redundant_copy",
    FILL: "redundant_fill", KERNEL: "redundant_write",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One pattern at one place: `at_stake` bytes of `of` bytes that the place moved."""

    name: str
    context: str  # of the operation
    thing: str  # where the object was allocated
    at_stake: int
    of: int
    times: int = 1
    text: str = ""

    @property
    def bound(self) -> float | None:
        """The place's speed-up is at most this; None: nothing of it would be left."""
        return self.of / (self.of - self.at_stake) if self.at_stake < self.of else None

    @property
    def fix(self) -> str:
        """What to do, in words."""
        return FIXES[self.name]

    def sentence(self) -> str:
        """The finding for a person."""
        bound = "it could go" if self.bound is None else f"at most {self.bound:.2f}x"
        text = f": {self.text}" if self.text else ""
        return f"{self.name.replace('_', ' ')} at {self.context} ({self.thing}){text}; {bound}; {self.fix}"


def narrowed(ratio: float, moved: int) -> int:
    """Bytes saved of `moved` when elements become `ratio` times smaller."""
    return int(moved - moved / ratio)


def coarse(effects: Sequence[Effect], least: int = LEAST) -> list[Finding]:
    """Findings of whole operations, by place and object, the largest stake first."""
    totals: dict[tuple[str, str, str], int] = {}
    found: dict[tuple[str, str, str], list[int]] = {}

    def note(name: str, effect: Effect, stake: int) -> None:
        one = found.setdefault((name, effect.context, effect.thing.context), [0, 0])
        one[0] += stake
        one[1] += 1

    for effect in effects:
        if effect.written < least or effect.kind not in _OF_KIND:
            continue
        place = (effect.kind, effect.context, effect.thing.context)
        totals[place] = totals.get(place, 0) + effect.written
        if effect.unchanged >= REDUNDANT * effect.written:
            note(_OF_KIND[effect.kind], effect, effect.unchanged)
        elif effect.dead >= REDUNDANT * effect.written:
            note("dead_write", effect, effect.dead)
        if effect.kind == UPLOAD and effect.zeros:
            note("zero_upload", effect, effect.written)
    of = {(context, thing): size for (_, context, thing), size in totals.items()}
    findings = [
        Finding(name, context, thing, stake, of[context, thing], times)
        for (name, context, thing), (stake, times) in found.items()
    ]
    findings += _of_duplicates(effects, least)
    return ranked(findings)


def _of_duplicates(effects: Sequence[Effect], least: int) -> list[Finding]:
    """Objects that always hold what another does; zeros are told as zeros."""
    blank: set[Thing] = set()
    for effect in effects:
        if effect.zeros and effect.written == effect.thing.size:
            blank.add(effect.thing)
    return [
        Finding("duplicate_objects", right.context, left.context, right.size, right.size)
        for left, right, how in duplicates(effects)
        if how == "total" and right.size >= least and not {left, right} & blank
    ]


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The largest stake first; equal ones by name and place."""
    return sorted(findings, key=lambda one: (-one.at_stake, one.name, one.context, one.thing))

"""What is worth a change: every pattern with its bytes at stake, a bound on the gain, and the fix.

The gain is a roofline's: a kernel that only moved the bytes that are left, at the same rate, would
take that share of its time. Where a value lets work be skipped, loads and stores of other objects
go with it: the bound, which counts them, is never below the gain. Neither knows of time elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
GROWN = 2.0  # bytes copied into ever larger objects over the largest; more: a fixed step
FIXES = {
    "redundant_upload": "copy only when the host's data has changed",
    "redundant_download": "drop the copy: the host has these bytes",
    "redundant_copy": "drop the copy: the destination has these bytes",
    "redundant_fill": "drop the fill: the memory has this value, or let the producer overwrite it",
    "redundant_write": "test before the store, or drop the kernel: it writes what is there",
    "zero_upload": "fill on the device (cudaMemsetAsync) in place of copying zeros",
    "dead_write": "drop it: all of it is overwritten before anybody reads it",
    "growing_copies": "grow by a share of the size in place of a fixed step",
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
    work: float = 0.0  # share of the place's work that may go with the values

    @property
    def gain(self) -> float | None:
        """The place's speed-up if these bytes go and no others; None: nothing would be left."""
        return self.of / (self.of - self.at_stake) if self.at_stake < self.of else None

    @property
    def bound(self) -> float | None:
        """The place's speed-up is at most this; None: nothing of it would be left."""
        gain = self.gain
        return None if gain is None or self.work >= 1 else max(gain, 1 / (1 - self.work))

    @property
    def fix(self) -> str:
        """What to do, in words."""
        return FIXES[self.name]

    def sentence(self) -> str:
        """The finding for a person."""
        bound = "all of it could go" if self.bound is None else f"at most {self.bound:.2f}x"
        if self.gain is not None and self.gain != self.bound:
            bound = f"{self.gain:.2f}x if these bytes go, {bound}"
        text = f": {self.text}" if self.text else ""
        head = f"{self.name.replace('_', ' ')} at {self.context} ({self.thing})"
        return f"{head}{text}; {bound}; {self.fix}"


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
    findings += _growing(effects)
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


def _growing(effects: Sequence[Effect]) -> list[Finding]:
    """Whole objects copied to the start of larger ones, again and again at one place."""
    places: dict[tuple[str, str], list[Effect]] = {}
    for effect in effects:
        source = effect.source
        if effect.kind != COPY or source is None or effect.written != source.size:
            continue
        if source.size < effect.thing.size:
            places.setdefault((effect.context, effect.thing.context), []).append(effect)
    found = []
    for (context, thing), group in places.items():
        copied, largest = sum(e.written for e in group), max(e.thing.size for e in group)
        if len(group) > 2 and copied > GROWN * largest:
            stake = copied - largest
            found.append(Finding("growing_copies", context, thing, stake, copied, len(group)))
    return found


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each pattern, place and object's allocation: stakes and times are added."""
    found: dict[tuple[str, str, str], Finding] = {}
    for one in findings:
        key = (one.name, one.context, one.thing)
        if key in found:
            stake, times = found[key].at_stake + one.at_stake, found[key].times + one.times
            found[key] = replace(found[key], at_stake=stake, times=times)
        else:
            found[key] = one
    return list(found.values())


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The largest stake first; equal ones by name and place."""
    return sorted(findings, key=lambda one: (-one.at_stake, one.name, one.context, one.thing))

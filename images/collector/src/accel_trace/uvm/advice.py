"""Advice for prefetching: which pieces of managed memory each operator will need.

Pieces are numbered by appearance from 0: objects (driver-level managed allocations) and tensors
(blocks inside of them), both above a threshold. Groups are the outermost operators in the order of
their starts. Source: PASTA, section on UVM (docs/papers/pasta.md, 3.4).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VERSION = 1
THRESHOLD = 1 << 20  # bytes; smaller pieces are not worth a call
REGION = "uvm"


class AdviceError(ValueError):
    """A file that holds no advice; one sentence with what helps."""


@dataclass(frozen=True)
class Group:
    """One outermost operator: its name, and the numbers of pieces that were there before it."""

    operator: str
    objects: tuple[int, ...] = ()
    tensors: tuple[int, ...] = ()


@dataclass(frozen=True)
class Advice:
    """Bytes of objects and tensors by number, and the groups in order."""

    objects: tuple[int, ...]
    tensors: tuple[int, ...]
    groups: tuple[Group, ...]
    threshold: int = THRESHOLD
    region: str = REGION

    def asked(self, policy: str) -> int:
        """Bytes that a replay asks for when all pieces are alive: a piece counts each time."""
        if policy == "object":
            return sum(self.objects[n] for group in self.groups for n in group.objects)
        if policy == "tensor":
            return sum(self.tensors[n] for group in self.groups for n in group.tensors)
        return 0

    def save(self, path: Path) -> None:
        """Write the advice as JSON."""
        path.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Advice:
        """Read what `save` wrote. Raises AdviceError."""
        try:
            found = json.loads(path.read_text())
        except OSError as error:
            raise AdviceError(f"{path}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise AdviceError(f"{path}: is no JSON; the tool uvm_advisor writes advice") from error
        try:
            return cls._parse(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise AdviceError(
                f"{path}: is no advice ({error}); have the tool uvm_advisor write it anew"
            ) from error

    @classmethod
    def _parse(cls, found: Any) -> Advice:
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']}, and this reads {VERSION}")
        objects, tensors = _sizes(found["objects"]), _sizes(found["tensors"])
        groups = []
        for raw in found["groups"]:
            group = Group(str(raw["operator"]), _sizes(raw["objects"]), _sizes(raw["tensors"]))
            if max(group.objects, default=-1) >= len(objects):
                raise ValueError(f"{group.operator} names an object that is not there")
            if max(group.tensors, default=-1) >= len(tensors):
                raise ValueError(f"{group.operator} names a tensor that is not there")
            groups.append(group)
        threshold, region = int(found["threshold"]), str(found["region"])
        return cls(objects, tensors, tuple(groups), threshold, region)


def _sizes(raw: Sequence[Any]) -> tuple[int, ...]:
    numbers = tuple(int(number) for number in raw)
    if any(number < 0 for number in numbers):
        raise ValueError("a negative number")
    return numbers

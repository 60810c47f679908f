"""The base of all events, and the types of their fields (see `events`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

U32 = Annotated[int, "I"]
I32 = Annotated[int, "i"]
U64 = Annotated[int, "Q"]
Text = Annotated[str, "I"]  # the number of a string; 0 is the empty one


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have."""

    kind: ClassVar[int]
    clock: int = 0
    ns: int = 0

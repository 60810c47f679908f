"""An event as a line: for a person, or as JSON."""

from __future__ import annotations

import json
from typing import Any

from accel_trace.events import Event
from accel_trace.layouts import LAYOUTS

_HEXADECIMAL = {"address", "destination", "source", "context", "stream", "module"}


def event_fields(event: Event) -> dict[str, Any]:
    """Return the event's own fields by name, in the order of the log."""
    return {name: getattr(event, name) for name in LAYOUTS[event.kind].names}


def event_text(event: Event, process: str = "") -> str:
    """Return an event for a person: clock, kind, fields; addresses in hexadecimal."""
    words = [f"{event.clock:>8}", type(event).__name__]
    for name, value in event_fields(event).items():
        if isinstance(value, str):
            shown = json.dumps(value, ensure_ascii=False)
        elif name in _HEXADECIMAL and not (name == "stream" and value < 1 << 32):
            shown = f"{value:#x}"
        else:
            shown = str(value)
        words.append(f"{name}={shown}")
    return (f"[{process}] " if process else "") + " ".join(words)


def event_json(event: Event, pid: int) -> str:
    """Return an event as one JSON object: kind, pid, clock, ns and its fields."""
    words: dict[str, Any] = {"kind": type(event).__name__, "pid": pid}
    words |= {"clock": event.clock, "ns": event.ns}
    return json.dumps(words | event_fields(event), ensure_ascii=False)

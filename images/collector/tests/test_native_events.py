"""events.h and events.py say the same, field by field."""

from __future__ import annotations

import re
import struct
from dataclasses import fields

from accel_trace import events as ev
from accel_trace import layouts
from native_support import NATIVE

TYPES = {"U32": "uint32_t", "I32": "int32_t", "U64": "uint64_t", "Text": "Text"}
HEADER = (NATIVE / "events.h").read_text()


def structs(text: str) -> dict[str, tuple[int | None, list[tuple[str, str]]]]:
    """Every struct of the header: its kind, and (type, name) of its fields in order."""
    out = {}
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.M | re.S):
        kind = re.search(r"uint16_t kind = (\d+);", body)
        members = re.findall(r"^  (\w+) (\w+)(?:\[\d+\])?;", body, re.M)
        out[name] = (int(kind.group(1)) if kind else None, members)
    return out


def test_every_event_has_the_same_fields_in_both() -> None:
    native = structs(HEADER)
    for event in ev.EVENTS:
        members = [
            (TYPES[str(field.type)], field.name)
            for field in fields(event)
            if field.name not in ("clock", "ns")
        ]
        kind, there = native.pop(event.__name__)
        assert kind == event.kind, event.__name__
        assert [(type_, name.rstrip("_")) for type_, name in there] == members, event.__name__
    assert set(native) == {"Header", "Frame"}, "no event is in the header alone"


def test_the_frames_have_the_same_layout_in_both() -> None:
    native = structs(HEADER)
    codes = {"char": "8s", "uint16_t": "H", "uint32_t": "I", "uint64_t": "Q"}
    for name, said in (("Header", layouts.HEADER), ("Frame", layouts.FRAME)):
        assert "<" + "".join(codes[type_] for type_, _ in native[name][1]) == said
    size = struct.calcsize
    assert (
        f"sizeof(Header) == {size(layouts.HEADER)} && sizeof(Frame) == {size(layouts.FRAME)}"
        in HEADER
    )
    assert f"kVersion = {layouts.VERSION};" in HEADER
    assert f"kStringKind = {layouts.STRING_KIND};" in HEADER
    magic = ", ".join(f"'{chr(c)}'" for c in layouts.MAGIC)
    assert f"kMagic[8] = {{{magic}}};" in HEADER


def test_memory_flags_are_the_same_in_both() -> None:
    native = {
        name: int(value, 16) for name, value in re.findall(r"kMemory(\w+) = (0x\w+),", HEADER)
    }
    assert native == {
        "".join(part.capitalize() for part in name.split("_")): value
        for name, value in ev.MEMORY_FLAGS.items()
    }

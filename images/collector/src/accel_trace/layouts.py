"""How events lie in a log: sizes, and a layout for each kind of event."""

from __future__ import annotations

import struct
from dataclasses import fields
from typing import get_args, get_type_hints

from accel_trace.events import EVENTS
from accel_trace.fields import Event

MAGIC = b"ACTRACE1"
HEADER = "<8sIIQQQ"  # magic, version, header size, pid, unix ns and monotonic ns at the start
VERSION = 1
FRAME = "<HHIQQ"  # kind, flags (0), payload bytes, clock, ns
STRING_KIND = 1  # payload: u32 number, then UTF-8 bytes
STATUS_BYTES = 4096
MAX_PAYLOAD = 1 << 24  # bytes; a longer frame means that the file is damaged
HEAD = struct.Struct(HEADER)
FRAME_HEAD = struct.Struct(FRAME)
NUMBER = struct.Struct("<I")


class Layout:
    """How one kind of event lies in a frame: struct, field names, and which fields are strings."""

    __slots__ = ("cls", "names", "struct", "texts")

    def __init__(self, cls: type[Event]) -> None:
        hints = get_type_hints(cls, include_extras=True)
        self.cls = cls
        self.names = tuple(f.name for f in fields(cls) if f.name not in ("clock", "ns"))
        types = [get_args(hints[name]) for name in self.names]
        self.struct = struct.Struct("<" + "".join(code for _, code in types))
        self.texts = tuple(i for i, (python, _) in enumerate(types) if python is str)


LAYOUTS: dict[int, Layout] = {cls.kind: Layout(cls) for cls in EVENTS}

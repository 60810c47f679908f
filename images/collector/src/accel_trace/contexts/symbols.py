"""Names of functions that a program does not export, from the symbol tables of its files (ELF)."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from functools import cache
from pathlib import Path

from accel_trace.handlers.stacks import demangled

_SYMBOL = struct.Struct("<IBBHQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMTAB, _DYNSYM, _FUNCTION = 2, 11, 2
_OFFSET = re.compile(r"\?(0x[0-9a-f]+)$")


@cache
def functions(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Start, end and name of every function of a file, sorted; none of one that is no ELF file."""
    try:
        data = path.read_bytes()
        if data[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
            return ()
        (start,) = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        sections = [_SECTION.unpack_from(data, start + size * n) for n in range(count)]
        found = set()
        for section in sections:
            if section[1] in (_SYMTAB, _DYNSYM):
                names = sections[section[6]]
                found |= _of(data, section[4], section[5], names[4])
    except (OSError, struct.error, IndexError, ValueError):
        return ()
    return tuple(sorted(found))


def _of(data: bytes, at: int, size: int, names: int) -> set[tuple[int, int, str]]:
    found = set()
    for name, info, _, _, value, length in _SYMBOL.iter_unpack(data[at : at + size]):
        if info & 15 == _FUNCTION and value and length:
            end = data.index(b"\0", names + name)
            found.add((value, value + length, data[names + name : end].decode("utf-8", "replace")))
    return found


def function_at(path: Path, offset: int) -> str:
    """The function that holds an offset, as the file counts them; "" for none."""
    table = functions(path)
    at = bisect_right(table, (offset, 1 << 64, "")) - 1
    return demangled(table[at][2]) if at >= 0 and offset < table[at][1] else ""


def plain(frame: str, files: dict[str, Path]) -> str:
    """A frame of either of our two writers in one form, `native: function in file`.

    The handler in Python writes `native: function path`, the injection library
    `native:function+0x1a in file`. `files` names the paths of files that were told without.
    """
    if not frame.startswith("native:"):
        return frame
    if frame.startswith("native: "):
        name, _, file = frame.removeprefix("native: ").rpartition(" ")
        path = Path(file)
    else:
        name, _, file = frame.removeprefix("native:").rpartition(" in ")
        name, _, offset = name.rpartition("+")
        path = files.get(file, Path(file))
        if name == file:
            name = f"?{offset}"
    unknown = _OFFSET.match(name)
    if unknown:
        name = function_at(path, int(unknown[1], 16)) or name
    return f"native: {name} in {path.name}"

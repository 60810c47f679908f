"""How many bytes an x86-64 instruction moves between memory and the CPU, from its first bytes.

Source: Intel's Software Developer's Manual, volume 2, opcode maps. 0: not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

_LEGACY = {0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x67, 0xF0}


@dataclass(frozen=True)
class _Code:
    """An instruction without its prefixes."""

    table: int  # 0, or the map: 1 of 0F, 2 of 0F 38, 3 of 0F 3A
    opcode: int
    half: bool  # prefix 66
    middle: int  # the three bits of ModRM that say more
    prefix: str  # "", 66, F2 or F3
    wide: bool  # REX.W or VEX.W
    vector: int  # bytes of a vector; 0: neither VEX nor EVEX
    broadcast: bool = False

    @property
    def general(self) -> int:
        """Bytes of a general register."""
        return 8 if self.wide else 2 if self.half else 4

    @property
    def long(self) -> int:
        """The same where there are no 16 bits."""
        return 8 if self.wide else 4

    @property
    def whole(self) -> int:
        """Bytes of a vector register, or of one element that is broadcast."""
        return self.long if self.broadcast else self.vector or 16

    @property
    def scalar(self) -> int:
        """Bytes of a float or double where the prefix says so, else of a whole vector."""
        return {"F3": 4, "F2": 8}.get(self.prefix, self.whole)

    @property
    def old(self) -> int:
        """Bytes of an MMX register where there is no prefix, else of a whole vector."""
        return self.whole if self.vector or self.prefix else 8


@cache
def operand_bytes(code: bytes) -> int:
    """Bytes of the memory operand of the instruction that `code` begins with, 0 where unknown."""
    try:
        found = _parse(code)
    except IndexError:
        return 0
    if found is None:
        return 0
    table = _VECTOR if found.vector and (found.table, found.opcode) in _VECTOR else _PLAIN
    rule = table.get((found.table, found.opcode))
    if rule is None:
        return found.whole if found.table > 1 else 0
    return rule if isinstance(rule, int) else rule(found)


def _parse(code: bytes) -> _Code | None:
    at, prefix, wide, half = 0, "", False, False
    while code[at] in _LEGACY or code[at] in (0x66, 0xF2, 0xF3):
        if code[at] in (0xF2, 0xF3) or (code[at] == 0x66 and not prefix):
            prefix = f"{code[at]:02X}"
        half = half or code[at] == 0x66
        at += 1
    if code[at] & 0xF0 == 0x40:
        wide, at = bool(code[at] & 8), at + 1
    first = code[at]
    if first in (0xC4, 0xC5, 0x62):
        return _vex(code, at)
    if first != 0x0F:
        middle = code[at + 1] >> 3 & 7 if at + 1 < len(code) else 0
        return _Code(0, first, half, middle, prefix, wide, 0)
    table = {0x38: 2, 0x3A: 3}.get(code[at + 1], 1)
    at += 2 if table > 1 else 1
    return _Code(table, code[at], half, code[at + 1] >> 3 & 7, prefix, wide, 0)


def _vex(code: bytes, at: int) -> _Code | None:
    prefixes = ("", "66", "F3", "F2")
    if code[at] == 0xC5:
        low, table, wide, at = code[at + 1], 1, False, at + 2
        vector = 32 if low & 4 else 16
    elif code[at] == 0xC4:
        low, table, wide, at = code[at + 2], code[at + 1] & 31, bool(code[at + 2] & 0x80), at + 3
        vector = 32 if low & 4 else 16
    else:
        low, table, wide = code[at + 2], code[at + 1] & 7, bool(code[at + 2] & 0x80)
        last = code[at + 3]
        vector = (16, 32, 64, 64)[last >> 5 & 3]
        if table not in (1, 2, 3):
            return None
        opcode, middle = code[at + 4], code[at + 5] >> 3 & 7
        return _Code(
            table, opcode, False, middle, prefixes[low & 3], wide, vector, bool(last & 0x10)
        )
    if table not in (1, 2, 3):
        return None
    return _Code(table, code[at], False, code[at + 1] >> 3 & 7, prefixes[low & 3], wide, vector)


Rule = int | Callable[[_Code], int]
_X87 = (
    (4,) * 8, (4, 0, 4, 4, 28, 2, 28, 2), (4,) * 8, (4, 4, 4, 4, 0, 10, 0, 10), (8,) * 8,
    (8, 8, 8, 8, 108, 0, 108, 2), (2,) * 8, (2, 2, 2, 2, 10, 8, 10, 8),
)  # fmt: skip


def _rules(number: int, *rows: tuple[Rule, Iterable[int]]) -> dict[tuple[int, int], Rule]:
    return {(number, opcode): rule for rule, opcodes in rows for opcode in opcodes}


def _x87(row: tuple[int, ...]) -> Rule:
    return lambda code: row[code.middle]


def _part(of: int) -> Rule:
    return lambda code: (code.vector or 16) // of


_general: Rule = lambda code: code.general  # noqa: E731
_whole: Rule = lambda code: code.whole  # noqa: E731
_scalar: Rule = lambda code: code.scalar  # noqa: E731
_old: Rule = lambda code: code.old  # noqa: E731
_long: Rule = lambda code: code.long  # noqa: E731
_ALU = [op for op in range(0x40) if op & 7 < 4]
_SHIFTS = (0xD1, 0xD2, 0xD3, 0xE1, 0xE2, 0xF1, 0xF2, 0xF3)
_PLAIN: dict[tuple[int, int], Rule] = {
    **_rules(
        0,
        (1, [op for op in _ALU if not op & 1]),
        (_general, [op for op in _ALU if op & 1]),
        (1, (0x80, 0x84, 0x86, 0x88, 0x8A, 0xC6, 0xC0, 0xD0, 0xD2, 0xF6, 0xFE)),
        (1, (0xA4, 0xA6, 0xAA, 0xAC, 0xAE)),
        (_general, (0x81, 0x83, 0x85, 0x87, 0x89, 0x8B, 0xC7, 0xC1, 0xD1, 0xD3, 0x69, 0x6B)),
        (_general, (0xA5, 0xA7, 0xAB, 0xAD, 0xAF, 0xF7)),
        (lambda code: 8 if code.middle in (2, 4, 6) else code.general, (0xFF,)),
        (2, (0x8C, 0x8E)),
        (4, (0x63,)),
        (8, (0x8F, 0xE8)),
        *((_x87(row), (0xD8 + number,)) for number, row in enumerate(_X87)),
    ),
    **_rules(
        1,
        (_old, (*range(0x63, 0x6E), *range(0x74, 0x77), *range(0xD0, 0x100))),
        (lambda code: code.whole if code.prefix or code.vector else 4, (0x60, 0x61, 0x62)),
        (_old, (0x6F, 0x70, 0x7F)),
        (lambda code: 16 if code.prefix or code.vector else 8, _SHIFTS),
        (_whole, (0x14, 0x15, *range(0x28, 0x2A), 0x2B, *range(0x54, 0x58), 0x5B, 0xC6)),
        (_whole, (0x7C, 0x7D, 0xD0, 0xF0)),
        (_scalar, (0x10, 0x11, 0x51, 0x58, 0x59, *range(0x5C, 0x60), 0xC2)),
        (lambda code: 4 if code.prefix == "F3" else code.whole, (0x52, 0x53)),
        (lambda code: 8 if code.prefix == "66" else 4, (0x2E, 0x2F)),
        (lambda code: {"F3": 4, "F2": 8, "66": 16}.get(code.prefix, 8), (0x2C, 0x2D)),
        (lambda code: code.long if code.prefix in ("F2", "F3") else 8, (0x2A,)),
        (lambda code: {"F3": 4, "F2": 8, "66": code.whole}.get(code.prefix, code.whole // 2),
         (0x5A,)),
        (lambda code: code.whole // 2 if code.prefix == "F3" else code.whole, (0xE6,)),
        (lambda code: 8 if code.prefix == "F3" or code.wide else 4, (0x7E,)),
        (_long, (0x6E,)),
        (lambda code: code.whole if code.prefix == "F3" else 8, (0x12, 0x13, 0x16, 0x17)),
        (8, (0xD6,)),
        (2, (0x00, 0xC4, 0xB7, 0xBF)),
        (1, (0xB0, 0xB6, 0xBE, 0xC0, *range(0x90, 0xA0))),
        (_general, (*range(0x40, 0x50), 0xA3, 0xA4, 0xA5, 0xAB, 0xAC, 0xAD, 0xAF, 0xB1, 0xB3)),
        (_general, (0xB8, 0xBA, 0xBB, 0xBC, 0xBD, 0xC1, 0xC3)),
        (lambda code: (16 if code.wide else 8) if code.middle == 1 else code.general, (0xC7,)),
        (lambda code: (512, 512, 4, 4, 0, 0, 0, 0)[code.middle], (0xAE,)),
    ),
    **_rules(  # movbe and crc32; of general registers; pmovsx and pmovzx
        2,
        (lambda code: 1 if code.prefix == "F2" else code.general, (0xF0,)),
        (_general, (0xF1,)),
        (_long, (0xF2, 0xF3, 0xF5, 0xF6, 0xF7)),
        (_part(2), (0x20, 0x23, 0x25, 0x30, 0x33, 0x35)),
        (_part(4), (0x21, 0x24, 0x31, 0x34)),
        (_part(8), (0x22, 0x32)),
    ),
    **_rules(
        3,
        (1, (0x14, 0x20)),
        (2, (0x15,)),
        (4, (0x17, 0x21, 0x0A)),
        (8, (0x0B,)),
        (_long, (0x16, 0x22, 0xF0)),
    ),
}  # fmt: skip
_VECTOR: dict[tuple[int, int], Rule] = {
    **_rules(  # kmov; the double-word broadcast of movddup
        1,
        (lambda code: {("", False): 2, ("66", False): 1, ("", True): 8}.get(
            (code.prefix, code.wide), 4), (0x90, 0x91)),
        (lambda code: code.whole if code.prefix == "F3" or (
            code.prefix == "F2" and code.vector > 16) else 8, (0x12,)),
    ),
    **_rules(
        2,
        (0, (*range(0x90, 0x94), *range(0xA0, 0xA4))),  # gathers, scatters: many places, one told
        (_part(2), (0x13,)),
        (1, (0x78,)),
        (2, (0x79,)),
        (4, (0x18, 0x58)),
        (8, (0x19, 0x59)),
        (16, (0x1A, 0x5A)),
        (32, (0x1B, 0x5B)),
        (_long, [op for op in range(0x96, 0xC0) if op & 15 in (9, 11, 13, 15)]),
    ),
    **_rules(3, (16, (0x18, 0x19, 0x38, 0x39)), (32, (0x1A, 0x1B, 0x3A, 0x3B))),
}  # fmt: skip

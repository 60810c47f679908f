"""What one instruction reads and writes, register by register, and as which type.

A use is a pair of a register and a type or None; registers are named as the disassembler does (R4,
UR6), each of 32 bits. Types are f64, f32, f16, bf16 (two of them in a register), s8/u8 (four), i64,
s64/u64, i32, s32/u32 (i: nobody says whether it has a sign), s16/u16, x64 (beside the upper half of
an integer), and `logic`, a mark of an integer where there is no better one. NVIDIA documents
opcodes and not operands: the widths are as its compilers use them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from accel_trace.sass.disassembly import Instruction

Use = tuple[str, str | None]
_REGISTER = re.compile(r"[-~|!]*\b(U?R)(\d+|Z)\b")
_ADDRESS = re.compile(r"\b(U?R)(\d+)(\.64)?")
_F32 = {"FADD", "FMUL", "FFMA", "FMNMX", "FMNMX3", "FSETP", "FSET", "FCHK", "FSWZADD", "FADD32I",
        "FMUL32I", "FFMA32I", "MUFU", "FRND", "FADD2", "FMUL2", "FFMA2"}  # fmt: skip
_F64 = {"DADD", "DMUL", "DFMA", "DMNMX", "DSETP"}
_HALF = {"HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSET2", "HSETP2", "HADD2_32I", "HMUL2_32I",
         "HFMA2_32I", "VHMNMX"}  # fmt: skip
_INT = {"IADD3", "IADD", "IADD32I", "IMAD", "IMUL", "IMNMX", "VIMNMX", "VIMNMX3", "VIADD",
        "VIADDMNMX", "ISETP", "ISET", "LEA", "IABS", "IDP", "ISCADD", "POPC", "FLO",
        "I2I"}  # fmt: skip
_LOGIC = {"LOP3", "LOP", "LOP32I", "SHF", "SHL", "SHR", "BMSK", "SGXT", "PRMT", "BREV", "PLOP3"}
_MOVES = {"MOV", "SEL", "FSEL", "SHFL", "R2UR", "MOV32I", "REDUX"}
LOADS = {"LD", "LDG", "LDS", "LDL", "LDC", "LDSM"}
STORES = {"ST", "STG", "STS", "STL"}
_ATOMIC = {"ATOM", "ATOMG", "ATOMS", "RED", "REDG", "SUATOM"}
_SILENT = {"NOP", "EXIT", "BRA", "RET", "CALL", "BSSY", "BSYNC", "BAR", "DEPBAR", "BPT", "WARPSYNC",
           "MEMBAR", "CCTL", "ERRBAR", "R2P", "BRX", "JMX", "JMP", "KILL", "NANOSLEEP", "YIELD",
           "BMOV", "LDGDEPBAR", "UTMALDG", "UTMASTG", "SYNCS", "LDGSTS", "BREAK", "PLOP3",
           "UTMACMDFLUSH", "UBLKCP", "FENCE", "ELECT", "ACQBULK", "WARPGROUP",
           "CGAERRBAR"}  # fmt: skip
_SIGNS = {"0x80000000", "0x7fffffff", "0x7ff00000", "0x800fffff", "0x7fffff", "0x7f800000",
          "0x100000", "0x3ff00000"}  # fmt: skip
_EIGHTS = {"E4M3", "E5M2"}
_NAMES = {"F32": "f32", "F64": "f64", "F16": "f16", "BF16": "bf16", "S64": "s64", "U64": "u64",
          "S32": "s32", "U32": "u32", "S16": "s16", "U16": "u16", "S8": "s8", "U8": "u8",
          "TF32": "f32", "F16x2": "f16", "BF16_V2": "bf16", "BF16x2": "bf16"}  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """What an instruction does: registers that it defines and uses, and those it only moves."""

    defines: tuple[Use, ...] = ()
    uses: tuple[Use, ...] = ()
    moves: tuple[tuple[str, str], ...] = ()  # from, to
    raises: tuple[tuple[str, str], ...] = ()  # the same, with 16 bits put into the upper half


def run(name: str, count: int = 1) -> list[str]:
    """A register and those after it; none of RZ."""
    file, number = re.fullmatch(r"(U?R)(\d+|Z)", name).groups()  # type: ignore[union-attr]
    return [] if number == "Z" else [f"{file}{int(number) + i}" for i in range(count)]


def width_of(words: tuple[str, ...]) -> int:
    """Bytes of a load or store."""
    for word, size in (("128", 16), ("64", 8), ("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2)):
        if word in words:
            return size
    return 4


def effect_of(one: Instruction) -> Effect:
    """What the instruction does; of an opcode that is not known, that it writes its first one."""
    words = one.words
    word = words[0]
    if word.startswith("U") and word[1:] in _INT | _LOGIC | _MOVES | _F32 | {"LDC"}:
        word = word[1:]
    if word in _SILENT:
        return Effect()
    addresses = tuple(_addresses(one))
    plain = [part for part in one.operands if "[" not in part]
    if word in STORES | LOADS:
        return _memory(word, words, plain, addresses)
    names = [_name(part) for part in plain]
    registers = [name for name in names if name]
    if word in _ATOMIC:
        kind = next((_NAMES[w] for w in words[1:] if w in _NAMES), "i32")
        size = 2 if "64" in words else 1
        returns = registers[:1] if word in {"ATOM", "ATOMG", "ATOMS"} else []
        return Effect(tuple(_all(returns, kind, size)),
                      (*_all(registers[len(returns):], kind, size), *addresses))  # fmt: skip
    sets = word in {"FSETP", "DSETP", "ISETP", "HSETP2", "FCHK"} or word == "R2P"
    target = [] if sets else registers[:1]
    sources = registers[len(target) :]
    raised = _raises(word, words, plain)
    moved = word in _MOVES or word == "PRMT" or words[:2] == ("IMAD", "MOV")
    if raised or moved:
        kept = sources[-1:] if word == "IMAD" else sources[:1] if word == "SHFL" else sources
        pairs = tuple((of, to) for name in kept for of in run(name) for to in _first(target))
        defined = tuple(_all(target, None))
        return Effect(defined, addresses, *((), pairs) if raised else (pairs,))
    if word != "CS2R" and not any(map(run, sources)) and "c[" not in " ".join(one.operands):
        return Effect(tuple(_all(target, None)), addresses)  # a constant
    made, used = _typed(word, words, target, sources, plain)
    return Effect(tuple(made), (*used, *addresses))


def _name(part: str) -> str:
    found = _REGISTER.match(part)
    return f"{found[1]}{found[2]}" if found else ""


def _first(names: list[str]) -> list[str]:
    return run(names[0]) if names else []


def _all(names: list[str], kind: str | None, count: int = 1) -> list[Use]:
    return [(each, kind) for name in names for each in run(name, count)]


def _addresses(one: Instruction) -> list[Use]:
    found: list[Use] = []
    for part in one.operands:
        if "[" not in part or part.startswith("c["):
            continue
        for file, number, wide in _ADDRESS.findall(part):
            kind = "i64" if wide else "i32"
            found += [(name, kind) for name in run(f"{file}{number}", 2 if wide else 1)]
    return found


def _memory(
    word: str, words: tuple[str, ...], plain: list[str], addresses: tuple[Use, ...]
) -> Effect:
    registers = [name for name in map(_name, plain) if name]
    count = max(width_of(words) // 4, 1)
    if word == "LDSM":
        count = next((int(w) for w in words if w in {"2", "4"}), 1)
    if word in LOADS:
        return Effect(tuple(_all(registers[:1], None, count)), addresses)
    return Effect((), (*_all(registers[:1], None, count), *addresses))


def _raises(word: str, words: tuple[str, ...], plain: list[str]) -> bool:
    """Whether 16 bits go into the upper half, or stay there alone, as bfloat16 becomes float32."""
    given = set(plain[1:])
    if word == "IMAD":
        return words[1:2] in (("U32",), ("SHL",)) and "0x10000" in given and plain[-1] == "RZ"
    if word == "PRMT":
        return plain[1:2] == ["RZ"] and bool({"0x5410", "0x7610"} & given)
    if word in {"SHF", "SHL"}:
        return (word == "SHL" or "L" in words) and "0x10" in given
    return word == "LOP3" and "0xffff0000" in given


def _typed(
    word: str, words: tuple[str, ...], target: list[str], sources: list[str], plain: list[str]
) -> tuple[list[Use], list[Use]]:
    """Registers defined and used by an opcode that computes."""
    if word in {"HMMA", "IMMA", "DMMA", "HGMMA", "IGMMA", "QGMMA"}:
        return _matrix(word, words, target, sources)
    if word in {"F2F", "F2I", "I2F", "F2FP", "I2FP", "F2IP", "I2IP"}:
        return _converted(word, words, target, sources)
    if word in _INT:
        return _integer(word, words, target, sources)
    to: str | None = None
    count = 1
    if word in _F64 or (word == "MUFU" and words[-1].endswith("64H")):  # of the upper half alone
        to, count = "f64", 2 if word in _F64 else 1
    elif word in _F32:
        to, count = "f32", 2 if word.endswith("2") else 1
    elif word in _HALF:
        to = "bf16" if any(each.startswith("BF16") for each in words) else "f16"
    elif word in _LOGIC and not _SIGNS & set(plain):
        to = "logic"
    elif word == "CS2R":
        count = 1 if "32" in words else 2
    of = to
    if word in _HALF and "F32" in words:
        to = "f32"
    return _all(target, to, count), _all(sources, of, count)


def _integer(
    word: str, words: tuple[str, ...], target: list[str], sources: list[str]
) -> tuple[list[Use], list[Use]]:
    kind = "i32"  # compilers compare signed numbers without a sign, too
    if word in {"IMNMX", "VIMNMX"}:
        kind = "u32" if "U32" in words else "s32"
    if word == "IMAD" and "WIDE" in words:
        factor = "i32" if "U32" in words else "s32"
        return _all(target, "i64", 2), _all(sources[:-1], factor) + _all(sources[-1:], "i64", 2)
    if {"X", "EX"} & set(words) or words[:2] == ("LEA", "HI"):
        kind = "x64"
    if "64" in words:
        return _all(target, "i64", 2), _all(sources, "i64", 2)
    return _all(target, kind), _all(sources, kind)


def _converted(
    word: str, words: tuple[str, ...], target: list[str], sources: list[str]
) -> tuple[list[Use], list[Use]]:
    told = [_NAMES[w] for w in words[1:] if w in _NAMES]
    floats = [kind for kind in told if kind[0] in "fb"]
    whole = [kind for kind in told if kind[0] in "su"]
    if _EIGHTS & set(words):  # of floats in a byte the other side is not told apart
        return _all(target, None), _all(sources, None)
    if word in {"F2F", "F2FP"}:
        to = floats[0] if floats else "f16"
        of = floats[1] if len(floats) > 1 else "f32"
    elif word in {"F2I", "F2IP"}:
        to, of = (whole or ["s32"])[0], (floats or ["f32"])[0]
    elif word == "I2IP":
        to, of = (whole or ["s8"])[0], "i32"
    else:
        to, of = (floats or ["f32"])[0], (whole or ["s32"])[0]
    return (_all(target, to, 2 if to.endswith("64") else 1),
            _all(sources, of, 2 if of.endswith("64") else 1))  # fmt: skip


def _matrix(
    word: str, words: tuple[str, ...], target: list[str], sources: list[str]
) -> tuple[list[Use], list[Use]]:
    """Of D = A B + C: how many registers hold a thread's share of each, by the shape."""
    if word == "DMMA":
        return _all(target, "f64", 4), _each(sources, (2, 2, 4), "f64", "f64")
    to = "s32" if word in {"IMMA", "IGMMA"} else "f32" if "F32" in words else "f16"
    of: str | None = "s8" if to == "s32" else "bf16" if "BF16" in words else "f16"
    if "TF32" in words:
        of = "f32"
    if "U8" in words:
        of = "u8"
    if {"S4", "U4", *_EIGHTS} & set(words):
        of = None
    shape = words[1] if len(words) > 1 else ""
    wide = re.fullmatch(r"64x(\d+)x\d+", shape)
    if wide:  # of a warp group; A and B are in shared memory, or A in registers
        count = int(wide[1]) // (4 if to == "f16" else 2)
        return _all(target, to, count), _all(sources[-1:], to, count)
    half = shape in {"1688", "1684", "16816"} and (word == "IMMA" or shape != "16816")
    half = half and not (of == "f32" and shape == "1688")
    a, b = (2, 1) if half else (4, 2)
    c = 2 if to == "f16" else 4
    return _all(target, to, c), _each(sources, (a, b, c), of, to)


def _each(sources: list[str], counts: tuple[int, int, int], of: str | None, to: str) -> list[Use]:
    found: list[Use] = []
    for source, count, kind in zip(sources, counts, (of, of, to), strict=False):
        found += _all([source], kind, count)
    return found

"""Reads the GPU code inside shared libraries: fat binaries, cubins, and what each kernel needs.

No GPU, no CUDA toolkit. A CUDA library carries its device code in the ELF section `.nv_fatbin`:
containers (magic 0xBA55ED50) of entries, one per architecture, compressed with LZ4 or zstd. A
cubin is itself an ELF file; register counts and the parameter layout are in its `.nv.info`
sections. The layout is not documented by NVIDIA; it was checked against `cuobjdump` and against
the published PyTorch wheels (docs/papers/dlrm.md, 3.1, 6).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dlrm_inference.cuda.compressed import CubinError, unpack_lz4, unpack_zstd

Buffer = bytes | mmap.mmap | memoryview

FATBIN_MAGIC = 0xBA55ED50
SEGMENT_MAGIC = 0x466243B1
KIND_PTX, KIND_ELF = 1, 2
FLAG_LZ4, FLAG_ZSTD = 0x2000, 0x8000

# Attributes of `.nv.info` (EIATTR_*), as cuobjdump names them.
ATTR_PARAM_CBANK = 0x0A
ATTR_FRAME_SIZE = 0x11
ATTR_KPARAM_INFO = 0x17
ATTR_REGCOUNT = 0x2F
RESERVED_SHARED = 1024
FORMAT_SIZED = 4  # the attribute's value is a block of bytes; other formats hold it in place


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of a 64-bit ELF file. Offsets and sizes in bytes."""

    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True, kw_only=True)
class FatbinEntry:
    """One entry of a fat binary. `size` and `unpacked` in bytes; arch 90 is sm_90."""

    kind: int
    arch: int
    flags: int
    offset: int  # of the payload in the file
    size: int
    unpacked: int  # 0 when the payload is not compressed


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A kernel parameter: where it lies in the parameter block, in bytes."""

    ordinal: int
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What a kernel asks of an SM. Bytes are per thread (local) or per block (shared)."""

    name: str  # mangled
    registers: int
    local_bytes: int  # stack frame and spills
    shared_bytes: int  # static
    parameters: tuple[Parameter, ...]
    parameter_bytes: int


def read_sections(data: Buffer) -> tuple[Section, ...]:
    """Return the sections of a 64-bit little-endian ELF file, else raise CubinError."""
    if bytes(data[:6]) != b"\x7fELF\x02\x01":
        raise CubinError("this is not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count, names = struct.unpack_from("<HHH", data, 0x3A)
    if table + entry * count > len(data):
        raise CubinError("the ELF file is cut short: its section table lies beyond its end")
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry) for i in range(count)]
    text = raw[names][4]
    return tuple(
        Section(
            name=_text_at(data, text + item[0]),
            kind=item[1],
            offset=item[4],
            size=item[5],
            link=item[6],
            info=item[7],
        )
        for item in raw
    )


@contextmanager
def map_file(path: Path) -> Iterator[mmap.mmap]:
    """Map a file read-only: a library of 700 MB is never held in memory."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        yield data


def count_segments(data: Buffer) -> int:
    """Return how many fat binaries `.nvFatBinSegment` registers (24 bytes each)."""
    count = 0
    for section in read_sections(data):
        if section.name == ".nvFatBinSegment":
            for at in range(section.offset, section.offset + section.size - 23, 24):
                count += struct.unpack_from("<I", data, at)[0] == SEGMENT_MAGIC
    return count


def fatbin_entries(data: Buffer) -> Iterator[FatbinEntry]:
    """Yield every entry of `.nv_fatbin`, in file order. Raises CubinError if there is none."""
    sections = [s for s in read_sections(data) if s.name == ".nv_fatbin"]
    if not sections:
        raise CubinError("the library has no section .nv_fatbin: it carries no GPU code")
    for section in sections:
        yield from _entries_between(data, section.offset, section.offset + section.size)


def _entries_between(data: Buffer, at: int, end: int) -> Iterator[FatbinEntry]:
    while at + 16 <= end:
        magic, _version, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != FATBIN_MAGIC:  # containers are padded to 8 bytes
            at += 8
            continue
        stop = at + header + size
        if stop > end:
            raise CubinError("a fat binary is cut short: it ends beyond its section")
        entry = at + header
        while entry + 64 <= stop:
            kind, _, head, padded, packed = struct.unpack_from("<HHIQI", data, entry)
            (arch,) = struct.unpack_from("<I", data, entry + 28)
            (flags,) = struct.unpack_from("<Q", data, entry + 40)
            (unpacked,) = struct.unpack_from("<Q", data, entry + 56)
            squeezed = bool(flags & (FLAG_LZ4 | FLAG_ZSTD))
            yield FatbinEntry(
                kind=kind,
                arch=arch,
                flags=flags,
                offset=entry + head,
                size=packed if squeezed and packed else padded,
                unpacked=unpacked if squeezed else 0,
            )
            entry += head + padded
        at = stop


def unpack(data: Buffer, entry: FatbinEntry) -> bytes:
    """Return the entry's payload, decompressed. Raises CubinError when it is damaged."""
    packed = bytes(data[entry.offset : entry.offset + entry.size])
    if entry.flags & FLAG_ZSTD:
        plain = unpack_zstd(packed, entry.unpacked)
    elif entry.flags & FLAG_LZ4:
        plain = unpack_lz4(packed, entry.unpacked)
    else:
        return packed
    if len(plain) != entry.unpacked:
        raise CubinError(
            f"a compressed cubin gave {len(plain)} bytes where its header says {entry.unpacked}"
        )
    return plain


def cubins(data: Buffer, archs: frozenset[int] | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (architecture, cubin) of a library for the wanted architectures, one at a time."""
    for entry in fatbin_entries(data):
        if entry.kind == KIND_ELF and (archs is None or entry.arch in archs):
            yield entry.arch, unpack(data, entry)


def read_kernels(cubin: Buffer) -> dict[str, Kernel]:
    """Return the kernels of a cubin by mangled name, with registers, memory and parameters.

    Up to sm_8x the register count is the top byte of the code section's `sh_info`; from sm_90 on
    it is the attribute EIATTR_REGCOUNT, which wins where both are there.
    """
    sections = read_sections(cubin)
    by_name = {section.name: section for section in sections}
    symbols = _symbol_names(cubin, sections)
    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    if ".nv.info" in by_name:
        for code, block in _attributes(cubin, by_name[".nv.info"]):
            if code in (ATTR_REGCOUNT, ATTR_FRAME_SIZE) and len(block) >= 8:
                symbol, value = struct.unpack_from("<II", block)
                target = registers if code == ATTR_REGCOUNT else frames
                target[symbols.get(symbol, "")] = value
    # Newer tools count the 1 KiB that the system keeps of every block's shared memory.
    reserved = RESERVED_SHARED if ".nv.shared.reserved.0" in by_name else 0
    kernels = {}
    for section in sections:
        if not section.name.startswith(".text.") or f".nv.info{section.name[5:]}" not in by_name:
            continue  # a device function, not a kernel: it has no parameters of its own
        name = section.name[len(".text.") :]
        parameters, block_bytes = _parameters(cubin, by_name[f".nv.info.{name}"])
        shared = by_name[f".nv.shared.{name}"].size if f".nv.shared.{name}" in by_name else 0
        kernels[name] = Kernel(
            name=name,
            registers=registers.get(name, section.info >> 24),
            local_bytes=frames.get(name, 0),
            shared_bytes=max(shared - reserved, 0),
            parameters=parameters,
            parameter_bytes=block_bytes,
        )
    return kernels


def find_kernel(kernels: dict[str, Kernel], function: str, template: str = "") -> Kernel:
    """Return the one kernel whose mangled name holds `function` and then `template`.

    `template` is the mangled template arguments, e.g. `IflE` for <float, long>. Raises CubinError
    when none or several match.
    """
    matches = [k for name, k in kernels.items() if function + template in name]
    if len(matches) != 1:
        what = "no kernel" if not matches else f"{len(matches)} kernels"
        raise CubinError(f"{what} named {function}{template} in this cubin")
    return matches[0]


def _text_at(data: Buffer, start: int) -> str:
    """A zero-terminated string. Section names of C++ kernels can be thousands of bytes long."""
    step, stop = 256, start
    while stop < len(data):
        end = bytes(data[stop : stop + step]).find(b"\0")
        if end >= 0:
            return bytes(data[start : stop + end]).decode("ascii", "replace")
        stop += step
    raise CubinError("the ELF file is cut short: a name has no end")


def _symbol_names(data: Buffer, sections: tuple[Section, ...]) -> dict[int, str]:
    for section in sections:
        if section.name == ".symtab":
            text = sections[section.link].offset
            starts = struct.iter_unpack(
                "<IBBHQQ", bytes(data[section.offset : section.offset + section.size])
            )
            return {i: _text_at(data, text + row[0]) for i, row in enumerate(starts)}
    return {}


def _attributes(data: Buffer, section: Section) -> Iterator[tuple[int, bytes]]:
    at, end = section.offset, section.offset + section.size
    while at + 4 <= end:
        form, code, size = struct.unpack_from("<BBH", data, at)
        if form != FORMAT_SIZED:
            yield code, bytes(data[at + 2 : at + 4])
            at += 4
            continue
        yield code, bytes(data[at + 4 : at + 4 + size])
        at += 4 + size


def _parameters(data: Buffer, section: Section) -> tuple[tuple[Parameter, ...], int]:
    found, block_bytes = [], 0
    for code, block in _attributes(data, section):
        if code == ATTR_KPARAM_INFO and len(block) >= 12:
            _index, ordinal, offset, bits = struct.unpack_from("<IHHI", block)
            found.append(Parameter(ordinal=ordinal, offset=offset, size=bits >> 18))
        elif code == ATTR_PARAM_CBANK and len(block) >= 8:
            (block_bytes,) = struct.unpack_from("<H", block, 6)
    return tuple(sorted(found, key=lambda p: p.ordinal)), block_bytes

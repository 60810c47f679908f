"""Recorded values: which instruction of which thread read or wrote what, and where.

A file `values-<pid>.npz` lies beside the log of a process. It holds one array for each column
below, `sites` (what a `pc` stands for, one text each) and the contents of copies (see `Contents`).
All numbers are little-endian. A vector access has one record; `split` makes one of each element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel_trace.values.elements import CODES

RECORDED = "record"  # who told a type: the replay that made the file
READ, WRITE = 1, 2  # flags; both: an atomic, whose operand nobody tells
COLUMNS: Mapping[str, str] = {
    "launch": "<u4",  # index of the launch
    "pc": "<u4",  # number of the instruction in `sites`
    "block": "<u4",
    "thread": "<u4",  # in its block
    "address": "<u8",
    "size": "u1",  # bytes of the access: 1, 2, 4, 8 or 16
    "flags": "u1",
    "element": "u1",  # code of the type of one element, 0 unknown
    "unit": "u1",  # bytes of one element
    "low": "<u8",  # the value's first 8 bytes
    "high": "<u8",  # and the other 8, of 16
}


class ValuesError(ValueError):
    """A file of values that is none, or that is damaged; one sentence."""


@dataclass(frozen=True, eq=False)
class Accesses:
    """Columns of equal length, in the order in which each thread did it."""

    launch: NDArray[np.uint32]
    pc: NDArray[np.uint32]
    block: NDArray[np.uint32]
    thread: NDArray[np.uint32]
    address: NDArray[np.uint64]
    size: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    element: NDArray[np.uint8]
    unit: NDArray[np.uint8]
    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    sites: Sequence[str] = field(default=())
    sources: Sequence[str] = field(default=())  # of each site, who told the type; "" nobody

    def __len__(self) -> int:
        return len(self.pc)

    def take(self, chosen: NDArray[np.generic]) -> Accesses:
        """The records at these places, or where a mask is true."""
        return Accesses(
            **{name: getattr(self, name)[chosen] for name in COLUMNS},
            sites=self.sites,
            sources=self.sources,
        )

    def split(self) -> Accesses:
        """One record for each element: `size` becomes `unit`, `low` holds its bits alone."""
        parts = (self.size // np.maximum(self.unit, 1)).astype(np.int64)
        if (parts <= 1).all():
            return self
        row = np.repeat(np.arange(len(self)), parts)
        first = np.repeat(np.cumsum(parts) - parts, parts)
        index = np.arange(len(row)) - first
        unit = self.unit[row].astype(np.uint64)
        start = index.astype(np.uint64) * unit  # byte in the value
        low, high = self.low[row], self.high[row]
        word = np.where(start < 8, low, high)
        shifted = word >> ((start % np.uint64(8)) * np.uint64(8))
        mask = np.where(
            unit >= 8, ~np.uint64(0), (np.uint64(1) << (unit * np.uint64(8))) - np.uint64(1)
        )
        columns = {name: getattr(self, name)[row] for name in COLUMNS}
        columns |= {
            "address": columns["address"] + start, "size": self.unit[row], "low": shifted & mask,
            "high": np.zeros(len(row), np.uint64),
        }  # fmt: skip
        return Accesses(**columns, sites=self.sites, sources=self.sources)

    @property
    def reads(self) -> NDArray[np.bool_]:
        """Plain loads: flags alone decide, never whether a pointer came with them."""
        return (self.flags & (READ | WRITE)) == READ

    @property
    def writes(self) -> NDArray[np.bool_]:
        """Plain stores."""
        return (self.flags & (READ | WRITE)) == WRITE

    @property
    def atomics(self) -> NDArray[np.bool_]:
        """Reads that write: their values are not known."""
        return (self.flags & (READ | WRITE)) == READ | WRITE


@dataclass(frozen=True, eq=False)
class Contents:
    """The bytes that copies moved, by the order of the copies among the log's Memcpy events.

    Of a copy to the GPU what was copied; of one to the host what the host's buffer held before.
    """

    bytes: NDArray[np.uint8]
    ends: NDArray[np.uint64]

    def of(self, number: int) -> NDArray[np.uint8]:
        """The bytes of copy `number`, none where they were not kept."""
        if number >= len(self.ends):
            return self.bytes[:0]
        start = int(self.ends[number - 1]) if number else 0
        return self.bytes[start : int(self.ends[number])]


def from_rows(rows: Sequence[Mapping[str, int]], sites: Sequence[str] = ()) -> Accesses:
    """Records given one by one; columns that a row lacks are 0."""
    columns: dict[str, Any] = {
        name: np.array([row.get(name, 0) for row in rows], np.dtype(kind))
        for name, kind in COLUMNS.items()
    }
    return Accesses(**columns, sites=tuple(sites))


def write_values(path: Path, accesses: Accesses, contents: Contents) -> None:
    """Write the file, the same bytes for the same values."""
    arrays = {name: getattr(accesses, name).astype(kind) for name, kind in COLUMNS.items()}
    arrays |= {
        "sites": np.array(list(accesses.sites) or [""], np.str_), "contents": contents.bytes,
        "ends": contents.ends,
    }  # fmt: skip
    np.savez_compressed(path, **arrays)


def read_values(path: Path) -> tuple[Accesses, Contents]:
    """Read it back. Raises ValuesError for a file that is not as it should be."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise ValuesError(f"{path}: is no file of values: {error}") from error
    except Exception as error:  # zipfile and zlib have errors of their own
        raise ValuesError(f"{path}: is damaged: {error}") from error
    lacking = [name for name in (*COLUMNS, "sites", "contents", "ends") if name not in arrays]
    if lacking:
        raise ValuesError(f"{path}: lacks {', '.join(lacking)}; record it again")
    lengths = {len(arrays[name]) for name in COLUMNS}
    ends = arrays["ends"]
    whole = len(lengths) == 1 and all(arrays[n].dtype == np.dtype(k) for n, k in COLUMNS.items())
    if not whole or (np.diff(ends.astype(np.int64)) < 0).any():
        raise ValuesError(f"{path}: its columns do not fit together; record it again")
    if len(ends) and int(ends[-1]) != len(arrays["contents"]):
        raise ValuesError(f"{path}: its copies are cut; record it again")
    columns = {one.name: arrays[one.name] for one in fields(Accesses) if one.name in COLUMNS}
    sites = tuple(map(str, arrays["sites"]))
    found = Accesses(**columns, sites=sites, sources=(RECORDED,) * len(sites))
    units = found.unit.astype(np.int64)
    if ((units == 0) | (found.size % np.maximum(units, 1) != 0) | (units > 8)).any():
        raise ValuesError(f"{path}: an access is of no whole number of elements; record it again")
    if (found.element >= len(CODES)).any() or (found.pc >= max(len(found.sites), 1)).any():
        raise ValuesError(f"{path}: names a type or an instruction that it does not hold")
    return found, Contents(arrays["contents"], ends)

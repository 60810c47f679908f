"""Values as the injection library writes them: plain files beside the log.

`values-<pid>.records` has native/values_layout.h's records, one for each access of a warp, and
`.payload` what its lanes do not have in common; `.contents` the bytes of copies, `.ends` where the
bytes of each copy end. The library knows no types: those of elements are unknown.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accel_trace.values.accesses import READ, WRITE, Accesses, Contents, ValuesError, read_values

RECORD = np.dtype([
    ("pc", "<u8"), ("address", "<u8"), ("payload", "<u4"), ("lanes", "<u4"), ("block", "<u4"),
    ("thread", "<u4"), ("launch", "<u4"), ("size", "u1"), ("flags", "u1"), ("addresses", "u1"),
    ("values", "u1"),
])  # fmt: skip
UNIT = 8  # bytes of payload
IN_TURN, ONE_ADDRESS, NEAR, FAR = range(4)  # `addresses`
NOTHING, ONE_VALUE, EACH_VALUE = range(3)  # `values`
_USED_IN_PART = 4  # in `flags`: of a widened load
_SIZES = (1, 2, 4, 8, 16)
_VECTOR = 16  # bytes that no element has: taken as four of four
_Numbers = NDArray[np.int64]


def stem(folder: Path, pid: int) -> Path:
    """The files of a process, less their endings."""
    return folder / f"values-{pid}"


def recorded(folder: Path, pid: int) -> bool:
    """Whether a process has values."""
    base = stem(folder, pid)
    return any(Path(f"{base}.{end}").is_file() for end in ("npz", "records", "ends"))


def read(folder: Path, pid: int) -> tuple[Accesses, Contents]:
    """Read a process' values, of either form. Raises ValuesError."""
    base = stem(folder, pid)
    packed = Path(f"{base}.npz")
    if packed.is_file():
        return read_values(packed)
    records = _file(Path(f"{base}.records"), RECORD)
    sound = np.isin(records["size"], _SIZES) & (records["addresses"] <= FAR)
    sound &= (records["values"] <= EACH_VALUE) & (records["lanes"] != 0)
    if not (sound & (records["flags"] <= (READ | WRITE | _USED_IN_PART))).all():
        raise ValuesError(f"{base}.records: holds no accesses; record it again")
    payload = _file(Path(f"{base}.payload"), np.dtype("<u8"))
    accesses = _lane_by_lane(records, payload, Path(f"{base}.payload"))
    ends = _file(Path(f"{base}.ends"), np.dtype("<u8"))
    contents = _file(Path(f"{base}.contents"), np.dtype("u1"))
    if len(ends) and int(ends[-1]) > len(contents):
        raise ValuesError(f"{base}.contents: is cut; record it again")
    return accesses, Contents(contents, ends)


def _lane_by_lane(records: np.ndarray, payload: NDArray[np.uint64], path: Path) -> Accesses:
    """One access for each lane of each record, in the order of the records."""
    lanes = np.ascontiguousarray(records["lanes"]).view(np.uint8).reshape(-1, 4)
    row, lane = np.nonzero(np.unpackbits(lanes, axis=1, bitorder="little"))
    count = np.bincount(row, minlength=len(records))
    start = np.cumsum(count) - count  # of each record, its first access
    turn = np.arange(len(row)) - start[row]  # of a lane among those of its record
    size, addresses, values = (
        records[name].astype(np.int64) for name in ("size", "addresses", "values")
    )
    told = records["payload"] + _units(
        np.select([addresses == NEAR, addresses == FAR], [4, 8]) * count
    )
    end = told + _units(np.select([values == ONE_VALUE, values == EACH_VALUE], [1, count]) * size)
    if (end > len(payload)).any():
        raise ValuesError(f"{path}: is cut; record it again")
    apart = (lane - lane[start][row]) * size[row]
    for kind, type_ in ((NEAR, "<i4"), (FAR, "<i8")):
        mine = np.flatnonzero(addresses[row] == kind)
        at = records["payload"][row[mine]].astype(np.int64)
        apart[mine] = _items(payload, type_, at, turn[mine])
    apart[addresses[row] == ONE_ADDRESS] = 0
    low, high = np.zeros((2, len(row)), np.uint64)
    turn[values[row] == ONE_VALUE] = 0
    for bytes_ in _SIZES:
        mine = np.flatnonzero((size[row] == bytes_) & (values[row] != NOTHING))
        at, which = told[row[mine]], turn[mine]
        if bytes_ == _VECTOR:
            low[mine], high[mine] = payload[at + 2 * which], payload[at + 2 * which + 1]
        else:
            low[mine] = _items(payload, f"<u{bytes_}", at, which)
    # What nobody tells is as good as an atomic: the bytes are forgotten.
    flags = np.where(values == NOTHING, READ | WRITE, records["flags"] & (READ | WRITE))
    pcs, site = np.unique(records["pc"], return_inverse=True)
    return Accesses(
        launch=records["launch"][row], pc=site.ravel().astype(np.uint32)[row],
        block=records["block"][row], thread=records["thread"][row] + lane.astype(np.uint32),
        address=records["address"][row] + apart.astype(np.uint64), size=records["size"][row],
        flags=flags.astype(np.uint8)[row], element=np.zeros(len(row), np.uint8),
        unit=np.where(size == _VECTOR, 4, size).astype(np.uint8)[row],
        low=low, high=high, sites=tuple(f"{int(pc):#x}" for pc in pcs),
    )  # fmt: skip


def _units(bytes_: _Numbers) -> _Numbers:
    return (bytes_ + UNIT - 1) // UNIT


def _items(payload: NDArray[np.uint64], type_: str, unit: _Numbers, at: _Numbers) -> np.ndarray:
    """Items `at` of arrays of a type, that begin at these units."""
    items = payload.view(type_)
    return items[unit * (UNIT // items.itemsize) + at]


def _file(path: Path, kind: np.dtype[np.generic]) -> np.ndarray:
    """All whole records of a file; a last one that is cut is left out, and a missing file empty."""
    if not path.is_file():
        return np.zeros(0, kind)
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)

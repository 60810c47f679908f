"""Values as the injection library writes them: three plain files beside the log.

`values-<pid>.records` has native/values_layout.h's records, `.contents` the bytes of copies,
`.ends` where the bytes of each copy end. The library knows no types: those of elements are unknown.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accel_trace.values.accesses import READ, WRITE, Accesses, Contents, ValuesError, read_values

RECORD = np.dtype([
    ("pc", "<u8"), ("address", "<u8"), ("low", "<u8"), ("high", "<u8"), ("block", "<u4"),
    ("thread", "<u4"), ("launch", "<u4"), ("size", "u1"), ("flags", "u1"), ("known", "u1"),
    ("used", "u1"),
])  # fmt: skip
_SIZES = (1, 2, 4, 8, 16)
_VECTOR = 16  # bytes that no element has: taken as four of four


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
    if not np.isin(records["size"], _SIZES).all() or (records["flags"] > (READ | WRITE)).any():
        raise ValuesError(f"{base}.records: holds no accesses; record it again")
    pcs, where = np.unique(records["pc"], return_inverse=True)
    size = records["size"]
    # What nobody tells is as good as an atomic: the bytes are forgotten.
    flags = np.where(records["known"] == 0, READ | WRITE, records["flags"]).astype(np.uint8)
    accesses = Accesses(
        launch=records["launch"], pc=where.ravel().astype(np.uint32), block=records["block"],
        thread=records["thread"], address=records["address"], size=size, flags=flags,
        element=np.zeros(len(records), np.uint8),
        unit=np.where(size == _VECTOR, 4, size).astype(np.uint8),
        low=records["low"], high=records["high"], sites=tuple(f"{int(pc):#x}" for pc in pcs),
    )  # fmt: skip
    ends = _file(Path(f"{base}.ends"), np.dtype("<u8"))
    contents = _file(Path(f"{base}.contents"), np.dtype("u1"))
    if len(ends) and int(ends[-1]) > len(contents):
        raise ValuesError(f"{base}.contents: is cut; record it again")
    return accesses, Contents(contents, ends)


def _file(path: Path, kind: np.dtype[np.generic]) -> np.ndarray:
    """All whole records of a file; a last one that is cut is left out, and a missing file empty."""
    if not path.is_file():
        return np.zeros(0, kind)
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)

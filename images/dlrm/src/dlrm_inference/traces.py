"""Readers for traces a person brings: Meta's `dlrm_datasets` files and plain text."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrm_inference.config import ConfigError

_PARTS = ("indices", "offsets", "lengths")


class TraceError(ConfigError):
    """A trace file cannot be used; the sentence names the file and what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Row ids in the order they were accessed, one int64 stream per table of the file."""

    name: str
    streams: tuple[NDArray[np.int64], ...]
    dropped: int  # ids that were not below the row limit
    total: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results must know."""
        if not self.dropped:
            return ()
        share = 100 * self.dropped / self.total
        return (f"{self.dropped} of {self.total} ids ({share:.1f} %) were beyond the rows",)


def read(path: str | Path, rows: int) -> Trace:
    """Read a trace and drop the ids that are not in [0, rows), counting them.

    `.pt` and `.pt.gz` hold Meta's (indices, offsets, lengths) tensors, lengths of shape
    (tables, bags); anything else (also `.txt.gz`) is text, ids separated by blanks, commas or
    lines. Tables of a file that keep no id are left out. Raises TraceError.
    """
    path = Path(path)
    if not path.is_file():
        raise TraceError(f"trace '{path}' is not a file")
    name = path.name.removesuffix(".gz")
    content = _content(path)
    if not content.strip():
        raise TraceError(f"trace '{path}' is empty")
    tables = _read_meta(path, content) if name.endswith(".pt") else [_read_text(path, content)]
    total = sum(len(ids) for ids in tables)
    kept = [ids[(ids >= 0) & (ids < rows)] for ids in tables]
    streams = tuple(ids for ids in kept if len(ids))
    if not streams:
        raise TraceError(f"trace '{path}' has no id below {rows} rows")
    dropped = total - sum(len(ids) for ids in streams)
    return Trace(name=path.name, streams=streams, dropped=dropped, total=total)


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.name.endswith(".gz") else raw
    except EOFError as error:
        raise TraceError(f"trace '{path}' is truncated: its compressed data end early") from error
    except (OSError, zlib.error) as error:
        raise TraceError(f"trace '{path}' cannot be read: {error}") from error


def _read_text(path: Path, content: bytes) -> NDArray[np.int64]:
    words = content.replace(b",", b" ").split()
    try:
        return np.array(words).astype(np.int64)
    except (ValueError, OverflowError):
        raise TraceError(f"trace '{path}' has {_first_bad(words)}, which is no row id") from None


def _first_bad(words: list[bytes]) -> str:
    """Return the first word that is not a 64-bit integer, quoted, with its position."""
    for position, word in enumerate(words, start=1):
        try:
            np.int64(int(word))
        except (ValueError, OverflowError):
            return f"'{word[:40].decode(errors='replace')}' as entry {position}"
    return "an entry"


def _read_meta(path: Path, content: bytes) -> list[NDArray[np.int64]]:
    try:
        import torch
    except ImportError:
        raise TraceError(
            f"trace '{path}' is a PyTorch file and torch is not installed here; "
            "use a text trace or an image with torch"
        ) from None
    try:
        parts = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (
        RuntimeError,
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
    ) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise TraceError(f"trace '{path}' is malformed or truncated: {reason}") from error
    if not isinstance(parts, (tuple, list)) or len(parts) != len(_PARTS):
        raise TraceError(f"trace '{path}' is not a tuple of {', '.join(_PARTS)}")
    indices, offsets, lengths = (
        _integers(path, what, part) for what, part in zip(_PARTS, parts, strict=True)
    )
    return _split(path, indices.ravel(), offsets.ravel(), lengths)


def _integers(path: Path, what: str, part: Any) -> NDArray[np.int64]:
    import torch

    whole = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    dense = isinstance(part, torch.Tensor) and part.layout == torch.strided and not part.is_meta
    if not dense or part.dtype not in whole:
        raise TraceError(f"trace '{path}': {what} is not a tensor of integers")
    return part.numpy().astype(np.int64)


def _split(
    path: Path,
    indices: NDArray[np.int64],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> list[NDArray[np.int64]]:
    """Return the ids of each table; lengths (tables, bags), offsets (tables * bags [+ 1],)."""
    if lengths.ndim != 2:
        raise TraceError(f"trace '{path}': lengths has {lengths.ndim} dimensions, not 2")
    if not len(lengths):
        raise TraceError(f"trace '{path}' has no table")
    ends = np.cumsum(lengths.sum(axis=1))
    starts = np.concatenate(([0], np.cumsum(lengths.ravel())))
    if (lengths < 0).any() or ends[-1] != len(indices):
        raise TraceError(
            f"trace '{path}': lengths add up to {ends[-1]} ids and there are {len(indices)}"
        )
    if not np.array_equal(offsets[: lengths.size], starts[: offsets[: lengths.size].size]) or len(
        offsets
    ) not in (lengths.size, lengths.size + 1):
        raise TraceError(f"trace '{path}': offsets do not agree with lengths")
    return list(np.split(indices, ends[:-1]))

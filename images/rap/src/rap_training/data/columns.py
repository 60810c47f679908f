"""A batch of raw columns in host memory, nulls included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from reprokit.errors import ConfigError

Dense = tuple[NDArray[np.float32], NDArray[np.uint8]]
Sparse = tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int32] | None]


class DataError(ConfigError):
    """Data that cannot be used, in one sentence with a fix."""


@dataclass(frozen=True, kw_only=True)
class RawBatch:
    """Columns of a batch by name, all arrays C-contiguous.

    dense: (values float32 [rows], valid uint8 [rows]).
    sparse: (values int64 [rows, width], valid uint8 [rows, width], lengths int32 [rows], or None
        for a column whose rows all have `width` ids). What is behind a row's length is padding.
    labels: float32 [rows], 0 or 1.
    Where valid is 0 the value is arbitrary (NaN, large negative ids), and so is padding.
    """

    dense: Mapping[str, Dense]
    sparse: Mapping[str, Sparse]
    labels: NDArray[np.float32]

    @property
    def row_count(self) -> int:
        """Rows of every column."""
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together: what a copy of the batch to a GPU moves."""
        arrays = [*self.dense.values(), *self.sparse.values(), (self.labels,)]
        return sum(array.nbytes for parts in arrays for array in parts if array is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, dense ones first."""
        return (*self.dense, *self.sparse)

    def select(self, columns: Iterable[str]) -> RawBatch:
        """The same rows with only `columns`, not copied. Raises DataError for a missing one."""
        wanted = set(columns)
        missing = sorted(wanted.difference(self.names))
        if missing:
            raise DataError(
                f"the batch has no column {missing[0]}; "
                f"fix: use data of the plan's own columns (it has {', '.join(self.names)})"
            )
        return RawBatch(
            dense={name: value for name, value in self.dense.items() if name in wanted},
            sparse={name: value for name, value in self.sparse.items() if name in wanted},
            labels=self.labels,
        )

    def rows(self, start: int, stop: int) -> RawBatch:
        """Rows [start, stop) as views. Raises DataError unless 0 <= start <= stop <= rows."""
        if not 0 <= start <= stop <= self.row_count:
            raise DataError(
                f"rows {start} to {stop} are not within a batch of {self.row_count}; "
                "fix: ask for rows that it has"
            )
        part = slice(start, stop)
        return RawBatch(
            dense={name: (v[part], ok[part]) for name, (v, ok) in self.dense.items()},
            sparse={
                name: (v[part], ok[part], None if lengths is None else lengths[part])
                for name, (v, ok, lengths) in self.sparse.items()
            },
            labels=self.labels[part],
        )

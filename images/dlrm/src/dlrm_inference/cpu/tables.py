"""The embedding tables in memory, each with room in front for a compact copy of its hot rows."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from reprokit import timing
from reprokit.environment import cpu_caches

from dlrm_inference import data
from dlrm_inference.config import Config
from dlrm_inference.data import Batches

_DEFAULT_L2 = 1024**2  # bytes, where the kernel does not say
_L2_SHARE = 2  # hot rows may fill one half of L2, the rest is for indices and cold rows


class Tables:
    """All tables of a config and the ids that read them.

    The CPU's counterpart of pinning rows in L2 (paper: L2P): the hottest rows of a table are
    copied together, few enough to stay in the core's L2, and the ids are rewritten to read the
    copy. One array per table holds the copy first and the table behind it, so that the kernel
    needs no branch: hot row k is row k, any other row r is row `hot + r`.
    """

    def __init__(self, config: Config, batches: Batches, *, hot: bool) -> None:
        """Make the tables; with `hot`, make room for the copies too (`fill_hot` fills them)."""
        self._config = config
        self._batches = batches
        self._room = min(config.hot_rows or fitting_rows(config), config.rows) if hot else 0
        self._arrays = []
        for table in range(config.tables):
            shape = (self._room + config.rows_of(table), config.dim_of(table))
            array = np.empty(shape, np.float32)
            array[: self._room] = 0
            data.make_table(config, table, out=array[self._room :])
            self._arrays.append(array)
        self._remapped: list[NDArray[np.integer]] = []
        self._copied: list[int] = []

    def offsets(self, table: int) -> NDArray[np.integer]:
        """Return the offsets (batch + 1,) of every batch of one table."""
        return self._batches.offsets[table]

    @property
    def hot_note(self) -> str:
        """What a reader must know of the copy."""
        copied = min(self._copied, default=0)
        return (
            f"{copied} hot rows ({copied * self._config.row_bytes / 1e6:.2f} MB) copied together, "
            f"list: {self._batches.hot_list}; copying and rewriting ids are not in this time"
        )

    def weight(self, table: int) -> NDArray[np.float32]:
        """Return the table (rows, dim) itself."""
        return self._arrays[table][self._room :]

    def extended(self, table: int) -> NDArray[np.float32]:
        """Return copy and table in one, (hot + rows, dim)."""
        return self._arrays[table]

    def ids(self, table: int, batch: int) -> NDArray[np.integer]:
        """Return the row ids (accesses,) of one batch."""
        return self._batches.indices[table][batch]

    def remapped(self, table: int, batch: int) -> NDArray[np.integer]:
        """Return the ids (accesses,) of one batch into `extended`. Needs `fill_hot` first."""
        return self._remapped[table][batch]

    def fill_hot(self) -> tuple[list[float], list[float]]:
        """Copy the hot rows of every table and rewrite the ids of every batch.

        Returns the microseconds of each table's copy and of each batch's rewriting. Finding the
        hot rows is done offline and not timed.
        """
        copies, rewrites = [], []
        for table, array in enumerate(self._arrays):
            rows = self._batches.hot_rows(table, self._room)
            place = np.arange(self._config.rows, dtype=self._config.index_dtype) + self._room
            place[rows] = np.arange(len(rows))
            self._copied.append(len(rows))
            weight = self.weight(table)
            copies.append(
                timing.microseconds(partial(np.take, weight, rows, 0, array[: len(rows)], "clip"))
            )
            ids = self._batches.indices[table]
            rewritten = np.empty_like(ids)
            for batch in range(len(ids)):
                rewrites.append(
                    timing.microseconds(
                        partial(np.take, place, ids[batch], 0, rewritten[batch], "clip")
                    )
                )
            self._remapped.append(rewritten)
        return copies, rewrites


def fitting_rows(config: Config) -> int:
    """Return how many rows fill half of the core's L2 cache."""
    return max(1, cpu_caches().get("L2", _DEFAULT_L2) // _L2_SHARE // config.row_bytes)

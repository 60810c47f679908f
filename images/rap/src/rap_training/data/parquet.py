"""Batches in a parquet file: one row group a batch.

A dense column is a nullable float, a sparse one of width 1 a nullable int64, other sparse ones are
lists of nullable int64; labels are the column `label`. Files from elsewhere are read too, when
their columns are numbers and lists of whole numbers under the plan's names. A column that is null
all through is legal, also where the file gives it no type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rap_training.data.columns import DataError, Dense, RawBatch, Sparse
from rap_training.data.generate import NULL_ID, PADDING_ID
from rap_training.plan.graph import Column

LABEL = "label"


def write(path: Path, columns: Sequence[Column], batches: Iterable[RawBatch]) -> int:
    """Write batches, each a row group, and return their rows in all.

    The file appears once it is complete. Raises DataError when there is nothing to write, a batch
    lacks a column, a column has the labels' name, or the file cannot be written.
    """
    _names(path, columns)
    schema = pa.schema(
        [pa.field(c.name, _arrow_type(c)) for c in columns]
        + [pa.field(LABEL, pa.float32(), nullable=False)]
    )
    part = path.with_name(path.name + ".part")
    rows = 0
    try:
        with pq.ParquetWriter(part, schema) as writer:
            for batch in batches:
                table = _table(batch, columns, schema)
                writer.write_table(table, row_group_size=max(table.num_rows, 1))
                rows += table.num_rows
        if not rows:
            raise DataError(f"{path}: there are no rows to write; fix: at least one batch of data")
        part.replace(path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error}); fix: a folder that can be written to"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return rows


def read(path: Path, columns: Sequence[Column]) -> Iterator[RawBatch]:
    """Yield one batch per row group with the given columns; empty row groups are left out.

    Raises DataError for a file or a column that cannot be used.
    """
    with _open(path) as file:
        known = file.schema_arrow.names
        wanted = _names(path, columns)
        for name in wanted:
            if name not in known:
                raise DataError(
                    f"{path}: there is no column {name}; fix: data with the plan's columns and "
                    f"{LABEL} (it has {', '.join(known) or 'none'})"
                )
            if known.count(name) > 1:
                raise DataError(f"{path}: there are two columns {name}; fix: rename or drop one")
        for group in range(file.num_row_groups):
            try:
                table = file.read_row_group(group, columns=wanted)
            except (OSError, pa.ArrowException) as error:
                raise DataError(
                    f"{path}: row group {group} cannot be read ({_line(error)}); "
                    "fix: write the file again"
                ) from error
            if table.num_rows:
                yield _batch(table, columns, f"{path}: row group {group}")


def dense_array(array: pa.Array, where: str) -> Dense:
    """A column of numbers as float32 [rows], NaN where null, and its validity."""
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise DataError(f"{where} holds {kind}; fix: numbers, as a dense column")
    valid = _numpy(array.is_valid()).astype(np.uint8)
    values = pc.fill_null(array.cast(pa.float32(), safe=False), pa.scalar(np.nan, pa.float32()))
    return np.ascontiguousarray(_numpy(values)), valid


def id_array(array: pa.Array, where: str) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """A column of whole numbers as int64 [n], NULL_ID where null, and its validity."""
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise DataError(f"{where} holds {kind}; fix: whole numbers, as a sparse column")
    valid = _numpy(array.is_valid()).astype(np.uint8)
    try:
        values = pc.fill_null(array.cast(pa.int64()), pa.scalar(NULL_ID, pa.int64()))
    except pa.ArrowInvalid as error:
        raise DataError(f"{where} has ids beyond int64; fix: ids within int64") from error
    return np.array(_numpy(values)), valid  # a copy: what Arrow gives is read-only


def _names(path: Path, columns: Sequence[Column]) -> list[str]:
    """The columns' names in the file, the labels' among them."""
    names = [column.name for column in columns]
    if LABEL in names:
        raise DataError(
            f"{path}: the plan has a column {LABEL}, where the file has the labels; "
            "fix: rename the plan's column"
        )
    return [*names, LABEL]


def _open(path: Path) -> pq.ParquetFile:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; fix: check the path")
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: is not a parquet file ({_line(error)}); fix: write it again"
        ) from error
    if not file.metadata.num_rows:
        file.close()
        raise DataError(f"{path}: its columns have no rows; fix: data of at least one row")
    return file


def _line(error: Exception) -> str:
    return str(error).split("\n", maxsplit=1)[0].rstrip(".")


def _numpy(array: Any) -> NDArray[Any]:
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def _arrow_type(column: Column) -> pa.DataType:
    if column.kind == "dense":
        return pa.float32()
    if column.ragged or column.width > 1:
        return pa.list_(pa.int64())
    return pa.int64()


def _table(batch: RawBatch, columns: Sequence[Column], schema: pa.Schema) -> pa.Table:
    batch.select(column.name for column in columns)  # raises for a missing one
    arrays = [
        pa.array(batch.dense[c.name][0], mask=batch.dense[c.name][1] == 0)
        if c.kind == "dense"
        else _ids(c, batch.sparse[c.name])
        for c in columns
    ]
    return pa.Table.from_arrays([*arrays, pa.array(batch.labels)], schema=schema)


def _ids(column: Column, given: Sparse) -> pa.Array:
    values, valid, lengths = given
    if not column.ragged and column.width == 1:
        return pa.array(values[:, 0], mask=valid[:, 0] == 0)
    if lengths is None:
        lengths = np.full(len(values), values.shape[1], dtype=np.int32)
    real = np.arange(values.shape[1]) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    flat = pa.array(values[real], mask=valid[real] == 0)
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


def _batch(table: pa.Table, columns: Sequence[Column], where: str) -> RawBatch:
    arrays = {name: table.column(name).combine_chunks() for name in table.column_names}
    return RawBatch(
        dense={
            c.name: dense_array(arrays[c.name], f"{where}, column {c.name}")
            for c in columns
            if c.kind == "dense"
        },
        sparse={
            c.name: _sparse(arrays[c.name], c, f"{where}, column {c.name}")
            for c in columns
            if c.kind == "sparse"
        },
        labels=labels(arrays[LABEL], where),
    )


def labels(array: pa.Array, where: str) -> NDArray[np.float32]:
    """Labels float32 [rows]. Raises DataError unless every one is 0 or 1."""
    values, valid = dense_array(array, f"{where}, column {LABEL}")
    wrong = np.flatnonzero((valid == 0) | ((values != 0) & (values != 1)))
    if wrong.size:
        word = array[int(wrong[0])].as_py()
        raise DataError(
            f"{where}: the label of row {wrong[0]} is {'null' if word is None else word}; "
            "fix: 0 or 1 in every row"
        )
    return values


def _sparse(array: pa.Array, column: Column, where: str) -> Sparse:
    rows, width = len(array), column.width
    kind = array.type
    lists = (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
    plain = not lists and not pa.types.is_null(kind)
    if plain:
        if column.ragged or width > 1:
            raise DataError(f"{where} holds {kind}; fix: lists of whole numbers, as the plan says")
        ids, valid = id_array(array, where)
        return ids[:, None], valid[:, None], None
    lengths = np.zeros(rows, dtype=np.int32)
    values = np.full((rows, width), PADDING_ID if column.ragged else NULL_ID, dtype=np.int64)
    valid = np.zeros((rows, width), dtype=np.uint8)
    if lists:
        lengths = _numpy(pc.fill_null(pc.list_value_length(array), 0)).astype(np.int32)
        _check_lengths(array, lengths, column, where)
        real = np.arange(width) < lengths[:, None]
        values[real], valid[real] = id_array(array.flatten(), where)
    return values, valid, lengths if column.ragged else None


def _check_lengths(array: pa.Array, lengths: NDArray[np.int32], column: Column, where: str) -> None:
    """A null list counts as empty in a ragged column, as all null in one of fixed width."""
    bad = lengths > column.width
    if not column.ragged:
        bad |= (lengths != column.width) & _numpy(array.is_valid())
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        most = "at most " if column.ragged else ""
        raise DataError(
            f"{where}: row {row} has a list of {lengths[row]}, and the plan says "
            f"{most}{column.width}; fix: the width of the column in the plan, or the data"
        )

"""Criteo's own files: Kaggle's train.txt and Terabyte's day_0 to day_23, gzipped or not.

A line has a label, 13 whole numbers and 26 categories in hexadecimal, separated by tabs; an empty
field is null. Files are streamed. The columns are those of plans 0 and 1: int_0 to int_12 and
cat_0 to cat_25.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from rap_training.data import parquet
from rap_training.data.columns import DataError, RawBatch
from rap_training.plan.graph import Column

LABEL = parquet.LABEL
DENSE = tuple(f"int_{i}" for i in range(13))
SPARSE = tuple(f"cat_{i}" for i in range(26))
COLUMNS = (
    *(Column(name=name, kind="dense") for name in DENSE),
    *(Column(name=name, kind="sparse") for name in SPARSE),
)
_NAMES = (LABEL, *DENSE, *SPARSE)
_HEXADECIMAL = "^[0-9a-fA-F]{1,8}$"
_BLOCK = 8 << 20  # bytes of text read at a time


def convert(sources: Sequence[Path], target: Path, *, rows: int, limit: int | None = None) -> int:
    """Write Criteo files as one parquet file with row groups of `rows`; return the rows in all.

    `limit` is the most rows taken of each file. A file's last row group may be shorter. Raises
    DataError as `read` and `parquet.write` do.
    """
    batches = chain.from_iterable(read(source, rows=rows, limit=limit) for source in sources)
    return parquet.write(target, COLUMNS, batches)


def read(path: Path, *, rows: int, limit: int | None = None) -> Iterator[RawBatch]:
    """Yield batches of `rows` rows, the last one shorter, of at most `limit` rows in all.

    Raises DataError, with the line's number where there is one, for a file that cannot be used.
    """
    if rows < 1 or (limit is not None and limit < 1):
        raise DataError(
            f"{path}: cannot read {limit} rows by {rows}; fix: at least one row, and one a batch"
        )
    waiting: list[pa.Table] = []
    held = done = 0
    for table in _tables(path):
        waiting.append(table)
        held += table.num_rows
        while held >= rows or (limit is not None and done + held >= limit):
            whole = pa.concat_tables(waiting)
            count = min(rows, held if limit is None else limit - done)
            yield _batch(whole.slice(0, count), path, done)
            done, held, waiting = done + count, held - count, [whole.slice(count)]
            if done == limit:
                return
    if held:
        yield _batch(pa.concat_tables(waiting), path, done)


def _tables(path: Path) -> Iterator[pa.Table]:
    """The file piece by piece: labels and numbers as int64, categories as words."""
    wrong: list[tuple[int, int]] = []

    def note(row: Any) -> str:
        wrong.append((row.number, row.actual_columns))
        return "error"

    if not path.is_file():
        raise DataError(f"{path}: there is no such file; fix: check the path")
    kinds = dict.fromkeys((LABEL, *DENSE), pa.int64()) | dict.fromkeys(SPARSE, pa.string())
    try:
        with (
            pa.input_stream(path, compression="detect") as stream,
            csv.open_csv(
                stream,
                csv.ReadOptions(column_names=_NAMES, use_threads=False, block_size=_BLOCK),
                csv.ParseOptions(
                    delimiter="\t", quote_char=False, ignore_empty_lines=False,
                    invalid_row_handler=note,
                ),
                csv.ConvertOptions(
                    column_types=kinds, null_values=[""], strings_can_be_null=True
                ),
            ) as reader,
        ):  # fmt: skip
            for part in reader:
                yield pa.Table.from_batches([part])
    except (OSError, pa.ArrowException) as error:
        if wrong:
            line, count = wrong[0]
            raise DataError(
                f"{path}: line {line} has {count} fields; fix: lines of {len(_NAMES)} fields, "
                "separated by tabs, as in train.txt and day_0 to day_23"
            ) from error
        if "Empty CSV" in str(error):
            raise DataError(f"{path}: it has no rows; fix: data of at least one row") from error
        words = str(error).replace("\n", " ").replace("Row #", "line ").rstrip(".")
        raise DataError(f"{path}: cannot be read ({words}); fix: Criteo's own file") from error


def _batch(table: pa.Table, path: Path, before: int) -> RawBatch:
    arrays = {name: table.column(name).combine_chunks() for name in _NAMES}
    label = arrays[LABEL]
    good = pc.fill_null(pc.is_in(label, value_set=pa.array([0, 1])), False)
    _check(good, label, path, before, "the label", "0 or 1")
    sparse = {}
    for name in SPARSE:
        words = arrays[name]
        good = pc.fill_null(pc.match_substring_regex(words, _HEXADECIMAL), True)
        _check(good, words, path, before, name, "a category of 1 to 8 hexadecimal digits")
        numbers = pc.binary_join_element_wise("0x", words, "").cast(pa.int64())
        ids, valid = parquet.id_array(numbers, name)
        sparse[name] = (ids[:, None], valid[:, None], None)
    return RawBatch(
        dense={name: parquet.dense_array(arrays[name], name) for name in DENSE},
        sparse=sparse,
        labels=label.to_numpy(zero_copy_only=False).astype(np.float32),
    )


def _check(good: pa.Array, array: pa.Array, path: Path, before: int, what: str, fix: str) -> None:
    bad = np.flatnonzero(~good.to_numpy(zero_copy_only=False))
    if bad.size:
        row = int(bad[0])
        word = array[row].as_py()
        raise DataError(
            f"{path}: line {before + row + 1}: {what} is {'empty' if word is None else word}; "
            f"fix: {fix}"
        )

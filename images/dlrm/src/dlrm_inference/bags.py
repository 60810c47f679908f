"""How many ids every bag holds: offsets of one table's bags, the same in all of its batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from reprokit.errors import ConfigError

from dlrm_inference.config import INT32_ROWS, Config

_STREAM = 4  # of random numbers, beside those of data.py


def make_offsets(config: Config, table: int) -> NDArray[np.integer]:
    """Return offsets (batch + 1,) of the config's index dtype: bag i holds ids offsets[i] to
    offsets[i + 1].

    Raises ConfigError for a file that holds no lengths, and for bags that hold no id, or too many.
    """
    lengths = _lengths(config, table)
    total = int(lengths.sum())
    if not total:
        raise ConfigError(f"every bag of table {table} is empty; fix: more bags, or longer ones")
    if config.index_dtype == "int32" and total > INT32_ROWS:
        raise ConfigError(f"table {table} gets {total} ids a batch; fix: --index-dtype int64")
    return np.concatenate(([0], np.cumsum(lengths))).astype(config.index_dtype)


def _lengths(config: Config, table: int) -> NDArray[np.int64]:
    if config.bags == "uniform":
        return np.full(config.batch, config.pooling, np.int64)
    if config.bags == "file":
        start = table * config.batch
        return np.take(_read(config.bag_file), range(start, start + config.batch), mode="wrap")
    generator = np.random.default_rng((config.seed, _STREAM, table))
    if config.bags == "ragged":
        return generator.integers(0, 2 * config.pooling, config.batch, endpoint=True)
    return generator.geometric(1 / (config.pooling + 1), config.batch) - 1


def _read(path: str) -> NDArray[np.int64]:
    try:
        words = Path(path).read_text("utf-8").replace(",", " ").split()
        lengths = np.array([int(word) for word in words], np.int64)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"bag file '{path}' cannot be read: {error}") from error
    if not len(lengths) or lengths.min() < 0 or lengths.max() > INT32_ROWS:
        said = f"bag file '{path}' has no lengths, or one below 0 or of 2^31 and more"
        raise ConfigError(f"{said}; fix: whole numbers")
    return lengths

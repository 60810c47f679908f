"""Where the row ids of a dataset come from, and which rows L2 pinning is told to pin.

The artifact ships no trace. The first of these that an image has is used, and every result says
which: `given`, files a person put into the image (build context `traces`); `authors`, the low and
medium traces that the same authors published with their ISCA 2023 artifact; `generated`, ours.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROWS = 500_000  # of one table; save_emb.py holds it fixed
IDS = 400_000  # in a generated trace; the published ones have 380,000 to 430,000, read in a circle
SEED = 512  # the artifact's own
# Zipf exponents: docs/datasets.md says how they were chosen, and that the paper's are not known.
EXPONENT = {"high_hot": 1.2, "med_hot": 0.873, "low_hot": 0.6}
_BURST_WINDOW, _BURST_ROWS, _BURST_DRAWS = 2300, 6, 38  # docs/datasets.md, from the medium trace
# The artifact's names below datasets/ and for the lists of hot rows.
FILES = {
    "one_item": "one_item.txt",
    "high_hot": "reuse_high/table_500K.txt",
    "med_hot": "reuse_medium/table_500K.txt",
    "low_hot": "reuse_low/table_500K.txt",
    "random": "random_500K.txt",
}
LISTS = {
    "high_hot": "rj_60K_high_hot_indices.txt",
    "med_hot": "rj_60K_medium_hot_indices.txt",
    "low_hot": "rj_60K_low_hot_indices.txt",
    "random": "rj_60K_random_indices.txt",
}
DATASETS = tuple(FILES)
SOURCES = ("given", "authors", "generated")

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Row ids in the order of the file, those not below the rows of a table dropped."""

    source: str
    path: Path
    ids: Ids
    sha256: str


def find(dataset: str, folder: Path, lists: Path, scratch: Path) -> Trace:
    """Return the trace of a dataset: a file below `folder`/given or /authors, else one made now.

    Raises ValueError, one sentence, when a file cannot be used.
    """
    for source in SOURCES[:-1]:
        path = folder / source / FILES[dataset]
        if path.is_file():
            return read(path, source)
    path = scratch / FILES[dataset]
    path.parent.mkdir(parents=True, exist_ok=True)
    hot = read_list(lists / LISTS[dataset]) if dataset in LISTS else np.empty(0, np.int64)
    write(path, generate(dataset, hot))
    return read(path, "generated")


def read(path: Path, source: str) -> Trace:
    """Read a trace as load_emb.py does: one id a line. Raises ValueError."""
    content = path.read_bytes()
    try:
        ids = np.array(content.split(), dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"the trace {path} holds something that is no row id") from error
    if ids.size and ids.min() < 0:
        raise ValueError(f"the trace {path} holds a negative row id")
    ids = ids[ids < ROWS]
    if ids.size == 0:
        raise ValueError(f"the trace {path} has no id below {ROWS}")  # load_emb.py would hang
    return Trace(
        source=source, path=path, ids=ids, sha256=hashlib.sha256(content).hexdigest()
    )  # fmt: skip


def read_list(path: Path) -> Ids:
    """Read a list of hot rows. Raises ValueError when it is missing, empty or out of range."""
    if not path.is_file():
        raise ValueError(f"the list of hot rows {path} does not exist")
    try:
        rows = np.array(path.read_bytes().split(), dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"the list of hot rows {path} holds something that is no row id"
        ) from error
    if rows.size == 0 or rows.min() < 0 or rows.max() >= ROWS:
        raise ValueError(f"the list of hot rows {path} is empty or names rows beyond {ROWS}")
    return rows


def generate(dataset: str, hot: Ids, *, rows: int = ROWS, ids: int = IDS) -> Ids:
    """Draw a trace. The rows of `hot` are the most popular, in that order, so that the artifact's
    lists name the hot rows of our traces as they do of the authors'."""
    generator = np.random.default_rng([SEED, DATASETS.index(dataset)])
    if dataset == "one_item":
        return np.zeros(ids, np.int64)
    if dataset == "random":
        return generator.integers(0, rows, ids)
    first = hot[np.sort(np.unique(hot, return_index=True)[1])]
    rest = np.setdiff1d(np.arange(rows), first)
    row_of_rank = np.concatenate([first, generator.permutation(rest)])
    mass = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -EXPONENT[dataset])
    ranks = np.searchsorted(mass, generator.random(ids) * mass[-1], side="right")
    if dataset == "med_hot":
        for start in range(0, ids - _BURST_WINDOW + 1, _BURST_WINDOW):
            window = ranks[start : start + _BURST_WINDOW]
            places = generator.permutation(_BURST_WINDOW)[: _BURST_ROWS * _BURST_DRAWS]
            window[places] = np.repeat(generator.choice(window, _BURST_ROWS), _BURST_DRAWS)
    return row_of_rank[ranks]


def write(path: Path, ids: Ids) -> None:
    """Write one id a line, as load_emb.py reads them."""
    np.savetxt(path, ids, fmt="%d")


def share_of(ids: Ids, rows: Ids) -> float:
    """How many per cent of the accesses go to `rows`."""
    return 100 * float(np.isin(ids, rows).mean())

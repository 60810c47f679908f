"""The variants a CPU can run, by the paper's names, and why it cannot run the others."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reprokit.errors import ConfigError
from reprokit.records import Evidence

from dlrm_inference import reference
from dlrm_inference.config import ONE_SHAPE, Config
from dlrm_inference.cpu import kernels
from dlrm_inference.cpu.tables import Tables

_TUNED = "its parameters are searched for on a GPU"
NO_COUNTERPART = {
    "optmt": "a CPU has no registers to trade for resident warps",
    "smpf": "a CPU has no shared memory",
    "lmpf": "a CPU has no local memory",
    "stock21": "the operator of PyTorch 2.1 is a CUDA kernel",
    "fbgemm": "FBGEMM's table-batched forward is measured on the GPU only",
    "rpf_tuned": _TUNED,
    "smpf_tuned": _TUNED,
    "rpf_l2p_tuned": _TUNED,
}
_HOT = ("l2p", "rpf_l2p")
_INTEGERS = (np.int32, np.int64)

Output = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant made ready: `call(table, batch)` returns sums (bags, dim) float32, fresh memory.

    `labels` are the labels it adds to its records. `evidence` is `emulated` where the CPU's means
    only stand in for a GPU's: a copy of the hot rows for rows pinned in L2.
    """

    name: str
    call: Callable[[int, int], Output]
    labels: dict[str, str]
    note: str = ""
    evidence: Evidence = "measured"


def reason_not(name: str, config: Config) -> str:
    """Return why this machine cannot run variant `name`, or an empty string if it can."""
    if name in _HOT and config.shapes:
        return ONE_SHAPE
    if name == "stock" and importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed in this image"
    return NO_COUNTERPART.get(name, "")


def prepare(name: str, config: Config, tables: Tables) -> Variant:
    """Make a variant ready to run over `tables`. `reason_not(name, config)` must be empty."""
    if name == "stock":
        return Variant(name=name, call=_stock(config, tables), labels={})
    hot = name in _HOT
    runs = {
        dim: Runner(kernel_of(name, config, dim), config.threads, config.mode)
        for dim in {config.dim_of(t) for t in range(config.tables)}
    }
    views = [tables.extended(t) if hot else tables.weight(t) for t in range(config.tables)]
    ids = tables.remapped if hot else tables.ids
    labels = {}
    if distance := distance_of(name, config):
        labels["distance"] = str(distance)
    if hot:
        labels["hot_list"] = config.hot_list
    return Variant(
        name=name,
        call=lambda table, batch: runs[config.dim_of(table)](
            views[table], ids(table, batch), tables.offsets(table)
        ),
        labels=labels,
        note=tables.hot_note if hot else "",
        evidence="emulated" if hot else "measured",
    )


def prepare_tables(
    weights: Sequence[NDArray[np.float32]],
    indices: Sequence[NDArray[np.integer]],
    offsets: Sequence[NDArray[np.integer]],
    *,
    name: str = "best",
    mode: str = "sum",
    threads: int = 1,
) -> Callable[[], Output]:
    """Return a call that gives all tables' bags side by side, (bags, all columns) float32.

    One entry per table in each sequence: weight (rows, dim), ids (accesses,), offsets (bags + 1,);
    shapes and lengths of bags may differ, the number of bags not. `name` is a variant of ours for a
    CPU that pins nothing. Raises ConfigError for another name, and ValueError where the number of
    bags is not one; the call raises IndexError and ValueError as `Runner` does.
    """
    config = Config(variants=(name,), mode=mode, threads=threads)
    if name == "stock" or name in _HOT or name in NO_COUNTERPART:
        raise ConfigError(f"{name} is no kernel of ours for a CPU that pins nothing; fix: best")
    if len({len(bags) for bags in offsets}) != 1:
        raise ValueError("offsets: one array for each table, all of one length")
    runs = [Runner(kernel_of(name, config, weight.shape[1]), threads, mode) for weight in weights]
    tables = list(zip(runs, weights, indices, offsets, strict=True))
    return lambda: np.concatenate([run(one, ids, ends) for run, one, ids, ends in tables], axis=1)


def distance_of(name: str, config: Config) -> int:
    """Return the prefetch distance in rows that `name` runs with, 0 if it has none."""
    if name == "best":
        return config.distance or kernels.BEST_DISTANCE
    return config.distance_of(name) if name in ("rpf", "l1dpf", "rpf_l2p") else 0


def kernel_of(name: str, config: Config, dim: int = 0) -> kernels.Kernel:
    """Return the kernel behind a variant's name for tables of `dim` (0: the config's)."""
    distance = distance_of(name, config)
    makers: dict[str, Callable[[], kernels.Kernel]] = {
        "base": lambda: kernels.base,
        "l2p": lambda: kernels.base,  # the copy makes the difference, not the kernel
        "rpf": lambda: kernels.rpf(distance),
        "rpf_l2p": lambda: kernels.rpf(distance),
        "l1dpf": lambda: kernels.l1dpf(distance),
        "best": lambda: kernels.best(dim or config.dim, distance),
    }
    return makers[name]()


class Runner:
    """Runs a kernel over a batch, cut into one range of bags per thread, and checks its inputs."""

    def __init__(self, kernel: kernels.Kernel, threads: int = 1, mode: str = "sum") -> None:
        self._kernel, self._mode = kernel, mode
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __call__(
        self,
        weight: NDArray[np.float32],
        indices: NDArray[np.integer],
        offsets: NDArray[np.integer],
    ) -> Output:
        """Return sums or means (bags, dim) float32. Shapes and types: see `kernels`.

        Raises IndexError for an index outside the table, ValueError for offsets that fall, end
        beyond the indices or start elsewhere than 0, and for arrays of another kind.
        """
        if not _is_array(weight, 2, np.float32):
            raise ValueError("a table is (rows, dim) float32 in C order: np.ascontiguousarray")
        if not (_is_array(indices, 1, *_INTEGERS) and _is_array(offsets, 1, *_INTEGERS)):
            raise ValueError("indices and offsets are int32 or int64 of one dimension, in C order")
        if offsets[0] != 0 or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
            raise ValueError("offsets must rise from 0 to the number of indices")
        bags = len(offsets) - 1
        out = np.empty((bags, weight.shape[1]), dtype=np.float32)
        if self._pool is None:
            bad = [self._kernel(weight, indices, offsets, 0, bags, out)]
        else:
            cuts = np.linspace(0, bags, self._threads + 1).astype(int)
            jobs = [
                self._pool.submit(self._kernel, weight, indices, offsets, int(a), int(b), out)
                for a, b in pairwise(cuts)
            ]
            bad = [job.result() for job in jobs]
        if max(bad) >= 0:
            reference.check_indices(indices, weight.shape[0])
        if self._mode == "mean":
            reference.mean(out, offsets)
        return out


def _is_array(found: Any, dimensions: int, *dtypes: type[np.generic]) -> bool:
    """Whether the kernels, which read memory by address, can read it."""
    return (
        isinstance(found, np.ndarray)
        and found.ndim == dimensions
        and found.flags.c_contiguous
        and found.dtype in dtypes
    )


def _stock(config: Config, tables: Tables) -> Callable[[int, int], Output]:
    """PyTorch's own CPU operator over the same memory."""
    import torch

    torch.set_num_threads(config.threads)
    weights = [torch.from_numpy(tables.weight(t)) for t in range(config.tables)]
    offsets = [torch.from_numpy(tables.offsets(t)[:-1].copy()) for t in range(config.tables)]
    bag: Any = torch.nn.functional.embedding_bag

    def call(table: int, batch: int) -> Output:
        ids = torch.from_numpy(tables.ids(table, batch))
        with torch.inference_mode():
            return bag(ids, weights[table], offsets[table], mode=config.mode).numpy()

    return call

"""Which GPU holds which embedding table: byte-balanced, by a solver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from reprokit.errors import Lacking

from rap_training.planner.solvers import Model, highs

_NODES = 1000  # of HiGHS's tree; not seconds, so that all ranks find the same placement
_LEAST_MARGIN = 2 << 30
_GAP = 1e-4  # of the largest load: below it a placement counts as optimal


class PlacementError(Lacking, ValueError):
    """Tables that do not fit, in one sentence with a fix."""


@dataclass(frozen=True)
class Placement:
    """GPU of every table and bytes of every GPU; `gap` bounds how far the largest load is from
    the least possible, relative to it. `optimal` says the gap is at most 1e-4."""

    gpu_of: tuple[int, ...]
    load: tuple[int, ...]
    optimal: bool
    gap: float


def table_room(memory: int) -> int:
    """Bytes that tables may take of a GPU's `memory`: all but a tenth, or 2 GiB if more.

    The rest is what training and preprocessing need beside tables, and CUDA itself.
    """
    return max(0, memory - max(memory // 10, _LEAST_MARGIN))


def place_tables(sizes: Sequence[int], gpus: int, *, limit: int | None = None) -> Placement:
    """Place tables of `sizes` bytes; `load` is bytes. Raises PlacementError as `balance` does.

    Besides its bytes a table costs look-ups, the same for each table whatever its size: as much as
    the mean table's bytes. Where that fills a GPU beyond `limit`, bytes alone decide.
    """
    share = sum(sizes) // max(len(sizes), 1)
    found = balance([size + share for size in sizes], gpus)
    load = _loads(sizes, found.gpu_of, gpus)
    if limit is not None and max(load) > limit:
        return balance(sizes, gpus, limit=limit)
    return replace(found, load=load)


def balance(
    sizes: Sequence[int], gpus: int, *, limit: int | None = None, time_limit_s: float = 60.0
) -> Placement:
    """Place tables of `sizes` bytes on `gpus` GPUs so that the largest load is least.

    Longest-processing-time first gives a start, and the answer where it meets the lower bound (the
    largest table or the mean load); else HiGHS improves it, tables of one size being one integer
    variable per GPU; it stops after some nodes, so that every process finds the same. Raises
    PlacementError, naming the bytes, where a table, the total, or the best placement found exceeds
    `limit` bytes per GPU.
    """
    if gpus < 1 or any(size < 0 for size in sizes):
        raise PlacementError(f"{gpus} GPUs for tables of {min(sizes, default=0)} bytes and more; "
                             "fix: at least one GPU and no negative size")  # fmt: skip
    if limit is not None:
        _check(sizes, gpus, limit)
    start = _longest_first(sizes, gpus)
    least = max(max(sizes, default=0), -(-sum(sizes) // gpus))
    gpu_of, bound = start, float(least)
    if max(_loads(sizes, start, gpus)) > least:
        gpu_of, bound = _solve(sizes, gpus, start, least, time_limit_s)
    load = _loads(sizes, gpu_of, gpus)
    gap = (max(load) - bound) / max(load) if max(load) else 0.0
    if limit is not None and max(load) > limit:
        raise PlacementError(
            f"the best placement found puts {max(load)} bytes of tables on one of {gpus} ranks, "
            f"which take {limit}; fix: more GPUs or fewer rows"
        )
    return Placement(gpu_of, load, gap <= _GAP, max(gap, 0.0))


def _check(sizes: Sequence[int], gpus: int, limit: int) -> None:
    for index, size in enumerate(sizes):
        if size > limit:
            raise PlacementError(
                f"table {index} has {size} bytes and a rank takes {limit}; "
                "fix: a GPU with more memory or fewer rows"
            )
    if sum(sizes) > limit * gpus:
        raise PlacementError(
            f"the tables have {sum(sizes)} bytes and {gpus} ranks take {limit * gpus} "
            f"({limit} each); fix: more GPUs or fewer rows"
        )


def _longest_first(sizes: Sequence[int], gpus: int) -> tuple[int, ...]:
    gpu_of, load = [0] * len(sizes), [0] * gpus
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        gpu = load.index(min(load))
        gpu_of[index] = gpu
        load[gpu] += sizes[index]
    return tuple(gpu_of)


def _loads(sizes: Sequence[int], gpu_of: Sequence[int], gpus: int) -> tuple[int, ...]:
    load = [0] * gpus
    for size, gpu in zip(sizes, gpu_of, strict=True):
        load[gpu] += size
    return tuple(load)


def _solve(
    sizes: Sequence[int], gpus: int, start: tuple[int, ...], least: int, time_limit_s: float
) -> tuple[tuple[int, ...], float]:
    """Improve `start` by HiGHS. Loads are in units of `least`, which keeps the numbers near 1."""
    copies = Counter(sizes)
    placed = Counter((size, gpu) for size, gpu in zip(sizes, start, strict=True))
    model = Model()
    count: dict[tuple[int, int], int] = {}
    for size, copy in copies.items():
        for gpu in range(gpus):
            count[size, gpu] = model.variable(0, copy, start=placed[size, gpu])
        model.row(copy, copy, [(count[size, gpu], 1.0) for gpu in range(gpus)])
    top = max(_loads(sizes, start, gpus)) / least
    largest = model.variable(1.0, top, start=top, cost=-1.0, whole=False)
    for gpu in range(gpus):
        terms = [(count[size, gpu], size / least) for size in copies if size]
        model.row(-np.inf, 0.0, [*terms, (largest, -1.0)])
    # GPUs are alike: the order of their loads is fixed as in the start.
    by_load = sorted(range(gpus), key=lambda gpu: -_loads(sizes, start, gpus)[gpu])
    for more, less in pairwise(by_load):
        terms = [(count[size, more], size / least) for size in copies if size]
        terms += [(count[size, less], -size / least) for size in copies if size]
        model.row(0.0, np.inf, terms)
    found = highs(model, time_limit_s=time_limit_s, gap=_GAP, nodes=_NODES)
    room = {key: round(found.values[index]) for key, index in count.items()}
    gpu_of = []
    for size in sizes:
        gpu = next(gpu for gpu in range(gpus) if room[size, gpu] > 0)
        room[size, gpu] -= 1
        gpu_of.append(gpu)
    bound = max(1.0, -found.bound) * least
    return tuple(gpu_of), min(bound, float(max(_loads(sizes, gpu_of, gpus))))

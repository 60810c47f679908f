"""Pages of managed memory that CPU and GPU share: true and false sharing, and estimated faults.

A window is what lies between two synchronisations that wait for the GPU's work. In one window a
page is *truly* shared when both sides touch a same byte and one of them writes it, *falsely* when
both touch the page, one of them writes, and no such byte is there; a page that both only read is
*read* by both. A page that both sides touch, but never in one window, *migrates*. Addresses are
absolute, since pages are.

A fault is estimated for every access of a side to a page that the other side had last, and for the
first access to a page: what happens where a page lies with who touched it last, and nothing is
prefetched. Source: docs/papers/valueexpert.md, section 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

PAGE = 4096  # bytes; other sizes are multiples
SIZES = (4096, 65536, 2 << 20)
CPU, GPU = 0, 1
KINDS = ("cpu", "gpu", "migrates", "read", "shared", "false", "true")
_CPU_READ, _CPU_WRITE, _GPU_READ, _GPU_WRITE = 1, 2, 4, 8
_CPU_ANY, _GPU_ANY, _WRITES = 3, 12, 10


@dataclass(frozen=True, eq=False)
class Touches:
    """Accesses in order of time, columns of equal length.

    `step` grows with time and is the same for all accesses of a launch; `window` never shrinks.
    `context` is a number that comes back with each fault.
    """

    side: NDArray[np.uint8]
    step: NDArray[np.int64]
    window: NDArray[np.int64]
    address: NDArray[np.int64]
    size: NDArray[np.int64]  # bytes, at least 1
    write: NDArray[np.bool_]
    context: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.side)

    def take(self, chosen: NDArray[np.generic]) -> Touches:
        """The accesses at these places."""
        return Touches(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})

    def by_pages(self) -> Touches:
        """The same with one access for each page of 4 KiB that one reaches."""
        first = self.address // PAGE
        count = (self.address + np.maximum(self.size, 1) - 1) // PAGE - first + 1
        if (count == 1).all():
            return self
        row = np.repeat(np.arange(len(self)), count)
        page = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        start = np.maximum(self.address[row], page * PAGE)
        end = np.minimum(self.address[row] + self.size[row], (page + 1) * PAGE)
        whole = self.take(row)
        columns = {one.name: getattr(whole, one.name) for one in fields(self)}
        return Touches(**columns | {"address": start, "size": end - start})


@dataclass(frozen=True, eq=False)
class Windows:
    """Pages by window, sorted by both: who touched the page, and the bytes that are truly shared.

    `sides` are bits: 1 read and 2 written by the CPU, 4 and 8 by the GPU. `page` is in units of
    `page_bytes`.
    """

    page_bytes: int
    window: NDArray[np.int64]
    page: NDArray[np.int64]
    sides: NDArray[np.int64]
    common: NDArray[np.int64]  # bytes; -1 where they are not known

    def __len__(self) -> int:
        return len(self.page)

    def at(self, page_bytes: int) -> Windows:
        """The same for larger pages, a multiple of these."""
        window, page = self.window, self.page * self.page_bytes // page_bytes
        keys, row = np.unique(np.stack([window, page]), axis=1, return_inverse=True)
        row = row.ravel()
        sides = np.zeros(keys.shape[1], np.int64)
        common = np.zeros(keys.shape[1], np.int64)
        np.bitwise_or.at(sides, row, self.sides)
        np.add.at(common, row, np.maximum(self.common, 0))
        unknown = np.zeros(keys.shape[1], bool)
        np.logical_or.at(unknown, row, self.common < 0)
        return Windows(page_bytes, keys[0], keys[1], sides, np.where(unknown, -1, common))

    def kinds(self) -> NDArray[np.int64]:
        """Of each page in each window, its place in KINDS."""
        both = ((self.sides & _CPU_ANY) != 0) & ((self.sides & _GPU_ANY) != 0)
        writes = (self.sides & _WRITES) != 0
        place = {name: number for number, name in enumerate(KINDS)}
        alone = np.where(self.sides & _CPU_ANY, place["cpu"], place["gpu"])
        shared = np.select(
            [~writes, self.common > 0, self.common == 0],
            [place["read"], place["true"], place["false"]], place["shared"],
        )  # fmt: skip
        return np.where(both, shared, alone)

    def pages(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every page once, and its place in KINDS over all windows.

        That is the kind of most of the windows in which both sides touched it, the later one of
        equally many: what the CPU made once for the GPU is not shared for ever.
        """
        pages, row = np.unique(self.page, return_inverse=True)
        row = row.ravel()
        kinds = self.kinds()
        times = np.zeros((len(pages), len(KINDS)), np.int64)
        np.add.at(times, (row, kinds), 1)
        times[:, : KINDS.index("read")] = 0
        most = len(KINDS) - 1 - np.argmax(times[:, ::-1], axis=1)
        sides = np.zeros(len(pages), np.int64)
        np.bitwise_or.at(sides, row, self.sides)
        cpu, gpu = (sides & _CPU_ANY) != 0, (sides & _GPU_ANY) != 0
        place = {name: number for number, name in enumerate(KINDS)}
        apart = np.select([cpu & gpu, cpu], [place["migrates"], place["cpu"]], place["gpu"])
        return pages, np.where(times.any(axis=1), most, apart)


@dataclass(frozen=True, eq=False)
class Faults:
    """Estimated faults, one a row: the page, who faults, when, and the access' context."""

    page: NDArray[np.int64]
    side: NDArray[np.uint8]
    step: NDArray[np.int64]
    window: NDArray[np.int64]
    context: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.page)

    def of(self, side: int) -> int:
        """How many a side has."""
        return int((self.side == side).sum())


def windows_of(touches: Touches, *, bytes_known: bool = True) -> Windows:
    """Who touched which page of 4 KiB in which window.

    Without `bytes_known` the CPU's accesses tell their pages alone, so that sharing is neither true
    nor false.
    """
    touches = touches.by_pages()
    page = touches.address // PAGE
    bit = np.where(touches.side == CPU, _CPU_READ, _GPU_READ) << touches.write.astype(np.int64)
    keys, row = np.unique(np.stack([touches.window, page]), axis=1, return_inverse=True)
    row = row.ravel()
    sides = np.zeros(keys.shape[1], np.int64)
    np.bitwise_or.at(sides, row, bit)
    both = ((sides & _CPU_ANY) != 0) & ((sides & _GPU_ANY) != 0) & ((sides & _WRITES) != 0)
    common = np.zeros(keys.shape[1], np.int64)
    if not bytes_known:
        common[both] = -1
    elif both.any():
        chosen = both[row]
        common = _common_bytes(touches.take(chosen), row[chosen], bit[chosen], len(common))
    return Windows(PAGE, keys[0], keys[1], sides, common)


def _common_bytes(
    touches: Touches, row: NDArray[np.intp], bit: NDArray[np.int64], rows: int
) -> NDArray[np.int64]:
    """By row, the bytes that both sides touch and one of them writes: a sweep over ends."""
    count = len(touches)
    line = np.tile(row, 2)
    address = np.concatenate([touches.address, touches.address + touches.size])
    change = np.repeat(np.array([1, -1]), count)
    order = np.lexsort((address, line))
    covered = {}
    for name in (_CPU_READ, _CPU_WRITE, _GPU_READ, _GPU_WRITE):
        covered[name] = np.cumsum((change * np.tile(bit == name, 2))[order]) > 0
    cpu = covered[_CPU_READ] | covered[_CPU_WRITE]
    gpu = covered[_GPU_READ] | covered[_GPU_WRITE]
    true = (covered[_CPU_WRITE] & gpu) | (covered[_GPU_WRITE] & cpu)
    line, address = line[order], address[order]
    length = np.append(np.diff(address), 0)
    inside = true & (np.append(line[1:], -1) == line)
    return np.bincount(line[inside], weights=length[inside], minlength=rows).astype(np.int64)


def faults_of(touches: Touches, page_bytes: int = PAGE) -> Faults:
    """The faults that pages of this size would have, in order of page and time."""
    touches = touches.by_pages()
    page = touches.address // page_bytes
    order = np.lexsort((np.arange(len(touches)), touches.step, page))
    page, side = page[order], touches.side[order]
    new = np.ones(len(page), bool)
    new[1:] = (page[1:] != page[:-1]) | (side[1:] != side[:-1])
    chosen = order[new]
    return Faults(
        page=page[new], side=touches.side[chosen], step=touches.step[chosen],
        window=touches.window[chosen], context=touches.context[chosen],
    )  # fmt: skip


def times_of(touches: Touches, page_bytes: int) -> dict[int, NDArray[np.int64]]:
    """By page, the steps of its accesses."""
    touches = touches.by_pages()
    page = touches.address // page_bytes
    order = np.argsort(page, kind="stable")
    pages, first = np.unique(page[order], return_index=True)
    parts = np.split(touches.step[order], first[1:])
    return dict(zip(pages.tolist(), parts, strict=True)) if len(pages) else {}


def counts(windows: Windows) -> dict[str, int]:
    """Pages of each kind."""
    _, kinds = windows.pages()
    found = np.bincount(kinds, minlength=len(KINDS))
    return {name: int(found[number]) for number, name in enumerate(KINDS)}

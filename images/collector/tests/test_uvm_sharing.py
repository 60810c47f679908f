"""Sharing of pages and estimated faults, against the plainest way to find them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from accel_trace.uvm.sharing import (
    CPU,
    GPU,
    KINDS,
    SIZES,
    Touches,
    counts,
    faults_of,
    windows_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

Row = tuple[int, int, int, int, int, bool]  # side, step, window, address, size, write
BASE = 0x7F0000000000


def touches(rows: Sequence[Row]) -> Touches:
    side, step, window, address, size, write = zip(*rows, strict=True) if rows else ((),) * 6
    return Touches(
        side=np.array(side, np.uint8), step=np.array(step, np.int64),
        window=np.array(window, np.int64), address=np.array(address, np.int64),
        size=np.array(size, np.int64), write=np.array(write, bool),
        context=np.arange(len(rows)),
    )  # fmt: skip


def plain_kinds(rows: Sequence[Row], page_bytes: int) -> dict[tuple[int, int], str]:
    """Kind by window and page, from sets of bytes."""
    sets: dict[tuple[int, int], dict[tuple[int, bool], set[int]]] = defaultdict(
        lambda: defaultdict(set)
    )
    for side, _, window, address, size, write in rows:
        for byte in range(address, address + size):
            sets[window, byte // page_bytes][side, write].add(byte)
    found = {}
    for key, one in sets.items():
        cpu, gpu = one[CPU, False] | one[CPU, True], one[GPU, False] | one[GPU, True]
        if not cpu or not gpu:
            found[key] = "cpu" if cpu else "gpu"
        elif not (one[CPU, True] or one[GPU, True]):
            found[key] = "read"
        else:
            true = (one[CPU, True] & gpu) | (one[GPU, True] & cpu)
            found[key] = "true" if true else "false"
    return found


def plain_faults(rows: Sequence[Row], page_bytes: int) -> dict[int, list[int]]:
    """Sides that fault, by page and in order: who touches what the other had, or nobody."""
    owner: dict[int, int] = {}
    found: dict[int, list[int]] = defaultdict(list)
    for side, _, _, address, size, _ in rows:
        for page in range(address // page_bytes, (address + size - 1) // page_bytes + 1):
            if owner.get(page) != side:
                owner[page] = side
                found[page].append(side)
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Turns of CPU and GPU around the ends of pages of all three sizes; a launch is one step."""
    around = [BASE + k * 4096 for k in (0, 1, 2, 15, 16, 17, 511, 512)]
    rows: list[Row] = []
    step = window = 0
    for _ in range(draw(st.integers(0, 8))):
        side = draw(st.sampled_from((CPU, GPU)))
        for _ in range(draw(st.integers(1, 4))):
            address = draw(st.sampled_from(around)) + draw(st.integers(-9, 9))
            size = draw(st.sampled_from((1, 2, 4, 8, 16)))
            rows.append((side, step, window, address, size, draw(st.booleans())))
            step += side == CPU
        step += 1
        window += draw(st.booleans())
    return rows


@settings(deadline=None, max_examples=150)
@given(histories())
def test_kinds_and_faults_are_those_of_the_plainest_way(rows: list[Row]) -> None:
    small = windows_of(touches(rows))
    for size in SIZES:
        at = small.at(size)
        kinds = {
            (int(w), int(p)): KINDS[k]
            for w, p, k in zip(at.window, at.page, at.kinds(), strict=True)
        }
        assert kinds == plain_kinds(rows, size)
        faults = faults_of(touches(rows), size)
        found: dict[int, list[int]] = defaultdict(list)
        for page, side in zip(faults.page, faults.side, strict=True):
            found[int(page)].append(int(side))
        assert found == plain_faults(rows, size)
        pages, over_all = at.pages()
        for page, kind in zip(pages, over_all, strict=True):
            mine = Counter(name for (_, p), name in kinds.items() if p == page)
            shared = {name: n for name, n in mine.items() if name not in ("cpu", "gpu")}
            if shared:
                wanted = max(shared, key=lambda name: (shared[name], KINDS.index(name)))
            else:
                wanted = "migrates" if len(mine) == 2 else next(iter(mine))
            assert KINDS[kind] == wanted


@settings(deadline=None, max_examples=50)
@given(histories())
def test_common_bytes_do_not_depend_on_the_size_of_pages(rows: list[Row]) -> None:
    small = windows_of(touches(rows))
    assert {int(small.at(size).common.sum()) for size in SIZES} == {int(small.common.sum())}


def test_larger_pages_can_fault_less_and_more() -> None:
    """Two pages of 4 KiB that lie on one of 64 KiB."""
    together = [(GPU, k, 0, BASE + k % 2 * 4096, 4, True) for k in range(4)]
    apart = [(k % 2, k, 0, BASE + k % 2 * 4096, 4, True) for k in range(4)]
    assert [len(faults_of(touches(together), size)) for size in SIZES] == [2, 1, 1]
    assert [len(faults_of(touches(apart), size)) for size in SIZES] == [2, 4, 4]


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        ((GPU, 1, 0, BASE + 4, 4, True), "false"),
        ((GPU, 1, 0, BASE + 3, 4, True), "true"),
        ((GPU, 1, 0, BASE, 1, False), "true"),
        ((GPU, 1, 1, BASE, 4, True), "migrates"),
        ((GPU, 1, 0, BASE + 4096, 4, True), "cpu"),
        ((CPU, 1, 0, BASE, 4, True), "cpu"),
    ],
)
def test_kinds_of_two_accesses(second: Row, kind: str) -> None:
    """The first is a store of the CPU's to four bytes."""
    both = windows_of(touches([(CPU, 0, 0, BASE, 4, True), second]))
    pages, kinds = both.pages()
    assert KINDS[dict(zip(pages, kinds, strict=True))[BASE // 4096]] == kind


def test_bytes_that_both_only_read_are_not_truly_shared() -> None:
    """Both read byte 0, and the CPU writes byte 8: no value passes from one to the other."""
    rows = [(CPU, 0, 0, BASE, 1, False), (CPU, 1, 0, BASE + 8, 1, True),
            (GPU, 2, 0, BASE, 1, False)]  # fmt: skip
    assert counts(windows_of(touches(rows)))["false"] == 1
    assert counts(windows_of(touches([rows[0], rows[2]])))["read"] == 1


def test_without_the_bytes_sharing_has_no_kind() -> None:
    rows = [
        (CPU, 0, 0, BASE, 1, True),
        (GPU, 1, 0, BASE, 4, True),
        (GPU, 1, 0, BASE + 4096, 4, True),
    ]
    found = counts(windows_of(touches(rows), bytes_known=False))
    assert {name: n for name, n in found.items() if n} == {"shared": 1, "gpu": 1}
    assert counts(windows_of(touches(rows), bytes_known=False).at(SIZES[1]))["shared"] == 1


def test_nothing_is_nothing() -> None:
    found = windows_of(touches([]))
    assert (len(found), len(faults_of(touches([]))), sum(counts(found.at(65536)).values())) == (
        0, 0, 0,
    )  # fmt: skip


def test_a_fault_has_the_context_of_its_first_access() -> None:
    rows = [(CPU, 0, 0, BASE, 4, True), (CPU, 1, 0, BASE + 8, 4, True),
            (GPU, 2, 0, BASE + 16, 4, True), (GPU, 2, 0, BASE, 4, True),
            (CPU, 3, 1, BASE, 4, False)]  # fmt: skip
    faults = faults_of(touches(rows))
    assert faults.context.tolist() == [0, 2, 4]
    assert (faults.of(CPU), faults.of(GPU)) == (2, 1)

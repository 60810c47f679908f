"""Copies of large tensors, which take all of their bytes until they are out, or from their start.

A link that is shared by the byte would free a tensor's bytes one by one, or count what it has
copied of one tensor for another. Here each copy is out until some op has ended, and back from some
op on; whatever lies between an op and another has to fit into what the link carries in between.
Where copies have an order, each has a time at which it starts as well, and none runs in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from autotm.planner.model import Model


@dataclass(frozen=True)
class _Copy:
    """Released after op `end` (out) or due before it (back); MB; by op, whether it is done by then.

    other: before which op it has to be out, or after which it may start. made: whether it is made.
    start: its time in ms, of use in `ordered` alone.
    """

    end: int
    mb: float
    sums: dict[int, int]
    other: int
    made: int
    start: int

    def at(self, ops: Iterable[int]) -> dict[int, float]:
        """The share at the last of `ops` that is known, times the MB."""
        known = [op for op in ops if op in self.sums]
        return {self.sums[known[-1]]: self.mb} if known else {}


@dataclass(frozen=True)
class _Timed:
    """A copy's ms, the earliest that it can start and the latest that it can end."""

    copy: _Copy
    took: float
    low: float
    high: float


class Wholes:
    """Whole tensors' copies of a programme, and what the link carries of them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.starts: dict[int, int] = {}  # a copy's variable -> that of its start in ms
        self._late: list[int] = []  # ms, by op
        self._base = [0.0]  # ms until op n begins, where nothing waits
        self._out: list[_Copy] = []
        self._back: list[_Copy] = []
        # MB that the link had carried when an op began, and when it had ended: out, then back
        self._had: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])

    def until(self, begin: int, end: int, leave: int, mb: float) -> dict[int, int]:
        """By op from `begin` to before `end`, a binary: it is out when that op has ended."""
        gone, start = self._by(range(begin, end), leave), self.model.number()
        self._out.append(_Copy(begin, mb, gone, end, leave, start))
        self.starts[leave] = start
        return gone

    def since(self, begin: int, end: int, load: int, mb: float) -> dict[int, int]:
        """By op from `end` down to after `begin`, a binary: its copy back starts not before it."""
        first, start = self._by(range(end, begin, -1), load), self.model.number()
        self._back.append(_Copy(end, mb, first, begin, load, start))
        self.starts[load] = start
        return first

    def _by(self, ops: Sequence[int], whole: int) -> dict[int, int]:
        """A binary for each op, none less than the one before it; the last is `whole`."""
        found = {op: self.model.binary() for op in ops[:-1]} | {ops[-1]: whole}
        for before, after in pairwise(found.values()):
            self.model.row({after: 1.0, before: -1.0}, low=0)
        return found

    def share(
        self, before: tuple[list[int], list[int]], beside: tuple[list[int], list[int]],
        spare: dict[int, float], took: float,
    ) -> None:  # fmt: skip
        """Join what each way of the link carries before the next op, and beside it.

        spare: what is waited before that op, as variables and their ms; took: the op's own ms.
        """
        if not self._out and not self._back:
            return
        late = self.model.number()
        row = {late: 1.0, **{variable: -factor for variable, factor in spare.items()}}
        if self._late:
            row[self._late[-1]] = -1.0
        self.model.row(row, 0, 0)
        self._late.append(late)
        self._base.append(self._base[-1] + took)
        for way, had in enumerate(self._had):
            first = self._more(had[-1][1] if had else None, before[way])
            had.append((first, self._more(first, beside[way])))

    def _more(self, before: int | None, carriers: list[int]) -> int:
        total, carried = self.model.number(), self.model.number()
        carriers.append(carried)
        row = {total: 1.0, carried: -1.0}
        if before is not None:
            row[before] = -1.0
        self.model.row(row, 0, 0)
        return total

    def rows(self) -> None:
        """Between any two ops the link carries what has to be copied there."""
        outs, ins = self._had
        for released in sorted({copy.end for copy in self._out}):
            late = [copy for copy in self._out if copy.end >= released]
            for op in sorted({op for copy in late for op in copy.sums}):
                terms = {outs[op + 1][0]: -1.0, outs[released][1]: 1.0}
                for copy in late:
                    terms |= copy.at(range(released, op + 1))
                self.model.row(terms, high=0)
        for due in sorted({copy.end for copy in self._back}):
            soon = [copy for copy in self._back if copy.end <= due]
            for op in sorted({op for copy in soon for op in copy.sums}):
                terms = {ins[due][0]: -1.0, ins[op - 1][1]: 1.0}
                for copy in soon:
                    terms |= copy.at(range(due, op - 1, -1))
                self.model.row(terms, high=0)

    def ordered(self, most: float, out_rate: float, in_rate: float, duplex: bool) -> None:
        """One copy after the other on each way of the link, or on both where it is not duplex.

        most: ms that an op begins late at most. rates: MB/ms. Copies do not overlap on a link, so
        every plan of the programme that is no later than that keeps these rows. A copy out starts
        when the op before it has ended, one back ends before its op begins. Where a copy is out
        by the end of an op, or starts not before one, so does its time; and of two copies one ends
        before the other starts. Where a copy is not made, or is out later, a row is loosened by
        the largest difference that there can be.
        """
        model, base, late = self.model, self._base, self._late
        outs: list[_Timed] = []
        backs: list[_Timed] = []
        for copy in self._out:
            took, low = copy.mb / out_rate, base[copy.end + 1]
            model.row({copy.start: 1, late[copy.end]: -1}, low=low)
            for op, gone in copy.sums.items():
                more = base[copy.other] - base[op + 1] + most
                row = {copy.start: 1.0, late[op + 1]: -1.0, copy.made: took}
                if gone != copy.made:
                    row |= {copy.made: took - more, gone: more}
                model.row(row, high=base[op + 1])
            high = max(base[copy.other], low + took) + most
            outs.append(_Timed(copy, took, low, high))
        for copy in self._back:
            took, low = copy.mb / in_rate, base[copy.other + 1]
            row = {copy.start: 1.0, copy.made: took, late[copy.end]: -1.0}
            model.row(row, high=base[copy.end])
            for op, begun in copy.sums.items():
                more = base[op] - low + most
                model.row({copy.start: 1, late[op - 1]: -1, begun: -more}, low=low - most)
            high = max(base[copy.end], low + took) + most
            backs.append(_Timed(copy, took, low, high))
        for lane in (outs, backs) if duplex else (outs + backs,):
            for one, other in combinations(lane, 2):
                if one.low < other.high and other.low < one.high:
                    self._apart(one, other)

    def _apart(self, one: _Timed, other: _Timed) -> None:
        """Where both are made, one ends before the other starts."""
        first = self.model.binary()
        both = {one.copy.made: 1.0, other.copy.made: 1.0}
        for a, b, sign in ((one, other, 1.0), (other, one, -1.0)):
            more = max(a.high - b.low, 0.0)
            row = {name: more * share for name, share in both.items()}
            row |= {a.copy.start: 1.0, b.copy.start: -1.0, first: sign * more}
            self.model.row(row, high=(2.5 + sign / 2) * more - a.took)

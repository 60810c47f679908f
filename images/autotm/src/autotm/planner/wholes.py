"""Copies of large tensors, which take all of their bytes until they are out, or from their start.

A link that is shared by the byte would free a tensor's bytes one by one, or count what it has
copied of one tensor for another. Here each copy is out until some op has ended, and back from some
op on; whatever lies between an op and another has to fit into what the link carries in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotm.planner.model import Model


@dataclass(frozen=True)
class _Copy:
    """Released after op `end` (out) or due before it (back); MB; by op, the share done by then."""

    end: int
    mb: float
    sums: dict[int, int]

    def at(self, ops: Iterable[int]) -> dict[int, float]:
        """The share at the last of `ops` that is known, times the MB."""
        known = [op for op in ops if op in self.sums]
        return {self.sums[known[-1]]: self.mb} if known else {}


class Wholes:
    """Whole tensors' copies of a programme, and what the link carries of them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._out: list[_Copy] = []
        self._back: list[_Copy] = []
        # MB that the link had carried when an op began, and when it had ended: out, then back
        self._had: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])

    def until(self, begin: int, end: int, leave: int, mb: float) -> dict[int, int]:
        """By op from `begin` to before `end`, a binary: it is out when that op has ended."""
        last = {op: self.model.binary() for op in range(begin, end)}
        self._out.append(_Copy(begin, mb, self._sums(last, leave)))
        return last

    def since(self, begin: int, end: int, load: int, mb: float) -> dict[int, int]:
        """By op from after `begin` to `end`, a binary: its copy back starts before that op."""
        first = {op: self.model.binary() for op in range(end, begin, -1)}
        self._back.append(_Copy(end, mb, self._sums(first, load)))
        return first

    def _sums(self, parts: dict[int, int], whole: int) -> dict[int, int]:
        """By op, the sum of the parts up to it; that of all is `whole`."""
        sums: dict[int, int] = {}
        before: int | None = None
        for op, part in parts.items():
            sums[op] = whole if len(sums) + 1 == len(parts) else self.model.number(0, 0, 1)
            row = {sums[op]: 1.0, part: -1.0}
            if before is not None:
                row[before] = -1.0
            self.model.row(row, 0, 0)
            before = sums[op]
        return sums

    def share(
        self, before: tuple[list[int], list[int]], beside: tuple[list[int], list[int]]
    ) -> None:
        """Join what each way of the link carries before the next op, and beside it."""
        if not self._out and not self._back:
            return
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

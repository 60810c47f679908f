"""Large tensors counted: where three of a size do not fit, two and a half of them do not either."""

from __future__ import annotations

from collections.abc import Mapping, Set

from autotm.planner.model import Model


class Counted:
    """Which of the large tensors are there, as sums of whole variables, slot by slot."""

    def __init__(self, model: Model, sizes: Mapping[int, int]) -> None:
        """sizes: bytes of the tensors that count."""
        self._model, self._sizes = model, sizes
        self._there: dict[int, dict[int, int]] = {}  # tensor -> variable -> factor

    def change(self, tensor: int, terms: Mapping[int, int]) -> None:
        """From this slot on these variables are added to how often a tensor is there."""
        if tensor not in self._sizes:
            return
        row = self._there.setdefault(tensor, {})
        for variable, factor in terms.items():
            row[variable] = row.get(variable, 0) + factor
            if not row[variable]:
                del row[variable]

    def rows(self, room: int, forced: Set[int]) -> None:
        """Rows of one slot, where `room` bytes are left beside the tensors `forced`.

        Of any size: each other tensor takes it a whole number of times, and so does what is left,
        both rounded down. In every plan of the programme a tensor is there a whole number of
        times, so the rows keep all of them (it is the rounding of Chvatal and Gomory, with the size
        as the divisor); they cut off tensors that are there in part.
        """
        free = {each: row for each, row in self._there.items() if row and each not in forced}
        for size in sorted({self._sizes[each] for each in free}):
            times = {each: self._sizes[each] // size for each in free}
            if sum(times.values()) <= room // size:
                continue
            terms: dict[int, float] = {}
            for each, row in free.items():
                for variable, factor in row.items():
                    terms[variable] = terms.get(variable, 0.0) + times[each] * factor
            self._model.row(terms, high=room // size)

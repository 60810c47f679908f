"""Gives a checked expression its value over records. Pure.

Every value is an array of shape (1 + RESAMPLES,): the value itself, then what it would have been
for draws of the processes and samples of every label set (ae.statistics). Arithmetic on such arrays
carries the spread along.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import pairwise

from ae import statistics
from ae.claims import expressions
from ae.claims.expressions import FOUND, OVER, Expression, Values, word_of, words_of
from ae.records.files import Row


class NoAnswer(Exception):
    """The records do not answer the expression; the reason is one sentence."""


class NoRecords(NoAnswer):
    """There are no records for a part of the expression."""


class WrongEvidence(NoAnswer):
    """There are records, but none of the evidence that may serve."""


@dataclass(frozen=True)
class Answer:
    """An expression's values (see above; booleans or float64), the records that they came from, and
    what those that are not static rest on. `closest` is the comparison that decides a boolean, with
    its numbers and labels: of those that all must hold the worst, of those of which one must hold
    the best, by the share of the larger side that the sides are apart."""

    values: Values
    rows: tuple[Row, ...]
    basis: statistics.Basis
    closest: str


Cells = dict[tuple[str | None, ...], dict[int, Row]]  # values of labels: records by their places


class Records:
    """Rows to evaluate expressions over, which share what was found and drawn of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.by_labels, self.drawn = cache(self._by_labels), cache(self._drawn)

    def _by_labels(self, metric: str | None, *names: str) -> Cells:
        found: Cells = {}
        for index, row in enumerate(self.rows):
            if metric in (None, row.metric):
                found.setdefault(tuple(_label(row, name) for name in names), {})[index] = row
        return found

    def _drawn(self, name: str, *places: int) -> tuple[Values, statistics.Basis]:
        samples = statistics.by_process(vars(self.rows[index]) for index in places)
        return statistics.resample(samples, name), statistics.basis(samples, name)


def evaluate(
    expression: Expression, records: Records, evidence: Sequence[str],
    where: Mapping[str, str] | None = None,
) -> Answer:  # fmt: skip
    """The answer of the records whose evidence may serve. Raises NoAnswer.

    Records that are asked for without a label of `where` have its value.
    """
    import numpy as np

    evaluator = _Evaluator(records, evidence, where or {})
    with np.errstate(all="ignore"):
        values = evaluator.visit(expression.tree, where or {})
    rows, basis = tuple(evaluator.used.values()), statistics.weakest(evaluator.bases)
    return Answer(values, rows, basis, evaluator.compared[-1][2] if evaluator.compared else "")


class _Evaluator:
    """Evaluates checked expressions over records and remembers which were used, and of the
    comparisons so far whether they hold, by how much, and in which words."""

    def __init__(self, records: Records, evidence: Sequence[str], where: Mapping[str, str]) -> None:
        self.used: dict[int, Row] = {}
        self.bases: list[statistics.Basis] = []
        self.compared: list[tuple[bool, float, str]] = []
        self._records = records
        self._evidence = evidence
        self._where = where

    def visit(self, node: ast.expr, bound: Mapping[str, str]) -> Values:  # noqa: PLR0911
        import numpy as np

        match node:
            case ast.Constant(value=value):
                return np.full(1 + statistics.RESAMPLES, value, dtype=np.float64)
            case ast.UnaryOp(op=op, operand=operand):
                values = self.visit(operand, bound)
                if isinstance(op, ast.Not):
                    holds, apart, said = self.compared.pop()
                    self.compared.append((not holds, -apart, said))
                    return ~values
                return -values
            case ast.BinOp(left=left, op=op, right=right):
                above, below = self.visit(left, bound), self.visit(right, bound)
                if isinstance(op, ast.Div):
                    self._divisor(below, right)
                return expressions.ARITHMETIC[type(op)](above, below)
            case ast.BoolOp():
                return self._bool_op(node, bound)
            case ast.Compare():
                return self._compare(node, bound)
            case ast.Call(func=ast.Name(id=name)) if name in OVER:
                return self._over(name, node, bound)
            case ast.Call(func=ast.Name(id=name)):
                asked = {str(k.arg): words_of(k.value) for k in node.keywords}
                metric = word_of(node.args[0])
                this = {**bound, **{label: words[0] for label, words in asked.items()}}
                if name != "ratio":
                    return self._select(name, metric, this)
                that = {**bound, **{label: words[-1] for label, words in asked.items()}}
                above = self._select("median", metric, this)
                return above / self._divisor(self._select("median", metric, that), node)
        raise AssertionError(ast.dump(node))  # parse_expression lets nothing else through

    def _bool_op(self, node: ast.BoolOp, bound: Mapping[str, str]) -> Values:
        """A side that decides it in every draw is enough."""
        import numpy as np

        both, faults = isinstance(node.op, ast.And), list[NoAnswer]()
        found, before = np.full(1 + statistics.RESAMPLES, both), len(self.compared)
        for one in node.values:
            try:
                side = self.visit(one, bound)
                found = found & side if both else found | side
            except (WrongEvidence, NoRecords) as reason:
                faults.append(reason)
        self._decide(before, every=both)
        if faults and (found == both).any():
            raise faults[0]
        return found

    def _compare(self, node: ast.Compare, bound: Mapping[str, str]) -> Values:
        import numpy as np

        sides = [self.visit(one, bound) for one in [node.left, *node.comparators]]
        pairs = list(zip(node.ops, pairwise(sides), strict=True))
        each = [expressions.COMPARISONS[type(op)](*two) for op, two in pairs]
        finite = reduce(operator.and_, map(np.isfinite, sides))
        if not finite[0]:
            raise NoAnswer(f"a side of '{ast.unparse(node)}' is no finite number")
        before = len(self.compared)
        cell = ", ".join(f"{k} {v}" for k, v in bound.items() if self._where.get(k) != v)
        for (op, two), one in zip(pairs, each, strict=True):
            holds, a, b = bool(one[0]), *(float(side[0]) for side in two)
            said = ast.unparse(ast.Compare(ast.Name(f"{a:.5g}"), [op], [ast.Name(f"{b:.5g}")]))
            said = ("" if holds else "not ") + said + (f" for {cell}" if cell else "")
            apart = abs(a - b) / (max(abs(a), abs(b)) or 1)
            self.compared.append((holds, apart if holds else -apart, said))
        self._decide(before, every=True)
        found = reduce(operator.and_, each)
        return np.where(finite, found, ~found[0])  # a draw that is none flips

    def _decide(self, before: int, *, every: bool) -> None:
        """Of the comparisons since `before` the one that decides."""
        if since := self.compared[before:]:
            self.compared[before:] = [min(since) if every else max(since)]

    def _divisor(self, values: Values, node: ast.expr) -> Values:
        if values[0] == 0:
            raise NoAnswer(f"'{ast.unparse(node)}' is 0, which nothing is divided by")
        return values

    def _over(self, name: str, call: ast.Call, bound: Mapping[str, str]) -> Values:
        """All cells must be there; but one that breaks a rule of every cell is enough.

        Of labels whose values are those found, a value counts when any of its cells is there: the
        records of something else may have it too.
        """
        import numpy as np

        *labels, inner = call.args  # labels that nobody wrote the cells of
        listed = {str(k.arg): words_of(k.value) for k in call.keywords}
        open_ = [word_of(one) for one in labels] + [k for k, v in listed.items() if v == [FOUND]]
        closed = {label: words for label, words in listed.items() if label not in open_}
        values, faults, others = list[Values](), list[NoAnswer](), list[NoAnswer]()
        compared = len(self.compared)
        for outer in self._found(open_, bound):
            before, bad = len(values), []
            for words in itertools.product(*closed.values()):
                try:
                    cell = {**outer, **dict(zip(closed, words, strict=True))}
                    values.append(self.visit(inner, cell))
                except (WrongEvidence, NoRecords) as reason:
                    bad.append(reason)
            (faults if len(values) > before or not open_ else others).extend(bad)
        self._decide(compared, every=name == "every_over")
        broken = name == "every_over" and any(not one[0] for one in values)
        if values and (broken or not faults):
            cells = np.log(np.stack(values)) if name == "geomean_over" else np.stack(values)
            found: Values = getattr(np, OVER[name][1])(cells, axis=0)
            return np.exp(found) if name == "geomean_over" else found
        reasons = sorted(faults or others, key=lambda e: isinstance(e, NoRecords) != bool(values))
        if not reasons:
            raise NoRecords(f"no records with a {', '.join(open_)}")
        if isinstance(reasons[0], NoRecords) and faults:
            raise NoRecords(f"{len(faults)} of {len(values) + len(faults)} cells: {reasons[0]}")
        raise reasons[0]

    def _found(self, labels: Sequence[str], bound: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """`bound` with every combination of the labels' values that records have."""
        if not labels:
            yield dict(bound)
            return
        for *others, value in self._records.by_labels(None, *bound, labels[0]):
            if others == [*bound.values()] and value is not None:
                yield from self._found(labels[1:], {**bound, labels[0]: value})

    def _select(self, name: str, metric: str, wanted: Mapping[str, str]) -> Values:
        matching = self._records.by_labels(metric, *wanted).get(tuple(wanted.values()), {})
        serving = {at: row for at, row in matching.items() if row.evidence in self._evidence}
        about = ", ".join(f"{key} {value}" for key, value in wanted.items())
        words = f"{metric} ({about})" if about else metric
        if matching and not serving:
            given = ", ".join(sorted({row.evidence for row in matching.values()}))
            raise WrongEvidence(f"the records of {words} are {given}")
        if not serving:
            raise NoRecords(f"no records of {words}")
        _refuse_several([*serving.values()], words)
        self.used.update(serving)
        try:
            values, basis = self._records.drawn(name, *serving)
        except ValueError as error:
            raise NoAnswer(f"{words}: {error}") from error
        if any(row.evidence != "static" for row in serving.values()):
            self.bases.append(basis)
        return values


def _label(row: Row, name: str) -> str | None:
    return row.labels.get(name, row.experiment if name == "experiment" else None)


def _refuse_several(rows: Sequence[Row], words: str) -> None:
    """Repeats of one label set are put together; records of different ones are not."""
    names = dict.fromkeys(["experiment", *(name for row in rows for name in row.labels)])
    for name in names:
        values = sorted({_label(row, name) or "none" for row in rows})
        if len(values) > 1:
            raise NoAnswer(f"several records match {words}: {name} is {', '.join(values)}")
    units = {row.unit for row in rows}
    if len(units) > 1:
        raise NoAnswer(f"the records of {words} have several units: {', '.join(sorted(units))}")

"""The small language of claims: numbers, comparisons and statistics over records. Pure.

Every value is an array of shape (1 + RESAMPLES,): the value itself, then what it would have been
for bootstrap draws of the samples of every label set. Arithmetic on such arrays carries the
interval along.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ae import statistics
from ae.errors import nearest
from ae.records.files import Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["number", "boolean"]
Values: TypeAlias = "NDArray[Any]"

_STATISTICS: Mapping[str, statistics.Statistic] = {
    "median": "median",
    "mean": "mean",
    "minimum": "min",
    "maximum": "max",
}
_OVER: Mapping[str, tuple[Kind, str]] = {  # what it is over and gives, and by which method
    "best_over": ("number", "max"),  # largest, whatever it means
    "worst_over": ("number", "min"),
    "all_over": ("boolean", "all"),
    "any_over": ("boolean", "any"),
}


def _same(one: Values, other: Values) -> Values:
    import numpy as np

    return np.isclose(one, other, rtol=1e-9, atol=0.0)


_ARITHMETIC: Mapping[type[ast.operator], Callable[[Values, Values], Values]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Values, Values], Values]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: _same,
    ast.NotEq: lambda a, b: ~_same(a, b),
}
_FUNCTIONS = ("count", *_STATISTICS, *_OVER)
_LONGEST = 4000


class NoAnswer(Exception):
    """The records do not answer the expression; the reason is one sentence."""


class NoRecords(NoAnswer):
    """There are no records for a part of the expression."""


class WrongEvidence(NoAnswer):
    """There are records, but none of the evidence that may serve."""


@dataclass(frozen=True)
class Answer:
    """An expression's values (see above; booleans or float64) and the records they came from."""

    values: Values
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Expression:
    """A checked expression and whether it gives a number or a boolean."""

    text: str
    kind: Kind
    tree: ast.expr = field(repr=False, compare=False)

    def answer(self, rows: Sequence[Row], evidence: Sequence[str]) -> Answer:
        """Evaluate over the records whose evidence may serve. Raises NoAnswer."""
        evaluator = _Evaluator(rows, frozenset(evidence))
        values = evaluator.visit(self.tree, {})
        return Answer(values, tuple(evaluator.used.values()))

    def labels(self) -> Iterator[tuple[str, str]]:
        """Every label=value that the expression asks for."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    yield str(keyword.arg), _word(keyword.value)


def parse_expression(text: str) -> Expression:
    """Check and parse an expression. Raises ValueError with what is wrong."""
    flat = " ".join(text.split())
    if len(flat) > _LONGEST:
        raise ValueError(f"the expression is longer than {_LONGEST} characters")
    try:
        tree = ast.parse(flat, mode="eval").body
        return Expression(flat, _check(tree), tree)
    except SyntaxError as error:
        near = flat[max(0, (error.offset or 1) - 1) :][:20]
        raise ValueError(f"not an expression: {error.msg} near '{near}'") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("the expression is nested too deeply") from error


def _check(node: ast.expr) -> Kind:  # noqa: PLR0911
    """Refuse whatever is not in the language, and say what the node gives."""
    match node:
        case ast.Constant(value=int() | float() as value) if type(value) is not bool:
            if abs(value) > 1e300:
                raise ValueError("a number is too large")
            return "number"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            _expect("number", left, right)
            return "number"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _expect("number", operand)
            return "number"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _expect("boolean", operand)
            return "boolean"
        case ast.BoolOp(values=values):
            _expect("boolean", *values)
            return "boolean"
        case ast.Compare(left=left, ops=ops, comparators=others):
            if all(type(op) in _COMPARISONS for op in ops):
                _expect("number", left, *others)
                return "boolean"
        case ast.Call(func=ast.Name(id=name)):
            return _check_call(name, node)
    raise ValueError(f"'{ast.unparse(node)}' is not in the language of claims")


def _expect(kind: Kind, *nodes: ast.expr) -> None:
    for node in nodes:
        if _check(node) != kind:
            raise ValueError(f"'{ast.unparse(node)}' must be a {kind}")


def _check_call(name: str, call: ast.Call) -> Kind:
    if name not in _FUNCTIONS:
        raise ValueError(f"there is no function '{name}'; {nearest(name, _FUNCTIONS)}")
    if name in _OVER:
        if len(call.args) != 2 or call.keywords or not isinstance(call.args[0], ast.Name):
            raise ValueError(f"write {name}(label, expression), not '{ast.unparse(call)}'")
        kind, _ = _OVER[name]
        _expect(kind, call.args[1])
        return kind
    if len(call.args) != 1 or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError(f"write {name}(metric, label=value, ...), not '{ast.unparse(call)}'")
    for value in [call.args[0], *(keyword.value for keyword in call.keywords)]:
        _word(value)
    return "number"


def _word(node: ast.expr) -> str:
    """A metric's or label's name or value as text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and type(node.value) in (str, int, float):
        return str(node.value)
    raise ValueError(f"'{ast.unparse(node)}' must be a word; put other text in quotes")


class _Evaluator:
    """Evaluates checked expressions over rows and remembers which rows were used."""

    def __init__(self, rows: Sequence[Row], evidence: frozenset[str]) -> None:
        self.used: dict[int, Row] = {}
        self._rows = rows
        self._evidence = evidence
        self._known: dict[tuple[str, tuple[int, ...]], Values] = {}

    def visit(  # noqa: PLR0911
        self, node: ast.expr, bound: Mapping[str, str]
    ) -> Values:
        match node:
            case ast.Constant(value=value):
                return _constant(float(value))  # type: ignore[arg-type]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self.visit(operand, bound)
            case ast.UnaryOp(operand=operand):
                return -self.visit(operand, bound)
            case ast.BinOp(left=left, op=op, right=right):
                above, below = self.visit(left, bound), self.visit(right, bound)
                if isinstance(op, ast.Div) and below[0] == 0:
                    raise NoAnswer(f"'{ast.unparse(right)}' is 0, which nothing is divided by")
                return _calculated(type(op), above, below)
            case ast.BoolOp(op=op, values=nodes):
                join = operator.and_ if isinstance(op, ast.And) else operator.or_
                return reduce(join, [self.visit(one, bound) for one in nodes])
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [self.visit(one, bound) for one in [left, *others]]
                pairs = zip(ops, sides, sides[1:], strict=False)
                return reduce(operator.and_, [_COMPARISONS[type(op)](a, b) for op, a, b in pairs])
            case ast.Call(func=ast.Name(id=name)) if name in _OVER:
                return self._over(name, node, bound)
            case ast.Call(func=ast.Name(id=name)):
                return self._select(name, node, bound)
        raise AssertionError(ast.dump(node))  # parse_expression lets nothing else through

    def _over(self, name: str, call: ast.Call, bound: Mapping[str, str]) -> Values:
        label = _word(call.args[0])
        here = (row for row in self._rows if _matches(row, bound))
        found: list[Values] = []
        faults: list[NoAnswer] = []
        for value in dict.fromkeys(_label(row, label) for row in here):
            if value is None:
                continue
            try:
                found.append(self.visit(call.args[1], {**bound, label: value}))
            except (WrongEvidence, NoRecords) as reason:
                faults.append(reason)
        if found:
            return _over(name, found)
        faults.sort(key=lambda reason: isinstance(reason, NoRecords))
        raise next(iter(faults), NoRecords(f"no records with a {label}"))

    def _select(self, name: str, call: ast.Call, bound: Mapping[str, str]) -> Values:
        metric = _word(call.args[0])
        wanted = {**bound, **{str(k.arg): _word(k.value) for k in call.keywords}}
        matching = [
            (index, row)
            for index, row in enumerate(self._rows)
            if row.metric == metric and _matches(row, wanted)
        ]
        serving = [(index, row) for index, row in matching if row.evidence in self._evidence]
        if name == "count":
            self.used.update(serving)
            return _constant(float(len(serving)))
        about = ", ".join(f"{key} {value}" for key, value in wanted.items())
        words = f"{metric} ({about})" if about else metric
        if matching and not serving:
            given = ", ".join(sorted({row.evidence for _, row in matching}))
            raise WrongEvidence(f"the records of {words} are {given}")
        if not serving:
            raise NoRecords(f"no records of {words}")
        _refuse_several([row for _, row in serving], words)
        self.used.update(serving)
        key = (name, tuple(index for index, _ in serving))
        if key not in self._known:
            import numpy as np

            samples = [sample for _, row in serving for sample in row.samples]
            with np.errstate(all="ignore"):
                self._known[key] = statistics.resample(samples, _STATISTICS[name])
        return self._known[key]


def _constant(value: float) -> Values:
    import numpy as np

    return np.full(1 + statistics.RESAMPLES, value)


def _calculated(op: type[ast.operator], one: Values, other: Values) -> Values:
    import numpy as np

    with np.errstate(all="ignore"):
        return _ARITHMETIC[op](one, other)


def _over(name: str, found: Sequence[Values]) -> Values:
    import numpy as np

    return np.asarray(getattr(np.stack(found), _OVER[name][1])(axis=0))


def _label(row: Row, name: str) -> str | None:
    return row.labels.get(name, row.experiment if name == "experiment" else None)


def _matches(row: Row, wanted: Mapping[str, str]) -> bool:
    return all(_label(row, name) == value for name, value in wanted.items())


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

"""The small language of claims: numbers, comparisons and statistics over records. Pure.

What parses is checked here, and given a value in ae.claims.evaluate.
"""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ae import statistics
from ae.errors import nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["number", "boolean"]
Values: TypeAlias = "NDArray[Any]"  # see ae.claims.evaluate


def _same(one: Values, other: Values) -> Values:
    import numpy as np

    return np.isclose(one, other, rtol=1e-9, atol=0.0)


OVER: Mapping[str, tuple[Kind, str]] = {  # what it is over, and gives; how numpy calls it
    "best_over": ("number", "max"),  # largest, whatever it means
    "worst_over": ("number", "min"),
    "mean_over": ("number", "mean"),
    "median_over": ("number", "median"),
    "geomean_over": ("number", "mean"),  # of the logarithms
    "every_over": ("boolean", "all"),
    "any_over": ("boolean", "any"),
}
ARITHMETIC: Mapping[type[ast.operator], Callable[[Values, Values], Values]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Values, Values], Values]] = {
    ast.Lt: lambda a, b: (a < b) & ~_same(a, b),
    ast.LtE: lambda a, b: (a < b) | _same(a, b),
    ast.Gt: lambda a, b: (a > b) & ~_same(a, b),
    ast.GtE: lambda a, b: (a > b) | _same(a, b),
    ast.Eq: _same,
    ast.NotEq: lambda a, b: ~_same(a, b),
}
_FUNCTIONS = (*statistics.STATISTICS, "ratio", *OVER)
FOUND = "found"  # label=found: the values that records have
_LONGEST = 4000


@dataclass(frozen=True)
class Expression:
    """A checked expression and whether it gives a number or a boolean."""

    text: str
    kind: Kind
    tree: ast.expr = field(repr=False, compare=False)

    def labels(self) -> Iterator[tuple[str, str]]:
        """Every label=value that the expression asks for."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    for word in words_of(keyword.value):
                        if not (word == FOUND and _is_over(node)):
                            yield str(keyword.arg), word

    def with_cells(self, values: Callable[[str, frozenset[str]], Sequence[str]]) -> Expression:
        """The expression with all cells of its quantifiers written out.

        `values` gives those of a label, in the experiments that are named below the quantifier;
        raises ValueError where nobody knows them.
        """
        tree = copy.deepcopy(self.tree)
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and _is_over(call):
                *labels, inner = call.args
                asked = replace(self, tree=inner).labels()
                named = frozenset(value for label, value in asked if label == "experiment")
                cells = {word_of(label): values(word_of(label), named) for label in labels}
                call.args = [inner]
                call.keywords[:0] = [
                    ast.keyword(label, ast.List([ast.Constant(one) for one in found], ast.Load()))
                    for label, found in cells.items()
                ]
        return replace(self, text=ast.unparse(tree), tree=tree)


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
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return _all("number", left, right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _all("number", operand)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _all("boolean", operand)
        case ast.BoolOp(values=values):
            return _all("boolean", *values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            if all(type(op) in COMPARISONS for op in ops) and _all("number", left, *others):
                return "boolean"
        case ast.Call(func=ast.Name(id=name)):
            return _check_call(name, node)
    raise ValueError(f"'{ast.unparse(node)}' is not in the language of claims")


def _all(kind: Kind, *nodes: ast.expr) -> Kind:
    """The kind, which every node must be of."""
    for node in nodes:
        if _check(node) != kind:
            raise ValueError(f"'{ast.unparse(node)}' must be a {kind}")
    return kind


def _check_call(name: str, call: ast.Call) -> Kind:
    if name not in _FUNCTIONS:
        raise ValueError(f"there is no function '{name}'; {nearest(name, _FUNCTIONS)}")
    words = [keyword.arg and words_of(keyword.value) for keyword in call.keywords]
    if name in OVER:
        named = all(isinstance(label, ast.Name) for label in call.args[:-1])
        if not (call.args and (call.args[1:] or words) and named and all(words)):
            write = f"write {name}(label, ..., expression, label=[value, ...] or found)"
            raise ValueError(f"{write}, not '{ast.unparse(call)}'")
        return _all(OVER[name][0], call.args[-1])
    pairs = [two for two in words if two and len(two) > 1]
    listed = any(isinstance(keyword.value, ast.List) for keyword in call.keywords)
    if len(call.args) != 1 or not all(words) or listed or bool(pairs) != (name == "ratio"):
        form = "label=this/that, ..." if name == "ratio" else "label=value, ..."
        raise ValueError(f"write {name}(metric, {form}), not '{ast.unparse(call)}'")
    word_of(call.args[0])
    return "number"


def _is_over(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in OVER


def words_of(node: ast.expr) -> list[str]:
    """The words of `[a, b]`, of `this/that`, or of one word."""
    if isinstance(node, ast.List):
        return [word_of(one) for one in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return [word_of(node.left), word_of(node.right)]
    return [word_of(node)]


def word_of(node: ast.expr) -> str:
    """A metric's or label's name or value as text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and type(node.value) in (str, int, float):
        return str(node.value)
    raise ValueError(f"'{ast.unparse(node)}' must be a word; put other text in quotes")

"""The operators of a plan: their parameters and how each turns the type of its input.

What they compute stands in `rap_training.reference`; kernels are tested against that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from reprokit.errors import ConfigError


class PlanError(ConfigError):
    """A plan that cannot be run, in one sentence with a fix."""


@dataclass(frozen=True, kw_only=True)
class ValueType:
    """What a value of a plan is, per row: up to `width` elements of `dtype`.

    A ragged value is stored padded, [rows, width], with lengths int32 [rows].
    """

    dtype: str  # float32 | int64
    width: int = 1
    ragged: bool = False
    nullable: bool = False

    def __str__(self) -> str:
        words = f"{self.dtype}[{'up to ' if self.ragged else ''}{self.width}]"
        return words + (" with nulls" if self.nullable else "")


# Beyond these float32 does not hold what an operator computes with.
_FLOAT32 = np.finfo(np.float32)
_LARGEST = float(_FLOAT32.max)
_LEAST_EPS = 3e-8  # of logit: 1 - eps is 1 below 2**-25
# Of boxcox: (x**lam - 1) / lam cancels, by at most 1.1e-16 / lam, which is here a fifth of what
# rounding to float32 costs next to 1, and almost twice that at 1e-9.
LEAST_LAM = 1e-8

Result = Callable[[ValueType, Mapping[str, object]], ValueType]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator: its parameters with their types, what it takes, and the type of its result."""

    name: str
    takes: str  # float32 | int64 | any
    parameters: Mapping[str, type]
    shape: Result

    def result(self, value: ValueType, given: Mapping[str, object], *, where: str) -> ValueType:
        """The type of the result. Raises PlanError, beginning with `where`, for a misfit."""
        if set(given) != set(self.parameters):
            wanted = ", ".join(self.parameters) or "none"
            raise PlanError(
                f"{where}: {self.name} got the parameters {', '.join(given) or 'none'}; "
                f"fix: {wanted}"
            )
        for name, kind in self.parameters.items():
            if not _is(given[name], kind):
                raise PlanError(
                    f"{where}: the parameter {name} of {self.name} is {given[name]!r:.40}; "
                    f"fix: a {_WORDS[kind]}"
                )
        if value.nullable != (self.name == "fill_null"):
            fix = "remove it" if self.name == "fill_null" else "put fill_null before it"
            raise PlanError(f"{where}: {self.name} reads {value}; fix: {fix}")
        if self.takes not in ("any", value.dtype):
            raise PlanError(
                f"{where}: {self.name} takes {self.takes} and reads {value}; fix: cast before it"
            )
        problem = _PROBLEMS.get(self.name, lambda _: None)(given)
        if problem:
            words = ", ".join(f"{name} {value!r:.40}" for name, value in given.items())
            raise PlanError(f"{where}: {self.name} cannot work with {words}; {problem}")
        return self.shape(value, given)


def constant(dtype: str, value: float) -> float:
    """A parameter as it is applied to elements of `dtype`.

    Rounded to float32; for int64 truncated toward zero and limited to its range, an int then.
    """
    if dtype == "float32":
        return float(np.float32(value))
    return 0 if math.isnan(value) else int(min(max(value, -(2**63)), 2**63 - 1))


def ngram_width(width: int, n: int) -> int:
    """Elements that n-grams of a list of `width` elements have: (w - n' + 1) n', n' = min(n, w)."""
    if width == 0:
        return 0
    used = min(n, width)
    return (width - used + 1) * used


def _is(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float)
    if kind is tuple:
        return isinstance(value, tuple) and all(_is(item, float) for item in value)
    return isinstance(value, kind)


def _one_hot_problem(given: Mapping[str, object]) -> str | None:
    lo, hi, k = float(given["lo"]), float(given["hi"]), _int(given, "k")  # type: ignore[arg-type]
    if k < 1 or not lo < hi:
        return "fix: k of at least 1, and lo below hi"
    if max(-lo, hi, hi - lo) > _LARGEST or (hi - lo) / k < _FLOAT32.tiny:
        return f"fix: lo, hi and hi - lo within float32, (hi - lo) / k at least {_FLOAT32.tiny:.2g}"
    return None


def _int(given: Mapping[str, object], name: str) -> int:
    value = given[name]
    assert isinstance(value, int)
    return value


_WORDS: dict[type, str] = {
    int: "whole number", float: "number", str: "word", tuple: "list of numbers",
}  # fmt: skip
_PROBLEMS: dict[str, Callable[[Mapping[str, object]], str | None]] = {
    "cast": lambda p: None if p["dtype"] in ("float32", "int64") else "fix: dtype float32 or int64",
    "sigrid_hash": lambda p: (
        None if 1 <= _int(p, "modulus") < 2**63 else "fix: a modulus of at least 1 and below 2**63"
    ),
    "bucketize": lambda p: (
        None
        if p["borders"] and list(p["borders"]) == sorted(p["borders"])  # type: ignore[call-overload]
        else "fix: borders in ascending order"
    ),
    "logit": lambda p: (
        None
        if _LEAST_EPS <= float(p["eps"]) < 0.5  # type: ignore[arg-type]
        else f"fix: eps of at least {_LEAST_EPS} and below 0.5"
    ),
    "boxcox": lambda p: (
        None
        if p["lam"] == 0 or LEAST_LAM <= abs(p["lam"]) <= _LARGEST  # type: ignore[arg-type]
        else f"fix: lam 0, which is the logarithm, or from {LEAST_LAM} to float32's largest in size"
    ),
    "clamp": lambda p: (
        None
        if p["lo"] <= p["hi"] and not any(_LARGEST < abs(p[at]) < math.inf for at in ("lo", "hi"))  # type: ignore[operator, arg-type]
        else "fix: lo not above hi, and both within float32"
    ),
    "one_hot": _one_hot_problem,
    "ngram": lambda p: (
        None if 1 <= _int(p, "n") < 2**31 else "fix: n of at least 1 and below 2**31"
    ),
    "first_x": lambda p: (
        None if 1 <= _int(p, "x") < 2**31 else "fix: x of at least 1 and below 2**31"
    ),
    "map_id": lambda p: (
        None
        if 1 <= _int(p, "size") < 2**31 and _int(p, "seed") >= 0
        else "fix: a map of at least one and below 2**31 entries, and a seed not below 0"
    ),
}

_ROWS: tuple[tuple[str, str, Mapping[str, type], Result], ...] = (
    ("fill_null", "any", {"value": float}, lambda v, _: replace(v, nullable=False)),
    ("cast", "any", {"dtype": str}, lambda v, p: replace(v, dtype=str(p["dtype"]))),
    ("sigrid_hash", "int64", {"salt": int, "modulus": int}, lambda v, _: v),
    ("bucketize", "float32", {"borders": tuple}, lambda v, _: replace(v, dtype="int64")),
    ("logit", "float32", {"eps": float}, lambda v, _: v),
    ("boxcox", "float32", {"lam": float}, lambda v, _: v),
    ("clamp", "any", {"lo": float, "hi": float}, lambda v, _: v),
    (
        "one_hot", "float32", {"lo": float, "hi": float, "k": int},
        lambda v, p: replace(v, width=v.width * _int(p, "k")),
    ),
    ("ngram", "any", {"n": int}, lambda v, p: replace(v, width=ngram_width(v.width, _int(p, "n")))),
    ("first_x", "any", {"x": int}, lambda v, p: replace(v, width=min(v.width, _int(p, "x")))),
    ("map_id", "int64", {"size": int, "seed": int}, lambda v, _: v),
)  # fmt: skip

OPERATORS: Mapping[str, Operator] = {
    name: Operator(name=name, takes=takes, parameters=parameters, shape=shape)
    for name, takes, parameters, shape in _ROWS
}

"""Random plans of any size and order of operators, and heavier versions of a given plan.

What comes out is valid, its ids are in range, and no id hangs on the last bit of a float: discrete
operators never follow rounded ones, and a rounded value is kept away from where the next function
is steep (so kernels can be held to 1e-5). The random fusion instances of docs/papers/rap.md, 3.4
are `chains`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rap_training.plan.graph import Column, Node, Plan, PlanError, SparseOutput
from rap_training.plan.operators import OPERATORS, ValueType, ngram_width
from rap_training.plan.steps import Step, chain, step

KINDS = ("sigrid_hash", "clamp", "map_id", "boxcox", "one_hot")
_WIDEST = 256  # no value of a generated plan has more elements a row than this or twice its list
_MAP = 65_536


def chains(count: int, length: int, kinds: Sequence[str] = KINDS, seed: int = 0) -> list[list[str]]:
    """Return `count` chains of `length` kinds drawn at random: a fusion instance without types."""
    draw = np.random.default_rng(seed)
    return [[kinds[i] for i in draw.integers(0, len(kinds), length)] for _ in range(count)]


def generate(
    *,
    dense: int,
    sparse: int,
    depth: int,
    width: int,
    seed: int,
    rows_per_table: int = 65_536,
    name: str = "",
) -> Plan:
    """Return a random plan of `dense` and `sparse` columns, each with one chain and one output.

    Chains have between 3 and `depth` operators. Sparse columns have up to `width` ids, about half
    of them ragged. The same arguments always give the same plan. Raises PlanError for sizes below
    1 (3 for depth).
    """
    sizes = {"dense": dense, "sparse": sparse, "width": width, "rows_per_table": rows_per_table}
    for key, value in (*sizes.items(), ("depth", depth - 2), ("seed", seed + 1)):
        if value < 1:
            least = {"depth": 3, "seed": 0}.get(key, 1)
            raise PlanError(f"a plan cannot be generated: {key} is too small; fix: {least} or more")
    columns = [
        *(_column(f"int_{i}", "dense", width, seed) for i in range(dense)),
        *(_column(f"cat_{i}", "sparse", width, seed) for i in range(sparse)),
    ]
    found: dict[str, tuple[Node, ...]] = {}
    for column in columns:
        draw = _draw(seed, column.name, 1)
        length = int(draw.integers(3, depth, endpoint=True))
        make = _dense_steps if column.kind == "dense" else _sparse_steps
        found[column.name] = chain(column.name, make(draw, column, length, rows_per_table))
    return Plan(
        name=name or f"random_{dense}_{sparse}_{depth}_{width}_{seed}",
        columns=tuple(columns),
        nodes=tuple(node for nodes in found.values() for node in nodes),
        dense=tuple(found[c.name][-1].name for c in columns if c.kind == "dense"),
        sparse=tuple(
            SparseOutput(node=found[c.name][-1].name, rows=rows_per_table)
            for c in columns
            if c.kind == "sparse"
        ),
    )


def heavier(plan: Plan, factor: float) -> Plan:
    """Return the plan with about `factor` times the operators: same columns, outputs and types.

    A dense output is followed by further clamps and boxcox; an extra hash, clamp and map by turns
    stand before the last hash or map of a sparse output (behind an output that has none), on values
    of the width that this one has. Values differ from the plan's, ids stay in range. Raises
    PlanError for a factor below 1.
    """
    if factor < 1:
        raise PlanError(f"a plan cannot be made {factor} times as heavy; fix: 1 or more")
    if factor == 1:
        return plan
    nodes = dict(plan.node)
    owed = 0.0  # what rounding has left out so far comes with the next output

    def extra_of(chain: int) -> int:
        nonlocal owed
        owed += (factor - 1) * chain
        extra = round(owed)
        owed -= extra
        return extra

    for name in dict.fromkeys(plan.dense):
        extra = extra_of(len(plan.chain(name)))
        if not extra:
            continue
        _append(nodes, name, [_dense_extra(i) for i in range(extra)])
    places: dict[str, tuple[int, int]] = {}  # node -> extra operators there, rows of the table
    for output in plan.sparse:
        before = plan.chain(output.node)
        last = [node.name for node in before if node.op in ("sigrid_hash", "map_id")]
        place = last[-1] if last else output.node
        if place not in places:
            places[place] = (extra_of(len(before)), output.rows)
    for name, (extra, rows) in places.items():
        if not extra:
            continue
        node = nodes[name]
        if node.op in ("sigrid_hash", "map_id"):
            size = node.parameters["size"] if node.op == "map_id" else _MAP
            assert isinstance(size, int)
            steps = [_sparse_extra(i, size) for i in range(extra)]
            added = _named(nodes, name, node.input, steps)
            nodes |= {new.name: new for new in added}
            nodes[name] = replace(node, input=added[-1].name)
        else:
            _append(nodes, name, [_sparse_extra(i, rows) for i in range(extra)])
    return replace(plan, name=f"{plan.name}_x{factor:g}", nodes=tuple(nodes.values()))


def _append(nodes: dict[str, Node], name: str, steps: Sequence[Step]) -> None:
    """Put `steps` behind an output, which keeps its name; who else reads it reads it as before."""
    base = replace(nodes[name], name=_free(nodes, f"{name}_base"))
    for other in list(nodes.values()):
        if other.input == name:
            nodes[other.name] = replace(other, input=base.name)
    added = _named(nodes, name, base.name, steps)
    nodes[base.name] = base
    nodes |= {new.name: new for new in added[:-1]}
    nodes[name] = replace(added[-1], name=name)


def _named(nodes: dict[str, Node], name: str, source: str, steps: Sequence[Step]) -> list[Node]:
    added: list[Node] = []
    for position, (op, parameters) in enumerate(steps):
        free = _free(nodes, f"{name}_extra{position}")
        added.append(Node(name=free, op=op, input=source, parameters=parameters))
        source = free
    return added


def _free(nodes: dict[str, Node], name: str) -> str:
    while name in nodes:
        name += "x"
    return name


def _dense_extra(i: int) -> Step:
    return _TAME if i % 2 == 0 else step("boxcox", lam=(0.5, 2.0)[i % 4 // 2])


def _sparse_extra(i: int, size: int) -> Step:
    kinds: Sequence[Step] = (
        step("sigrid_hash", salt=i, modulus=size),
        step("map_id", size=size, seed=i % 4),
        step("clamp", lo=0, hi=size - 1),
    )
    return kinds[i % 3]


def _draw(seed: int, name: str, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode()), stream])


def _column(name: str, kind: str, width: int, seed: int) -> Column:
    draw = _draw(seed, name, 0)
    rate = float(draw.choice([0.0, 0.03, 0.2, 0.45, 0.75]))
    if kind == "dense":
        return Column(name=name, kind=kind, null_rate=rate)
    return Column(
        name=name, kind=kind, null_rate=rate, width=int(draw.integers(1, width, endpoint=True)),
        ragged=bool(draw.integers(2)), ids=int(10 ** draw.uniform(1, 7)),
    )  # fmt: skip


@dataclass(frozen=True)
class _State:
    """A value within a chain: its type, whether it is exact, and whether it is in [0.25, 64]."""

    type: ValueType
    most: int
    exact: bool = True
    tame: bool = False

    def after(self, made: Step) -> _State:
        op, parameters = made
        tame = op == "clamp" and parameters == _TAME[1]
        return replace(
            self, type=OPERATORS[op].result(self.type, parameters, where="a generated plan"),
            exact=self.exact and op not in ("logit", "boxcox"),
            tame=tame or (self.tame and op in ("first_x", "ngram")),
        )  # fmt: skip


_TAME = step("clamp", lo=0.25, hi=64.0)


def _start(column: Column, fill: float) -> tuple[list[Step], _State]:
    made = step("fill_null", value=fill)
    return [made], _State(column.type, max(_WIDEST, 2 * column.width)).after(made)


def _dense_steps(draw: np.random.Generator, column: Column, length: int, _: int) -> list[Step]:
    steps, state = _start(column, int(draw.integers(0, 3)))
    while len(steps) < length:
        left = length - len(steps)
        if left == 1 and state.type.dtype == "int64":
            made = step("cast", dtype="float32")
        else:
            made = _choose(draw, state)
            if left == 1 and state.after(made).type.dtype == "int64":
                made = _TAME
        steps.append(made)
        state = state.after(made)
    return steps


def _sparse_steps(draw: np.random.Generator, column: Column, length: int, rows: int) -> list[Step]:
    steps, state = _start(column, int(draw.integers(-2, 3)))
    while len(steps) < length - 2:
        left = length - 2 - len(steps)
        if state.type.dtype == "float32" and left == 1:
            made = step("cast", dtype="int64")
        else:
            made = _choose(draw, state, rounded=False, floats=left > 1)
        steps.append(made)
        state = state.after(made)
    salt = int(draw.integers(0, 1000))
    if draw.integers(2):
        last = step("sigrid_hash", salt=salt, modulus=rows)
    else:
        last = step("map_id", size=rows, seed=salt % 8)
    return [*steps, last, step("first_x", x=int(draw.integers(1, 8, endpoint=True)))]


def _choose(
    draw: np.random.Generator, state: _State, *, rounded: bool = True, floats: bool = True
) -> Step:
    """One operator at random that may follow."""
    options = _float_options(draw, state) if state.type.dtype == "float32" else _id_options(draw)
    if state.type.width > 1:
        options["first_x"] = step("first_x", x=int(draw.integers(1, state.type.width)))
    n = int(draw.integers(2, 9))
    if state.type.width > 1 and ngram_width(state.type.width, n) <= state.most:
        options["ngram"] = step("ngram", n=n)
    if not rounded:
        options = {k: v for k, v in options.items() if k not in ("logit", "boxcox")}
    if not floats and state.type.dtype == "int64":
        options.pop("cast", None)
    names = sorted(options)
    return options[names[int(draw.integers(len(names)))]]


def _id_options(draw: np.random.Generator) -> dict[str, Step]:
    low, bits = int(draw.integers(-(2**20), 1)), int(draw.integers(8, 30))
    return {
        "sigrid_hash": step("sigrid_hash", salt=int(draw.integers(1000)), modulus=2**bits - 1),
        "clamp": step("clamp", lo=low, hi=2**bits),
        "map_id": step("map_id", size=_MAP, seed=int(draw.integers(8))),
        "cast": step("cast", dtype="float32"),
    }


def _float_options(draw: np.random.Generator, state: _State) -> dict[str, Step]:
    lam = float(draw.choice([0.0, 0.5, 2.0]))
    options = {"clamp": _TAME, "logit": step("logit", eps=1e-5 if state.exact else 0.05)}
    if state.exact or state.tame:
        options["boxcox"] = step("boxcox", lam=lam)
    if state.exact:
        borders = sorted(float(b) for b in draw.integers(0, 200, int(draw.integers(1, 33))))
        options["bucketize"] = step("bucketize", borders=tuple(borders))
        options["cast"] = step("cast", dtype="int64")
        options["clamp"] = step("clamp", lo=0.0, hi=float(draw.integers(1, 10_000)))
        k = int(draw.choice([2, 4, 8]))
        if state.type.width * k <= state.most:
            high = float(draw.integers(1, 100))
            options["one_hot"] = step("one_hot", lo=0.0, hi=high, k=k)
    return options

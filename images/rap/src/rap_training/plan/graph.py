"""A preprocessing plan: raw columns, operators with one input each, outputs for the trainer.

Checking a plan infers the type of every value; what a kernel or the trainer cannot take is an
error here, before anything runs. Source of the workload: docs/papers/rap.md, 2.4 to 2.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rap_training.plan.bounds import Bounds, bounds
from rap_training.plan.operators import OPERATORS, PlanError, ValueType

__all__ = ["MOST_WIDTH", "Column", "Node", "Plan", "PlanError", "SparseOutput", "ValueType"]

MOST_WIDTH = 1 << 16  # elements of one row's value


@dataclass(frozen=True, kw_only=True)
class Column:
    """A raw column. `width` is the longest list of a row; `null_rate` and `ids` are for generators.

    Dense columns are float32 with width 1, sparse ones int64. `ids` is the number of distinct raw
    ids of a sparse column.
    """

    name: str
    kind: str  # dense | sparse
    width: int = 1
    ragged: bool = False
    null_rate: float = 0.0
    ids: int = 0

    @property
    def type(self) -> ValueType:
        """The type of the column as it is read: nulls included."""
        dtype = "float32" if self.kind == "dense" else "int64"
        return ValueType(dtype=dtype, width=self.width, ragged=self.ragged, nullable=True)


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operator on one input, which is a raw column's name or another node's."""

    name: str
    op: str
    input: str
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SparseOutput:
    """Ids of one embedding table of `rows` rows: the value of `node`, each in [0, rows)."""

    node: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A checked plan. `dense` and `sparse` name the outputs in the order the trainer takes."""

    name: str
    columns: tuple[Column, ...]
    nodes: tuple[Node, ...]
    dense: tuple[str, ...]
    sparse: tuple[SparseOutput, ...]
    over_arch: tuple[int, ...] = (1024, 1024, 512, 256, 1)

    def __post_init__(self) -> None:
        self._check_names()
        _ = self.types  # infers, and so checks, every type
        self._check_outputs()

    @cached_property
    def column(self) -> Mapping[str, Column]:
        """Raw columns by name."""
        return {column.name: column for column in self.columns}

    @cached_property
    def node(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def order(self) -> tuple[Node, ...]:
        """The nodes, every one behind its input. Raises PlanError for a cycle."""
        done: dict[str, Node] = {}
        for node in self.nodes:
            path: dict[str, None] = {}
            at = node.name
            while at in self.node and at not in done:
                if at in path:
                    words = " -> ".join([*path, at])
                    raise PlanError(f"plan {self.name} has a cycle: {words}; fix: break it")
                path[at] = None
                at = self.node[at].input
            for name in reversed(path):
                done[name] = self.node[name]
        return tuple(done.values())

    @cached_property
    def types(self) -> Mapping[str, ValueType]:
        """Type of every column and node. Raises PlanError for one that does not fit."""
        types = {column.name: column.type for column in self.columns}
        for node in self.order:
            types[node.name] = OPERATORS[node.op].result(
                types[node.input], node.parameters, where=f"plan {self.name}, node {node.name}"
            )
        for name, kind in types.items():
            if kind.width > MOST_WIDTH:
                raise PlanError(
                    f"plan {self.name}: {name} is {kind.width} wide; fix: at most {MOST_WIDTH}"
                )
        return types

    @cached_property
    def bounds(self) -> Mapping[str, Bounds]:
        """Least and largest value of every node, None where only the data know."""
        found: dict[str, Bounds] = {column.name: None for column in self.columns}
        for node in self.order:
            dtype = self.types[node.input].dtype
            found[node.name] = bounds(node.op, dtype, node.parameters, found[node.input])
        return found

    def chain(self, name: str) -> tuple[Node, ...]:
        """The nodes from a raw column to the node `name`, in the order they are applied."""
        found: list[Node] = []
        while name in self.node:
            found.append(self.node[name])
            name = self.node[name].input
        return tuple(reversed(found))

    def source(self, name: str) -> Column:
        """The raw column that the value `name` is made from."""
        while name in self.node:
            name = self.node[name].input
        return self.column[name]

    def level(self, name: str) -> int:
        """How many operators precede the node `name`: as soon as possible, counted from 0."""
        return len(self.chain(name)) - 1

    def depth(self) -> int:
        """Operators of the longest chain."""
        return max((len(self.chain(node.name)) for node in self.nodes), default=0)

    def needed(self, outputs: tuple[str, ...]) -> tuple[Node, ...]:
        """The nodes that `outputs` are made from, in an order that respects inputs."""
        wanted = {node.name for output in outputs for node in self.chain(output)}
        return tuple(node for node in self.order if node.name in wanted)

    @property
    def dense_width(self) -> int:
        """Floats of one row of the dense outputs: the width of the bottom MLP's input."""
        return sum(self.types[name].width for name in self.dense)

    def edges(self) -> Iterator[tuple[str, str]]:
        """Pairs (input node, node)."""
        return ((node.input, node.name) for node in self.nodes if node.input in self.node)

    def _check_names(self) -> None:
        where = f"plan {self.name}"
        names = [column.name for column in self.columns] + [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise PlanError(f"{where}: the name {twice[0]} is given twice; fix: rename one")
        for column in self.columns:
            if column.kind not in ("dense", "sparse"):
                raise PlanError(
                    f"{where}: column {column.name} has kind {column.kind}; fix: dense or sparse"
                )
            if column.width < 1 or (column.kind == "dense" and column.width != 1):
                raise PlanError(
                    f"{where}: column {column.name} has width {column.width}; "
                    "fix: 1 for a dense column, at least 1 for a sparse one"
                )
        known = set(names)
        for node in self.nodes:
            if node.op not in OPERATORS:
                raise PlanError(
                    f"{where}: node {node.name} has the unknown operator {node.op}; "
                    f"fix: one of {', '.join(OPERATORS)}"
                )
            if node.input not in known:
                raise PlanError(
                    f"{where}: node {node.name} reads {node.input}, which does not exist; "
                    "fix: name a column or a node"
                )

    def _check_outputs(self) -> None:
        where = f"plan {self.name}"
        if not self.dense or not self.sparse:
            raise PlanError(f"{where} has no dense or no sparse output; fix: at least one of each")
        nodes = [output.node for output in self.sparse]
        for name in nodes:
            if nodes.count(name) > 1:
                raise PlanError(
                    f"{where}: two tables take {name}; fix: end each table's chain in its own node"
                )
        for name in (*self.dense, *nodes):
            if name not in self.node:
                raise PlanError(f"{where}: the output {name} is no node; fix: name a node")
        for name in self.dense:
            kind = self.types[name]
            if kind.dtype != "float32" or kind.ragged:
                raise PlanError(
                    f"{where}: the dense output {name} is {kind}; fix: a float32 of fixed width"
                )
        for table, output in enumerate(self.sparse):
            if self.types[output.node].dtype != "int64":
                raise PlanError(
                    f"{where}: the sparse output {output.node} is "
                    f"{self.types[output.node]}; fix: ids, int64"
                )
            if output.rows < 1:
                raise PlanError(
                    f"{where}: the table of {output.node} has {output.rows} rows; fix: at least 1"
                )
            reached = self.bounds[output.node]
            if reached and not 0 <= reached[0] <= reached[1] < output.rows:
                raise PlanError(
                    f"{where}: the ids of table {table}, node {output.node}, go from {reached[0]} "
                    f"to {reached[1]}, and the table has {output.rows} rows; "
                    "fix: end the chain with sigrid_hash modulo the table's rows, or a larger table"
                )

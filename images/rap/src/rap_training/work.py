"""What one rank preprocesses of every batch: operators on its rows, and where results go.

A mapping (docs/papers/rap.md, 3.6) says for every sparse output which GPU computes it for the whole
batch of all ranks, or that every rank computes its own rows (DATA_PARALLEL). Dense outputs are
always computed by the rank that trains on them. Rows: B a rank, world * B in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rap_training.plan.graph import Column, Node, Plan, PlanError, ValueType

DATA_PARALLEL = -1
RESIZING = frozenset({"first_x", "ngram", "one_hot"})


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A node computed on `rows` rows. `batch` is the class that must be equal to be fused."""

    node: Node
    batch: (
        str  # dense: own rows for the MLP; local: own rows of sparse ids; global: all ranks' rows
    )
    rows: int
    takes: ValueType
    gives: ValueType
    input: str  # key of an Instance or of a Source

    @property
    def key(self) -> str:
        """Unique name within a rank's work."""
        return f"{self.node.name}@{self.batch}"

    @property
    def resizes(self) -> bool:
        """Whether the result has other lengths than the input."""
        return self.node.op in RESIZING

    @property
    def kind(self) -> str:
        """Operator, input type and batch class: equal ones may share a launch."""
        return f"{self.node.op}:{self.takes.dtype}@{self.batch}"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A raw column as one rank reads it: its own rows, or those of all ranks."""

    column: Column
    batch: str
    rows: int

    @property
    def key(self) -> str:
        """Unique name within a rank's work."""
        return f"{self.column.name}@{self.batch}"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Ids of table `table` for `rows` rows of the global batch from `start` on.

    `made` computes them, `home` owns the table; both are ranks.
    """

    table: int
    made: int
    home: int
    start: int
    rows: int
    type: ValueType
    key: str  # of the Instance that makes it

    @property
    def name(self) -> str:
        """Unique name over all ranks."""
        return f"table{self.table}/{self.start}"

    @property
    def ids_bytes(self) -> int:
        """Bytes of the ids, int64 [rows, width]."""
        return 8 * self.rows * self.type.width

    @property
    def lengths_bytes(self) -> int:
        """Bytes of the lengths, int32 [rows] padded to 8; 0 where rows have a fixed width."""
        return -(-4 * self.rows // 8) * 8 if self.type.ragged else 0


@dataclass(frozen=True, kw_only=True)
class Work:
    """The preprocessing of one rank. `home[t]` owns table t; `mapping[t]` computes its ids."""

    plan: Plan
    rank: int
    world: int
    batch: int
    home: tuple[int, ...]
    mapping: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.plan.sparse)
        if len(self.home) != count or len(self.mapping) != count:
            raise PlanError(f"plan {self.plan.name} has {count} tables; fix: place and map each")

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces of all ranks, ordered by maker, then home, then table."""
        found = []
        for table, output in enumerate(self.plan.sparse):
            by = self.mapping[table]
            local = by == DATA_PARALLEL
            for made in range(self.world) if local else (by,):
                found.append(
                    Piece(
                        table=table,
                        made=made,
                        home=self.home[table],
                        start=made * self.batch if local else 0,
                        rows=self.batch if local else self.world * self.batch,
                        type=self.plan.types[output.node],
                        key=f"{output.node}@{'local' if local else 'global'}",
                    )
                )
        return tuple(sorted(found, key=lambda piece: (piece.made, piece.home, piece.table)))

    @cached_property
    def made_here(self) -> tuple[Piece, ...]:
        """The pieces that this rank computes."""
        return tuple(piece for piece in self.pieces if piece.made == self.rank)

    @cached_property
    def needed_here(self) -> tuple[Piece, ...]:
        """The pieces of this rank's tables, by table and then by row."""
        own = (piece for piece in self.pieces if piece.home == self.rank)
        return tuple(sorted(own, key=lambda piece: (piece.table, piece.start)))

    @cached_property
    def tables(self) -> tuple[int, ...]:
        """The tables that this rank owns."""
        return tuple(t for t, rank in enumerate(self.home) if rank == self.rank)

    @cached_property
    def instances(self) -> tuple[Instance, ...]:
        """The operators that this rank runs, each behind its input."""
        found: dict[str, Instance] = {}
        for name in self.plan.dense:
            self._add(name, "dense", self.batch, found)
        for piece in self.made_here:
            name, batch = piece.key.rsplit("@", 1)
            self._add(name, batch, piece.rows, found)
        return tuple(found.values())

    @cached_property
    def instance(self) -> dict[str, Instance]:
        """Instances by key."""
        return {instance.key: instance for instance in self.instances}

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The raw columns that this rank reads, each once for every class of rows."""
        found: dict[str, Source] = {}
        for instance in self.instances:
            if instance.node.input in self.plan.column:
                column = self.plan.column[instance.node.input]
                source = Source(column=column, batch=instance.batch, rows=instance.rows)
                found[source.key] = source
        return tuple(found.values())

    @property
    def exchanges(self) -> bool:
        """Whether ids must travel between ranks before training."""
        return any(piece.made != piece.home for piece in self.pieces)

    def bytes_to(self, maker: int, home: int) -> int:
        """Bytes of ids and lengths that one rank sends another for every batch."""
        return sum(
            piece.ids_bytes + piece.lengths_bytes
            for piece in self.pieces
            if piece.made == maker and piece.home == home and maker != home
        )

    def _add(self, name: str, batch: str, rows: int, found: dict[str, Instance]) -> None:
        for node in self.plan.chain(name):
            instance = Instance(
                node=node,
                batch=batch,
                rows=rows,
                takes=self.plan.types[node.input],
                gives=self.plan.types[node.name],
                input=f"{node.input}@{batch}",
            )
            found.setdefault(instance.key, instance)


def locality(home: Sequence[int]) -> tuple[int, ...]:
    """The mapping of the released RAP: a feature is computed where its table lies."""
    return tuple(home)


def data_parallel(tables: int) -> tuple[int, ...]:
    """The mapping of the baselines: every rank computes its own rows of all features."""
    return (DATA_PARALLEL,) * tables

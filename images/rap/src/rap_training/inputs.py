"""The plan and the batches that a configuration names."""

from __future__ import annotations

from pathlib import Path

from rap_training.config import Config
from rap_training.data.columns import DataError, RawBatch
from rap_training.data.generate import batches
from rap_training.plan.builtin import builtin
from rap_training.plan.graph import Plan
from rap_training.planner.placement import Placement, place_tables, table_room
from rap_training.train.model import BOTTOM


def load_plan(config: Config) -> Plan:
    """The built-in plan, or that of a file. Raises PlanError."""
    if config.plan_file:
        from rap_training.plan.files import load

        return load(Path(config.plan_file))
    return builtin(config.plan, scale=config.scale)


def place_plan(plan: Plan, config: Config) -> Placement:
    """The tables of a plan on the ranks, the same in every process.

    Raises PlacementError for tables that do not fit into `config.memory`, where it is known.
    """
    sizes = [4 * BOTTOM[-1] * output.rows for output in plan.sparse]
    room = table_room(config.memory) if config.memory else None
    return place_tables(sizes, config.gpus, limit=room)


def raw_batches(plan: Plan, config: Config, *, first: int = 0) -> list[RawBatch]:
    """Batches of all ranks' rows: generated, or read from the parquet file `config.data`.

    The first `first` are left out, and fewer are returned where a file has no more. Raises
    DataError for a file that does not fit the plan, or has too few rows together.
    """
    rows = config.batch * config.gpus
    if not config.data:
        made = batches(plan, rows=rows, seed=config.seed, count=config.batches, first=first)
        return list(made)
    from rap_training.data.parquet import read

    found: list[RawBatch] = []
    largest = 0
    for group in read(Path(config.data), plan.columns):
        largest = max(largest, group.row_count)
        for start in range(0, group.row_count - rows + 1, rows):
            found.append(group.rows(start, start + rows))
            if len(found) == first + config.batches:
                return found[first:]
    if not found:
        raise DataError(
            f"{config.data} has row groups of {largest} rows, a batch of all ranks takes {rows}; "
            f"fix: write it with row groups of at least {rows}"
        )
    return found[first:]

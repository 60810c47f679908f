"""The plan and the batches that a configuration names."""

from __future__ import annotations

from pathlib import Path

from rap_training.config import Config
from rap_training.data.columns import RawBatch
from rap_training.data.generate import batches
from rap_training.plan.builtin import builtin
from rap_training.plan.graph import Plan


def load_plan(config: Config) -> Plan:
    """The built-in plan, or that of a file. Raises PlanError."""
    if config.plan_file:
        from rap_training.plan.files import load

        return load(Path(config.plan_file))
    return builtin(config.plan, scale=config.scale)


def raw_batches(plan: Plan, config: Config) -> list[RawBatch]:
    """Batches of all ranks' rows: generated, or read from the parquet file `config.data`."""
    rows = config.batch * config.gpus
    if config.data:
        from rap_training.data.parquet import read

        return list(read(Path(config.data), plan, rows=rows, count=config.batches))
    return list(batches(plan, rows=rows, seed=config.seed, count=config.batches))

"""The command line: `python -m valueexpert EXPERIMENT --flags` (exit codes: reprokit.command)."""

from __future__ import annotations

from dataclasses import dataclass

from reprokit.command import Program
from reprokit.options import Options, option

from valueexpert.catalog import MINIS, VARIANTS
from valueexpert.operators import OPERATORS

EXPERIMENTS = (
    "mechanism", "gains", "slowdown", "slowdown_full", "slowdown_training", "operators", "programs",
    "sharing",
)  # fmt: skip
SIZES = ("full", "quick")


@dataclass(frozen=True, kw_only=True)
class Config(Options):
    """One command line."""

    experiment: str = option(choices=EXPERIMENTS)
    device: str = option("cpu", choices=("cpu", "cuda"))
    minis: tuple[str, ...] = option(tuple(MINIS), "comma separated", choices=tuple(MINIS))
    variants: tuple[str, ...] = option(
        VARIANTS, "of those that a mini has, comma separated", choices=VARIANTS
    )
    operators: tuple[str, ...] = option(
        tuple(OPERATORS), "of PyTorch, comma separated", choices=tuple(OPERATORS)
    )
    size: str = option("full", "of the data on a GPU", choices=SIZES)
    repeats: int = option(5, "processes of every variant, in turns", least=1)
    samples: int = option(20, "runs of a process, after one that is dropped", least=1)
    out: str = option("", "folder for the records (default: $AE_OUT)")


PROGRAM = Program(
    package="valueexpert",
    about="Mini-benchmarks of value redundancy, and what a value profiler finds in them.",
    config=Config,
    packages=("numpy",),
)

"""The command line: `python -m autotm EXPERIMENT ...`; see `reprokit.command`."""

from __future__ import annotations

from reprokit.command import Program

from autotm.config import Config

_PROGRAM = Program(
    package="autotm",
    about="Tensors that stay, leave or are made again: plans and simulations.",
    config=Config,
    packages=("highspy", "numpy", "torch"),
)
parse = _PROGRAM.parse
main = _PROGRAM.main

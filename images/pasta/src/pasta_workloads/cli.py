"""The command line: `python -m pasta_workloads EXPERIMENT ...`; see `reprokit.command`."""

from __future__ import annotations

from reprokit.command import Program

from pasta_workloads.config import PROGRAMS, Config
from pasta_workloads.pinned import pin_environment, pin_torch

_PROGRAM = Program(
    package="pasta_workloads",
    about="The workloads of PASTA, measured.",
    config=Config,
    packages=("torch", "triton", "numpy", "cuda-bindings", "nvidia-cuda-sanitizer-api"),
    prepare=lambda _: pin_environment(),  # before anything can start CUDA
    facts=lambda _: pin_torch(),
    bare=PROGRAMS,
    scratch=("traces", "ranks"),
)
parse = _PROGRAM.parse
main = _PROGRAM.main

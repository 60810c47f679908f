"""The command line: `python -m rap_training EXPERIMENT ...`; see `reprokit.command`."""

from __future__ import annotations

from reprokit.command import Program

from rap_training.config import Config

_PROGRAM = Program(
    package="rap_training",
    about="Preprocessing that shares the GPU with training.",
    config=Config,
    packages=(
        "torch", "triton", "numpy", "scikit-learn", "highspy", "pyarrow", "torchrec", "fbgemm-gpu",
    ),
)  # fmt: skip
parse = _PROGRAM.parse
main = _PROGRAM.main

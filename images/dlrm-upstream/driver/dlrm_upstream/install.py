"""Lays a folder for each design over one installed PyTorch.

A design differs from the installed PyTorch in one library. Its folder holds links to everything but
that one; libraries find each other from the place they were named at ($ORIGIN), so a process that
imports `torch` from the folder gets the design's libtorch_cuda.so and shares the rest.

Runs while the image is built, as `python -m dlrm_upstream.install TORCH DESIGNS`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dlrm_upstream.build import LIBRARY


def lay_over(torch: Path, design: Path, library: str = LIBRARY) -> Path:
    """Make `design/site/torch` out of links; `design/<library>` replaces the installed one.

    Returns the folder for PYTHONPATH. Raises ValueError when `torch` holds no such library.
    """
    if not (torch / "lib" / library).is_file():
        raise ValueError(f"{torch} holds no lib/{library}")
    site = design / "site"
    lib = site / torch.name / "lib"
    lib.mkdir(parents=True)
    for entry in torch.iterdir():
        if entry.name not in ("lib", "__pycache__"):
            (site / torch.name / entry.name).symlink_to(entry)
    own = design / library
    for entry in (torch / "lib").iterdir():
        replaced = entry.name == library and own.is_file()
        (lib / entry.name).symlink_to(own if replaced else entry)
    return site


def main() -> int:
    """Lay a folder for every design below DESIGNS."""
    torch, designs = map(Path, sys.argv[1:3])
    for design in sorted(designs.iterdir()):
        print(lay_over(torch.resolve(), design.resolve()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

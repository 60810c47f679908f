"""The figures of the DLRM recipe: from the record table to matplotlib figures.

Times are microseconds for one table and one batch. Each figure stands in the module of its kind
beside this one.
"""

from __future__ import annotations

from pathlib import Path

from ae.recipe.code import load_code

_speedups, _kernels, _cells = (
    load_code(Path(__file__).parent, name) for name in ("speedups", "kernels", "cells")
)

speedup, endtoend, upstream = _speedups.speedup, _speedups.endtoend, _speedups.upstream
bandwidth, sweep = _kernels.bandwidth, _kernels.sweep
pin, occupancy = _kernels.pin, _kernels.occupancy
grid = _cells.grid

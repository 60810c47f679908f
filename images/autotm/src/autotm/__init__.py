"""Tensors that stay, leave or are made again: AutoTM (ASPLOS 2020) and ours."""

from __future__ import annotations

from typing import Any

__all__ = ["fit"]


def __getattr__(name: str) -> Any:
    """`autotm.fit`, found late: planners and simulations run without PyTorch."""
    if name != "fit":
        raise AttributeError(name)
    from autotm.fitting import fit

    return fit

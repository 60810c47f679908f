"""Kernels that give the same bits each time, in full float32: set once, before any is run."""

from __future__ import annotations

import os

import torch
import torch.utils.deterministic


def exactly() -> None:
    """No TF32; deterministic kernels, where there is one: elsewhere PyTorch warns."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # no plain step does that

"""What is pinned before CUDA starts, so that kernels and working sets are the paper's kind.

cuDNN off (convolutions are im2col and GEMM), TF32 off, and cuBLAS' workspace at 8.125 MiB, the
value of the paper's GPUs (docs/papers/pasta.md, 2, 6.1; Hopper's own would be 32 MiB). cublasLt
gets 1 MiB of its own, the default of the PyTorch of the paper.
"""

from __future__ import annotations

import os
from typing import Any

ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0",
    "CUBLASLT_WORKSPACE_SIZE": "1024",  # KiB
}
WORKSPACE_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
LT_WORKSPACE_BYTES = 1024 * 1024


def pin_environment() -> None:
    """Set the variables; they count only when CUDA has not started yet."""
    os.environ.update(ENVIRONMENT)


def pin_torch() -> dict[str, Any]:
    """Set PyTorch's switches and return all that is pinned, for environment.json."""
    import torch

    pin_environment()
    torch.backends.cudnn.enabled = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    return {
        "cudnn_enabled": torch.backends.cudnn.enabled,
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        **{name.lower(): value for name, value in ENVIRONMENT.items()},
    }

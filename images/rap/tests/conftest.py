"""Kernels run in Triton's interpreter where there is no GPU; it must be on before they load."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

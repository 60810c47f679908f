"""What cuBLAS may choose, as named assumptions, and the kernels that follow from them.

Shapes alone do not say whether a GEMM splits its inner dimension (a second kernel that adds up the
parts, which lie in the workspace) or touches the workspace otherwise. `plain` assumes that none
does, `all` that every GEMM touches the workspace, `paper` what the paper's own numbers tell:

- launches: 128 more than one a GEMM for AlexNet and ResNet-18, 192 for ResNet-34, and one for the
  last linear layer: the GEMMs with the most inner length per output element are split, where a
  part fits into the workspace (AlexNet's smallest, 1.01 MiB, is cublasLt's and a 128x10 output);
- ResNet-18's 90th percentile, 172.27 MiB, is a GEMM with 64 rows and the workspace.

The paper has no row in bf16: of those `plain` is the calculated value (`usual`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pasta_workloads.config import BF16
from pasta_workloads.oracle.kernels import OUTPUT, Kernel
from pasta_workloads.pinned import LT_WORKSPACE_BYTES, WORKSPACE_BYTES

ASSUMPTIONS = ("plain", "paper", "all")
# Between the GEMMs of the paper's models that are split (0.0140 and more) and those that are not
# (0.0094 and less).
SPLIT_DEPTH = 0.012
NARROW_ROWS = 64


def usual(mode: str) -> str:
    """The assumption behind the calculated value of a mode; the others give its range."""
    return "plain" if mode.endswith(BF16) else "paper"


def launches(kernels: Iterable[Kernel], assumption: str) -> list[Kernel]:
    """The launches under one of ASSUMPTIONS. Raises ValueError for another word."""
    if assumption not in ASSUMPTIONS:
        raise ValueError(f"assumption '{assumption}' is unknown; one of {', '.join(ASSUMPTIONS)}")
    found: list[Kernel] = []
    for kernel in kernels:
        found += _chosen(kernel, assumption)
    return found


def without_asynchronous_reads(kernels: Iterable[Kernel]) -> list[Kernel]:
    """What a tool sees that patches global accesses and no asynchronous copies, as the paper's.

    The fused attention kernel reads its operands by `cp.async`: of it only the results are seen.
    """
    return [
        replace(kernel, blocks={OUTPUT: kernel.output}) if kernel.name == "attention" else kernel
        for kernel in kernels
    ]


def _chosen(kernel: Kernel, assumption: str) -> Iterator[Kernel]:
    gemm = kernel.gemm
    if gemm is None or assumption == "plain":
        yield kernel
        return
    workspace = LT_WORKSPACE_BYTES if gemm.light else WORKSPACE_BYTES
    if assumption == "all":
        yield kernel.with_extra(workspace)
        return
    split = gemm.depth >= SPLIT_DEPTH and gemm.batch == 1 and gemm.bytes <= workspace
    touches = split or (gemm.rows == NARROW_ROWS and not gemm.light)
    yield kernel.with_extra(workspace) if touches else kernel
    if split:
        yield Kernel(
            name="splitKreduce", operator=kernel.operator, blocks={OUTPUT: kernel.output},
            extra=workspace, bound=kernel.bound,
        )  # fmt: skip

"""Optimiser kernels over lists of tensors: how PyTorch packs tensors into launches.

`multi_tensor_apply` cuts tensors into chunks of 65,536 elements. A launch takes at most 320 chunks,
and by the number of lists at most 110, 64, 48, 36 or 30 tensors. Source: ATen's MultiTensorApply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from pasta_workloads.oracle.kernels import Kernel, blocks_of

CHUNK = 65536
CHUNKS = 320
TENSORS = (110, 64, 48, 36, 30)


def foreach(name: str, lists: Sequence[Sequence[Tensor]]) -> Iterator[Kernel]:
    """Kernels of one foreach operator. `lists[d][i]` is operand d of tensor i."""
    limit = TENSORS[len(lists) - 1]
    taken: list[int] = []
    chunks = 0
    for index, tensor in enumerate(lists[0]):
        if not tensor.numel():
            continue
        taken.append(index)
        left = -(-tensor.numel() // CHUNK)
        while left:
            now = min(left, CHUNKS - chunks)
            chunks += now
            left -= now
            full = chunks == CHUNKS
            if full or (not left and len(taken) == limit):
                yield _launch(name, lists, taken)
                chunks = 0
                taken = [index] if left else []
    if chunks:
        yield _launch(name, lists, taken)


def _launch(name: str, lists: Sequence[Sequence[Tensor]], taken: Sequence[int]) -> Kernel:
    touched = [operand[index] for operand in lists for index in taken]
    return Kernel(name="multi_tensor_apply", operator=name, blocks=blocks_of(touched))

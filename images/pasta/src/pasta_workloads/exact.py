"""Kernels whose accesses are known by construction, for the exact test of the collector's counters.

Compiled by NVRTC when the program runs, so that nothing but the kernel's own code is counted. Every
thread i below `n` does what its line says; an access counts once for each thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from reprokit.skip import cannot_run

BLOCK = 256
STRIDE = 17
SUMS = 64

SOURCE = r"""
#define INDEX int i = blockIdx.x * blockDim.x + threadIdx.x

// two reads, one write
extern "C" __global__ void pasta_add(const float* a, const float* b, float* c, int n) {
  INDEX;
  if (i < n) c[i] = a[i] + b[i];
}
// one read far from the neighbour's, one write
extern "C" __global__ void pasta_strided(const float* a, const float*, float* c, int n) {
  INDEX;
  if (i < n) c[i] = 2.0f * a[i * 17LL];
}
// one read, one atomic addition
extern "C" __global__ void pasta_atomic(const float* a, const float*, float* c, int n) {
  INDEX;
  if (i < n) atomicAdd(&c[i % 64], a[i]);
}
// one read, one write; all threads of a block write shared memory, those below n read it
extern "C" __global__ void pasta_shared(const float* a, const float*, float* c, int n) {
  __shared__ float tile[256];
  INDEX;
  int t = threadIdx.x;
  tile[t] = i < n ? a[i] : 0.0f;
  __syncthreads();
  if (i < n) c[i] = tile[255 - t];
}
// one read, one write, four local writes, one local read; the index keeps it out of registers
extern "C" __global__ void pasta_local(const float* a, const float*, float* c, int n) {
  INDEX;
  if (i < n) {
    volatile float kept[16];
    float x = a[i];
    for (int k = 0; k < 4; ++k) kept[(i + 5 * k) & 15] = (k + 1) * x;
    c[i] = kept[(i + 5 * (i & 3)) & 15];
  }
}
// sixteen bytes copied to shared memory without a register, one shared read, one write
extern "C" __global__ void pasta_async(const float* a, const float*, float* c, int n) {
  __shared__ float4 tile[256];
  INDEX;
  int t = threadIdx.x;
  if (i < n) {
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[t]);
    unsigned long long from = (unsigned long long)__cvta_generic_to_global(a + 4LL * i);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  if (i < n) c[i] = tile[t].x;
}
"""


@dataclass(frozen=True)
class Known:
    """A kernel and what `n` threads of it do, by the names of the collector's counters."""

    kernel: str
    counts: Callable[[int], dict[str, int]]


def _whole_blocks(n: int) -> int:
    return -(-n // BLOCK) * BLOCK


KNOWN = (
    Known("pasta_add", lambda n: {
        "global_reads": 2 * n, "global_writes": n, "global_bytes_read": 8 * n,
        "global_bytes_written": 4 * n, "global_atomics": 0, "outside": 0,
    }),
    Known("pasta_strided", lambda n: {
        "global_reads": n, "global_writes": n, "global_bytes_read": 4 * n,
        "global_bytes_written": 4 * n, "outside": 0,
    }),
    Known("pasta_atomic", lambda n: {
        "global_reads": n, "global_writes": 0, "global_atomics": n, "outside": 0,
    }),
    Known("pasta_shared", lambda n: {
        "global_reads": n, "global_writes": n, "shared_reads": n,
        "shared_writes": _whole_blocks(n), "outside": 0,
    }),
    Known("pasta_local", lambda n: {
        "global_reads": n, "global_writes": n, "local_reads": n, "local_writes": 4 * n,
    }),
    Known("pasta_async", lambda n: {
        "global_reads": 0, "global_writes": n, "async_copies": n, "async_bytes": 16 * n,
        "shared_reads": n,
    }),
)  # fmt: skip


def run_kernels(n: int) -> None:
    """Launch each kernel once with `n` threads that work, and check what it computed.

    Raises AssertionError for a wrong result; leaves with 77 where NVRTC cannot be had.
    """
    compile_kernel: Any = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None:
        cannot_run(f"PyTorch {torch.__version__} cannot compile kernels at run time; 2.9 can")
    if torch.cuda.get_device_capability() < (8, 0):
        cannot_run("cp.async needs a GPU of compute capability 8.0 or newer")
    _need_no_toolkit()
    a = torch.arange(n * STRIDE, device="cuda", dtype=torch.float32) % 1024
    b = torch.ones(n, device="cuda")
    expected = {
        "pasta_add": a[:n] + b,
        "pasta_strided": 2 * a[::STRIDE],
        "pasta_atomic": _sums(a[:n]),
        "pasta_shared": _mirrored(a[:n]),
        "pasta_local": a[:n] * (torch.arange(n, device="cuda") % 4 + 1),
        "pasta_async": a[: 4 * n : 4],
    }
    for known in KNOWN:
        out = torch.zeros(n, device="cuda")
        kernel = compile_kernel(SOURCE, known.kernel)
        kernel(grid=(-(-n // BLOCK), 1, 1), block=(BLOCK, 1, 1), args=[a, b, out, n])
        wanted = expected[known.kernel]
        torch.testing.assert_close(out[: wanted.numel()], wanted)
    torch.cuda.synchronize()


def _need_no_toolkit() -> None:
    """Let PyTorch compile where wheels alone bring CUDA: it wants a toolkit's headers by default.

    The kernels include none, so that any folder does.
    """
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None:
        cpp_extension.CUDA_HOME = str(Path(__file__).parent)


def _sums(a: torch.Tensor) -> torch.Tensor:
    places = torch.arange(a.numel(), device=a.device) % SUMS
    return torch.zeros(SUMS, device=a.device).index_add_(0, places, a)


def _mirrored(a: torch.Tensor) -> torch.Tensor:
    """Each block of the input backwards; the last one is filled up with zeros."""
    whole = torch.zeros(_whole_blocks(a.numel()), device=a.device)
    whole[: a.numel()] = a
    return whole.view(-1, BLOCK).flip(1).reshape(-1)[: a.numel()]

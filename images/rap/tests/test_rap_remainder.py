"""The remainder that kernels take without a division equals Python's, at every edge."""

from __future__ import annotations

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

import triton.language as tl  # noqa: E402
from rap_training.kernels import device  # noqa: E402
from rap_training.kernels.tables import inverse  # noqa: E402

LEAST, MOST = -(2**63), 2**63 - 1
MODULI = [
    1, 2, 3, 7, 10131227, 2**31 - 1, 2**31, 2**31 + 1, 2**32, 2**32 + 1, 2**62 - 1, 2**62 + 1,
    MOST - 1, MOST,
]  # fmt: skip


@triton.jit
def remainders(x, words, y, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    rest = device.remainder(tl.load(x + at), tl.load(words), tl.load(words + 1))
    tl.store(y + at, rest)


@pytest.mark.parametrize("modulus", MODULI)
@pytest.mark.parametrize(
    "on",
    [
        pytest.param("cpu", id="interpreter"),
        pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
    ],
)
def test_it_is_pythons(on: str, modulus: int) -> None:
    near = [a * modulus + b for a in (-3, -2, -1, 0, 1, 2, 3) for b in (-1, 0, 1)]
    last = [MOST // modulus * modulus + b for b in (-1, 0, 1)]
    edges = {*near, *last, *(-n for n in last), LEAST, LEAST + 1, MOST}
    edges = {n for n in edges if LEAST <= n <= MOST}
    drawn = np.random.default_rng(modulus).integers(LEAST, MOST, 256 - len(edges), endpoint=True)
    numbers = [*sorted(edges), *drawn.tolist()]
    x = torch.tensor(numbers, dtype=torch.int64, device=on)
    words = torch.tensor([modulus, inverse(modulus)], dtype=torch.int64, device=on)
    y = torch.full_like(x, -1)
    remainders[(1,)](x, words, y, COUNT=len(numbers))
    assert y.tolist() == [number % modulus for number in numbers]

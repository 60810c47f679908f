"""The Triton backend: fused kernels bound to fixed memory, launched with as little as can be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import triton.language as tl

from rap_training.kernels import horizontal, vertical
from rap_training.kernels.tables import BLOCK, Constants, block_table, member_row
from rap_training.launches import Call, Launch
from rap_training.memory import Buffers

_TYPES = {"float32": tl.float32, "int64": tl.int64}
_GATHERS = frozenset({"first_x", "ngram", "one_hot"})


class TritonBackend:
    """Binds launches to Triton kernels. On a CPU it needs Triton's interpreter (tests)."""

    def __init__(self, device: torch.device, generated: Path | None = None) -> None:
        """`generated`: where sources of chain kernels are written; a temporary folder if None."""
        self.device = device
        self.constants = Constants(device)
        self.generated = generated

    def bind(self, launch: Launch, buffers: Buffers, slot: int) -> Call:
        """See Backend."""
        rows = [member_row(member, buffers, slot, self.constants) for member in launch.members]
        words = torch.tensor([row for row, _ in rows], dtype=torch.int64).to(self.device)
        floats = torch.tensor([row for _, row in rows], dtype=torch.float32).to(self.device)
        sizes = [member.rows * member.gives.width for member in launch.members]
        blocks = block_table(sizes, self.device)
        first = launch.members[0]
        op, taken = first.node.op, _TYPES[first.takes.dtype]
        if op in _GATHERS:
            return self._prepared(
                horizontal.gather, len(blocks), (blocks, words, floats),
                {"OP": op, "TYPE": taken, "BLOCK": BLOCK},
            )  # fmt: skip
        return self._prepared(
            horizontal.elementwise, len(blocks), (blocks, words, floats),
            {"OP": op, "TYPE": taken, "RESULT": _TYPES[first.gives.dtype], "BLOCK": BLOCK},
        )  # fmt: skip

    def bind_chains(self, outputs: Sequence[str], buffers: Buffers, slot: int) -> Sequence[Call]:
        """See Backend: a launch for every few sorts of chains, usually one in all."""
        calls = []
        for part in vertical.kernels(buffers, slot, outputs, self.constants, self.generated):
            calls.append(
                self._prepared(
                    part.function,
                    len(part.blocks),
                    part.arguments,
                    part.constants,
                    warps=vertical.WARPS,
                )
            )
        return calls

    def _prepared(
        self, function: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any],
        *, warps: int = 4,
    ) -> Call:  # fmt: skip
        call = prepared(function, programs, arguments, constants, warps=warps)
        # Borders and maps stand in the tables as addresses; the call keeps them.
        return lambda _kept=self.constants: call()  # type: ignore[misc]


def prepared(
    function: Any, programs: int, arguments: tuple[torch.Tensor, ...], constants: dict[str, Any],
    *, warps: int = 4,
) -> Call:  # fmt: skip
    """A launch with everything that Triton works out per launch done once: `programs` programs of
    `warps` warps.

    The tensors are kept alive by the call. Products and sums are rounded one by one, never fused:
    else `exact`'s bits would not be the CPU's.
    """
    if not hasattr(function, "device_caches"):  # Triton's interpreter compiles nothing
        return lambda: function[(programs,)](*arguments, **constants)
    compiled = function.warmup(
        *arguments, **constants, grid=(programs,), num_warps=warps, enable_fp_fusion=False
    )
    run = compiled[(programs, 1, 1)]
    given = (*arguments, *constants.values())
    return lambda: run(*given)

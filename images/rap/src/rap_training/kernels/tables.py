"""The tables that the fused kernels read: addresses, sizes and parameters of every member."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rap_training import exact
from rap_training.kernels.horizontal import COLUMNS
from rap_training.memory import Buffers
from rap_training.plan.graph import Node, PlanError
from rap_training.plan.operators import constant
from rap_training.reference import map_table, salt_hash
from rap_training.work import Instance

BLOCK = 512
_LARGEST = 2**31 - 1


@dataclass
class Constants:
    """Arrays that parameters name, on the device once: borders of bucketize, maps of map_id."""

    device: torch.device
    arrays: dict[object, torch.Tensor] = field(default_factory=dict)

    def borders(self, values: tuple[float, ...]) -> torch.Tensor:
        """float32 [borders]."""
        return self._keep(("borders", values), lambda: np.asarray(values, np.float32))

    def map(self, size: int, seed: int) -> torch.Tensor:
        """int64 [size]."""
        return self._keep(("map", size, seed), lambda: map_table(size, seed))

    def logarithms(self) -> torch.Tensor:
        """float64 [48]: what boxcox looks up."""
        return self._keep("logarithms", lambda: exact.TABLE)

    def _keep(self, key: object, make: Callable[[], np.ndarray]) -> torch.Tensor:
        if key not in self.arrays:
            self.arrays[key] = torch.from_numpy(np.array(make())).to(self.device)
        return self.arrays[key]


def parameters(  # noqa: PLR0911 - one return for every sort of operator
    node: Node, dtype: str, constants: Constants
) -> tuple[list[int], list[float]]:
    """Up to three whole numbers and two floats that a node's kernel takes, in its order."""
    given = dict(node.parameters)
    if node.op in ("fill_null", "clamp"):
        names = ["value"] if node.op == "fill_null" else ["lo", "hi"]
        values = [constant(dtype, float(given[name])) for name in names]  # type: ignore[arg-type]
        whole = [int(value) for value in values] if dtype == "int64" else []
        return whole, [] if dtype == "int64" else values
    if node.op == "sigrid_hash":
        salt, modulus = salt_hash(int(given["salt"])), int(given["modulus"])  # type: ignore[call-overload]
        return [_signed(salt), modulus, inverse(modulus)], []
    if node.op == "bucketize":
        borders = constants.borders(tuple(given["borders"]))  # type: ignore[arg-type]
        return [borders.data_ptr(), len(borders)], []
    if node.op == "map_id":
        table = constants.map(int(given["size"]), int(given["seed"]))  # type: ignore[call-overload]
        return [table.data_ptr(), len(table)], []
    if node.op == "one_hot":
        lo, hi, k = float(given["lo"]), float(given["hi"]), int(given["k"])  # type: ignore[arg-type, call-overload]
        return [k], [lo, one_hot_step(lo, hi, k)]
    if node.op in ("first_x", "ngram"):
        return [int(given["x" if node.op == "first_x" else "n"])], []  # type: ignore[call-overload]
    if node.op == "logit":
        eps = float(given["eps"])  # type: ignore[arg-type]
        return [], [eps, 1.0 - eps]
    if node.op == "boxcox":
        lam = constant("float32", float(given["lam"]))  # type: ignore[arg-type]
        (per_lam,) = struct.unpack("<q", struct.pack("<d", 1.0 / (lam or 1.0)))
        return [constants.logarithms().data_ptr(), per_lam], [lam]
    return [], []


def inverse(modulus: int) -> int:
    """2^64 over a modulus, rounded down (for 1: less 1), as int64: for `device.remainder`."""
    return _signed(min(2**64 // modulus, 2**64 - 1))


def one_hot_step(lo: float, hi: float, k: int) -> float:
    """Width of a bin, rounded to float32 once, as in the reference."""
    return float(np.float32((hi - lo) / k))


def block_table(sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    """int32 [programs, 2]: member and block of every program, for members of `sizes` elements."""
    counts = [-(-size // BLOCK) for size in sizes]
    if sizes and max(sizes) > _LARGEST:
        raise PlanError(
            f"an operator gives {max(sizes)} elements, kernels count to {_LARGEST}; "
            "fix: a smaller batch"
        )
    table = np.empty((sum(counts), 2), np.int32)
    table[:, 0] = np.repeat(np.arange(len(sizes)), counts)
    table[:, 1] = np.concatenate([np.arange(count) for count in counts])
    return torch.from_numpy(table).to(device)


def member_row(
    instance: Instance, buffers: Buffers, slot: int, constants: Constants
) -> tuple[list[int], list[float]]:
    """A member's row of `words`, int64 [COLUMNS], and of `floats`, float32 [4]."""
    source, in_lengths = buffers.value(slot, instance.input)
    target, out_lengths = buffers.value(slot, instance.key)
    own = out_lengths is not None and (in_lengths is None or not same(in_lengths, out_lengths))
    raw = instance.takes.nullable
    whole, floats = parameters(instance.node, instance.takes.dtype, constants)
    row = [
        source.data_ptr(),
        in_lengths.data_ptr() if in_lengths is not None else 0,
        buffers.valid(slot, instance.input).data_ptr() if raw else 0,
        target.data_ptr(),
        out_lengths.data_ptr() if own and out_lengths is not None else 0,
        instance.rows,
        instance.takes.width,
        instance.gives.width,
    ]
    row += whole + [0] * (COLUMNS - len(row) - len(whole))
    return row, floats + [0.0] * (4 - len(floats))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors begin at the same address."""
    return one.data_ptr() == other.data_ptr()


def _signed(value: int) -> int:
    return struct.unpack("<q", struct.pack("<Q", value))[0]

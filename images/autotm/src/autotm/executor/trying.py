"""Operators tried by themselves, on made-up operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from math import prod
from typing import Any, TypeVar

import torch

from autotm.executor.calls import Call, View
from autotm.executor.errors import CaptureError

Found = TypeVar("Found")


def tried(
    run: Callable[..., Found], call: Call, device: torch.device, hosted: Set[int],
    outs: Sequence[View | None] = (),
) -> Found:  # fmt: skip
    """What `run(args, kwargs, outs)` gives on made-up operands; of ones, where an operator looks at
    them and refuses others (a divisor). Raises CaptureError where it refuses these as well.
    """
    for ones in (False, True):
        made: dict[int, torch.Tensor] = {}
        every = (call.args, call.kwargs, list(outs))
        try:
            return run(*(operands(each, device, made, hosted, ones) for each in every))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if ones:
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise CaptureError(
                    f"{call.target} fails on made-up operands ({why}): mend their types, or, where "
                    "it looks at their values, take it out of the module"
                ) from error
    raise AssertionError


def operands(
    value: Any, device: torch.device, made: dict[int, torch.Tensor], hosted: Set[int],
    ones: bool = False,
) -> Any:  # fmt: skip
    """Operands with numbers in them: zeros where they are indices, else random ones in [0, 1), as
    probabilities are. ones: all are 1.
    """
    if isinstance(value, View):
        last = sum((size - 1) * step for size, step in zip(value.size, value.stride, strict=True))
        count = value.offset + last + 1 if prod(value.size) else 0
        old = made.get(value.tensor)
        if old is None or old.numel() < count or old.dtype != value.dtype:
            where = torch.device("cpu") if value.tensor in hosted else device
            old = torch.zeros(count, dtype=value.dtype, device=where)
            if ones:
                old.fill_(1)
            elif value.dtype.is_floating_point:
                old.uniform_()
            made[value.tensor] = old
        return torch.as_strided(old, value.size, value.stride, value.offset)
    if isinstance(value, dict):
        return {name: operands(each, device, made, hosted, ones) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(operands(each, device, made, hosted, ones) for each in value)
    return value


def unchanged_random(device: torch.device) -> Any:
    """Within, random numbers may be drawn; afterwards they go on as if none had been."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def generator_of(device: torch.device) -> torch.Generator:
    """PyTorch's own random numbers on a device."""
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]
    return torch.default_generator

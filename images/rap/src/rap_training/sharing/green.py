"""A stream of a green context: a part of the GPU's SMs within this process (docs/papers/rap.md, 7).

PyTorch 2.11 makes green contexts and no streams of theirs yet, so the driver is asked directly.
"""

from __future__ import annotations

from typing import Any

import torch


class GreenError(RuntimeError):
    """Green contexts cannot be had here, in one sentence."""


def green_stream(device: torch.device, sms: int) -> tuple[torch.cuda.Stream, int]:
    """A stream that runs on at least `sms` SMs of its own choice, and how many they are.

    Raises GreenError where driver or packages lack them.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise GreenError("green contexts need the Python package cuda-bindings") from error
    torch.cuda.init()

    def ask(function: Any, *arguments: Any) -> Any:
        status, *rest = function(*arguments)
        if int(status) != 0:
            raise GreenError(f"the driver refuses a green context: {status.name}")
        return rest[0] if len(rest) == 1 else rest

    handle = ask(driver.cuDeviceGet, device.index or 0)
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = ask(driver.cuDeviceGetDevResource, handle, kind)
    groups, _, _ = ask(driver.cuDevSmResourceSplitByCount, 1, whole, 0, sms)
    part = groups[0]
    described = ask(driver.cuDevResourceGenerateDesc, [part], 1)
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    context = ask(driver.cuGreenCtxCreate, described, handle, flags)
    non_blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    stream = ask(driver.cuGreenCtxStreamCreate, context, non_blocking, 0)
    return torch.cuda.ExternalStream(int(stream), device=device), int(part.sm.smCount)

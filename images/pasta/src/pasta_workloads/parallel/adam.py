"""Adam with fp32 copies of the weights, their moments, and a static loss scale for fp16."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

HALF_SCALE = 4096.0


class MasterAdam:
    """Adam on fp32 copies: 12 bytes a parameter beside the weights where these are fp16.

    Where weights are fp32 they are the copies. Gradients are those of a loss times `scale`.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, half: bool) -> None:
        self.parameters = list(parameters)
        self.scale = HALF_SCALE if half else 1.0
        self.masters: list[Tensor] = [
            p.detach().float() if half else p.detach() for p in self.parameters
        ]
        self._adam = torch.optim.Adam(
            [nn.Parameter(master) for master in self.masters], lr=rate, foreach=False
        )

    @torch.no_grad()
    def step(self) -> None:
        """One update, and gradients are dropped."""
        copies = self._adam.param_groups[0]["params"]
        for parameter, copy in zip(self.parameters, copies, strict=True):
            if parameter.grad is not None:
                copy.grad = parameter.grad.float() / self.scale
        self._adam.step()
        for parameter, copy in zip(self.parameters, copies, strict=True):
            if parameter.data_ptr() != copy.data_ptr():
                parameter.copy_(copy)
            copy.grad = parameter.grad = None

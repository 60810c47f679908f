"""Adam with fp32 copies of the weights, their moments, and a static loss scale for fp16."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

HALF_SCALE = 4096.0
DECAYS = (0.9, 0.999)
EPSILON = 1e-8


class MasterAdam:
    """Adam on fp32 copies: 12 bytes a parameter beside the weights where these are fp16.

    Where weights are fp32 they are the copies. Gradients are those of a loss times `scale`.
    Moments are made at the first step, as PyTorch's Adam does.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, half: bool) -> None:
        self.parameters = list(parameters)
        self.rate, self.half = rate, half
        self.scale = HALF_SCALE if half else 1.0
        self.masters: list[Tensor] = [
            p.detach().float() if half else p.detach() for p in self.parameters
        ]
        self._moments: dict[int, tuple[Tensor, Tensor]] = {}
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """One update of every weight that has a gradient, and gradients are dropped."""
        self._steps += 1
        for index, (parameter, master) in enumerate(
            zip(self.parameters, self.masters, strict=True)
        ):
            if parameter.grad is None:
                continue
            gradient = parameter.grad.float() / self.scale
            self._update(index, master, gradient)
            if self.half:
                parameter.copy_(master)
            parameter.grad = None

    def _update(self, index: int, master: Tensor, gradient: Tensor) -> None:
        if index not in self._moments:
            self._moments[index] = (torch.zeros_like(master), torch.zeros_like(master))
        mean, square = self._moments[index]
        mean.lerp_(gradient, 1 - DECAYS[0])
        square.mul_(DECAYS[1]).addcmul_(gradient, gradient, value=1 - DECAYS[1])
        step = self.rate / (1 - DECAYS[0] ** self._steps)
        spread = square.sqrt().div_(math.sqrt(1 - DECAYS[1] ** self._steps)).add_(EPSILON)
        master.addcdiv_(mean, spread, value=-step)

"""Tensors that do not lie row by row, and modules with two names: the numbers of eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import autotm
import autotm_plans
import pytest
import torch
from torch import nn
from torch.nn import functional as F

IMAGE, TEXT = (2, 6, 8, 8), (2, 5, 12)
OF_IMAGES: dict[str, Callable[[], nn.Module]] = {
    "batch_norm": lambda: nn.BatchNorm2d(6),
    "group_norm": lambda: nn.GroupNorm(2, 6),
    "convolution": lambda: nn.Conv2d(6, 8, 3, padding=1, stride=2),
    "transposed": lambda: nn.ConvTranspose2d(6, 4, 3, stride=2),
    "max_pool": lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "average_pool": lambda: nn.AdaptiveAvgPool2d(3),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "pixel_shuffle": lambda: nn.Sequential(nn.Conv2d(6, 8, 1), nn.PixelShuffle(2)),
    "unfold": lambda: nn.Unfold(3),
    "reflection_pad": lambda: nn.ReflectionPad2d(1),
    "replication_pad": lambda: nn.ReplicationPad2d(2),
    "circular_pad": lambda: nn.CircularPad2d(1),
    "log_sigmoid": nn.LogSigmoid,
    "prelu": lambda: nn.PReLU(6),
    "glu": lambda: nn.GLU(1),
    "local_norm": lambda: nn.LocalResponseNorm(3),
    "flattened": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)),
    "flattened_whole": lambda: nn.Sequential(nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(144, 3)),
}
OF_TEXTS: dict[str, Callable[[], nn.Module]] = {
    "batch_norm_1d": lambda: nn.BatchNorm1d(5),
    "layer_norm": lambda: nn.LayerNorm(12),
    "convolution_1d": lambda: nn.Conv1d(5, 4, 3),
    "encoder": lambda: nn.TransformerEncoderLayer(12, 3, 24, 0.0, batch_first=True),
    "softmax": lambda: nn.Softmax(-1),
}
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cumsum": lambda h: h.cumsum(1),
    "sort": lambda h: h.sort(-1)[0],
    "product": lambda h: h @ h.mT,
    "strided": lambda h: h.as_strided((4, 6), (6, 1), 3),
    "in_place": lambda h: h.mul(2).add_(1).relu_(),
    "windows": lambda h: h.unfold(1, 2, 1),
    "circular": lambda h: F.pad(h, (1, 2), mode="circular"),
    "linear": lambda h: F.interpolate(h, size=7, mode="linear"),
    "transform": lambda h: torch.view_as_real(torch.fft.rfft(h)),
    "reshaped": lambda h: h.transpose(1, 2).reshape(-1, 3),
    "expanded": lambda h: h.mean(1, keepdim=True).expand(2, 5, 12) * h,
    "attention": lambda h: F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None]),
    "diagonal": lambda h: (h @ h.mT).diagonal(0, 1, 2),
    "norm": lambda h: F.normalize(h, dim=1),
}


class Weighed(nn.Module):
    """A function of the input times a weight; its loss tells all elements of the result apart."""

    def __init__(self, weight: tuple[int, ...], function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(weight) + 0.5)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.function(x * self.weight)
        return (found.sin() * torch.arange(found.numel()).view(found.shape).cos()).sum()


def assert_trains_as_plain(module: nn.Module, x: torch.Tensor) -> None:
    """By every kind of plan: loss and gradients of two iterations; and the module stays its own."""
    plain = copy.deepcopy(module)
    for kind, planner in autotm_plans.KINDS.items():
        step = autotm.fit(module, x, budget="1GB", planner=lambda g, _, make=planner: make(g))
        for _ in range(2):
            for each in (step, plain):
                each.zero_grad()
            got, want = step(x), plain(x)
            got.backward()
            want.backward()
            torch.testing.assert_close(got, want, msg=kind)
            for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4, msg=kind)
        step.close()


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_channels_last(name: str) -> None:
    torch.manual_seed(0)
    x = (torch.rand(IMAGE) + 0.5).contiguous(memory_format=torch.channels_last)
    assert_trains_as_plain(Weighed((6, 8, 8), OF_IMAGES[name]()), x)


@pytest.mark.parametrize("name", [*OF_TEXTS, *FUNCTIONS])
def test_transposed(name: str) -> None:
    torch.manual_seed(0)
    function = OF_TEXTS[name]() if name in OF_TEXTS else FUNCTIONS[name]
    assert_trains_as_plain(Weighed((1, 1, 12), function), transposed(torch.rand(TEXT) + 0.5))


class Twice(nn.Module):
    """A part under two names, and a weight that two parts share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
        self.again, self.norm = self.first, nn.BatchNorm1d(5)
        self.second.weight = self.first.weight
        self.parts = nn.ModuleList([self.norm, self.second])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.again(self.norm(self.first(x))).tanh()).sin().sum()


def test_a_part_under_two_names() -> None:
    torch.manual_seed(0)
    module = Twice()
    before = {name: id(each) for name, each in module.named_parameters()}
    assert_trains_as_plain(module, torch.rand(TEXT))
    assert {name: id(each) for name, each in module.named_parameters()} == before


def test_a_graph_that_pytorch_cannot_run_is_one_sentence() -> None:
    module = Weighed((1, 1, 12), lambda h: torch.view_as_real(torch.fft.rfft(h) * 1j))
    with pytest.raises(autotm.executor.errors.CaptureError, match="could not be captured as one"):
        autotm.fit(module, torch.rand(TEXT), budget="1GB")

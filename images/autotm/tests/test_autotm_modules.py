"""Modules that run are the networks that are planned, and train the same in a small arena."""

from __future__ import annotations

import pytest
import torch
from autotm.networks.catalogue import BUILD, GPU, TRAINED, build
from autotm.networks.modules import MODULES, module
from autotm.rivals.base import blocks
from test_autotm_planned import LOSS, fast, holds, slow, within
from torch import nn

SMALL = [net for net in MODULES if net.startswith("small-")]


@pytest.mark.parametrize("net", [net for net in MODULES if net in BUILD])
def test_a_module_has_the_parameters_of_its_graph(net: str) -> None:
    found, sample = module(f"{net}_2", "meta")
    graph = build(f"{net}_2")
    planned = sum(each.bytes for each in graph.tensors if each.kind == "parameter")
    parts = [each for each in found.modules() if not isinstance(each, nn.BatchNorm2d)]
    own = (each for part in parts for each in part.parameters(recurse=False))
    assert sum(each.nbytes for each in own) == planned  # graphs leave those of norms out
    assert found(sample[0]).shape == torch.Size([2, 1000])


def test_every_network_of_the_papers_gpu_part_can_be_run() -> None:
    assert tuple(MODULES) == TRAINED
    assert len(GPU) == 11
    assert {name.rpartition("_")[0] for name in GPU} <= set(MODULES)


@pytest.mark.parametrize(
    ("net", "parameters", "parts", "shape"),
    [
        ("gpt2medium", 354_823_168, 24, (2 * 1024, 50257)),  # as published: 355 million
        ("unet", 31_044_821, 9, (2 * 512 * 512, 21)),
    ],
)
def test_the_others_have_their_size(
    net: str, parameters: int, parts: int, shape: tuple[int, int]
) -> None:
    found, sample = module(f"{net}_2", "meta")
    assert sum(each.numel() for each in found.parameters()) == parameters
    assert len(blocks(found)) == parts
    assert found(sample[0]).shape == shape
    assert sample[1].shape == shape[:1]


@pytest.mark.parametrize("planner", [fast, slow], ids=["fast link", "slow link"])
@pytest.mark.parametrize("net", SMALL)
def test_a_small_version_trains_in_an_arena_with_the_plain_bits(net: str, planner: object) -> None:
    torch.manual_seed(0)
    found, sample = module(f"{net}_2", "cpu")
    holds(within(found, sample, 0.5, planner))


@pytest.mark.parametrize("net", ["small-resnet", "small-gpt2", "small-unet"])
def test_bfloat16_has_the_plain_bits_and_takes_less(net: str) -> None:
    torch.manual_seed(0)
    found, sample = module(f"{net}_2", "cpu", "bf16")
    assert found(sample[0]).dtype == torch.float32
    step = within(found, sample, 0.5, fast)
    narrow = [each for each in step.iteration.capture.calls for view in each.outputs
              if view is not None and view.dtype == torch.bfloat16]  # fmt: skip
    assert len(narrow) > 5
    holds(step)


@pytest.mark.parametrize("net", SMALL)
def test_the_plain_run_of_a_capture_is_eager_training(net: str) -> None:
    torch.manual_seed(0)
    found, sample = module(f"{net}_2", "cpu")
    step = within(found, sample, 1.0, fast)
    mine = step.iteration.once(found, sample)
    step.close()
    loss = LOSS(found(sample[0]), sample[1])
    loss.backward()
    assert torch.equal(mine[""], loss)
    for name, each in found.named_parameters():
        assert each.grad is not None
        torch.testing.assert_close(mine[name], each.grad)


def test_what_cannot_be_run() -> None:
    with pytest.raises(ValueError, match="no network 'vgg416_2'; fix:"):
        module("vgg416_2", "meta")

"""Modules that run are the networks that are planned: the same parameters, the same shapes."""

from __future__ import annotations

import pytest
import torch
from autotm.networks.catalogue import build
from autotm.networks.modules import MODULES, module
from torch import nn


@pytest.mark.parametrize("net", MODULES)
def test_a_module_has_the_parameters_of_its_graph(net: str) -> None:
    found, sample = module(f"{net}_2", "meta")
    graph = build(f"{net}_2")
    planned = sum(each.bytes for each in graph.tensors if each.kind == "parameter")
    parts = [each for each in found.modules() if not isinstance(each, nn.BatchNorm2d)]
    own = (each for part in parts for each in part.parameters(recurse=False))
    assert sum(each.nbytes for each in own) == planned  # graphs leave those of norms out
    assert found(sample[0]).shape == torch.Size([2, 1000])


def test_what_cannot_be_run() -> None:
    with pytest.raises(ValueError, match="cannot be run"):
        module("inception_2", "meta")

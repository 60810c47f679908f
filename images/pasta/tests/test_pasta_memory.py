"""The trackers that need no allocator hook."""

from __future__ import annotations

import gc

import torch
from pasta_workloads.memory import OperatorBytes, TensorTimeline


def test_a_storage_counts_from_its_operator_to_its_end() -> None:
    kept = torch.zeros(100)
    with TensorTimeline([kept]) as timeline:
        first = kept + 1
        view = first.view(10, 10)
        del first
        assert timeline.allocated[-1] == 800  # the view holds it
        del view
        gc.collect()
        kept.mul_(2)  # nothing new
    assert timeline.changes == [400, 400, -400]
    assert timeline.allocated == [400, 800, 400]


def test_gradients_come_and_go() -> None:
    x = torch.ones(50, requires_grad=True)
    with TensorTimeline([x]) as timeline:
        loss = (x * x).sum()
        loss.backward()
        del loss
        gc.collect()
    assert max(timeline.allocated) > 2 * 200
    assert timeline.allocated[-1] == 400  # x and its gradient


def test_operator_bytes_count_distinct_storages_and_no_views() -> None:
    x = torch.ones(100)
    with OperatorBytes() as recorder:
        y = x.view(10, 10) + x.view(10, 10)
        y.add_(1)
    assert recorder.sizes == [800, 400]

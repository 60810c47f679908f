"""A DLRM in one process, in PyTorch's own operators: what every trainer must agree with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rap_training.train.torchrec import Weights
from torch import Tensor, nn


@dataclass(frozen=True)
class Batch:
    """Rows of all ranks; ids[t][row] is a bag of any length, also empty or with equal ids."""

    dense: Tensor
    ids: list[list[Tensor]]
    labels: Tensor


def train(start: Weights, batches: Sequence[Batch], lr: float) -> tuple[list[float], Weights]:
    """Mean loss of every step, and the weights after the last: autograd and plain SGD."""
    start = copy.deepcopy(start)
    tables = {t: nn.Parameter(table) for t, table in start.tables.items()}
    bottom = [(nn.Parameter(w), nn.Parameter(b)) for w, b in start.bottom]
    over = [(nn.Parameter(w), nn.Parameter(b)) for w, b in start.over]
    layers = [one for layer in (*bottom, *over) for one in layer]
    optimizer = torch.optim.SGD([*tables.values(), *layers], lr=lr)
    losses = []
    for batch in batches:
        x = batch.dense
        for weight, bias in bottom:
            x = torch.relu(nn.functional.linear(x, weight, bias))
        pooled = [
            torch.stack([tables[t][bag].sum(0) for bag in bags]) for t, bags in enumerate(batch.ids)
        ]
        features = torch.stack([x, *pooled], dim=1)
        dots = features @ features.transpose(1, 2)
        lower = torch.tril_indices(len(tables) + 1, len(tables) + 1, offset=-1)
        y = torch.cat([x, dots[:, lower[0], lower[1]]], dim=1)
        for weight, bias in over[:-1]:
            y = torch.relu(nn.functional.linear(y, weight, bias))
        logits = nn.functional.linear(y, *over[-1]).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, Weights(
        tables={t: table.detach() for t, table in tables.items()},
        bottom=[(w.detach(), b.detach()) for w, b in bottom],
        over=[(w.detach(), b.detach()) for w, b in over],
    )

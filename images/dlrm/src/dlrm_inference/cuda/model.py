"""Full DLRM inference: bottom MLP 256-128-128, dot interaction, top MLP 128-64-1.

Sizes: docs/papers/dlrm.md, 7.2.

The paper's artifact has the embedding stage only. Here every variant runs inside the whole model:
the embeddings are plain `nn.EmbeddingBag` modules whose operator is switched (`override`), or one
launch for all tables where a variant has one. Everything else is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from dlrm_inference.cuda.override import Forward, embedding_bag_variant

DENSE_FEATURES = 256
HIDDEN = 128
TOP = (128, 64, 1)

# (row ids, offsets (bags + 1,)) of every table -> parts (bags, k, dim) whose k add up to the tables
Stage = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class DLRM(nn.Module):
    """The model over tables that it does not own, so that many variants share one copy of them.

    weights: one (rows, dim) per table, all of one dim; bags are sums, or means by `mode`. MLPs are
    float32 and drawn from `seed`.
    """

    def __init__(self, weights: Sequence[torch.Tensor], seed: int = 0, mode: str = "sum") -> None:
        super().__init__()
        tables, dim = len(weights), weights[0].shape[1]
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1], persistent=False)
        self.embeddings = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(table, mode=mode, include_last_offset=True)
            for table in weights
        )
        # The bottom's output takes part in the dot products, so it is as wide as a row.
        self.bottom = _mlp((DENSE_FEATURES, HIDDEN, dim), last=nn.ReLU())
        self.top = _mlp((dim + pairs.shape[1], *TOP), last=nn.Sigmoid())
        _fill(self, seed)
        self.to(weights[0].device)

    def embed(
        self, indices: Sequence[torch.Tensor], offsets: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return every table's bags, each (bags, 1, dim): the stage that variants replace."""
        inputs = zip(self.embeddings, indices, offsets, strict=True)
        return [table(ids, bounds).unsqueeze(1) for table, ids, bounds in inputs]

    def forward(
        self,
        dense: torch.Tensor,
        indices: Sequence[torch.Tensor],
        offsets: Sequence[torch.Tensor],
        stage: Stage | None = None,
    ) -> torch.Tensor:
        """Return click probabilities (bags, 1).

        dense (bags, 256) float32; indices and offsets: one (accesses,) and one (bags + 1,) tensor
        per table. `stage` replaces `embed`.
        """
        hidden: torch.Tensor = self.bottom(dense)
        parts = (stage or self.embed)(indices, offsets)
        vectors = torch.cat(
            [hidden.unsqueeze(1), *(part.to(hidden.dtype) for part in parts)], dim=1
        )
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        crossed = torch.cat([hidden, products.index_select(1, self.pairs)], dim=1)
        result: torch.Tensor = self.top(crossed)
        return result


def switched_stage(model: DLRM, name: str, forward: Forward | None, key: str = "CUDA") -> Stage:
    """Return the model's own embedding stage with the operator switched to a variant.

    `forward` None with name "stock" is PyTorch's own kernel. Ids out of range are left to the next
    synchronisation: a wait after every stage would be part of its time.
    """

    def stage(
        indices: Sequence[torch.Tensor], offsets: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        with embedding_bag_variant(name, forward=forward, key=key, check=False):
            return model.embed(indices, offsets)

    return stage


def _mlp(widths: tuple[int, ...], last: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


@torch.no_grad()
def _fill(model: DLRM, seed: int) -> None:
    """Draw the MLPs' weights from `seed`, whatever the state of PyTorch's global generator."""
    generator = torch.Generator().manual_seed(seed)
    for layer in (*model.bottom, *model.top):
        if isinstance(layer, nn.Linear):
            scale = (2 / (layer.in_features + layer.out_features)) ** 0.5
            layer.weight.normal_(0.0, scale, generator=generator)
            layer.bias.zero_()

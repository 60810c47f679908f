"""The field's own trainer: TorchRec's DLRM, tables on single ranks, FBGEMM's fused optimiser.

Nothing of it is ours but the loading of weights, so its losses check our own loop: the same model
with the same weights, batches and learning rate must lose the same. Optional: TorchRec and FBGEMM
are a layer of the image (build argument TORCHREC=1).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from reprokit.errors import Lacking
from torch import Tensor, nn


class TorchRecMissing(Lacking):
    """TorchRec or FBGEMM cannot be imported; the message says why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a model starts from; float32 on any device.

    `tables[t]` is [rows, dim]; a rank takes those of its own tables, and one that is not there
    keeps what TorchRec drew. `bottom` and `over` are (weight [out, in], bias [out]) of each layer,
    the inputs of `over[0]` in our order: the bottom MLP's output, then the lower triangle of the
    dot products, row by row.
    """

    tables: Mapping[int, Tensor]
    bottom: Sequence[tuple[Tensor, Tensor]]
    over: Sequence[tuple[Tensor, Tensor]]


class TorchRecTrainer:
    """One rank of a DLRM (arXiv 1906.00091) under TorchRec's DistributedModelParallel.

    Table t has `rows[t]` rows of `dim` and lies whole on rank `gpu_of[t]`; the MLPs are data
    parallel. `bottom` and `over` are layer widths; `bottom` ends with `dim`, `over` with 1. ReLU
    follows every layer but the last of `over`. `batch` is this rank's rows a step. SGD with rate
    `lr`, for tables fused into the backward pass. `weights`: None leaves TorchRec's own.

    The default process group must exist: NCCL for a CUDA `device`, gloo for the CPU. Raises
    TorchRecMissing, and ValueError for shapes that do not fit.
    """

    def __init__(
        self,
        *,
        rows: Sequence[int],
        dim: int,
        dense_width: int,
        bottom: Sequence[int],
        over: Sequence[int],
        batch: int,
        gpu_of: Sequence[int],
        device: torch.device,
        rank: int,
        world: int,
        lr: float,
        weights: Weights | None = None,
    ) -> None:
        check_shapes(rows, dim, bottom, over, gpu_of, rank, world)
        self._rec = rec = _import()
        self._keys = [f"f{table}" for table in range(len(rows))]
        self._batch = batch
        self._device = device
        # Tables are made where they belong and nowhere else.
        bags = rec.EmbeddingBagCollection(
            tables=[
                rec.EmbeddingBagConfig(
                    name=f"t{table}", embedding_dim=dim, num_embeddings=count, feature_names=[key]
                )
                for table, (count, key) in enumerate(zip(rows, self._keys, strict=True))
            ],
            device=torch.device("meta"),
        )
        model = rec.DLRM(
            embedding_bag_collection=bags,
            dense_in_features=dense_width,
            dense_arch_layer_sizes=list(bottom),
            over_arch_layer_sizes=list(over),
            dense_device=device,
        )
        sharder = rec.EmbeddingBagCollectionSharder(
            fused_params={"optimizer": rec.OptimType.EXACT_SGD, "learning_rate": lr}
        )
        placed = rec.construct_module_sharding_plan(
            bags,
            {
                f"t{table}": rec.table_wise(rank=owner, compute_kernel="fused")
                for table, owner in enumerate(gpu_of)
            },
            sharder=sharder,
            local_size=world,
            world_size=world,
            device_type=device.type,
        )
        self._model = rec.DistributedModelParallel(
            model,
            device=device,
            plan=rec.ShardingPlan(plan={"sparse_arch.embedding_bag_collection": placed}),
            sharders=[sharder],
        )
        if weights is not None:
            self._load(weights)
        dense = [*model.dense_arch.parameters(), *model.over_arch.parameters()]
        self._optimizer = torch.optim.SGD(dense, lr=lr)

    def step(self, dense: Tensor, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        """Train on this rank's rows; return their mean loss before the update, a scalar.

        dense [batch, dense_width] and labels [batch] are float32. For each table in order, one
        behind the other: lengths int32 [tables * batch], and ids int64, the bags' ids without
        padding. All on the trainer's device. Gradients are those of the mean over all ranks' rows.
        """
        bags = self._rec.KeyedJaggedTensor(keys=self._keys, values=ids, lengths=lengths)
        self._optimizer.zero_grad(set_to_none=True)
        logits = self._model(dense, bags).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def set_rate(self, lr: float) -> None:
        """Learn with rate `lr` from the next step on."""
        for optimizer in (self._optimizer, self._model.fused_optimizer):
            for group in optimizer.param_groups:
                group["lr"] = lr
        self._model.fused_optimizer.step()  # hands the rate on; the update is in the backward pass

    def tables(self) -> dict[int, Tensor]:
        """This rank's tables by number, [rows, dim] each: the trainer's own memory."""
        found: dict[int, Tensor] = {}
        for name, value in self._model.state_dict().items():
            if ".embedding_bags.t" in name:
                table = int(name.split(".embedding_bags.t")[1].split(".")[0])
                for shard in value.local_shards():  # one, the whole table, or none
                    found[table] = shard.tensor
        return found

    @torch.no_grad()
    def _load(self, weights: Weights) -> None:
        model = self._model.module
        for layers, given in ((model.dense_arch, weights.bottom), (model.over_arch, weights.over)):
            linear = [module for module in layers.modules() if isinstance(module, nn.Linear)]
            for layer, (weight, bias) in zip(linear, given, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
        first = next(m for m in model.over_arch.modules() if isinstance(m, nn.Linear))
        order = interaction_order(len(self._keys)).to(first.weight.device)
        behind = first.weight.shape[1] - len(order)  # what of the input is the bottom's output
        first.weight[:, behind:] = first.weight[:, behind:][:, order]
        for table, memory in self.tables().items():
            if table in weights.tables:
                memory.copy_(weights.tables[table])


def check_installed() -> None:
    """Raise TorchRecMissing where the trainer could not be made."""
    _import()


def interaction_order(tables: int) -> Tensor:
    """Where TorchRec's k-th dot product stands among ours: int64 [(tables + 1) * tables / 2].

    Ours are the lower triangle row by row, TorchRec's the upper one.
    """
    count = tables + 1
    ours = torch.zeros(count, count, dtype=torch.int64)
    below = torch.tril_indices(count, count, offset=-1)
    ours[below[0], below[1]] = torch.arange(below.shape[1])
    above = torch.triu_indices(count, count, offset=1)
    return ours.T[above[0], above[1]]


def check_shapes(
    rows: Sequence[int],
    dim: int,
    bottom: Sequence[int],
    over: Sequence[int],
    gpu_of: Sequence[int],
    rank: int,
    world: int,
) -> None:
    """Raise ValueError, one sentence, when the parts do not make one model."""
    if not rows or len(rows) != len(gpu_of):
        raise ValueError(f"{len(rows)} tables and {len(gpu_of)} places: name a rank for each table")
    if not bottom or bottom[-1] != dim:
        raise ValueError(f"the bottom MLP must end with the tables' width {dim}: {list(bottom)}")
    if len(over) < 2 or over[-1] != 1:
        raise ValueError(f"the over MLP needs two layers or more and one output: {list(over)}")
    if wrong := [owner for owner in gpu_of if not 0 <= owner < world]:
        raise ValueError(f"tables cannot lie on rank {wrong[0]} of {world}: use 0 to {world - 1}")
    if not dist.is_initialized() or (dist.get_rank(), dist.get_world_size()) != (rank, world):
        raise ValueError(f"the default process group is not rank {rank} of {world}: start it first")


@dataclass(frozen=True)
class _Names:
    """What is used of TorchRec and FBGEMM, which are imported when a trainer is made."""

    DLRM: Any
    DistributedModelParallel: Any
    EmbeddingBagCollection: Any
    EmbeddingBagCollectionSharder: Any
    EmbeddingBagConfig: Any
    KeyedJaggedTensor: Any
    OptimType: Any
    ShardingPlan: Any
    construct_module_sharding_plan: Any
    table_wise: Any


def _import() -> _Names:
    """Import TorchRec, quietly. Raises TorchRecMissing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own use of its own deprecated modules
            from fbgemm_gpu.split_embedding_configs import EmbOptimType
            from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
            from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
            from torchrec.distributed.model_parallel import DistributedModelParallel
            from torchrec.distributed.sharding_plan import (
                construct_module_sharding_plan,
                table_wise,
            )
            from torchrec.distributed.types import ShardingPlan
            from torchrec.models.dlrm import DLRM
    except (ImportError, OSError) as error:
        root = error.__cause__ or error  # of a library that does not load, what it lacks
        raise TorchRecMissing(
            f"TorchRec cannot be imported ({root}); build the image with TORCHREC=1"
        ) from error
    return _Names(
        DLRM=DLRM,
        DistributedModelParallel=DistributedModelParallel,
        EmbeddingBagCollection=EmbeddingBagCollection,
        EmbeddingBagCollectionSharder=EmbeddingBagCollectionSharder,
        EmbeddingBagConfig=EmbeddingBagConfig,
        KeyedJaggedTensor=KeyedJaggedTensor,
        OptimType=EmbOptimType,
        ShardingPlan=ShardingPlan,
        construct_module_sharding_plan=construct_module_sharding_plan,
        table_wise=table_wise,
    )

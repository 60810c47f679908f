"""TorchRec as trainer: it loses exactly what a plain model in one process loses."""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402
from rap_model import Batch, train  # noqa: E402
from rap_ranks import run_ranks  # noqa: E402
from rap_training.train.torchrec import (  # noqa: E402
    TorchRecMissing,
    TorchRecTrainer,
    Weights,
    interaction_order,
)
from torch import Tensor  # noqa: E402

pytestmark = pytest.mark.torch
needs_torchrec = pytest.mark.skipif(
    importlib.util.find_spec("torchrec") is None or importlib.util.find_spec("fbgemm_gpu") is None,
    reason="TorchRec is not installed: pip install --no-deps -r "
    "images/rap/requirements-torchrec-cpu.txt",
)

ROWS = (50, 7, 300, 11)
DIM, DENSE, BATCH, STEPS, LR = 8, 5, 16, 6, 0.5
BOTTOM, OVER = (12, 10, DIM), (14, 9, 1)
SEED = 20240427


def part(batch: Batch, rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What one rank's `step` takes."""
    rows = slice(rank * BATCH, (rank + 1) * BATCH)
    bags = [table[rows] for table in batch.ids]
    lengths = torch.tensor([len(bag) for table in bags for bag in table], dtype=torch.int32)
    ids = torch.cat([bag for table in bags for bag in table])
    return batch.dense[rows], ids, lengths, batch.labels[rows]


def batches(world: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(SEED)

    def bag(table: int) -> Tensor:
        # Table 0 has one id a row, the others zero to four.
        count = 1 if table == 0 else int(torch.randint(0, 5, (), generator=generator))
        return torch.randint(0, ROWS[table], (count,), generator=generator)

    rows = world * BATCH
    return [
        Batch(
            torch.randn(rows, DENSE, generator=generator),
            [[bag(table) for _ in range(rows)] for table in range(len(ROWS))],
            torch.randint(0, 2, (rows,), generator=generator).float(),
        )
        for _ in range(STEPS)
    ]


def weights() -> Weights:
    generator = torch.Generator().manual_seed(SEED + 1)
    pairs = (len(ROWS) + 1) * len(ROWS) // 2

    def layers(*widths: int) -> list[tuple[Tensor, Tensor]]:
        return [
            (
                torch.randn(out, width, generator=generator) * width**-0.5,
                torch.randn(out, generator=generator) * 0.1,
            )
            for width, out in pairwise(widths)
        ]

    tables = {t: torch.randn(rows, DIM, generator=generator) for t, rows in enumerate(ROWS)}
    return Weights(tables=tables, bottom=layers(DENSE, *BOTTOM), over=layers(DIM + pairs, *OVER))


def one_rank(rank: int, world: int) -> tuple[list[float], dict[int, list]]:
    """Losses and own tables."""
    trainer = TorchRecTrainer(
        rows=ROWS, dim=DIM, dense_width=DENSE, bottom=BOTTOM, over=OVER, batch=BATCH,
        gpu_of=[table % world for table in range(len(ROWS))], device=torch.device("cpu"),
        rank=rank, world=world, lr=LR, weights=weights(),
    )  # fmt: skip
    losses = [float(trainer.step(*part(batch, rank))) for batch in batches(world)]
    return losses, {t: table.tolist() for t, table in trainer.tables().items()}


@needs_torchrec
@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_it_loses_what_a_plain_model_loses(world: int, tmp_path: Path) -> None:
    answers = run_ranks(one_rank, world, tmp_path)
    found = torch.tensor([losses for losses, _ in answers]).mean(dim=0)
    expected, after = train(weights(), batches(world), LR)
    assert max(expected) - min(expected) > 0.05, "nothing is learnt: the comparison says nothing"
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    trained = {t: torch.tensor(values) for _, own in answers for t, values in own.items()}
    assert sorted(trained) == list(range(len(ROWS)))
    for t, table in after.tables.items():
        assert not torch.equal(table, weights().tables[t])
        torch.testing.assert_close(trained[t], table, rtol=1e-4, atol=1e-5)


def test_both_interactions_hold_the_same_products() -> None:
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
    dots = x @ x.transpose(1, 2)
    lower, upper = torch.tril_indices(5, 5, offset=-1), torch.triu_indices(5, 5, offset=1)
    ours, theirs = dots[:, lower[0], lower[1]], dots[:, upper[0], upper[1]]
    torch.testing.assert_close(ours[:, interaction_order(4)], theirs)
    assert not torch.equal(ours, theirs)


ARGUMENTS = {
    "rows": ROWS, "dim": DIM, "dense_width": DENSE, "bottom": BOTTOM, "over": OVER, "batch": BATCH,
    "gpu_of": [0] * len(ROWS), "device": torch.device("cpu"), "rank": 0, "world": 1, "lr": LR,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gpu_of": [0]}, "4 tables and 1 places"),
        ({"bottom": (12, 10)}, "must end with the tables' width 8"),
        ({"over": (14, 2)}, "one output"),
        ({"over": (1,)}, "two layers or more"),
        ({"gpu_of": [0, 0, 0, 1]}, "rank 1 of 1"),
        ({}, "is not rank 0 of 1"),
    ],
)
def test_what_does_not_fit_is_said(changed: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TorchRecTrainer(**{**ARGUMENTS, **changed})  # type: ignore[arg-type]


def test_without_torchrec_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that cannot be imported stands in the place of TorchRec."""
    (tmp_path / "fbgemm_gpu").mkdir()
    (tmp_path / "fbgemm_gpu/__init__.py").write_text("raise OSError('libtorch.so is not there')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "fbgemm_gpu"]:
        monkeypatch.delitem(sys.modules, name)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/m", rank=0, world_size=1)
    try:
        with pytest.raises(TorchRecMissing, match=r"libtorch\.so is not there.*TORCHREC=1"):
            TorchRecTrainer(**ARGUMENTS)  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()

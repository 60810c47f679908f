"""Data, tensor and pipeline parallelism do what one process does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from pasta_workloads.parallel import ranks
from pasta_workloads.parallel.adam import MasterAdam
from pasta_workloads.parallel.model import Stage
from pasta_workloads.parallel.ranks import Found, Job, run_ranks
from pasta_workloads.parallel.sizes import KINDS, SIZES
from pasta_workloads.parallel.tensor import Ways
from torch import Tensor, multiprocessing, nn
from torch.multiprocessing.spawn import start_processes

SIZE = SIZES["tiny"]
STEPS = 2
# Dimensions along which tensor parallelism cuts a weight; others are whole on each rank.
CUTS = {"inputs.weight": 1, "inputs.bias": 1, "up.weight": 1, "up.bias": 1, "output.weight": 1,
        "down.weight": 1, "tokens.weight": 0}  # fmt: skip


def train(kind: str, folder: Path) -> tuple[list[Found], list[dict[str, Tensor]]]:
    ranks = 1 if kind == "one" else 2
    job = Job(kind=kind, size="tiny", device="cpu", folder=folder, ranks=ranks, iterations=STEPS,
              keep_weights=True)  # fmt: skip
    found = run_ranks(job)
    return found, [torch.load(folder / f"rank-{number}.pt") for number in range(ranks)]


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """Ranks are forked from a process that has PyTorch loaded, instead of loading it each.

    test_a_relative_folder, which comes first, and the program spawn them, as users' runs do.
    """
    multiprocessing.set_forkserver_preload(["torch", "torch.distributed"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "spawn", partial(start_processes, start_method="forkserver"))
        yield


@pytest.fixture(scope="module")
def alone(
    tmp_path_factory: pytest.TempPathFactory, forked: None
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights of one process."""
    found, (weights,) = train("one", tmp_path_factory.mktemp("one"))
    return found[0].losses, weights


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, forked: None
) -> dict[str, tuple[list[Found], list[dict[str, Tensor]]]]:
    """What the ranks of each kind found, and their weights."""
    return {kind: train(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


def whole(kind: str, parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of all ranks as one process would have them."""
    first, second = parts
    if kind == "pp":
        return second | first
    if kind == "dp":
        return first
    cut = {name: next((d for end, d in CUTS.items() if name.endswith(end)), None) for name in first}
    return {
        name: weight if (dim := cut[name]) is None else torch.cat((weight, second[name]), dim)
        for name, weight in first.items()
    }


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that look for each other in two places would wait for ever."""
    monkeypatch.chdir(tmp_path)
    Path("here/below").mkdir(parents=True)
    found, _ = train("dp", Path("here/below"))
    assert len(found) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_gives_the_same_step(
    kind: str,
    trained: dict[str, tuple[list[Found], list[dict[str, Tensor]]]],
    alone: tuple[list[float], dict[str, Tensor]],
) -> None:
    losses, weights = alone
    found, parts = trained[kind]
    for rank in found:
        assert rank.losses == pytest.approx(losses, rel=1e-5)
        assert rank.peak == max(rank.allocated)
        assert sum(rank.changes) == rank.allocated[-1]
    together = whole(kind, parts)
    assert together.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(together[name], weight, rtol=1e-4, atol=1e-5, msg=name)
    if kind == "dp":
        assert all(torch.equal(parts[0][name], parts[1][name]) for name in weights)
    if kind == "pp":  # the embedding lies on both stages, and stays the same
        torch.testing.assert_close(parts[0]["tokens.weight"], parts[1]["tokens.weight"])


def test_training_learns_something(alone: tuple[list[float], dict[str, Tensor]]) -> None:
    losses, weights = alone
    fresh = Stage(SIZE, range(SIZE.layers), Ways(), 100).state_dict()
    assert losses[0] == pytest.approx(torch.log(torch.tensor(256.0)).item(), rel=0.05)
    assert any(not torch.equal(fresh[name], weight) for name, weight in weights.items())


def test_tensor_parallelism_needs_less_memory_than_data_parallelism(
    trained: dict[str, tuple[list[Found], list[dict[str, Tensor]]]],
) -> None:
    assert trained["tp"][0][0].peak < 0.8 * trained["dp"][0][0].peak


def test_full_size_is_gpt2_medium() -> None:
    size = SIZES["full"]
    with torch.device("meta"):
        width, layers = size.width, size.layers
    per_layer = 12 * width * width + 13 * width
    whole_model = layers * per_layer + (size.padded_vocabulary(1) + size.length + 2) * width
    assert 350e6 < whole_model < 360e6
    assert size.padded_vocabulary(1) == 50304
    assert size.padded_vocabulary(2) == 50432


def test_parts_must_be_equal() -> None:
    assert Ways(1, 2).part(6) == slice(3, 6)
    with pytest.raises(ValueError, match="equal parts"):
        Ways(0, 2).part(7)


def test_adam_is_pytorchs() -> None:
    torch.manual_seed(1)
    ours, theirs = nn.Parameter(torch.randn(9)), nn.Parameter(torch.zeros(9))
    theirs.data.copy_(ours)
    own = MasterAdam([ours], rate=0.01, half=False)
    reference = torch.optim.Adam([theirs], lr=0.01)
    for _ in range(4):
        ours.grad = torch.randn(9)
        theirs.grad = ours.grad.clone()
        own.step()
        reference.step()
    torch.testing.assert_close(ours, theirs)


def test_fp16_weights_are_updated_from_fp32_copies() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer = MasterAdam([weight], rate=1e-4, half=True)
    for _ in range(3):  # each update is below fp16's resolution at 1; the copies add them up
        weight.grad = torch.full((4,), optimizer.scale, dtype=torch.float16)
        optimizer.step()
    assert weight.grad is None
    assert optimizer.masters[0][0].item() == pytest.approx(1 - 3e-4, rel=1e-4)
    assert weight[0].item() == pytest.approx(1 - 3e-4, abs=5e-4)


def test_a_rank_that_fails_is_told(tmp_path: Path) -> None:
    job = Job(kind="dp", size="no such size", device="cpu", folder=tmp_path, ranks=1)
    with pytest.raises(ChildProcessError, match="a rank of dp failed"):
        run_ranks(job)

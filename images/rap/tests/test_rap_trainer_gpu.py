"""On GPUs the trainer trains what it trains on a CPU, with CUDA graphs and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from rap_loop import (  # noqa: E402
    ALONE,
    LR,
    ONE,
    STEPS,
    TABLES,
    TWO,
    Loop,
    global_batches,
    in_tensors,
    two_ranks,
    work_of,
)
from rap_model import train  # noqa: E402
from rap_ranks import needs_two_gpus, run_ranks  # noqa: E402
from rap_training.sharing.preparation import SLOTS  # noqa: E402
from rap_training.train.dlrm import Trainer  # noqa: E402
from rap_training.train.torchrec import Weights  # noqa: E402
from rap_training.work import data_parallel  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.gpu]


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graph"])
def test_a_gpu_trains_what_a_cpu_trains(graphs: bool) -> None:
    """And so a trainer of CUDA graphs what one without them trains."""
    work = work_of(ONE)
    on_cpu = Loop(work, ALONE)
    on_gpu = Loop(work, ALONE, device=torch.device("cuda", 0), graphs=graphs)
    # Devices draw different weights from one seed.
    set_weights(on_gpu.trainer, on_cpu.start)
    np.testing.assert_allclose(on_gpu.steps(), on_cpu.steps(), rtol=1e-3)
    close_enough(on_gpu.weights(), on_cpu.weights())


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graph"])
def test_a_gpu_trains_on_several_buffers_and_streams(graphs: bool) -> None:
    """Bindings are made while training goes on, and steps run on another stream than all else."""
    device = torch.device("cuda", 0)
    on_cpu = Loop(work_of(ONE), ALONE)
    loop = Loop(work_of(ONE), ALONE, device=device, graphs=graphs)
    set_weights(loop.trainer, on_cpu.start)
    inputs = [loop.inputs]
    losses = []
    for number in range(STEPS):
        if number == 2:
            mapping = data_parallel(TABLES)
            inputs.append(loop.another(work_of(replace(ONE, mapping=mapping)))[1])
        now = inputs[number % len(inputs)]
        loop.trainer.bind(now.buffers)
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            now.all(number)
            loop.trainer.step(number % SLOTS)
        losses.append(loop.trainer.loss(number % SLOTS))
    loop.trainer.check()
    np.testing.assert_allclose(losses, on_cpu.steps(), rtol=1e-3)
    close_enough(loop.weights(), on_cpu.weights())


@needs_two_gpus
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graph"])
def test_two_gpus_train_what_a_plain_model_trains(graphs: bool, tmp_path: Path) -> None:
    cases = [TWO["own rows"], TWO["mixed"], TWO["all tables on rank 1"]]
    both = run_ranks(two_ranks, 2, tmp_path, cases, "cuda", graphs, backend="nccl")
    for one, other in zip(*both, strict=True):
        losses, expected = train(
            replace(in_tensors(one.start),
                    tables=in_tensors(one.start).tables | in_tensors(other.start).tables),
            global_batches(), LR,
        )  # fmt: skip
        np.testing.assert_allclose(np.mean([one.losses, other.losses], 0), losses, rtol=1e-3)
        for after in (in_tensors(one.after), in_tensors(other.after)):
            tables = in_tensors(one.after).tables | in_tensors(other.after).tables
            close_enough(replace(after, tables=tables), expected)


def set_weights(trainer: Trainer, start: Weights) -> None:
    trainer.weights.copy_(torch.cat([start.tables[t] for t in trainer.buffers.work.tables]))
    for (weight, bias), (given, other) in zip(
        trainer.layers, [*start.bottom, *start.over], strict=True
    ):
        weight.data.copy_(given)
        bias.data.copy_(other)
    torch.cuda.synchronize()


def close_enough(found: Weights, expected: Weights) -> None:
    """On a GPU: sums in another order, a logit of its own."""
    for table, rows in expected.tables.items():
        torch.testing.assert_close(found.tables[table], rows, rtol=1e-3, atol=1e-4)
    for (weight, _), (right, _) in zip(
        [*found.bottom, *found.over], [*expected.bottom, *expected.over], strict=True
    ):
        torch.testing.assert_close(weight, right, rtol=1e-3, atol=1e-4)

"""The full model: equal to the numpy one of the CPU lane, and the same with a switched stage."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dlrm_inference import data  # noqa: E402
from dlrm_inference.config import Config  # noqa: E402
from dlrm_inference.cpu import model as numpy_model  # noqa: E402
from dlrm_inference.cuda import override  # noqa: E402
from dlrm_inference.cuda.model import DENSE_FEATURES, DLRM, switched_stage  # noqa: E402

pytestmark = pytest.mark.torch
SMALL = Config(experiment="endtoend", tables=4, rows=200, dim=32, batch=16, pooling=5, batches=1)


@pytest.fixture
def weights():
    return torch.from_numpy(np.stack([data.make_table(SMALL, t) for t in range(SMALL.tables)]))


@pytest.fixture
def inputs():
    batches = data.make_batches(SMALL)
    rows = [torch.from_numpy(table[0].copy()) for table in batches.indices]
    dense = torch.from_numpy(numpy_model.dense_features(SMALL))
    return dense, rows, [torch.from_numpy(each) for each in batches.offsets]


def test_it_is_the_model_of_the_cpu_lane(weights, inputs):
    dense, rows, offsets = inputs
    model, plain = DLRM(weights).eval(), numpy_model.Dense(SMALL)
    linear = [layer for layer in (*model.bottom, *model.top) if isinstance(layer, torch.nn.Linear)]
    with torch.no_grad():
        for layer, (weight, bias) in zip(linear, [*plain._bottom, *plain._top], strict=True):
            layer.weight.copy_(torch.from_numpy(weight.T))
            layer.bias.copy_(torch.from_numpy(bias))
        result = model(dense, rows, offsets)
    sums = [
        weights[t].numpy()[ids.numpy()].reshape(SMALL.batch, SMALL.pooling, -1).sum(1)
        for t, ids in enumerate(rows)
    ]
    expected = plain.top(plain.bottom(dense.numpy()), sums)
    assert result.shape == (SMALL.batch, 1)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-6)
    assert result.std() > 1e-4  # the inputs reach the output


def test_the_paper_s_sizes_give_the_paper_s_layers():
    model = DLRM(torch.zeros(12, 10, 128))
    shapes = [
        tuple(layer.weight.shape)
        for layer in (*model.bottom, *model.top)
        if isinstance(layer, torch.nn.Linear)
    ]
    # 256-128-128; 12 sums and the bottom's output make 78 dot products beside its 128 values.
    assert shapes == [(128, 256), (128, 128), (128, 206), (64, 128), (1, 64)]
    assert DENSE_FEATURES == 256
    assert model.pairs.numel() == 78


def test_the_tables_are_shared_and_not_copied(weights):
    model = DLRM(weights)
    for table, module in zip(weights, model.embeddings, strict=True):
        assert module.weight.data_ptr() == table.data_ptr()
        assert not module.weight.requires_grad


def test_the_seed_alone_decides_the_weights(weights, inputs):
    torch.manual_seed(1)
    first = DLRM(weights, seed=5)(*inputs)
    torch.manual_seed(2)
    assert torch.equal(DLRM(weights, seed=5)(*inputs), first)
    assert not torch.equal(DLRM(weights, seed=6)(*inputs), first)


def test_a_switched_stage_computes_the_same_with_another_kernel(weights, inputs):
    calls = []

    def forward(weight, indices, offsets, mode):
        calls.append(mode)
        return weight[indices].view(offsets.numel() - 1, -1, weight.shape[1]).sum(1)

    dense, rows, offsets = inputs
    model = DLRM(weights)
    stage = switched_stage(model, "ours", forward, key="CPU")
    result = model(dense, rows, offsets, stage)
    assert calls == ["sum"] * SMALL.tables
    assert override.active_variant() == ""
    torch.testing.assert_close(result, model(dense, rows, offsets))
    assert len(calls) == SMALL.tables


def test_one_tensor_for_all_tables_serves_as_a_stage(weights, inputs):
    dense, rows, offsets = inputs
    model = DLRM(weights)
    together = torch.cat(model.embed(rows, offsets), dim=1)
    assert together.shape == (SMALL.batch, SMALL.tables, SMALL.dim)
    result = model(dense, rows, offsets, lambda _rows, _offsets: [together])
    torch.testing.assert_close(result, model(dense, rows, offsets))


def test_a_wrong_number_of_tables_is_an_error(weights, inputs):
    dense, rows, offsets = inputs
    with pytest.raises(ValueError, match="shorter"):
        DLRM(weights)(dense, rows[:-1], offsets)


@pytest.mark.gpu
def test_every_variant_and_mode_is_measured_on_a_gpu(tmp_path):
    import json

    from dlrm_inference.cuda.endtoend import endtoend
    from dlrm_inference.cuda.fbgemm import Fbgemm
    from reprokit.records import RecordWriter

    variants = ("base", "rpf", "l2p", "stock", "best", "rpf_tuned", "rpf_l2p_tuned", "fbgemm")
    config = Config(
        experiment="endtoend", device="cuda", variants=variants, tables=4, rows=2000, batch=64,
        pooling=20, batches=2, samples=4, warmup=2, l2_mode="hint", distances=(2, 10), warps=(32,),
    )  # fmt: skip
    endtoend(config, RecordWriter(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    if missing := Fbgemm().why_unsupported():  # then the point says so
        (skip,) = map(json.loads, (tmp_path / "skipped.jsonl").read_text().splitlines())
        assert skip == {"labels": {"variant": "fbgemm", "dataset": "random"}, "reason": missing}
        variants = variants[:-1]
    for metric in ("endtoend_time", "embedding_share"):
        found = {
            (r["labels"]["variant"], r["labels"]["mode"]): r["samples"]
            for r in rows
            if r["metric"] == metric
        }
        assert set(found) == {(v, m) for v in variants for m in ("eager", "graph")}
        assert all(len(samples) == 4 and min(samples) > 0 for samples in found.values())

import json

import numpy as np
import pytest
from dlrm_inference import cli
from dlrm_inference.config import Config, WrongResult
from dlrm_inference.cpu import kernels
from dlrm_inference.cpu.model import Dense, dense_features
from dlrm_inference.cpu.tables import Tables, fitting_rows
from dlrm_inference.cpu.variants import NO_COUNTERPART, kernel_of, prepare
from dlrm_inference.data import make_batches
from dlrm_inference.experiments import embedding, endtoend
from dlrm_inference.reference import embedding_bag
from reprokit.records import RecordWriter

SMALL = {
    "dataset": "med_hot", "tables": 2, "rows": 500, "batch": 8, "pooling": 6, "batches": 2,
    "samples": 3, "warmup": 1,
}  # fmt: skip
CPU = ("base", "rpf", "l1dpf", "l2p", "rpf_l2p", "best")


def records(folder, name="records.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_embedding_records_every_variant_and_skips_with_reasons(tmp_path, capsys):
    config = Config(variants=(*CPU, *NO_COUNTERPART), **SMALL)
    embedding.run(config, RecordWriter(tmp_path))
    times = [r for r in records(tmp_path) if r["metric"] == "kernel_time"]
    assert [r["labels"]["variant"] for r in times] == list(CPU)
    for record in times:
        assert record["unit"] == "us"
        assert record["warmup"] == 1
        assert len(record["samples"]) == 3
        assert record["labels"]["dataset"] == "med_hot"
        assert record["labels"]["device"] == "cpu"
        assert record["labels"]["launch"] == "one_table"
        stands_in = record["labels"]["variant"] in ("l2p", "rpf_l2p")  # a CPU pins nothing in L2
        assert record["evidence"] == ("emulated" if stands_in else "measured")
    skipped = records(tmp_path, "skipped.jsonl")
    assert {s["labels"]["variant"]: s["reason"] for s in skipped} == NO_COUNTERPART
    metrics = {r["metric"] for r in records(tmp_path)}
    assert metrics >= {"unique_rows", "copy_bandwidth", "limit_time", "pin_time", "remap_time"}
    assert capsys.readouterr().out.splitlines()[-1] == "::progress 4/4 embedding rounds"
    facts = json.loads((tmp_path / "environment.json").read_text())
    assert facts["dataset"]["source"].startswith("generated, seed 512")


def test_the_limit_is_bytes_over_the_copy_rate(tmp_path):
    config = Config(variants=("base",), **{**SMALL, "dataset": "one_item"})
    embedding.run(config, RecordWriter(tmp_path))
    by_metric = {r["metric"]: r["samples"] for r in records(tmp_path)}
    # One row, 48 indices of 8 bytes, 8 sums: all of 512 bytes a row.
    expected = (512 + 48 * 8 + 8 * 512) / (np.median(by_metric["copy_bandwidth"]) * 1000)
    assert by_metric["limit_time"] == pytest.approx([expected] * 4)


def test_endtoend_records_time_and_embedding_share(tmp_path):
    endtoend.run(
        Config(experiment="endtoend", variants=("base", "best"), **SMALL), RecordWriter(tmp_path)
    )
    found = {
        (r["metric"], r["labels"]["variant"]): r
        for r in records(tmp_path)
        if "variant" in r["labels"]
    }
    for variant in ("base", "best"):
        assert found["endtoend_time", variant]["unit"] == "us"
        assert found["endtoend_time", variant]["labels"]["mode"] == "eager"
        shares = found["embedding_share", variant]["samples"]
        assert len(shares) == 3
        assert all(0 < share < 100 for share in shares)


@pytest.mark.torch
def test_stock_is_pytorchs_own_operator(tmp_path):
    pytest.importorskip("torch")
    embedding.run(Config(variants=("stock", "base"), **SMALL), RecordWriter(tmp_path))
    assert {r["labels"].get("variant") for r in records(tmp_path)} >= {"stock", "base"}


def test_stock_without_pytorch_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    embedding.run(Config(variants=("stock", "base"), **SMALL), RecordWriter(tmp_path))
    (skip,) = records(tmp_path, "skipped.jsonl")
    assert skip["labels"]["variant"] == "stock"
    assert skip["reason"] == "PyTorch is not installed in this image"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["sweep"], "sweep needs a GPU"),
        (["pin_cost"], "pin_cost needs a GPU"),
        (["profile"], "profile needs a GPU"),
        (["embedding", "--dtype", "bfloat16"], "float32 tables only, not bfloat16"),
        (["endtoend", "--variants", "smpf,optmt"], "no variant can run here"),
    ],
)
def test_what_a_cpu_cannot_run_leaves_with_77(tmp_path, capsys, argv, words):
    with pytest.raises(SystemExit) as left:
        cli.main([*argv, "--out", str(tmp_path)])
    assert left.value.code == 77
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "records.jsonl").exists()


def test_a_variant_with_wrong_sums_is_never_measured(tmp_path, monkeypatch):
    def wrong(weight, indices, offsets, first, last, out):
        out[:] = 1
        return -1

    monkeypatch.setattr(kernels, "base", wrong)
    with pytest.raises(WrongResult, match="'base' differ from the reference"):
        embedding.run(Config(variants=("base",), **SMALL), RecordWriter(tmp_path))
    assert "kernel_time" not in (tmp_path / "records.jsonl").read_text()


@pytest.mark.parametrize("hot_rows", [0, 1, 50])
def test_the_hot_copy_holds_the_hottest_rows_and_ids_point_into_it(hot_rows):
    config = Config(**{**SMALL, "hot_rows": hot_rows, "hot_list": "oracle"})
    batches = make_batches(config)
    tables = Tables(config, batches, hot=True)
    copies, rewrites = tables.fill_hot()
    assert len(copies) == 2
    assert len(rewrites) == 4
    room = tables.extended(0).shape[0] - config.rows
    assert room == (hot_rows or min(fitting_rows(config), config.rows))
    hottest = batches.hot_rows(1, room)
    np.testing.assert_array_equal(tables.extended(1)[: len(hottest)], tables.weight(1)[hottest])
    ids, moved = tables.ids(1, 1), tables.remapped(1, 1)
    np.testing.assert_array_equal(tables.extended(1)[moved], tables.weight(1)[ids])
    np.testing.assert_array_equal(moved < len(hottest), np.isin(ids, hottest))
    sums = prepare("l2p", config, tables).call(1, 1)
    expected = embedding_bag(tables.weight(1), ids, tables.offsets(1))
    np.testing.assert_array_equal(sums, expected)


def test_the_dense_part_is_the_papers_model():
    config = Config(tables=3, rows=10, batch=5)
    dense, features = Dense(config), dense_features(config)
    hidden = dense.bottom(features)
    assert features.shape == (5, 256)
    assert hidden.shape == (5, 128)
    assert hidden.min() == 0
    sums = [np.full((5, 128), t, dtype=np.float32) for t in range(3)]
    out = dense.top(hidden, sums)
    assert out.shape == (5, 1)
    assert ((out > 0) & (out < 1)).all()
    # The interaction is every pair's dot product, so a change in one table must reach the output.
    sums[2][4] = -1
    changed = dense.top(hidden, sums)
    assert changed[4] != out[4]
    np.testing.assert_allclose(changed[:4], out[:4], rtol=1e-5)


def test_a_kernel_is_found_by_its_papers_name():
    config = Config(distance=4)
    assert kernel_of("l2p", config) is kernels.base
    assert kernel_of("rpf_l2p", config) is kernels.rpf(4)
    assert kernel_of("rpf", Config()) is kernels.rpf(2)

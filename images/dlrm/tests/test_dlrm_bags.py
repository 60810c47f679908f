"""Bags of any lengths, means, and tables of different shapes, by the command line."""

import dataclasses
import json
from itertools import pairwise

import numpy as np
import pytest
from dlrm_inference import cli
from dlrm_inference.bags import make_offsets
from dlrm_inference.config import Config, ConfigError
from dlrm_inference.cpu.tables import Tables
from dlrm_inference.cpu.variants import prepare
from dlrm_inference.data import make_batches
from dlrm_inference.reference import embedding_bag
from reprokit.records import RecordWriter

SMALL = Config(
    dataset="low_hot", variants=("base",), tables=3, rows=300, batch=40, pooling=6, batches=2,
    samples=2, warmup=1,
)  # fmt: skip
CPU = ("base", "rpf", "l1dpf", "best")


def lengths(config, table=0):
    return np.diff(make_offsets(config, table))


def test_uniform_bags_are_the_papers():
    assert lengths(Config()).tolist() == [150] * 2048


@pytest.mark.parametrize(("bags", "spread"), [("ragged", 1 / 3**0.5), ("geometric", 1.0)])
def test_generated_bags_have_the_asked_mean_and_their_own_spread(bags, spread):
    config = Config(bags=bags, batch=20_000, pooling=150)
    found = lengths(config)
    assert found.mean() == pytest.approx(150, rel=0.03)
    assert found.std() == pytest.approx(150 * spread, rel=0.03)
    assert found.min() == 0
    assert (lengths(config, 1) != found).any()  # every table has its own
    assert (lengths(config) == found).all()  # and keeps them
    assert (lengths(dataclasses.replace(config, seed=1)) != found).any()


def test_a_file_gives_each_bag_its_length(tmp_path):
    file = tmp_path / "bags.txt"
    file.write_text("0 3, 1\n200 7\n")
    config = dataclasses.replace(SMALL, bags="file", bag_file=str(file), batch=3)
    assert [lengths(config, table).tolist() for table in range(2)] == [[0, 3, 1], [200, 7, 0]]
    batches = make_batches(config)
    assert [ids.shape for ids in batches.indices] == [(2, 4), (2, 207), (2, 204)]
    for content, words in (
        ("", "no lengths"), ("1 -2", "below 0"), (f"{2**63 - 1} {2**63 - 1}", r"2\^31 and more"),
        ("x", "cannot be read"),
    ):  # fmt: skip
        file.write_text(content)
        with pytest.raises(ConfigError, match=words):
            make_offsets(config, 0)
    file.write_text("0")
    with pytest.raises(ConfigError, match="every bag of table 0 is empty"):
        make_offsets(config, 0)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--bags", "file"], "--bags file and --bag-file belong together"),
        (["--bag-file", "x"], "--bags file and --bag-file belong together"),
        (["--shapes", "10x30,x5"], "--shapes has 'x5'; fix: ROWSxDIM"),
        (["--shapes", "10x2000"], "dim up to 1024"),
        (["--shapes", "99999999999999999999x4"], "a table has over"),
        (["--distance", "9223372036854775807"], "a distance is over 256 rows"),
        (["--archs", "80,abc"], "--archs has 'abc'"),
    ],
)
def test_what_does_not_fit_together_is_said(argv, words):
    with pytest.raises(ConfigError) as error:
        cli.parse(["embedding", *argv])
    assert words in str(error.value)
    with pytest.raises(ConfigError, match="one dim"):
        cli.parse(["endtoend", "--shapes", "10x4,10x8"])
    with pytest.raises(ConfigError, match="fix: --trace without --shapes"):
        make_batches(dataclasses.replace(SMALL, shapes="10x4", trace="x"))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("bags", ["uniform", "ragged", "geometric"])
def test_every_variant_serves_mixed_tables_and_ragged_bags(bags, mode):
    config = dataclasses.replace(SMALL, bags=bags, mode=mode, shapes="300x30,1000x128,7x8")
    batches = make_batches(config)
    tables = Tables(config, batches, hot=False)
    for table, (rows, dim) in enumerate(((300, 30), (1000, 128), (7, 8))):
        assert tables.weight(table).shape == (rows, dim)
        assert batches.indices[table].max() < rows
        ids, offsets = tables.ids(table, 1), tables.offsets(table)
        want = np.stack([
            tables.weight(table)[ids[a:b]].astype(np.float64).sum(0)
            / (max(b - a, 1) if mode == "mean" else 1)
            for a, b in pairwise(offsets)
        ])  # fmt: skip
        np.testing.assert_allclose(
            embedding_bag(tables.weight(table), ids, offsets, mode=mode), want, atol=1e-5
        )
        for name in CPU:
            got = prepare(name, config, tables).call(table, 1)
            np.testing.assert_allclose(got, want, atol=1e-5, err_msg=name)


def test_the_command_line_measures_them_and_says_what_is_skipped(tmp_path):
    argv = ["embedding", "--tables", "3", "--batch", "8", "--pooling", "4", "--batches", "1",
            "--samples", "2", "--warmup", "0", "--bags", "geometric", "--mode", "mean",
            "--shapes", "200x30,50x64", "--variants", "base,best,l2p"]  # fmt: skip
    assert cli.main([*argv, "--out", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    timed = {r["labels"]["variant"] for r in rows if r["metric"] == "kernel_time"}
    assert timed == {"base", "best"}
    (skip,) = map(json.loads, (tmp_path / "skipped.jsonl").read_text().splitlines())
    assert skip["labels"]["variant"] == "l2p"
    assert "no one number of hot rows" in skip["reason"]


@pytest.mark.torch
def test_stock_serves_them_too():
    pytest.importorskip("torch")
    config = dataclasses.replace(SMALL, bags="ragged", mode="mean", shapes="300x30,1000x128")
    tables = Tables(config, make_batches(config), hot=False)
    for table in range(3):
        want = embedding_bag(
            tables.weight(table), tables.ids(table, 0), tables.offsets(table), mode="mean"
        )
        np.testing.assert_allclose(prepare("stock", config, tables).call(table, 0), want, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("experiment", ["embedding", "endtoend"])
def test_a_gpu_measures_what_it_can_and_skips_the_rest_with_reasons(tmp_path, experiment):
    import torch
    from dlrm_inference.cuda import embedding, endtoend

    run = {"embedding": embedding.embedding, "endtoend": endtoend.endtoend}[experiment]
    shapes = "300x30" if experiment == "endtoend" else "300x30,2000x128"
    config = dataclasses.replace(
        SMALL, experiment=experiment, device="cuda", tables=60, bags="geometric", mode="mean",
        shapes=shapes, variants=("base", "rpf", "l2p", "stock", "fbgemm", "best"),
    )  # fmt: skip
    run(config, RecordWriter(tmp_path))
    torch.cuda.synchronize()
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    metric = "kernel_time" if experiment == "embedding" else "endtoend_time"
    timed = {r["labels"]["variant"] for r in rows if r["metric"] == metric}
    assert timed == {"base", "rpf", "stock", "best"}
    skips = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    reasons = {skip["labels"]["variant"]: skip["reason"] for skip in skips}
    assert "dim 30 is no multiple" in reasons["fbgemm"]
    assert "no one number of hot rows" in reasons["l2p"]
    if experiment == "embedding":
        assert "at most 48 tables, not 60" in reasons["best"]

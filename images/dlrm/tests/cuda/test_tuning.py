"""Tuning on a real GPU: every point sums rightly, and none of it sees what is measured."""

from __future__ import annotations

import json
from statistics import median

import pytest

torch = pytest.importorskip("torch")

from dlrm_inference.config import Config  # noqa: E402
from dlrm_inference.cuda import design  # noqa: E402
from dlrm_inference.cuda.bench import Bench  # noqa: E402
from dlrm_inference.cuda.report import raise_if_out_of_range  # noqa: E402
from dlrm_inference.cuda.scheme import Scheme  # noqa: E402
from dlrm_inference.cuda.tuning import choose, compile_all, tune  # noqa: E402
from dlrm_inference.cuda.variants import VARIANTS  # noqa: E402
from dlrm_inference.experiments import embedding  # noqa: E402
from reprokit.records import RecordWriter  # noqa: E402

pytestmark = pytest.mark.gpu

SMALL = Config(
    device="cuda", dataset="high_hot", variants=tuple(design.TUNED), tables=4, rows=2000,
    batch=64, pooling=20, batches=2, samples=4, warmup=2, distances=(2, 10), warps=(32, 64),
)  # fmt: skip
LENGTHS = [0, 1, 2, 149, 150, 151, 0, 3, 64, 1000, 7]


def read(folder, metric):
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["metric"] == metric]


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dim", [100, 128])
@pytest.mark.parametrize("tuned", design.TUNED)
def test_every_point_of_a_search_space_sums_bit_for_bit_as_base(tuned, dim, index) -> None:
    config = Config()
    lengths = torch.tensor(LENGTHS * 5)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).to(index).cuda()
    indices = torch.randint(0, 5000, (int(lengths.sum()),), device="cuda").to(index)
    weight = torch.randn(5000, dim, device="cuda")
    want = VARIANTS["base"].forward(weight, indices, offsets, check=True)
    in_float64 = torch.nn.functional.embedding_bag(
        indices.long(), weight.double(), offsets.long(), mode="sum", include_last_offset=True
    )
    assert float((want - in_float64).abs().max() / in_float64.abs().max()) < 1e-5
    space = design.search_space(tuned, config.distances, config.warps)
    points = {key: Scheme(**vars(point)) for key, point in space.items()}
    compile_all(points.values(), weight.device, index)
    for key, point in points.items():
        out = torch.full_like(want, float("nan"))
        point.forward(weight, indices, offsets, out=out, check=True)
        assert torch.equal(out, want), key


@pytest.mark.parametrize("tuned", design.TUNED)
def test_tuning_records_all_that_it_tried_and_takes_the_fastest(tuned, tmp_path) -> None:
    bench = Bench(SMALL, RecordWriter(tmp_path))
    mode = "setaside" if tuned == "rpf_l2p_tuned" else ""
    winner = tune(bench, RecordWriter(tmp_path), tuned, mode)
    tried = read(tmp_path, "tuning_time")
    space = design.search_space(tuned, SMALL.distances, SMALL.warps)
    assert len(tried) == len(space)
    assert set(tried[0]["labels"]) - {"l2_mode"} == {  # none has the name of a column of records
        "variant", "dataset", "setting", "distance", "registers", "warps_per_sm",
    }  # fmt: skip
    assert all(row["labels"].get("l2_mode", "") == mode for row in tried)
    (chosen,) = [row for row in tried if row["note"].startswith("the fastest")]
    assert median(chosen["samples"]) == min(median(row["samples"]) for row in tried)
    assert chosen["labels"]["distance"] == str(winner.distance)
    assert winner.name == tuned
    for metric, want in (
        ("tuned_distance", winner.distance),
        ("tuned_registers", winner.attributes(bench.device).registers),
        ("tuned_warps_per_sm", winner.attributes(bench.device).warps_per_sm),
    ):
        (row,) = read(tmp_path, metric)
        assert row["samples"] == [want]


def test_tuning_never_reads_what_is_measured(tmp_path) -> None:
    bench = Bench(SMALL, RecordWriter(tmp_path))
    for batch in bench.indices:
        for ids in batch:
            ids.fill_(SMALL.rows + 1)  # whoever reads this raises
    for tuned in design.TUNED:
        tune(bench, RecordWriter(tmp_path), tuned, "setaside" if "l2p" in tuned else "")
    raise_if_out_of_range(bench.device)
    with pytest.raises(IndexError):
        VARIANTS["base"].forward(*bench.arguments(0, 0), check=True)


def test_a_pinning_variant_is_tuned_for_every_l2_mode(tmp_path) -> None:
    config = Config(**{**vars(SMALL), "variants": ("rpf_l2p_tuned",), "l2_mode": "all"})
    bench = Bench(config, RecordWriter(tmp_path))
    choose(bench, RecordWriter(tmp_path))
    assert {mode for _, mode in bench.tuned} == set(config.l2_modes)
    assert {row["labels"]["l2_mode"] for row in read(tmp_path, "tuned_distance")} == set(
        config.l2_modes
    )


@pytest.mark.timed
def test_the_embedding_stage_has_them_and_the_cost_of_pinning_in_and_out(tmp_path) -> None:
    variants = ("base", "l2p", "rpf_l2p", *design.TUNED)
    embedding.run(Config(**{**vars(SMALL), "variants": variants}), RecordWriter(tmp_path))
    alone = {row["labels"]["variant"]: row for row in read(tmp_path, "kernel_time")}
    both = {row["labels"]["variant"]: row for row in read(tmp_path, "pin_and_kernel_time")}
    assert set(alone) == set(variants)
    assert set(both) == {"l2p", "rpf_l2p", "rpf_l2p_tuned"}
    for name, row in both.items():
        assert row["labels"] == alone[name]["labels"]
        assert median(row["samples"]) > median(alone[name]["samples"])

"""What needs a GPU: known kernels, the workloads at full size, the collector around them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pasta_workloads.cli import main
from pasta_workloads.config import MODES
from pasta_workloads.exact import run_kernels
from pasta_workloads.models.sizes import PUBLISHED
from pasta_workloads.oracle.paper import TABLE_V
from pasta_workloads.oracle.statistics import table_row
from pasta_workloads.oracle.tables import row
from pasta_workloads.parallel.ranks import Job, run_ranks
from pasta_workloads.target import run_model
from pasta_written import records, samples

pytestmark = pytest.mark.gpu


def test_known_kernels_compute_what_they_should() -> None:
    run_kernels(100_000)
    run_kernels(1000)  # the last block is not full


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", ["alexnet", "resnet18", "resnet34", "bert", "gpt2", "whisper"])
def test_every_workload_fits_and_runs(model: str, mode: str) -> None:
    seconds = run_model(model, mode, "full", "cuda", iterations=1, warmup=0, seed=100)
    assert seconds[0] > 0
    torch.cuda.empty_cache()


def test_tensor_parallelism_halves_the_peak(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    peaks = {}
    for kind in ("dp", "tp", "pp"):
        found = run_ranks(Job(kind=kind, size="full", device="cuda", folder=tmp_path / kind))
        assert found[0].losses == pytest.approx(found[1].losses, rel=1e-3)
        peaks[kind] = found[0].peak
    assert peaks["tp"] / peaks["dp"] == pytest.approx(0.5, abs=0.15)


def test_counts_are_exact(tmp_path: Path) -> None:
    assert main(["counts", "--repeats", "1", "--out", str(tmp_path)]) == 0
    errors = [r["samples"] for r in records(tmp_path) if r["metric"] == "count_error"]
    assert errors
    assert all(sample == [0] for sample in errors)


@pytest.mark.parametrize("mode", ["test", "train"])
def test_berts_largest_working_set_is_the_oracles(mode: str, tmp_path: Path) -> None:
    words = ["--model", "bert", "--modes", mode, "--repeats", "1", "--out", str(tmp_path)]
    assert main(["table_v", *words]) == 0
    expected = table_row(row("bert", mode))["max"]
    assert samples(tmp_path, "working_set", stat="max")[0] == pytest.approx(expected, rel=0.01)
    assert samples(tmp_path, "footprint")[0] > expected


@pytest.mark.parametrize("mode", ["test_bf16", "step_bf16"])
def test_berts_working_sets_by_tensor_maps_are_those_of_the_shapes(
    mode: str, tmp_path: Path
) -> None:
    words = ["--model", "bert", "--modes", mode, "--repeats", "1", "--out", str(tmp_path)]
    assert main(["table_v", *words]) == 0
    low, high = (table_row(row("bert", mode, name)) for name in ("plain", "all"))
    for stat, share in (("max", 0.01), ("mean", 0.05)):
        (found,) = samples(tmp_path, "working_set", stat=stat)
        assert (1 - share) * low[stat] <= found <= (1 + share) * high[stat]
    hopper = torch.cuda.get_device_capability() >= (9, 0)
    assert (samples(tmp_path, "tensor_map_launches")[0] > 0) == hopper
    assert samples(tmp_path, "not_seen") == [0]


@pytest.mark.parametrize("mode", ["test", "train"])
def test_whisper_as_the_paper_counts_it(mode: str, tmp_path: Path) -> None:
    """Launches and the smallest working set exactly. Median and footprint, which are not the
    paper's on an H200, are left to the claims (docs/papers/pasta.md, 6.4)."""
    words = ["--model", PUBLISHED, "--modes", mode, "--repeats", "1", "--out", str(tmp_path)]
    assert main(["table_v", *words]) == 0
    paper = TABLE_V["whisper", mode]
    assert samples(tmp_path, "kernels") == [paper.kernels]
    assert samples(tmp_path, "working_set", stat="min") == [paper.min]
    assert samples(tmp_path, "working_set", stat="max")[0] == pytest.approx(paper.max, rel=0.01)
    assert samples(tmp_path, "working_set", stat="p90")[0] == pytest.approx(paper.p90, rel=0.05)
    assert samples(tmp_path, "working_set", stat="mean")[0] == pytest.approx(paper.mean, rel=0.05)


def test_a_small_problem_under_every_variant(tmp_path: Path) -> None:
    words = ["--model", "bert", "--size", "small", "--repeats", "1", "--out", str(tmp_path)]
    assert main(["overhead", *words]) == 0
    for variant in ("events", "empty", "cs_gpu", "count", "cs_cpu", "cs_cpu_mt"):
        assert samples(tmp_path, "slowdown", variant=variant)[0] > 0


def test_timeline_has_tensors_and_objects(tmp_path: Path) -> None:
    words = ["--model", "gpt2", "--mode", "train", "--size", "small", "--out", str(tmp_path)]
    assert main(["timeline", *words]) == 0
    tensor, driver = (
        samples(tmp_path, "peak_allocated", level=level)[0] for level in ("tensor", "object")
    )
    assert 0 < tensor <= driver


def test_prefetching_moves_what_was_advised(tmp_path: Path) -> None:
    words = ["--model", "bert", "--size", "small", "--repeats", "1", "--out", str(tmp_path)]
    assert main(["uvm", *words]) == 0
    asked = {
        policy: samples(tmp_path, "prefetch_asked", policy=policy)[0]
        for policy in ("none", "object", "tensor")
    }
    assert asked["none"] == 0
    assert asked["object"] > asked["tensor"] > 0

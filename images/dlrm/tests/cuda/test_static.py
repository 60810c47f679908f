"""Registers and occupancy without a GPU: the rule, the compiler, the published kernel."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from dlrm_inference.config import Config
from dlrm_inference.cuda import cubin, design, wheel21
from dlrm_inference.cuda.occupancy import SMS, occupancy
from dlrm_inference.experiments import static
from reprokit.records import RecordWriter

# docs/papers/dlrm.md, 3.1, 8-warp blocks: (registers from, to) -> warps per SM, sm_80 and sm_90.
TABLE = [((65, 80), 24), ((49, 64), 32), ((41, 48), 40), ((33, 40), 48), ((1, 32), 64)]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("bounds", "warps"), TABLE)
def test_occupancy_is_the_table_of_the_paper_s_page(arch, bounds, warps):
    for registers in range(bounds[0], bounds[1] + 1):
        held = occupancy(arch, 256, registers)
        assert held.warps == warps
        assert held.percent == 100 * warps / 64


def test_the_two_numbers_of_the_paper():
    assert occupancy("sm_80", 256, 74).percent == 37.5  # D6
    assert occupancy("sm_80", 256, 42).percent == 62.5  # D7


def test_each_limit_can_be_the_one_that_binds():
    assert occupancy("sm_80", 256, 255).limit == "registers"
    assert occupancy("sm_80", 32, 16).limit == "blocks"
    assert occupancy("sm_80", 1024, 16).limit == "warps"
    held = occupancy("sm_80", 256, 16, 40_000)
    assert (held.limit, held.blocks) == ("shared memory", 4)
    # 10,240 bytes and the system's 1,024 for SMPF: 14 blocks would fit, warps allow 8.
    assert occupancy("sm_80", 256, 32, 10_240).blocks == 8


def test_a_block_that_does_not_fit_has_no_occupancy():
    assert occupancy("sm_86", 256, 32, 101 * 1024).percent == 0
    assert occupancy("sm_80", 1024, 72).percent == 0


def test_an_unknown_architecture_is_a_key_error():
    with pytest.raises(KeyError, match="sm_70"):
        occupancy("sm_70", 256, 32)
    assert set(SMS) == {f"sm_{arch}" for arch in Config().archs}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", [*design.POINTS, "best"])
def test_the_machine_code_says_what_the_compiler_reported(name, arch):
    built = design.build(name, arch)
    (kernel,) = [k for k in cubin.read_kernels(built.cubin).values() if not k.name.startswith("__")]
    assert kernel.registers == built.usage.registers
    assert kernel.shared_bytes == built.usage.shared_bytes
    assert kernel.local_bytes == built.usage.stack_bytes


def write_manifest(folder: Path) -> None:
    kernels = [
        wheel21.StockKernel(
            arch=arch,
            index=index,
            file="",
            name=f"kernel of sm_{arch}",
            registers=74,
            local_bytes=0,
            shared_bytes=0,
            parameters=wheel21.expected_layout(index),
            parameter_bytes=128,
        )
        for arch in wheel21.ARCHS
        for index in wheel21.TEMPLATES
    ]
    manifest = {"kernels": [asdict(kernel) for kernel in kernels]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def run_static(tmp_path: Path, **config: object) -> tuple[dict, list[dict]]:
    out = tmp_path / "out"
    static.run(Config(experiment="static", **config), RecordWriter(out))
    lines = (out / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    keys = [(r["metric"], r["labels"].get("variant"), r["labels"]["arch"]) for r in records]
    assert len(set(keys)) == len(keys)  # a claim that selects by variant and arch finds one record
    skipped = out / "skipped.jsonl"
    skips = skipped.read_text().splitlines() if skipped.exists() else []
    return dict(zip(keys, records, strict=True)), [json.loads(line) for line in skips]


def test_the_published_kernel_is_recorded_where_its_code_runs(tmp_path, monkeypatch):
    write_manifest(tmp_path)
    monkeypatch.setenv("AE_STOCK21_DIR", str(tmp_path))
    records, skips = run_static(tmp_path, variants=("stock21",))
    shares = {arch: records["occupancy", "stock21", arch]["samples"][0] for arch in (
        "sm_80", "sm_86", "sm_89", "sm_90"
    )}  # fmt: skip
    assert shares == {"sm_80": 37.5, "sm_86": 50.0, "sm_89": 50.0, "sm_90": 37.5}
    assert records["registers", "stock21", "sm_80"]["samples"] == [74]
    assert "its code for sm_86" in records["registers", "stock21", "sm_89"]["note"]
    assert {skip["labels"]["arch"] for skip in skips} == {"sm_100", "sm_120"}
    assert "compute capability 8.x or 9.0" in skips[0]["reason"]


def test_without_the_kernel_it_is_skipped_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.setenv("AE_STOCK21_DIR", str(tmp_path / "none"))
    records, (skip,) = run_static(tmp_path, variants=("stock21",), archs=("80",))
    assert not any(variant == "stock21" for _, variant, _ in records)
    assert "fix: pip download" in skip["reason"]


def test_what_an_a100_can_pin_is_what_the_artifact_pins(tmp_path):
    records, _ = run_static(tmp_path, variants=("optmt",), archs=("80",))
    rows = records["pinned_rows", None, "sm_80"]["samples"][0]
    most = records["pinned_bytes", None, "sm_80"]["samples"][0]
    assert (rows, most) == (61_440, 31_457_280)
    assert rows >= 60_000  # D8: they fit,
    assert 0.95 * most <= 60_000 * 512  # and fill it
    assert records["registers", "optmt", "sm_80"]["evidence"] == "static"


def test_the_default_distances_are_the_artifact_s(tmp_path):
    variants = ("rpf", "smpf", "l1dpf", "lmpf")
    records, _ = run_static(tmp_path, variants=variants, archs=("80",))
    found = [records["distance", name, "sm_80"]["samples"][0] for name in variants]
    assert found == [2, 10, 2, 2]  # D9

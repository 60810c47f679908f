"""What the compiler makes of the design points; needs NVRTC, neither PyTorch nor a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dlrm_inference.config import Config
from dlrm_inference.cuda import design
from dlrm_inference.cuda.occupancy import occupancy
from dlrm_inference.experiments import static
from reprokit.records import RecordWriter

NAMES = [*design.POINTS, "best"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_compiles_for_two_architectures(name: str, arch: str) -> None:
    built = design.build(name, arch)
    assert built.cubin[:4] == b"\x7fELF"
    assert 16 <= built.usage.registers <= 255


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_base_is_held_to_the_occupancy_of_the_74_register_kernel(arch: str) -> None:
    built = design.build("base", arch)
    assert built.usage.registers == design.BASE_REGISTERS
    held = occupancy(arch, 256, built.usage.registers, built.usage.shared_bytes)
    assert (held.warps, held.percent, held.limit) == (24, 37.5, "registers")


def test_optmt_reaches_the_papers_occupancy_and_a_cap_binds_one_kernel_only() -> None:
    assert design.build("optmt", "sm_80").usage.registers == 42
    capped = design.build("optmt", "sm_80", registers=32)
    assert capped.usage.registers == 32
    assert design.build("base", "sm_80").usage.registers == 74


def test_lmpf_really_uses_local_memory_and_plain_kernels_do_not() -> None:
    assert design.build("lmpf", "sm_90").usage.stack_bytes > 0
    for name in ("base", "optmt", "rpf", "best"):
        assert design.build(name, "sm_90").usage.stack_bytes == 0


@pytest.mark.parametrize(
    ("registers", "warps", "percent"),
    [(74, 24, 37.5), (64, 32, 50.0), (48, 40, 62.5), (42, 40, 62.5), (40, 48, 75.0), (32, 64, 100)],
)
def test_occupancy_by_registers(registers: int, warps: int, percent: float) -> None:
    held = occupancy("sm_80", 256, registers)
    assert (held.warps, held.percent) == (warps, percent)


def test_shared_memory_and_small_sms_limit_too() -> None:
    assert occupancy("sm_86", 256, 32).warps == 48
    held = occupancy("sm_80", 256, 32, 60 * 1024)
    assert (held.blocks, held.limit) == (2, "shared memory")


def test_occupancy_that_blocks_of_eight_warps_cannot_make() -> None:
    with pytest.raises(design.UnsupportedError, match="multiple of 8"):
        design.registers_for(20)
    assert [design.registers_for(warps) for warps in (24, 32, 40, 48, 64)] == [80, 64, 48, 40, 32]


def test_static_records_prove_the_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AE_STOCK21_DIR", str(tmp_path / "none"))
    variants = ("base", "optmt", "stock", "stock21", "best")
    config = Config(experiment="static", variants=variants, archs=("80", "90"))
    static.run(config, RecordWriter(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    found = {
        (r["metric"], r["labels"].get("variant"), r["labels"]["arch"]): r["samples"][0]
        for r in rows
    }
    assert found["occupancy", "base", "sm_80"] == 37.5
    assert found["occupancy", "optmt", "sm_80"] == 62.5
    assert found["pinned_rows", None, "sm_80"] == 61_440
    assert {r["evidence"] for r in rows} == {"static"}
    skipped = (tmp_path / "skipped.jsonl").read_text()
    assert "stock21" in skipped

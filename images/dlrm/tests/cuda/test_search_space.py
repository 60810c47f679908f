"""What tuning tries, compiled; needs NVRTC, neither PyTorch nor a GPU."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from dlrm_inference.config import DEFAULT_DISTANCE, PINNING, VARIANTS, Config
from dlrm_inference.cuda import design

DISTANCES, WARPS = Config().distances, Config().warps


def space(tuned: str) -> dict[str, design.Point]:
    return design.search_space(tuned, DISTANCES, WARPS)


def test_the_tuned_variants_are_variants_of_the_workload() -> None:
    assert set(design.TUNED) == {name for name in VARIANTS if name.endswith("_tuned")}
    for tuned in design.TUNED:
        assert {point.pins for point in space(tuned).values()} == {tuned in PINNING}
        assert {point.name for point in space(tuned).values()} == {tuned}


@pytest.mark.parametrize("tuned", design.TUNED)
def test_the_artifacts_own_setting_is_tried_too(tuned: str) -> None:
    form = design.TUNED[tuned][0]
    tried = {(point.distance, point.registers) for point in space(tuned).values()}
    assert (DEFAULT_DISTANCE[form], design.OPTMT_REGISTERS) in tried
    assert tried >= {(d, design.registers_for(w)) for d in DISTANCES for w in WARPS}


def test_rows_that_do_not_fit_the_shared_memory_of_a_block_are_not_tried() -> None:
    tried = design.search_space("smpf_tuned", [10, 49], [32])
    assert {point.distance for point in tried.values()} == {10}
    assert 49 in {point.distance for point in design.search_space("rpf_tuned", [49], [32]).values()}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("tuned", design.TUNED)
def test_every_point_compiles_within_its_registers(tuned: str, arch: str) -> None:
    points = list(space(tuned).values())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(lambda point: point.build(arch), points))
    for point, code in zip(points, compiled, strict=True):
        (usage,) = code.usage.values()
        assert usage.registers == point.registers
        if point.scheme in (design.SHARED, design.ASYNC):
            assert usage.shared_bytes == point.distance * 256 * 4

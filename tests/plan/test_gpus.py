"""Which GPUs of an unequal machine the points get: those that fit, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ae.model import Gpu, GpuId, Machine, Plan
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.load import load_recipe
from tests.toy import make_toy

T4 = Gpu(
    index=0,
    uuid="GPU-t4",
    name="Tesla T4",
    memory_gib=15.0,
    memory_free_gib=15.0,
    compute_capability=(7, 5),
    driver="580.1",
)
A100 = replace(
    T4, index=1, uuid="GPU-a100", name="A100", memory_gib=40.0, compute_capability=(8, 0)
)
UNEQUAL = Machine(gpus=(T4, A100))
AXIS = {
    "axes:\n": "axes:\n  gpus:\n    help: how many\n    values:\n"
    "      '1': {summary: x}\n      '2': {summary: x}\n",
    "    axes: [dataset]\n    variants: all\n    interleave: true\n    gpu: none\n": (
        "    axes: [gpus]\n    variants: all\n    gpu: optional\n"
        "    needs: {gpus: {count: '{gpus}', min_compute_capability: '8.0', why: x}}\n"
    ),
    'measure, --device, "{device}",': 'measure, --gpus, "{gpus}", --device, "{device}",',
    '--dataset, "{dataset}", ': "",
}


def planned(root: Path, machine: Machine, experiment: str, **selection: object) -> Plan:
    chosen = Selection(experiments=(experiment,), **selection)  # type: ignore[arg-type]
    return make_plan(load_recipe(root, "toy"), chosen, machine, root, {"toy": "c"})


def devices(plan: Plan) -> list[list[int]]:
    requests = [point.needs.gpus for point in plan.points]
    return [[device.index for device in request.devices] for request in requests if request]


def test_the_request_names_the_gpu_that_fits(tmp_path: Path) -> None:
    root = make_toy(tmp_path)
    request = planned(root, UNEQUAL, "gpu_only").points[0].needs.gpus
    assert request is not None
    assert request.devices == (GpuId(index=1, uuid="GPU-a100"),)


@pytest.mark.parametrize("word", ["1", "GPU-a100"])
def test_a_gpu_named_by_number_or_uuid_is_known_by_both(tmp_path: Path, word: str) -> None:
    plan = planned(make_toy(tmp_path), UNEQUAL, "gpu_only", gpus=(word,))
    assert plan.points[0].needs.gpus is not None
    assert plan.points[0].needs.gpus.devices == (GpuId(index=1, uuid="GPU-a100"),)


def test_the_key_has_the_model_of_the_chosen_gpu_and_not_which_it_is(tmp_path: Path) -> None:
    root = make_toy(tmp_path)
    alone = planned(root, Machine(gpus=(replace(A100, index=0, uuid="GPU-x"),)), "gpu_only")
    beside = planned(root, UNEQUAL, "gpu_only")
    assert beside.points[0].key == alone.points[0].key
    hopper = replace(A100, index=2, uuid="GPU-h100", name="H100")  # would do, and is not used
    assert (
        planned(root, Machine(gpus=(A100, hopper)), "gpu_only").points[0].key == alone.points[0].key
    )
    picked = planned(root, UNEQUAL, "gpu_only", gpus=("1",))
    assert picked.points[0].key == alone.points[0].key


def test_an_axis_of_counts_begins_with_gpus_that_fit_and_are_alike(tmp_path: Path) -> None:
    root = make_toy(tmp_path)
    recipe = root / "recipes/toy/recipe.yaml"
    text = recipe.read_text()
    for old, new in AXIS.items():
        assert old in text, old
        text = text.replace(old, new, 1)
    recipe.write_text(text)
    hopper = replace(A100, name="H100", compute_capability=(9, 0))
    cases = [
        ((T4, A100, replace(A100, index=2)), [[1], [1, 2]]),
        ((hopper, replace(A100, index=2), replace(A100, index=3)), [[2], [2, 3]]),
        ((A100, replace(hopper, index=4)), [[1], [1, 4]]),
    ]
    for gpus, chosen in cases:
        unlike = tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in gpus)
        assert devices(planned(root, Machine(gpus=unlike), "together")) == chosen


def test_a_person_may_take_unlike_ones_in_an_order_of_his_own(tmp_path: Path) -> None:
    root = make_toy(tmp_path)
    machine = Machine(gpus=(T4, A100, replace(A100, index=2, uuid="GPU-2")))
    assert devices(planned(root, machine, "either", gpus=("2", "0"))) == [[2, 0]]
    counted = planned(root, machine, "either", gpus=2)
    assert devices(counted) == [[1, 2]]
    assert [point.needs.gpus.count for point in counted.points if point.needs.gpus] == [2]

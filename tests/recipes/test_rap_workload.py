"""The RAP recipe and its workload agree on every word of the command line."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from rap_training import config as workload
from rap_training.cli import parse

from ae.model import Gpu, Machine, Plan, Point
from ae.plan import Selection, make_plan
from ae.recipe import Experiment, Recipe, load_recipe

ROOT = Path(__file__).resolve().parents[2]
H200 = Gpu(
    index=0, uuid="GPU-0", name="NVIDIA H200", memory_gib=139.0, memory_free_gib=138.0,
    compute_capability=(9, 0), driver="580.159.03",
)  # fmt: skip
MACHINES = {"gpu": Machine(gpus=(H200,) * 8), "cpu": Machine(cpus=2, memory_gib=8)}


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(ROOT, "rap")


def native(recipe: Recipe) -> dict[str, Experiment]:
    return {name: e for name, e in recipe.experiments.items() if e.lane == "native"}


def plan(recipe: Recipe, machine: str, **selection: object) -> Plan:
    chosen = Selection(experiments=tuple(native(recipe)), **selection)  # type: ignore[arg-type]
    return make_plan(recipe, chosen, MACHINES[machine], ROOT, {"rap": "0" * 64})


def parsed(point: Point) -> workload.Config:
    assert point.argv[:3] == ("python", "-m", "rap_training")
    return parse(list(point.argv[3:]))


@pytest.mark.parametrize(("machine", "quick"), list(product(MACHINES, [False, True])))
def test_every_command_line_parses_with_the_workloads_own_parser(
    recipe: Recipe, machine: str, quick: bool
) -> None:
    points = plan(recipe, machine, quick=quick).points
    assert {point.experiment for point in points} == set(native(recipe))
    for point in points:
        config = parsed(point)
        assert config.experiment == point.experiment
        assert config.device == ("cuda" if point.needs.gpus else "cpu")
        if point.variants:
            assert tuple(config.variants) == point.variants
        for axis, value in point.labels.items():
            assert str(getattr(config, axis)) == value, axis


def test_every_setting_reaches_the_workload(recipe: Recipe) -> None:
    settings = {
        "repeats": "7", "iterations": "51", "warmup": "9", "seed": "99", "scale": "0.25",
        "loader": "pinned", "matmul": "tf32", "trainer": "eager", "workers": "3,5",
        "plan_file": "/data/plan.json", "data": "/data/day_2.parquet",
    }  # fmt: skip
    assert set(settings) == set(recipe.parameters)
    arrived: dict[str, set[str]] = {}
    for point in plan(recipe, "gpu", settings=settings).points:
        config = parsed(point)
        for name in settings:
            value = getattr(config, name)
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            arrived.setdefault(name, set()).add(text)
    for name, text in settings.items():
        assert text in arrived[name], name


@pytest.mark.parametrize(
    "words",
    [
        ("fig11",),
        ("fig10", "--variants", "rapp"),
        ("fig10", "--plan", "7"),
        ("fig10", "--gpus", "0"),
        ("fig10", "--batch", "none"),
        ("fig10", "--scale", "0"),
        ("fig10", "--matmul", "fp8"),
        ("fig10", "--nonsense", "1"),
    ],
)
def test_what_the_workload_refuses(words: tuple[str, ...]) -> None:
    with pytest.raises(workload.ConfigError):
        parse(list(words))


def test_the_words_are_the_workloads_words(recipe: Recipe) -> None:
    assert set(recipe.variants) == set(workload.VARIANTS)
    words = {experiment.command[3] for experiment in native(recipe).values()}
    assert words == set(workload.EXPERIMENTS)
    assert set(recipe.axes["plan"].values) == {str(plan) for plan in workload.PLANS}

"""The RAP recipe and its workload agree on every word of the command line."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from rap_training import config as workload
from rap_training.cli import parse

from ae.model import Gpu, Machine, Plan, Point
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.load import load_recipe
from ae.recipe.models import Experiment, Recipe

ROOT = Path(__file__).resolve().parents[3]
H200 = Gpu(
    index=0, uuid="GPU-0", name="NVIDIA H200", memory_gib=139.0, memory_free_gib=138.0,
    compute_capability=(9, 0), driver="580.159.03",
)  # fmt: skip
FIELDS = {"graph_seconds": "solver_seconds"}  # the experiment fusion has a limit of its own
MACHINES = {"gpu": Machine(gpus=(H200,) * 8), "cpu": Machine(cpus=2, memory_gib=8)}


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(ROOT, "rap")


def native(recipe: Recipe) -> dict[str, Experiment]:
    return {name: e for name, e in recipe.experiments.items() if e.lane == "native"}


def plan(recipe: Recipe, machine: str, **selection: object) -> Plan:
    chosen = Selection(**selection)  # type: ignore[arg-type]
    return make_plan(recipe, chosen, MACHINES[machine], ROOT, {"rap": "0" * 64})


def parsed(point: Point) -> workload.Config:
    assert point.argv[:3] == ("python", "-m", "rap_training")
    return parse(list(point.argv[3:]))


@pytest.mark.parametrize(("machine", "quick"), list(product(MACHINES, [False, True])))
def test_every_command_line_parses_with_the_workloads_own_parser(
    recipe: Recipe, machine: str, quick: bool
) -> None:
    here = {name for name, e in native(recipe).items() if machine == "gpu" or e.gpu != "required"}
    points = plan(recipe, machine, quick=quick, experiments=tuple(here)).points
    assert {point.experiment for point in points} == here
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
        "repeats": "6", "iterations": "51", "warmup": "9", "seed": "99", "scale": "0.25",
        "loader": "staged", "matmul": "tf32", "trainer": "eager", "workers": "3,5",
        "load": "1.5", "solver": "asap", "solver_seconds": "4.5", "ratios": "0.3,0.7",
        "green_sms": "24", "graph_seconds": "6.5", "mps_percentage": "50",
        "plan_file": "/data/plan.json", "data": "/data/day_2.parquet",
    }  # fmt: skip
    assert set(settings) == set(recipe.parameters)
    plain = workload.Config(experiment="fig10")
    reached: set[str] = set()
    named = tuple(native(recipe))
    for point in plan(recipe, "gpu", settings=settings, experiments=named).points:
        config = parsed(point)
        command = recipe.experiments[point.experiment].command
        for name, wanted in settings.items():
            if f"{{{name}}}" not in command:
                continue
            reached.add(name)
            value = getattr(config, FIELDS.get(name, name))
            assert value != getattr(plain, FIELDS.get(name, name)), name
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            assert text == wanted, (point.id, name)
    assert reached == set(settings)


def test_a_plan_of_ones_own_runs_once_and_not_once_a_built_in_plan(recipe: Recipe) -> None:
    settings = {"plan_file": "/data/mine.json"}
    chosen = ("fig9", "fig10", "heavy", "capacity")
    made = plan(recipe, "gpu", settings=settings, experiments=chosen, gpus=1).points
    plain = plan(recipe, "gpu", experiments=chosen, gpus=1).points
    for name in chosen:
        cells = [point.labels["batch"] for point in made if point.experiment == name]
        before = [point.labels["batch"] for point in plain if point.experiment == name]
        own = "{plan_file}" in recipe.experiments[name].command
        assert sorted(cells) == sorted(before)[:: 2 if own else 1], name
        assert own == (name != "capacity")


def test_what_decides_a_variant_can_be_set_wherever_it_takes_part(recipe: Recipe) -> None:
    for name, experiment in native(recipe).items():
        taking_part = [workload.VARIANTS[variant] for variant in recipe.variants_of(name)]
        decides = {
            "solver": any(variant.fusion == "horizontal" for variant in taking_part),
            "solver_seconds": any(variant.fusion == "horizontal" for variant in taking_part),
            "green_sms": any(variant.green for variant in taking_part),
            "mps_percentage": any(variant.mps for variant in taking_part),
            "workers": any(variant.place == "workers" for variant in taking_part),
        }
        if taking_part:
            given = {word: f"{{{word}}}" in experiment.command for word in decides}
            assert given == decides, name


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
    words = {name: experiment.command[3] for name, experiment in native(recipe).items()}
    assert words == {name: name for name in words}
    assert set(words.values()) == set(workload.EXPERIMENTS)
    assert set(recipe.axes["plan"].values) == {str(plan) for plan in workload.PLANS}

"""The planner by values: recipe, selection and machine in, points or a clear refusal out."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ae.errors import EnvironmentFault, ExitCode, UsageError
from ae.model import Flavour, Gpu, GpuId, GpuRequest, Machine, Mount, Plan
from ae.plan.gpus import gpu_request, shortcoming, version
from ae.plan.planner import make_plan
from ae.plan.selection import Selection, check_selection, is_protocol, parse_gpus
from ae.recipe.load import load_recipe
from ae.recipe.models import Recipe
from ae.records.models import PlanRecord, describe
from tests.toy import make_toy

GPU = Gpu(
    index=0, uuid="GPU-a", name="NVIDIA H200", memory_gib=139.8, memory_free_gib=139.0,
    compute_capability=(9, 0), driver="580.159.03",
)  # fmt: skip
SECOND = replace(GPU, index=1, uuid="GPU-b")
FIRST, OTHER = GpuId(index=0, uuid="GPU-a"), GpuId(index=1, uuid="GPU-b")
NONE = Machine()
ONE = Machine(gpus=(GPU,))
TWO = Machine(gpus=(GPU, SECOND))
ROOT = Path("/work")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return load_recipe(make_toy(tmp_path_factory.mktemp("toy")), "toy")


def plan(recipe: Recipe, machine: Machine = NONE, /, **selection: Any) -> Plan:
    return make_plan(recipe, Selection(**selection), machine, ROOT, {"toy": "c0ffee"})


def ids(made: Plan) -> list[str]:
    return [point.id for point in made.points]


def changed(recipe: Recipe, name: str, **update: object) -> Recipe:
    """The recipe with fields of one experiment replaced."""
    experiment = recipe.experiments[name].model_copy(update=update)
    return recipe.model_copy(update={"experiments": {**recipe.experiments, name: experiment}})


def test_a_plain_run_has_the_default_experiments(toy: Recipe) -> None:
    made = plan(toy)
    assert ids(made) == [
        "together-ones", "together-ramp",
        "apart-ones-slow", "apart-ones-fast", "apart-ramp-slow", "apart-ramp-fast",
    ]  # fmt: skip
    assert made.flavour is Flavour.CPU
    assert made.notes == ()


def test_a_point_holds_everything(toy: Recipe) -> None:
    point = plan(toy).points[0]
    assert point.argv == (
        "python", "-m", "toy", "measure", "--device", "cpu", "--dataset", "ones",
        "--variants", "slow,fast", "--size", "20000", "--samples", "30", "--order", "forward",
        "--words", "alpha,beta", "--verbose", "false", "--scale", "1.0",
        "--gpu-name", "Toy GPU 1", "--repeat", "0",
    )  # fmt: skip
    assert point.variants == ("slow", "fast")
    assert point.labels == {"dataset": "ones"}
    assert point.image.reference == "ae/toy:cpu"
    assert point.image.content == "c0ffee"
    assert point.image.source == ROOT / "images" / "toy"
    assert (point.timeout_s, point.expected_s, point.disk_bytes) == (60.0, 2.0, 1_000_000)
    assert point.needs.gpus is None
    assert point.needs.network == "none"


def test_a_point_of_its_own_for_each_variant(toy: Recipe) -> None:
    point = plan(toy, experiments=("apart",)).points[1]
    assert point.variants == ("fast",)
    assert point.labels == {"dataset": "ones", "variant": "fast"}
    assert "fast" in point.argv
    assert "slow" not in " ".join(point.argv)


def test_a_variant_brings_its_baseline(toy: Recipe) -> None:
    made = plan(toy, variants=("fast",), experiments=("together",))
    assert made.points[0].variants == ("slow", "fast")
    alone = plan(toy, variants=("slow",), experiments=("together",))
    assert alone.points[0].variants == ("slow",)


def test_a_baseline_outside_the_experiment_is_left_out(toy: Recipe) -> None:
    recipe = changed(toy, "together", variants=("fast",))
    assert plan(recipe, variants=("fast",)).points[0].variants == ("fast",)


def test_experiments_without_the_variant_are_left_out_with_a_note(toy: Recipe) -> None:
    recipe = changed(toy, "together", variants=("slow",))
    made = plan(recipe, variants=("fast",))
    assert {point.experiment for point in made.points} == {"apart"}
    assert made.notes == ("left out: together has no variant fast",)
    with pytest.raises(UsageError, match="together has no variant fast"):
        plan(recipe, variants=("fast",), experiments=("together",))


def test_an_experiment_without_variants_runs_when_asked_for_by_name(toy: Recipe) -> None:
    assert ids(plan(toy, variants=("fast",), experiments=("noop",))) == ["noop"]


def test_narrowed_axes(toy: Recipe) -> None:
    assert ids(plan(toy, experiments=("together",), axes={"dataset": ("ramp",)})) == [
        "together-ramp"
    ]
    by_setting = plan(toy, experiments=("together",), settings={"dataset": "ramp"})
    assert ids(by_setting) == ["together-ramp"]


def test_quick_and_settings(toy: Recipe) -> None:
    made = plan(toy, quick=True, settings={"samples": "5"}, experiments=("stuck", "together"))
    argv = made.points[0].argv
    assert argv[argv.index("--size") + 1] == "2000"
    assert argv[argv.index("--samples") + 1] == "5"
    assert made.points[-1].timeout_s == 2.0
    assert made.reduced == ("--quick", "--set samples=5")


def test_a_smaller_problem_is_told_apart_from_more_samples(toy: Recipe) -> None:
    assert plan(toy, settings={"samples": "5"}).reduced == ("--set samples=5",)
    words = ("--set samples=5", "--quick", "--set size=1")
    assert [is_protocol(word) for word in words] == [True, False, False]
    assert plan(toy, settings={"samples": "500"}).reduced == ()
    assert plan(toy, settings={"size": "20000"}).reduced == ()
    assert plan(toy, settings={"size": "100"}).reduced == ("--set size=100",)


def test_repeats_go_around_all_points(toy: Recipe) -> None:
    made = plan(toy, experiments=("together",), repeat=2)
    assert ids(made) == ["together-ones", "together-ramp", "together-ones-r1", "together-ramp-r1"]
    assert [point.repeat for point in made.points] == [0, 0, 1, 1]
    assert made.points[2].argv[-1] == "1"
    assert len({point.key for point in made.points}) == 4


def test_the_recipe_says_how_many_processes_a_default_run_takes(toy: Recipe) -> None:
    three = toy.experiments["together"].model_copy(update={"processes": 3})
    toy = toy.model_copy(update={"experiments": {**toy.experiments, "together": three}})
    wanted: dict[str, Any] = {"experiments": ("together", "apart")}
    made = plan(toy, **wanted)
    counts = Counter((point.experiment, point.repeat) for point in made.points)
    assert counts == {("together", 0): 2, ("together", 1): 2, ("together", 2): 2, ("apart", 0): 4}
    assert toy.points_of("together") == 6  # what `ae show` says that a run takes
    assert len(plan(toy, quick=True, **wanted).points) == 6
    assert len(plan(toy, repeat=1, **wanted).points) == 6
    assert len(plan(toy, repeat=2, **wanted).points) == 12


def test_a_setting_that_nothing_uses_is_noted(toy: Recipe) -> None:
    made = plan(toy, experiments=("noop",), settings={"size": "5"})
    assert made.notes == ("--set size has no effect: no chosen experiment uses it",)


def test_ids_that_meet_get_a_tail(toy: Recipe) -> None:
    summary = toy.axes["dataset"].values["ones"]
    values = {"a": summary, "a-b": summary}
    axis = toy.axes["dataset"].model_copy(update={"values": values})
    other = toy.axes["dataset"].model_copy(update={"values": {"b-c": summary, "c": summary}})
    recipe = toy.model_copy(update={"axes": {"dataset": axis, "other": other}})
    recipe = changed(recipe, "together", axes=("dataset", "other"))
    found = ids(plan(recipe, experiments=("together",)))
    assert len(set(found)) == len(found) == 4
    assert found[0].startswith("together-a-b-c-")
    assert found[1] == "together-a-c"


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"experiments": ("togehter",)}, "no experiment 'togehter'; did you mean 'together'?"),
        ({"variants": ("fats",)}, "no variant 'fats'; did you mean 'fast'?"),
        ({"axes": {"dataset": ("ons",)}}, "no dataset 'ons'; did you mean 'ones'?"),
        ({"axes": {"datset": ("ones",)}}, "no axis 'datset'; did you mean 'dataset'?"),
        ({"axes": {"dataset": ()}}, "has no point with dataset"),
        ({"settings": {"siez": "5"}}, "no parameter 'siez'; did you mean 'size'?"),
        ({"settings": {"datset": "ones"}}, "no parameter 'datset'; did you mean 'dataset'?"),
        ({"settings": {"size": "five"}}, "--set size: must be a whole number, not 'five'"),
        ({"settings": {"order": "sideways"}}, "--set order: cannot be 'sideways'"),
        ({"lane": "nativ"}, "no lane 'nativ'; did you mean 'native'?"),
        ({"lane": "upstream"}, "the upstream lane of toy cannot be run yet"),
    ],
)
def test_refused_selections(toy: Recipe, selection: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(toy, **selection)
    assert message in caught.value.message
    assert caught.value.fix
    assert caught.value.exit_code == ExitCode.USAGE


def test_an_experiment_of_another_lane(toy: Recipe) -> None:
    lanes = {name: lane.model_copy(update={"built": True}) for name, lane in toy.lanes.items()}
    recipe = changed(toy.model_copy(update={"lanes": lanes}), "noop", lane="upstream", default=True)
    assert "noop" not in ids(plan(recipe))
    with pytest.raises(UsageError, match="noop belongs to the upstream lane"):
        plan(recipe, experiments=("noop",))
    made = make_plan(recipe, Selection(lane="upstream"), NONE, ROOT, {"abacus": "1"})
    assert [point.image.reference for point in made.points] == ["ae/abacus:cpu"]


# Which flavour, and why not.


def test_optional_follows_the_machine(toy: Recipe) -> None:
    on_cpu = plan(toy, NONE, experiments=("either",))
    assert on_cpu.points[0].argv[-1] == "cpu"
    assert on_cpu.points[0].image.flavour is Flavour.CPU
    assert on_cpu.notes == (
        "either: this machine shows no GPU, so it runs on the CPU; --quick is the size for one",
    )
    assert "--quick" not in plan(toy, NONE, experiments=("either",), quick=True).notes[0]
    on_gpu = plan(toy, ONE, experiments=("either",))
    assert on_gpu.points[0].argv[-1] == "cuda"
    assert on_gpu.points[0].needs.gpus == GpuRequest(count=1, devices=(FIRST,))
    assert on_gpu.flavour is Flavour.CUDA


def test_the_cpu_can_be_asked_for(toy: Recipe) -> None:
    made = plan(toy, ONE, experiments=("either",), gpus=0)
    assert made.points[0].image.flavour is Flavour.CPU
    with pytest.raises(EnvironmentFault, match="was told to use the CPU") as caught:
        plan(toy, ONE, experiments=("gpu_only",), gpus=0)  # `--gpus none`, or `--gpus 0`
    assert "0`" not in caught.value.fix
    assert "leave --gpus out, or name a GPU: --gpus device=0" in caught.value.fix
    two = changed(changed(toy, "apart", gpu="required"), "together", gpu="required")
    two = changed(two, "noop", default=True)
    (note,) = plan(two, ONE, gpus=0).notes
    assert note.startswith("left out: together, apart cannot run without a GPU, and the run was")


def test_gpu_none_gets_no_gpu_in_the_image_that_other_points_use(toy: Recipe) -> None:
    for machine, flavour in ((ONE, Flavour.CUDA), (Machine(), Flavour.CPU)):
        point = plan(toy, machine, experiments=("noop",)).points[0]
        assert point.needs.gpus is None
        assert point.image.flavour is flavour
    forced = plan(toy, ONE, experiments=("noop",), gpus=0).points[0]
    assert forced.image.flavour is Flavour.CPU


def test_required_asks_for_what_the_recipe_needs(toy: Recipe) -> None:
    made = plan(toy, TWO, experiments=("gpu_only",))
    assert made.points[0].needs.gpus == GpuRequest(
        count=1,
        devices=(FIRST,),
        min_memory_gib=8e9 / 2**30,
        min_compute_capability=(8, 0),
        min_driver="550.54",
    )


def test_named_and_counted_gpus(toy: Recipe) -> None:
    named = plan(toy, TWO, experiments=("gpu_only",), gpus=("1",)).points[0].needs.gpus
    assert named is not None
    assert named.devices == (OTHER,)
    by_uuid = plan(toy, TWO, experiments=("gpu_only",), gpus=("GPU-a", "GPU-b"))
    assert by_uuid.points[0].needs.gpus is not None
    assert by_uuid.points[0].needs.gpus.count == 2
    counted = plan(toy, TWO, experiments=("gpu_only",), gpus=2).points[0].needs.gpus
    assert counted is not None
    assert (counted.count, counted.devices) == (2, (FIRST, OTHER))


@pytest.mark.parametrize(
    ("machine", "gpus", "message"),
    [
        (NONE, None, "gpu_only cannot run here: this machine shows no GPU"),
        (Machine(gpus=(replace(GPU, memory_gib=4.0),)), None,
         "GPU 0 (NVIDIA H200) has 4 GiB of memory, 7.45 GiB needed"),
        (Machine(gpus=(replace(GPU, compute_capability=(7, 5)),)), None,
         "GPU 0 (NVIDIA H200) has compute capability 7.5, 8.0 needed"),
        (Machine(gpus=(replace(GPU, driver="550.9"),)), None,
         "GPU 0 (NVIDIA H200) has driver 550.9, 550.54 or newer needed"),
        (Machine(gpus=(replace(GPU, driver="unknown"),)), None, "has driver unknown"),
        (ONE, 2, "2 GPUs are needed and there are 1"),
        (ONE, ("3",), "there is no GPU 3"),
    ],
)  # fmt: skip
def test_unsuitable_machines(
    toy: Recipe, machine: Machine, gpus: tuple[str, ...] | int | None, message: str
) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        plan(toy, machine, experiments=("gpu_only",), gpus=gpus)
    assert message in caught.value.message
    assert caught.value.fix
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_what_was_asked_for_by_name_is_never_left_out(toy: Recipe) -> None:
    with pytest.raises(EnvironmentFault, match="gpu_only cannot run here: this machine shows no"):
        plan(toy, NONE, experiments=("together", "gpu_only"))


def test_an_image_for_gpus_alone_runs_points_on_the_cpu_too(toy: Recipe) -> None:
    flavours = {"toy": (Flavour.CUDA,)}
    made = make_plan(toy, Selection(), NONE, ROOT, {"toy": "c0ffee"}, flavours=flavours)
    assert {point.image.flavour for point in made.points} == {Flavour.CUDA}


@pytest.mark.parametrize(
    ("word", "gpus"),
    [
        (None, None), ("none", 0), ("0", 0), ("2", 2), ("device=2", ("2",)), ("0,1", ("0", "1")),
        ("device=GPU-a,1", ("GPU-a", "1")),
    ],
)  # fmt: skip
def test_how_gpus_are_asked_for(word: str | None, gpus: tuple[str, ...] | int | None) -> None:
    assert parse_gpus(word) == gpus


@pytest.mark.parametrize("word", ["", "all", "-1", "device=", "device=a", "1,x"])
def test_gpus_that_cannot_be_asked_for(word: str) -> None:
    with pytest.raises(UsageError, match="neither a count nor a list of GPUs"):
        parse_gpus(word)


def test_unsuitable_experiments_of_a_plain_run_are_left_out(toy: Recipe) -> None:
    recipe = changed(toy, "gpu_only", default=True)
    made = plan(recipe, NONE)
    assert "gpu_only" not in {point.experiment for point in made.points}
    assert made.notes == ("left out: gpu_only cannot run here: this machine shows no GPU",)


def test_nothing_left_is_the_machines_fault(toy: Recipe) -> None:
    only = toy.model_copy(update={"experiments": {"gpu_only": toy.experiments["gpu_only"]}})
    recipe = changed(only, "gpu_only", default=True)
    with pytest.raises(EnvironmentFault, match="this machine shows no GPU"):
        plan(recipe, NONE)


def test_optional_does_not_fall_back_when_the_person_insists(toy: Recipe) -> None:
    for selection in ({"gpus": 1}, {"gpus": ("0",)}):
        with pytest.raises(EnvironmentFault):
            plan(toy, NONE, experiments=("either",), **selection)


def test_the_need_is_a_floor(toy: Recipe) -> None:
    need = toy.needs_of("gpu_only").gpus
    assert need is not None
    with pytest.raises(EnvironmentFault, match="4 GPUs are needed and 2 asked for"):
        gpu_request(need.model_copy(update={"count": 4}), 2)


def test_driver_versions_compare_as_numbers() -> None:
    assert version("550.54") < version("550.54.14") < version("560.1")
    assert version("9.1") < version("10.0")
    assert version("beta") == ()
    assert shortcoming(GPU, GpuRequest(min_driver="580")) == ""


# Axes: what a plain, a quick and a narrowed run have; and axes that say how many GPUs.

FOUR = Machine(gpus=tuple(replace(GPU, index=i, uuid=f"GPU-{i}") for i in range(4)))


@pytest.fixture
def spread(tmp_path: Path) -> Recipe:
    """The toy with an axis of GPU counts in `together` (optional) and a value by name only."""
    root = make_toy(tmp_path)
    path = root / "recipes" / "toy" / "recipe.yaml"
    edits = {
        "axes:\n": "axes:\n  gpus:\n    help: how many\n    quick: ['2']\n    values:\n"
        + "".join(f"      '{n}': {{summary: x}}\n" for n in (1, 2, 4, 8)),
        "      ones: {": "      few: {summary: by name, default: false}\n      ones: {",
        '    help: "which numbers"': '    help: "which numbers"\n    quick: [few]',
        "    axes: [dataset]\n    variants: all\n    interleave: true\n    gpu: none\n": (
            "    axes: [gpus, dataset]\n    variants: all\n    gpu: optional\n"
            "    needs: {gpus: {count: '{gpus}', min_memory: 8GB, why: x}}\n"
        ),
        'measure, --device, "{device}",': 'measure, --gpus, "{gpus}", --device, "{device}",',
        "    axes: [dataset]\n    variants: [slow, fast]": (
            "    axes: [dataset]\n    only: {dataset: [ramp]}\n    variants: [slow, fast]"
        ),
    }
    text = path.read_text()
    for old, new in edits.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)
    return load_recipe(root, "toy")


def counts(made: Plan) -> list[tuple[str, int]]:
    """Value of the axis and GPUs that are asked for, of every point of `together`."""
    points = [point for point in made.points if point.experiment == "together"]
    assert all(f"--gpus {p.labels['gpus']} " in " ".join(p.argv) for p in points)
    return [(p.labels["gpus"], p.needs.gpus.count if p.needs.gpus else 0) for p in points]


def test_a_plain_run_leaves_out_values_that_are_run_by_name(spread: Recipe) -> None:
    made = plan(spread, experiments=("together",), axes={"gpus": ("1",)})
    assert ids(made) == ["together-1-ones", "together-1-ramp"]
    named = plan(spread, experiments=("together",), axes={"gpus": ("1",), "dataset": ("few",)})
    assert ids(named) == ["together-1-few"]
    assert spread.points_of("together") == 8


def test_quick_has_the_quick_values_unless_the_axis_is_narrowed(spread: Recipe) -> None:
    assert ids(plan(spread, experiments=("together",), quick=True)) == ["together-2-few"]
    narrowed = plan(
        spread, experiments=("together",), quick=True, settings={"dataset": "ones", "gpus": "1,4"}
    )
    assert ids(narrowed) == ["together-1-ones", "together-4-ones"]


def test_an_experiment_has_only_its_values_of_a_shared_axis(spread: Recipe) -> None:
    for quick in (False, True):  # no quick value is among its own: its own are run
        made = plan(spread, experiments=("apart",), quick=quick)
        assert ids(made) == ["apart-ramp-slow", "apart-ramp-fast"]
    both = plan(spread, axes={"dataset": ("ones",), "gpus": ("1",)})
    assert ids(both) == ["together-1-ones"]
    assert "left out: apart has no point with dataset ones" in both.notes
    with pytest.raises(UsageError, match="apart has no point with dataset ones") as caught:
        plan(spread, experiments=("apart",), axes={"dataset": ("ones",)})
    assert caught.value.fix == "it has: ramp"


def test_an_axis_says_how_many_gpus(spread: Recipe) -> None:
    made = plan(spread, FOUR, experiments=("together",), axes={"dataset": ("ones",)})
    assert counts(made) == [("1", 1), ("2", 2), ("4", 4)]
    assert made.notes == ("left out: together with gpus 8: 8 GPUs are needed and there are 4",)
    request = made.points[1].needs.gpus
    devices = tuple(GpuId(index=index, uuid=f"GPU-{index}") for index in range(2))
    assert request == GpuRequest(count=2, devices=devices, min_memory_gib=8e9 / 2**30)
    assert made.points[0].key != made.points[1].key


def test_a_gpu_that_is_too_small_does_not_count(spread: Recipe) -> None:
    machine = Machine(gpus=(GPU, replace(SECOND, memory_gib=4.0)))
    made = plan(spread, machine, experiments=("together",), axes={"dataset": ("ones",)})
    assert counts(made) == [("1", 1)]
    assert made.notes == ("left out: together with gpus 2, 4, 8: 2 GPUs are needed and there is 1",)


def test_on_the_cpu_the_axis_is_a_label(spread: Recipe) -> None:
    every = [("1", 0), ("2", 0), ("4", 0), ("8", 0)]
    chosen = {"experiments": ("together",), "axes": {"dataset": ("ones",)}}
    assert counts(plan(spread, NONE, **chosen)) == every
    assert counts(plan(spread, TWO, gpus=0, **chosen)) == every
    by_name = plan(spread, NONE, experiments=("together",), settings={"gpus": "8"}, quick=True)
    assert counts(by_name) == [("8", 0)]


def test_a_count_of_gpus_picks_the_points_that_have_it(spread: Recipe) -> None:
    for quick in (False, True):
        made = plan(spread, FOUR, experiments=("together",), gpus=4, quick=quick)
        assert set(counts(made)) == {("4", 4)}
    with pytest.raises(EnvironmentFault, match="4 GPUs are needed and there are 2"):
        plan(spread, TWO, experiments=("together",), gpus=4)
    with pytest.raises(UsageError, match="together of toy has no point with 3 GPUs") as caught:
        plan(spread, FOUR, gpus=3)
    assert caught.value.fix == "--gpus with one of: 1, 2, 4, 8"


def test_a_count_that_one_experiment_lacks_leaves_that_one_out(spread: Recipe) -> None:
    together = spread.experiments["together"]
    alone = together.model_copy(update={"only": {"gpus": ("1",)}})
    recipe = spread.model_copy(update={"experiments": {"together": together, "alone": alone}})
    made = plan(recipe, FOUR, gpus=2)
    assert {point.experiment for point in made.points} == {"together"}
    assert made.notes == ("left out: alone of toy has no point with 2 GPUs",)
    for chosen in ({"gpus": 2, "experiments": ("alone",)}, {"gpus": 3}):
        with pytest.raises(UsageError, match="has no point with"):
            plan(recipe, FOUR, **chosen)


def test_named_gpus_serve_the_points_up_to_their_number(spread: Recipe) -> None:
    chosen = {"experiments": ("together",), "axes": {"dataset": ("ones",)}}
    made = plan(spread, FOUR, gpus=("3", "1"), **chosen)
    assert counts(made) == [("1", 1), ("2", 2)]
    requests = [point.needs.gpus for point in made.points]
    assert [[d.index for d in r.devices] for r in requests if r] == [[3], [3, 1]]
    assert made.notes == ("left out: together with gpus 4, 8: 4 GPUs are needed and there are 2",)
    with pytest.raises(EnvironmentFault, match="there is no GPU 7"):
        plan(spread, FOUR, gpus=("7",), **chosen)


def test_more_gpus_than_there_are_is_a_fault_when_asked_for_by_name(spread: Recipe) -> None:
    for selection in ({}, {"experiments": ("together",)}, {"gpus": ("0", "1")}, {"quick": True}):
        with pytest.raises(EnvironmentFault, match="4 GPUs are needed and there are 2") as caught:
            plan(spread, TWO, settings={"gpus": "2,4"}, **selection)
        assert caught.value.fix
        with pytest.raises(EnvironmentFault, match="there are 2 on a node"):
            plan(spread, replace(TWO, each=" on a node"), settings={"gpus": "2,4"}, **selection)
        assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_on_the_cpu_a_narrowed_axis_leaves_out_what_requires_gpus(spread: Recipe) -> None:
    required = spread.experiments["together"].model_copy(update={"gpu": "required"})
    recipe = spread.model_copy(update={"experiments": {**spread.experiments, "fixed": required}})
    for machine, selection in ((NONE, {}), (TWO, {"gpus": 0})):
        made = plan(recipe, machine, settings={"gpus": "4"}, **selection)
        assert {point.labels["gpus"] for point in made.points if "gpus" in point.labels} == {"4"}
        assert any(note.startswith("left out: fixed ") for note in made.notes)
        with pytest.raises(EnvironmentFault):
            plan(recipe, machine, experiments=("fixed",), settings={"gpus": "4"}, **selection)


def test_a_quick_run_has_the_most_gpus_where_there_are_fewer_than_its_own(spread: Recipe) -> None:
    made = plan(spread, ONE, experiments=("together",), quick=True)
    assert counts(made) == [("1", 1)]
    assert made.notes == ("left out: together with gpus 2: 2 GPUs are needed and there is 1",)
    named = plan(spread, TWO, experiments=("together",), quick=True, gpus=("1",))
    assert counts(named) == [("1", 1)]
    eight = spread.axes["gpus"].model_copy(update={"quick": ("8",)})
    larger = spread.model_copy(update={"axes": {**spread.axes, "gpus": eight}})
    assert counts(plan(larger, FOUR, experiments=("together",), quick=True)) == [("4", 4)]


def test_a_required_gpu_leaves_out_what_does_not_fit(spread: Recipe) -> None:
    recipe = changed(spread, "together", gpu="required")
    made = plan(recipe, NONE)
    assert {point.experiment for point in made.points} == {"apart"}
    assert made.notes == ("left out: together cannot run here: this machine shows no GPU",)
    several = spread.axes["gpus"].model_copy(
        update={"values": dict.fromkeys(("2", "4"), spread.axes["gpus"].values["1"])}
    )
    recipe = recipe.model_copy(update={"axes": {**recipe.axes, "gpus": several}})
    with pytest.raises(EnvironmentFault, match="together cannot run here: 2 GPUs are needed"):
        plan(recipe, ONE, experiments=("together",))


# Keys and descriptions.


def test_the_key_follows_whatever_defines_the_result(toy: Recipe) -> None:
    made = plan(toy, experiments=("together",)).points[0]
    assert made.key == plan(toy, experiments=("together", "apart")).points[0].key
    content = make_plan(toy, Selection(experiments=("together",)), NONE, ROOT, {"toy": "other"})
    keys = [
        made.key,
        content.points[0].key,
        plan(toy, experiments=("together",), settings={"size": "5"}).points[0].key,
        plan(toy, experiments=("together",), variants=("slow",)).points[0].key,
        plan(toy, experiments=("together",), image_override="mine:1").points[0].key,
    ]
    assert len(set(keys)) == len(keys)


def test_repeats_have_keys_of_their_own(toy: Recipe) -> None:
    """Also where nothing on the command line tells them apart."""
    made = plan(toy, experiments=("apart",), repeat=2)
    assert len({point.argv for point in made.points}) == len(made.points) / 2
    assert len({point.key for point in made.points}) == len(made.points)


def test_who_asks_for_no_network_has_none(toy: Recipe) -> None:
    silent = toy.model_copy(update={"needs": toy.needs.model_copy(update={"network": None})})
    assert {point.needs.network for point in plan(silent).points} == {"none"}


def test_a_gpu_with_just_what_is_needed_will_do() -> None:
    request = GpuRequest(
        count=1, min_memory_gib=GPU.memory_gib, min_compute_capability=(9, 0), min_driver=GPU.driver
    )
    assert shortcoming(GPU, request) == ""


def test_the_key_follows_the_gpu_model_and_not_the_timeout(toy: Recipe) -> None:
    h200 = plan(toy, ONE, experiments=("gpu_only",)).points[0].key
    a100 = Machine(gpus=(replace(GPU, name="NVIDIA A100", uuid="GPU-c"),))
    assert plan(toy, a100, experiments=("gpu_only",)).points[0].key != h200
    twin = Machine(gpus=(replace(GPU, uuid="GPU-c"),))
    assert plan(toy, twin, experiments=("gpu_only",)).points[0].key == h200
    longer = toy.experiments["gpu_only"].timeout.model_copy(update={"full": 999.0})
    recipe = changed(toy, "gpu_only", timeout=longer)
    assert plan(recipe, ONE, experiments=("gpu_only",)).points[0].key == h200


def test_describe_is_json_and_stable(toy: Recipe) -> None:
    texts = {
        json.dumps(describe(plan(toy, ONE, experiments=("gpu_only", "together"), gpus=("0",))))
        for _ in range(2)
    }
    assert len(texts) == 1
    data = json.loads(texts.pop())
    assert data["points"][0]["image"]["reference"] == "ae/toy:cuda"
    assert data["points"][0]["image"]["source"] == "images/toy"
    assert data["points"][2]["needs"]["gpus"]["devices"] == [{"index": 0, "uuid": "GPU-a"}]
    assert data["flavour"] == "cuda"


def test_a_selection_survives_json(toy: Recipe) -> None:
    selection = Selection(
        experiments=("together", "either"), variants=("fast",), axes={"dataset": ("ones",)},
        settings={"size": "5"}, repeat=2, quick=True, gpus=("0",),
    )  # fmt: skip
    made = make_plan(toy, selection, ONE, ROOT, {"toy": "1"})
    written = PlanRecord.model_validate_json(json.dumps(describe(made)))
    assert written.selection == selection
    assert made.reduced == ("--quick", "--set size=5")
    assert [point.key for point in written.points] == [point.key for point in made.points]
    assert json.loads(written.model_dump_json()) == json.loads(json.dumps(describe(made)))


def test_needs_become_runtime_needs(tmp_path: Path) -> None:
    root = make_toy(tmp_path)
    path = root / "recipes" / "toy" / "recipe.yaml"
    path.write_text(
        path.read_text().replace(
            "\nneeds:\n",
            "\nneeds:\n"
            "  shm_size: {value: 1GiB, why: x}\n"
            "  cap_add: [{value: CAP_SYS_ADMIN, why: x}]\n"
            "  ulimits: [{name: memlock, soft: -1, hard: -1, why: x}]\n"
            "  volumes: [{source: data, target: /data, why: x},"
            " {source: /abs, target: /abs, read_only: false, why: x}]\n",
        )
    )
    needs = plan(load_recipe(root, "toy"), experiments=("hungry",)).points[0].needs
    assert needs.shm_bytes == 2**30
    assert needs.cap_add == ("SYS_ADMIN",)
    assert [(u.name, u.soft, u.hard) for u in needs.ulimits] == [("memlock", -1, -1)]
    assert needs.memory_bytes == 64_000_000
    assert needs.mounts == (
        Mount(source=ROOT / "data", target="/data"),
        Mount(source=Path("/abs"), target="/abs", read_only=False),
    )


def test_the_same_note_of_several_experiments_is_said_once(toy: Recipe) -> None:
    either = {"default": True, "needs": toy.needs_of("gpu_only")}
    recipe = changed(changed(toy, "gpu_only", default=True), "either", **either)
    last = changed(recipe, "noop", default=True, gpu="required", needs=toy.needs_of("gpu_only"))
    assert plan(last).notes == (
        "left out: noop, gpu_only cannot run here: this machine shows no GPU",
        "either: this machine shows no GPU, so it runs on the CPU; --quick is the size for one",
    )
    need = toy.needs_of("gpu_only").gpus
    assert need is not None
    four = toy.needs.model_copy(update={"gpus": need.model_copy(update={"count": 4})})
    made = plan(changed(recipe, "gpu_only", default=True, needs=four), TWO, gpus=2)
    assert made.notes == ("left out: gpu_only: 4 GPUs are needed and 2 asked for",)


# A person who names GPUs is never given a run without.


def test_gpus_that_are_asked_for_and_not_there(toy: Recipe) -> None:
    with pytest.raises(EnvironmentFault, match="asked for: 2 GPUs;") as caught:
        plan(toy, ONE, gpus=2)  # no experiment of a plain run uses any
    assert caught.value.exit_code == ExitCode.ENVIRONMENT
    recipe = changed(toy, "either", default=True)
    with pytest.raises(EnvironmentFault, match="shows no GPU"):
        plan(recipe, NONE, gpus=2)
    with pytest.raises(UsageError, match="no chosen experiment uses one") as told:
        plan(toy, ONE, gpus=1)
    assert "either" in told.value.fix
    assert {p.experiment for p in plan(recipe, ONE, gpus=1).points} >= {"either", "together"}


def test_one_gpu_picks_the_points_with_one(spread: Recipe) -> None:
    made = plan(spread, FOUR, experiments=("together",), gpus=1)
    assert set(counts(made)) == {("1", 1)}


def test_a_figure_brings_its_experiments(toy: Recipe) -> None:
    selection = check_selection(toy, Selection(figures=("times",)))
    assert selection.experiments == ("together", "apart")
    lanes = changed(toy, "apart", lane="upstream")  # a figure may draw both
    for lane, own in (("native", "together"), ("upstream", "apart")):
        selection = check_selection(lanes, Selection(figures=("times",), lane=lane))
        assert selection.experiments == (own,)
    with pytest.raises(UsageError, match="no figure 'tims'; did you mean 'times'"):
        plan(toy, figures=("tims",))


def test_a_parameter_that_replaces_an_axis_runs_one_of_its_values(toy: Recipe) -> None:
    about = toy.parameters["words"].model_copy(update={"replaces": "dataset"})
    recipe = toy.model_copy(update={"parameters": {**toy.parameters, "words": about}})
    assert ids(plan(recipe)) == ids(plan(toy))
    given = plan(recipe, settings={"words": "gamma"})
    uses = "{words}" in toy.experiments["apart"].command
    assert [point.id for point in given.points if "together" in point.id] == ["together-ones"]
    assert ("apart-ramp-slow" in ids(given)) != uses
    asked = plan(recipe, settings={"words": "gamma"}, axes={"dataset": ("ramp",)})
    assert "together-ramp" in ids(asked)

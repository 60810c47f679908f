"""PASTA's native lane: what is planned, and that figures say what the records say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pasta_records as made_up
import pytest
from matplotlib.text import Text
from pasta_records import H200, MODELS, Records, everything

from ae.errors import EnvironmentFault
from ae.figures.draw import STYLE
from ae.figures.summary import ASKED, rows_of
from ae.model import Flavour, Machine, Plan
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.code import load_code
from ae.recipe.load import load_recipe
from ae.recipe.models import Recipe
from ae.records.files import Environment
from ae.report.chapter import draw, face
from tests.h200 import GPU, machine

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "recipes/pasta"
ON_CPU = {"oracle", "args_bound", "timeline", "two_ranks"}
NATIVE = ON_CPU | {
    "table_v", "table_v_paper", "table_v_bf16", "counts", "overhead_gpu", "overhead_cpu",
    "hot_blocks", "two_gpus", "uvm",
}  # fmt: skip
ALONE = {"oracle", "args_bound", "two_ranks"}  # never get a GPU


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(ROOT, "pasta")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    records = everything()
    made_up.distinct(records)
    return records.frame()


def plan(recipe: Recipe, here: int, /, **selection: object) -> Plan:
    chosen = Selection(**selection)  # type: ignore[arg-type]
    return make_plan(recipe, chosen, machine(here), ROOT, {"pasta": "0" * 64})


def figure(name: str, frame: pd.DataFrame) -> Any:
    """As it is drawn, from the records of its experiments alone."""
    own = frame["experiment"].isin(load_recipe(ROOT, "pasta").figures[name].experiments)
    with mpl.rc_context(STYLE):
        return getattr(load_code(RECIPE, "figures"), name)(frame[own])


# What is planned.


def test_a_plain_run_on_two_gpus(recipe: Recipe) -> None:
    made = plan(recipe, 2)
    assert {point.experiment for point in made.points} == NATIVE
    rows = {(p.labels["model"], p.labels["mode"]) for p in made.points if p.experiment == "table_v"}
    assert rows == {(model, mode) for model in MODELS for mode in ("test", "train")}
    asked = {p.experiment: p.needs.gpus.count if p.needs.gpus else 0 for p in made.points}
    assert {name for name, count in asked.items() if count == 2} == {"two_gpus"}
    assert {name for name, count in asked.items() if count == 0} == ALONE
    assert {point.repeat for point in made.points} == {0}  # a point runs its five processes itself
    assert sum(point.expected_s for point in made.points) < 3 * 3600
    assert {point.needs.network for point in made.points} == {"none"}
    assert {point.needs.shm_bytes for point in made.points} == {8 * 10**9}
    assert {point.needs.cap_add for point in made.points} == {()}


def test_one_gpu_leaves_out_what_takes_two(recipe: Recipe) -> None:
    made = plan(recipe, 1)
    assert {point.experiment for point in made.points} == NATIVE - {"two_gpus"}
    assert any(note.startswith("left out: two_gpus cannot run here") for note in made.notes)
    with pytest.raises(EnvironmentFault, match="two_gpus cannot run here"):
        plan(recipe, 1, experiments=("two_gpus",))


def test_a_quick_run_on_a_cpu_takes_under_a_minute(recipe: Recipe) -> None:
    made = plan(recipe, 0, quick=True)
    assert {point.experiment for point in made.points} == ON_CPU
    assert made.flavour is Flavour.CPU
    assert sum(point.expected_s for point in made.points) < 60
    (left,) = [note for note in made.notes if note.startswith("left out: ")]
    assert left.endswith(" cannot run here: this machine shows no GPU")
    assert all(name in left for name in NATIVE - ON_CPU)
    assert all("tiny" in point.argv for point in made.points if point.experiment != "oracle")


def test_an_old_driver_or_card_is_told(recipe: Recipe) -> None:
    for change, words in (
        ({"driver": "570.86.10"}, "580"),
        ({"compute_capability": (7, 0)}, "7.5"),
        ({"memory_gib": 8.0}, "of memory"),
    ):
        old = Machine(gpus=(replace(GPU, **change),))  # type: ignore[arg-type]
        with pytest.raises(EnvironmentFault, match="table_v cannot run here") as caught:
            make_plan(recipe, Selection(experiments=("table_v",)), old, ROOT, {"pasta": "1"})
        assert words in caught.value.message


# Every experiment's command line, at full size; {variants} and axes filled in.
ARGUMENTS = {
    "table_v-bert-train": (
        "table_v --device cuda --model bert --modes train --size full --repeats 5 --seed 100"
    ),
    "table_v_paper-test": (
        "table_v --device cuda --model whisper_paper --modes test --size full --repeats 5 "
        "--seed 100"
    ),
    "table_v_bf16-gpt2-step_bf16": (
        "table_v --device cuda --model gpt2 --modes step_bf16 --size full --repeats 5 --seed 100"
    ),
    "oracle": "oracle --device cpu",
    "args_bound": "table_v --device cpu --model bert --modes test,train --size tiny --seed 100",
    "counts": "counts --device cuda --repeats 5",
    "overhead_gpu-gpt2": (
        "overhead --device cuda --model gpt2 --variants "
        "native,events,sync,empty,count,cs_gpu,cs_gpu_hot --size full --repeats 5 --seed 100"
    ),
    "overhead_cpu-alexnet": (
        "overhead --device cuda --model alexnet --variants cs_cpu,cs_cpu_mt --size full "
        "--small small --sample 0 --workers 0 --repeats 5 --seed 100"
    ),
    "hot_blocks": "hotness --device cuda --model bert --mode test --size full --seed 100",
    "timeline": "timeline --device cuda --model gpt2 --mode train --size full --seed 100",
    "two_gpus-tp": "parallel --device cuda --parallelism tp --size full --seed 100",
    "two_ranks-pp": "parallel --device cpu --parallelism pp --size tiny --seed 100",
    "uvm-whisper": (
        "uvm --device cuda --model whisper --mode test --size full --oversubscribe 0.0 "
        "--repeats 5 --seed 100"
    ),
}


def test_the_arguments_of_every_experiment(recipe: Recipe) -> None:
    points = {p.id: p for p in plan(recipe, 2, experiments=tuple(NATIVE)).points}
    assert {point.experiment for point in points.values()} == NATIVE
    assert {points[name].experiment for name in ARGUMENTS} == NATIVE
    for name, words in ARGUMENTS.items():
        assert points[name].argv == ("python", "-m", "pasta_workloads", *words.split()), name
    assert len(points) == 12 + 2 + 12 + 6 + 6 + 6 + 3 + 3 + 5  # what has axes, and what has none


def test_every_command_line_is_the_workloads_own(recipe: Recipe) -> None:
    """Read by the workload's parser, which needs no PyTorch."""
    from pasta_workloads import cli

    for here, quick in ((2, False), (2, True), (0, True)):
        names = NATIVE if here else ON_CPU
        for point in plan(recipe, here, experiments=tuple(names), quick=quick).points:
            config = cli.parse(point.argv[3:])
            assert config.experiment == point.argv[3]
            assert config.device == ("cuda" if point.needs.gpus else "cpu")
            assert config.model == point.labels.get("model", config.model)
            assert (config.model == "whisper_paper") == (point.experiment == "table_v_paper")
            assert config.parallelism == point.labels.get("parallelism", config.parallelism)
            assert not point.variants or config.variants == point.variants


def test_each_variant_brings_the_program_alone(recipe: Recipe) -> None:
    variants = recipe.variants_of("overhead_gpu")
    assert len(variants) == 7
    for variant in variants[1:]:
        made = plan(recipe, 1, experiments=("overhead_gpu",), variants=(variant,))
        assert {point.variants for point in made.points} == {("native", variant)}
        words = made.points[0].argv
        assert words[words.index("--variants") + 1] == f"native,{variant}"
    for variant in ("cs_cpu", "cs_cpu_mt"):  # the workload measures the others beside it
        made = plan(recipe, 1, experiments=("overhead_cpu",), variants=(variant,))
        assert {point.variants for point in made.points} == {(variant,)}


def test_settings_reach_the_workload(recipe: Recipe) -> None:
    settings = {"oversubscribe": "3", "mode": "step", "model": "bert", "size": "small",
                "sample": "10"}  # fmt: skip
    experiments = ("table_v", "uvm", "overhead_cpu")
    made = plan(recipe, 1, experiments=experiments, settings=settings)
    argv = {point.id: " ".join(point.argv[3:]) for point in made.points}
    assert "--modes step --size small" in argv["table_v-bert-step"]
    assert "--oversubscribe 3.0" in argv["uvm-bert"]
    assert "--sample 10" in argv["overhead_cpu-bert"]
    assert made.reduced == ("--set size=small",)  # no magnitude is judged then


def test_oversubscription_is_never_on_unless_asked_for(recipe: Recipe) -> None:
    for quick in (False, True):
        (value,) = {
            point.argv[point.argv.index("--oversubscribe") + 1]
            for point in plan(recipe, 2, quick=quick).points
            if point.experiment == "uvm"
        }
        assert float(value) == 0


def test_list_and_show_name_both_lanes(ae: Callable[..., Any]) -> None:
    _, out, _ = ae("list")
    rows = [line.split()[:2] for line in out.splitlines() if line.startswith("pasta ")]
    assert rows == [["pasta", "native"], ["pasta", "upstream*"]]
    code, out, _ = ae("show", "pasta", "--all")
    assert code == 0
    for words in ("CS-CPU (all cores)", "oversubscribe", "F12.4"):
        assert words in out, words


def test_a_dry_run_uses_the_image_of_the_lane(ae: Callable[..., Any]) -> None:
    code, out, err = ae("run", "pasta", "--experiment", "table_v", "--dry-run", "--json")
    assert code == 0, err
    assert {p["image"]["reference"] for p in json.loads(out)["points"]} == {"ae/pasta:cuda"}
    code, out, err = ae("run", "pasta", "--lane", "upstream", "--dry-run", "--json")
    assert code == 0, err
    images = {point["image"]["reference"] for point in json.loads(out)["points"]}
    assert all(image.startswith("ae/pasta-upstream:") for image in images)


def test_what_the_recipe_asks_of_a_machine(recipe: Recipe) -> None:
    assert {point.needs.shm_bytes for point in plan(recipe, 1).points} == {8 * 10**9}


def test_the_records_made_up_here_are_those_of_the_points(recipe: Recipe) -> None:
    points = plan(recipe, 2, experiments=tuple(NATIVE)).points
    axes = ("model", "mode", "parallelism")
    of = {e: recipe.experiments[e].axes for e in NATIVE}
    planned = {(p.experiment, *(p.labels.get(axis, "") for axis in axes)) for p in points}
    rows = everything().rows
    there = {
        (r.experiment, *(r.labels.get(a, "") if a in of[r.experiment] else "" for a in axes))
        for r in rows
    }
    assert there == planned
    for name in ("overhead_gpu", "overhead_cpu"):
        measured = {r.labels["variant"] for r in rows if r.experiment == name}
        assert measured | {"native"} >= set(recipe.variants_of(name))


# What is drawn.


@pytest.mark.slow
def test_every_figure_draws_from_a_full_record_table(recipe: Recipe, frame: pd.DataFrame) -> None:
    names = {name: figure.experiments for name, figure in recipe.figures.items()}
    drawn = draw(RECIPE, names, frame, H200, None)
    assert {item.name: item.reason for item in drawn} == dict.fromkeys(recipe.figures, "")
    for item in drawn:
        assert item.table is not None
        assert len(item.table) >= 3


def test_every_figure_says_why_it_is_not_drawn(recipe: Recipe) -> None:
    only = Records()
    made_up.counts(only)
    drawn = draw(RECIPE, list(recipe.figures), only.frame(), H200, None)
    assert all(item.reason.startswith("no record of metric") for item in drawn)


@pytest.mark.parametrize("name", ["working_sets", "table_v"])
def test_table_v_has_ours_the_papers_and_the_oracles(frame: pd.DataFrame, name: str) -> None:
    table = figure(name, frame).table.set_index(["model", "mode", "stat"])
    assert len(table) == 14 * (4 if name == "working_sets" else 7)
    row = table.loc["alexnet", "test", "max"]
    assert (row["median"], row["paper"], row["oracle"]) == (876.12, 876.12, 876.125)
    assert row["evidence"] == "measured+static"
    assert (row["oracle_low"], row["oracle_high"]) == (876.125, 884.25)
    assert row["arguments"] == pytest.approx(1.1 * 876.125)
    assert isnan(table.loc["gpt2", "train", "p90"]["oracle"])
    assert table.loc["whisper_paper", "test", "p90"]["paper"] == 153.81
    for (model, mode), told in made_up.TABLE_V.items():
        assert table.loc[model, mode, "footprint"]["paper"] == told[1]
        assert table.loc[model, mode, "p90"]["paper"] == told[6]


def test_calculated_launches_are_a_whole_number() -> None:
    records = Records()
    made_up.oracle(records)
    records.add("oracle", "kernels_oracle", 487, "launches", "static", model="bert", mode="test")
    (page,) = figure("table_v", records.frame()).figure.axes[0].tables
    texts = {cell.get_text().get_text() for cell in page.get_celld().values()}
    assert "shapes 487\n487" in texts


def test_rows_in_bf16_stand_beside_what_the_shapes_give(frame: pd.DataFrame) -> None:
    plot = figure("table_v_bf16", frame)
    table = plot.table.set_index(["model", "mode", "stat"])
    assert len(table) == 12 * 8
    row = table.loc["bert", "step_bf16", "max"]
    assert (row["median"], row["oracle"]) == (235.47 / 2, 235.47 / 2)
    assert isnan(row["paper"])
    assert table.loc["bert", "step_bf16", "kernels"]["oracle"] == 552
    records = Records()
    made_up.in_bf16(records, lambda stat, _, value: 0.9 * value if stat == "mean" else value)
    (page,) = figure("table_v_bf16", records.frame()).figure.axes[0].tables
    cells = page.get_celld()
    texts = {(at[0], at[1]): cell.get_text().get_text() for at, cell in cells.items()}
    assert [texts[0, column] for column in (2, 4, 7)] == ["WS max", "WS mean", "by tensor maps"]
    assert (texts[1, 2], texts[1, 7]) == ("438.06\n438.06  (+0.0 %)", "40\n–")
    assert texts[1, 4].endswith("(-10.0 %)")
    shades = [cells[1, column].get_facecolor() for column in (2, 4, 7)]
    assert len(set(shades)) == 3


def test_inferred_launches_are_no_bar_of_figure_9(frame: pd.DataFrame) -> None:
    """Which is of inference, one iteration a time; theirs tells the modes apart."""
    assert not any("distinct" in name for name in figure("overhead", frame).table["variant"])
    records = Records()
    for mode, slow in (("test", 1.2), ("train", 1.4)):
        where = {"model": "bert", "mode": mode, "variant": "distinct"}
        records.add("distinct", "slowdown", slow, "x", **where)
    table = figure("inferred", records.frame()).table
    assert dict(zip(table["row"], table["median"], strict=True)) == {
        "inference": 1.2, "training": 1.4,
    }  # fmt: skip


def test_the_papers_cells_are_the_claims_own() -> None:
    from ae.claims.tables import load_claims

    claims = {claim.id: claim.reference for claim in load_claims(ROOT, "pasta")}
    module = load_code(RECIPE, "table_v")
    order = [(m, "test") for m in MODELS] + [None] + [(m, "train") for m in MODELS]
    for number, place in enumerate(order, start=1):
        if place is None:
            continue
        for cell in ("kernels", "footprint", "max", "min", "mean", "median", "p90"):
            name = "launches" if cell == "kernels" else cell
            assert claims[f"T5.{number}-{name}"] == module.paper_value(*place, cell), number
    assert module.PAPER == made_up.TABLE_V


def test_the_page_says_how_far_each_cell_is() -> None:
    records = Records()
    made_up.table_v(records, lambda metric, value: 1.5 * value if metric == "footprint" else value)
    plot = figure("table_v", records.frame())
    (page,) = plot.figure.axes[0].tables
    cells = page.get_celld()
    words = {key: cell.get_text().get_text() for key, cell in cells.items()}
    assert words[0, 1] == "footprint"
    names = [text.get_text() for text in plot.figure.axes[0].texts]
    assert names[0] == "AlexNet, inference"
    assert words[1, 0] == "1,428\n1,428  (+0.0 %)"
    assert words[1, 1] == "2,292.20\n1,528.13  (+50.0 %)"
    assert words[2, 3] == "1.00 KiB\n1.00 KiB  (+0.0 %)"
    assert cells[1, 2].get_facecolor() == mpl.colors.to_rgba("#e3f4ec")
    assert cells[1, 1].get_facecolor() == mpl.colors.to_rgba("#fdebdf")
    away = plot.table[plot.table["stat"] == "footprint"]["over_paper_percent"]
    assert away.tolist() == pytest.approx([50.0] * 12)


def test_without_a_gpu_the_oracle_stands_beside_the_paper() -> None:
    records = Records()
    made_up.oracle(records)
    plot = figure("working_sets", records.frame())
    assert plot.table["median"].isna().all()
    assert set(plot.table["evidence"]) == {"static"}
    row = plot.table.set_index(["model", "mode", "stat"]).loc["gpt2", "train", "max"]
    assert (row["paper"], row["oracle"], row["n"]) == (2240.77, 2240.768, 1)
    assert row["arguments"] == pytest.approx(1.1 * 2240.768)
    arguments = plot.table["arguments"]
    assert arguments.min() > 1  # not those of the tiny run on the CPU
    page = figure("table_v", records.frame()).figure.axes[0].tables[0]
    assert "shapes 876.12\n876.12" in {c.get_text().get_text() for c in page.get_celld().values()}


def test_another_size_is_not_held_against_the_paper() -> None:
    records = Records()
    for stat, value in (("max", 3.5), ("median", 1.0)):
        records.add("table_v", "working_set", value, model="bert", mode="test", stat=stat,
                    size="tiny")  # fmt: skip
        made_up.calculated(records, "table_v", {stat: value}, model="bert", mode="test")
        made_up.calculated(records, "oracle", {stat: 200.0}, model="bert", mode="test")
    table = figure("table_v", records.frame()).table
    assert table["paper"].isna().all()
    assert table["over_paper_percent"].isna().all()
    assert table["oracle"].tolist() == [3.5, 1.0]  # of the size that was measured


def test_bubbles_touch_and_do_not_overlap() -> None:
    pack = load_code(RECIPE, "bubbles").pack
    areas = [640.0, 300.0, 300.0, 120.0, 55.0, 55.0, 10.0, 3.0, 1.0, 1.0, 0.25]
    for given in (areas, areas[::-1], [1.0] * 30, [5.0], [2.0, 7.0]):
        circles = pack(given)
        assert [circle[2] ** 2 for circle in circles] == pytest.approx(given)
        for index, (x, y, radius) in enumerate(circles):
            gaps = [
                np.hypot(x - a, y - b) - radius - r
                for other, (a, b, r) in enumerate(circles)
                if other != index
            ]
            assert all(gap > -1e-6 for gap in gaps)
            assert not gaps or min(gaps) < 1e-6  # it touches one
        whole = sum(circle[2] ** 2 for circle in circles)
        reach = max(np.hypot(x, y) + radius for x, y, radius in circles)
        assert whole > 0.35 * reach**2 or len(circles) < 4  # not strewn about
    for wrong in ([1.0, 0.0], [-1.0], [float("nan")]):
        with pytest.raises(ValueError, match="must be positive"):
            pack(wrong)


def test_kernels_are_drawn_twice_from_the_same_numbers(frame: pd.DataFrame) -> None:
    plot = figure("kernels", frame)
    launches = dict(zip(plot.table["kernel"], plot.table["launches"], strict=True))
    assert sum(launches.values()) == sum(row[0] for row in made_up.TABLE_V.values()) == 18854
    assert launches["sm80_xmma_gemm"] == 12 * 300
    bubbles, ranked = plot.figure.axes
    areas = sorted(patch.get_radius() ** 2 for patch in bubbles.patches)
    assert areas == pytest.approx(sorted(launches.values()))
    assert [bar.get_width() for bar in ranked.patches] == list(plot.table["launches"])
    assert plot.figure.get_suptitle() == "Most launched kernels, 12 runs together"
    twice = figure("kernels", pd.concat([frame, frame.assign(process="another")])).table
    assert (set(plot.table["n"]), set(twice["n"])) == ({1}, {2})


def test_slowdowns_are_grouped_by_model_with_a_geometric_mean(frame: pd.DataFrame) -> None:
    plot = figure("overhead", frame)
    table = plot.table.set_index(["model", "variant", "scaling"])
    assert table.loc[("bert", "cs_gpu", "none"), "median"] == pytest.approx(5.2)
    assert table.loc[("geo-mean", "cs_gpu", "none"), "median"] == pytest.approx(5.2)
    assert table.loc[("geo-mean", "cs_cpu", "sound"), "median"] == pytest.approx(2500)
    assert "small" not in set(table["size"])
    assert table.loc[("geo-mean", "cs_cpu", "authors"), "evidence"] == "scaled"
    assert len(table) == 7 * (6 + 2 * 2)
    (axis,) = plot.figure.axes
    assert axis.get_yscale() == "log"
    assert [label.get_text() for label in axis.get_xticklabels()][-1] == "geo-mean"
    tops = sorted(bar.get_y() + bar.get_height() for bar in axis.patches)
    assert tops == pytest.approx(sorted(plot.table["median"]))
    assert plot.spread.endswith("geo-mean over 6 models")


def test_a_geometric_mean_says_over_how_many_models_it_is() -> None:
    records = Records()
    for model, value in (("bert", 4.0), ("gpt2", 9.0)):
        records.add("overhead", "slowdown", value, "x", model=model, variant="cs_gpu",
                    scaling="none")  # fmt: skip
    records.add("overhead", "slowdown", 5000, "x", "scaled", model="bert", variant="nvbit_cpu",
                scaling="authors", sampling="paper")  # fmt: skip
    plot = figure("overhead", records.frame())
    table = plot.table.set_index(["model", "variant"])
    assert table.loc[("geo-mean", "cs_gpu"), "median"] == pytest.approx(6.0)
    assert ("geo-mean", "nvbit_cpu") not in table.index  # one value has no mean
    assert plot.spread.endswith("geo-mean over 2 models")
    records = Records()
    records.add("overhead", "slowdown", 4, "x", model="bert", variant="cs_gpu", scaling="none")
    alone = figure("overhead", records.frame())
    assert alone.table["model"].tolist() == ["bert"]
    assert "geo-mean" not in alone.spread


@pytest.mark.parametrize(("most", "scale"), [(1.4, "linear"), (140.0, "log")])
def test_slowdowns_are_logarithmic_where_they_span_decades(most: float, scale: str) -> None:
    records = Records()
    for model, value in (("bert", 1.1), ("gpt2", most)):
        records.add("overhead", "slowdown", value, "x", model=model, variant="cs_gpu",
                    scaling="none")  # fmt: skip
    (axis,) = figure("overhead", records.frame()).figure.axes
    assert axis.get_yscale() == scale
    assert ("log" in axis.get_ylabel()) == (scale == "log")
    assert (axis.get_ylim()[0] == 0) == (scale == "linear")


def test_a_bar_of_the_cpu_stands_beside_the_one_of_all_its_cores(frame: pd.DataFrame) -> None:
    missing = "CS-CPU (all cores): not measured"
    records = Records()
    made_up.times(records, "overhead_cpu", {"cs_gpu": 4.2, "cs_cpu": 900.0}, size="small")
    (axis,) = figure("overhead_small", records.frame()).figure.axes
    assert [text.get_text() for text in axis.texts].count(missing) == 6
    (axis,) = figure("overhead_small", frame).figure.axes
    assert missing not in [text.get_text() for text in axis.texts]


def test_no_number_lies_across_the_line_at_one() -> None:
    records = Records()
    records.add("overhead_gpu", "slowdown", 0.77, "x", model="bert", variant="events",
                scaling="none", size="full")  # fmt: skip
    (axis,) = figure("overhead", records.frame()).figure.axes
    (text,) = axis.texts
    assert text.get_text() == "0.77×"
    assert text.get_position()[1] > 1
    assert axis.get_ylim()[1] >= 1


def test_the_two_extrapolations_and_what_is_between_them(frame: pd.DataFrame) -> None:
    plot = figure("extrapolation", frame)
    assert len(plot.table) == 2 * 6
    row = plot.table.iloc[0]
    assert (row["variant"], row["model"], row["evidence"]) == ("cs_cpu", "alexnet", "scaled")
    assert (row["authors"], row["sound"], row["inflation"]) == (5000, 2500, 2)
    bars = [bar for axis in plot.figure.axes for bar in axis.patches]
    assert sorted({round(bar.get_x() + bar.get_width()) for bar in bars}) == [750, 1500, 2500, 5000]
    assert len(bars) == 2 * 2 * 6


@pytest.mark.parametrize(("name", "size"), [("overhead", "full"), ("overhead_small", "small")])
def test_the_foot_is_about_the_models_that_are_drawn(
    frame: pd.DataFrame, name: str, size: str
) -> None:
    token = ASKED.set([])  # the records that the foot counts
    figure(name, frame)
    assert {row["size"] for row in ASKED.get()} == {size}
    ASKED.reset(token)


def test_small_models_are_a_figure_of_their_own(frame: pd.DataFrame) -> None:
    plot = figure("overhead_small", frame)
    assert set(plot.table["size"]) == {"small"}
    table = plot.table.set_index(["model", "variant"])
    assert table.loc[("geo-mean", "cs_cpu"), "median"] == pytest.approx(900)
    assert table.loc[("whisper", "cs_gpu"), ["n", "processes", "spread"]].to_list() == [
        5,
        5,
        "ci95",
    ]
    assert set(table["evidence"]) == {"measured"}


def test_shares_of_the_time_add_up(frame: pd.DataFrame) -> None:
    plot = figure("breakdown", frame)
    keys = ["model", "variant", "size", "sample"]
    sums = plot.table.groupby(keys)["share_percent"].sum()
    assert sums.tolist() == pytest.approx([100.0] * 6 * (6 + 4 + 2))
    panels = {axis.get_title(): axis for axis in plot.figure.axes}
    full, small = "the paper's sizes", "small models, every launch analysed"
    assert set(panels) == {
        f"{full}, every launch analysed",
        f"{full}, 1 launch in 60 analysed",
        small,
    }
    for name, line, seconds in (
        (f"{full}, every launch analysed", "GPT-2: CS-GPU", "5.2 s"),
        (small, "BERT: CS-CPU", "15 min"),
        (f"{full}, 1 launch in 60 analysed", "Whisper: CS-CPU", "83 min"),
    ):
        axis = panels[name]
        lines = [label.get_text() for label in axis.get_yticklabels()]
        assert axis.texts[lines.index(line)].get_text() == seconds
    widths = [bar.get_width() for bar in panels[small].patches]
    assert sum(widths) == pytest.approx(6 * 4 * 100)


def test_a_run_faster_than_the_program_alone_is_not_drawn_as_long_as_it() -> None:
    records = Records()
    where = {"model": "bert", "mode": "test", "variant": "events", "size": "full"}
    records.add("overhead_gpu", "iteration_time", 0.08, "s", **where)
    for part, seconds in (("execution", 0.1), ("collection", 0), ("transfer", 0), ("analysis", 0)):
        records.add("overhead_gpu", "tool_time", seconds, "s", part=part, **where)
    plot = figure("breakdown", records.frame())
    shares = plot.table.set_index("part")["share_percent"]
    assert shares.tolist() == pytest.approx([125.0, -25.0, 0.0, 0.0])
    (axis,) = plot.figure.axes
    assert [text.get_text() for text in axis.texts] == ["80 ms"]
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axis.patches)
    assert spans == [pytest.approx((0, -25)), pytest.approx((0, 125))]
    assert axis.get_xlim()[0] < -25
    assert plot.spread.endswith("left of 0: faster than the program alone")


def test_managed_memory_is_told_apart_by_pressure_and_driver() -> None:
    records = Records()
    made_up.uvm(records, driver="on", factors=("0",))
    plot = figure("uvm", records.frame())
    (axis,) = plot.figure.axes
    assert axis.get_title() == "memory suffices (Figure 11)\ndriver prefetch on"
    table = plot.table.set_index(["model", "policy"])
    assert table.loc[("bert", "object"), "over_none"] == pytest.approx(0.63)
    assert table.loc[("mean", "tensor"), "over_none"] == pytest.approx(0.72)
    assert table.loc[("mean", "object"), "asked_mib"] == 900  # of the models, as the times
    assert table.loc[("bert", "tensor"), "in_mib"] == 600
    diamonds = [list(line.get_xdata()) for line in axis.lines if line.get_marker() == "D"]
    assert diamonds == [pytest.approx([0.63, 1 / 1.37]), pytest.approx([0.74, 1 / 1.26])]
    assert all(text.get_position()[0] > 1 for text in axis.texts)  # none across the line at 1
    assert plot.spread.endswith("mean over 6 models")
    made_up.uvm(records, driver="on", factors=("3",))
    two = figure("uvm", records.frame())
    assert len(two.figure.axes) == 2
    mean = two.table[(two.table["model"] == "mean") & (two.table["oversubscription"] == "3")]
    values = dict(zip(mean["policy"], mean["over_none"], strict=True))
    assert values["object"] == pytest.approx((5 * 2.6 + 0.9) / 6)


def test_the_heat_map_is_the_records(frame: pd.DataFrame) -> None:
    plot = figure("hotness", frame)
    drawn = plot.figure.axes[0].images[0].get_array()
    assert drawn.shape == (4, 5)
    assert drawn[3, 4] == 1200
    assert drawn.mask[0].all()  # never touched: no colour
    heat, bar = plot.figure.axes
    assert heat.get_title() == "blocks: 2 MiB each"
    assert heat.get_xlim() == (0, 6000)  # all accesses
    assert bar.get_ylabel() == "accesses in a cell (log; white: none)"
    assert bar.get_ylim() == pytest.approx((100, 1200))
    records = everything()
    for metric, value in (("hot_windows", 40), ("hot_blocks", 60)):
        records.add("hot_blocks", metric, value, "", model="bert", mode="test")
    records.add("hot_blocks", "accesses", 8e9 - 6000, "accesses", model="bert", mode="test",
                window="5", block="0")  # fmt: skip
    heat = figure("hotness", records.frame()).figure.axes[0]
    assert heat.get_title().endswith("a cell: 15 blocks by 7 windows of 2e+02 million accesses")
    assert (heat.get_xlim(), heat.get_ylim()) == ((0, 8), (0, 60))
    assert heat.get_xlabel() == "accesses so far, billions"


def test_the_heat_map_is_of_one_process() -> None:
    records = Records()
    for window, each in (("0", (5e3, 0.0, 0.0)), ("1", (0.0, 5e3, 0.0)), ("2", (7.0, 7.0, 5e3))):
        records.add("hot_blocks", "accesses", each, "accesses", window=window, block="0")
    plot = figure("hotness", records.frame())
    (heat, _) = plot.figure.axes
    assert heat.images[0].get_array().filled(0).tolist() == [[5e3, 0, 7]]  # medians: 0, 0, 7
    assert heat.get_xlim() == (0, 5007)
    assert set(plot.table["n"]) == {1}


def test_a_line_per_gpu_and_none_of_the_cpu_beside_gpus(frame: pd.DataFrame) -> None:
    plot = figure("memory", frame)
    titles = [axis.get_title() for axis in plot.figure.axes if axis.get_visible()]
    assert titles == ["GPT-2 training", "data parallel", "tensor parallel", "pipeline parallel"]
    assert "two_ranks" not in set(plot.table["experiment"])
    assert set(plot.table["level"]) == {"tensor"}
    tensor = plot.figure.axes[2]
    assert len(tensor.lines) == 2
    assert [text.get_text() for text in tensor.get_legend().get_texts()] == [
        "GPU 0: peak 4,000 MiB", "GPU 1: peak 4,000 MiB",
    ]  # fmt: skip
    line = tensor.lines[0].get_ydata()
    assert len(line) == 101
    assert line[60] == 4000


def test_the_peak_of_the_curve_is_the_one_of_the_legend() -> None:
    records = Records()
    where = {"model": "gpt2", "mode": "train", "level": "tensor", "device": "0"}
    for percent, size in enumerate((0, 7000, 6000)):
        records.add("timeline", "allocated", size, progress=str(percent), **where)
    records.add("timeline", "peak_allocated", 8275, **where)
    plot = figure("memory", records.frame())
    (axis,) = plot.figure.axes
    assert axis.get_legend().get_texts()[0].get_text() == "GPU 0: peak 7,000 MiB"
    records.add("timeline", "peak_position", 1.5, "%", **where)
    plot = figure("memory", records.frame())
    (axis,) = plot.figure.axes
    assert axis.get_legend().get_texts()[0].get_text() == "GPU 0: peak 8,275 MiB"
    line = axis.lines[0]
    assert list(line.get_xdata()) == [0, 1, 1.5, 2]
    assert list(line.get_ydata()) == list(plot.table["median"]) == [0, 7000, 8275, 6000]
    assert axis.get_yticks()[-1] >= 8275


def test_on_a_cpu_the_processes_are_called_so() -> None:
    records = Records()
    made_up.memory(records, cpu=True)
    plot = figure("memory", records.frame())
    panels = [axis for axis in plot.figure.axes if axis.get_visible()]
    assert [axis.get_title() for axis in panels[:2]] == [
        "GPT-2 training, tiny, on the CPU", "data parallel, tiny, on the CPU",
    ]  # fmt: skip
    words = [[text.get_text() for text in axis.get_legend().get_texts()] for axis in panels[:2]]
    assert words[0] == ["process 0: peak 0.5 MiB"]
    assert words[1] == ["process 0: peak 2 MiB", "process 1: peak 2 MiB"]


@pytest.mark.parametrize(
    "name",
    ["working_sets", "table_v", "table_v_bf16", "kernels", "overhead", "overhead_small",
     "inferred", "extrapolation", "breakdown", "uvm", "hotness", "memory"],
)  # fmt: skip
def test_texts_lie_on_the_page(recipe: Recipe, frame: pd.DataFrame, name: str) -> None:
    plot = figure(name, frame)
    page = plot.figure
    own = frame[frame["experiment"].isin(recipe.figures[name].experiments)]
    few = pd.concat([own.iloc[:1], *(own.iloc[1:].assign(repeat=at) for at in range(6))])
    facts = Environment(gpu="NVIDIA H200", driver="580.159.03", cuda="13.0", torch="2.11.0")
    foot = face(plot, facts, rows_of(few))  # as long as it gets
    with mpl.rc_context(STYLE):
        page.text(0.008, 0.008, foot, fontsize=7.5)
        page.draw_without_rendering()
    window = page.get_window_extent()
    for text in page.findobj(Text):
        if not text.get_text() or not text.get_visible():
            continue
        box = text.get_window_extent()
        shown = text in page.texts or (text.axes is not None and text.axes.get_visible())
        if box.width and shown:
            assert box.x0 >= -1, text.get_text()
            assert box.x1 <= window.width + 1, text.get_text()


def test_kernels_that_are_named_alike_are_told_apart() -> None:
    naming = load_code(RECIPE, "naming")
    tail = "f32f32_f32f32_f32_{}_n_tilesize{}_stage3_warpsize1x4x1_ffma_aligna4_execute"
    names = [
        "sm80_xmma_gemm_" + tail.format(*how) for how in (("nn", "64x64x8"), ("tn", "32x32x8"))
    ]
    assert [naming.cut(name) for name in names] == [
        "sm80_xmma_gemm, nn, tile 64x64x8", "sm80_xmma_gemm, tn, tile 32x32x8",
    ]  # fmt: skip
    assert naming.cut("at::native::im2col_kernel") == "at::native::im2col_kernel"
    assert naming.cut("k" * 60) == "k" * 45 + "…"

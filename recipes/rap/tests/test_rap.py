"""RAP's native lane: what is planned, and that figures say what the records say."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest
from rap_records import (
    FAMILIES,
    FIG9,
    GAINS,
    H200,
    HEAVY,
    HEAVY_PLANS,
    OVER_SEQUENTIAL,
    PLANS,
    RATIOS,
    STAGES,
    Records,
    everything,
    predictor,
    training,
)

from ae.errors import EnvironmentFault, ExitCode, UsageError
from ae.figures.draw import STYLE
from ae.figures.summary import rows_of
from ae.model import Flavour, Machine, Plan
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.code import load_code
from ae.recipe.load import load_recipe
from ae.recipe.models import Recipe
from ae.records.files import Environment, Row
from ae.report.chapter import draw, face
from tests.h200 import GPU, machine

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "recipes/rap"
PLAIN = {"fig9", "fig10", "heavy", "predictor", "capacity", "timeline", "fusion"}
EXPERIMENTS = {*PLAIN, "ratio"}
FIGURES = [*sorted(EXPERIMENTS), "share", "gain"]
ON_GPUS = {"heavy", "timeline"}  # without a GPU they would show nothing


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(ROOT, "rap")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return everything().frame()


def plan(recipe: Recipe, here: int, /, **selection: object) -> Plan:
    chosen = Selection(**selection)  # type: ignore[arg-type]
    return make_plan(recipe, chosen, machine(here), ROOT, {"rap": "0" * 64})


# What is planned.


def test_a_plain_run_on_one_gpu(recipe: Recipe) -> None:
    made = plan(recipe, 1)
    assert {point.experiment for point in made.points} == PLAIN
    assert {point.labels.get("gpus", "1") for point in made.points} == {"1"}
    assert {point.labels.get("batch", "4096") for point in made.points} == {"4096", "8192"}
    cells = {p.labels["plan"] for p in made.points if p.experiment == "fig10"}
    assert cells == {"0", "1"}
    assert {p.labels["plan"] for p in made.points if p.experiment == "heavy"} == {"2", "3"}
    once = [point.expected_s for point in made.points if point.repeat == 0]
    assert sum(once) < 20 * 60
    often = [point.experiment for point in made.points if point.repeat == 4]
    assert set(often) == {"fig9", "fig10", "heavy"}  # five processes of each
    assert sum(point.expected_s for point in made.points) < 80 * 60
    (note,) = made.notes
    assert "fig10" in note
    assert note.endswith(" with gpus 2, 4, 8: 2 GPUs are needed and there is 1")
    assert {point.needs.network for point in made.points} == {"none"}
    assert {point.needs.ipc for point in made.points} == {None}
    assert {point.needs.shm_bytes for point in made.points} == {8 * 10**9}


def test_points_ask_for_as_many_gpus_as_they_train_on(recipe: Recipe) -> None:
    made = plan(recipe, 4)
    for point in made.points:
        if point.experiment == "fusion":
            assert point.needs.gpus is None
            continue
        assert point.needs.gpus is not None
        assert str(point.needs.gpus.count) == point.labels.get("gpus", "1")
    assert {point.labels.get("gpus") for point in made.points} == {"1", "2", "4", None}


def test_a_quick_run_on_a_cpu_has_two_processes_and_takes_a_minute(recipe: Recipe) -> None:
    made = plan(recipe, 0, quick=True)
    assert {point.experiment for point in made.points} == PLAIN - ON_GPUS
    assert len(made.points) == len(PLAIN - ON_GPUS)
    assert made.flavour is Flavour.CPU
    trained = [point.labels for point in made.points if point.labels]
    assert {(one["gpus"], one["batch"]) for one in trained} == {("2", "32")}
    assert sum(point.expected_s for point in made.points) < 60
    assert made.reduced == ("--quick",)


def test_choosing_rap_brings_the_baselines_of_each_figure(recipe: Recipe) -> None:
    made = plan(recipe, 2, variants=("rap",), experiments=("fig9", "fig10"), gpus=2)
    chosen = {point.experiment: point.variants for point in made.points}
    assert chosen == {"fig9": ("cpu", "rap"), "fig10": ("sequential", "rap")}
    assert {point.labels["gpus"] for point in made.points} == {"2"}
    with pytest.raises(EnvironmentFault, match="2 GPUs are needed and there are 1"):
        plan(recipe, 1, variants=("rap",), experiments=("fig10",), gpus=2)


def test_a_card_of_another_kind_is_told(recipe: Recipe) -> None:
    small = Machine(gpus=(replace(GPU, memory_gib=8.0, name="NVIDIA T4"),))
    made = make_plan(recipe, Selection(), small, ROOT, {"rap": "1"})
    assert {p.image.flavour for p in made.points if p.experiment == "fig10"} == {Flavour.CPU}
    assert any("GPU 0 (NVIDIA T4) has 8 GiB of memory, 18.6 GiB needed" in n for n in made.notes)


def test_a_dry_run_says_how_many_gpus_each_container_gets(ae: Callable[..., Any]) -> None:
    code, out, err = ae("run", "rap", "--experiment", "fig10", "--gpus", "2", "--dry-run")
    assert code == 0, err
    lines = [line for line in out.splitlines() if "docker run" in line]
    assert len(lines) == 2 * 2 * 5  # plans, batches, processes
    assert all("--gpus 2 " in line and "fig10 --device cuda --gpus 2 " in line for line in lines)
    code, out, err = ae("run", "rap", "--gpus", "device=1", "--dry-run", "--json")
    asked = [point["needs"]["gpus"] for point in json.loads(out)["points"]]
    assert {tuple(d["index"] for d in one["devices"]) for one in asked if one} == {(1,)}
    code, _, err = ae("run", "rap", "--set", "gpus=4", "--dry-run")
    assert "4 GPUs are needed and there are 2; this is the plan for a machine" in err
    assert ae("run", "rap", "--gpus", "3", "--dry-run")[0] == ExitCode.USAGE


def test_list_and_show_name_both_lanes(ae: Callable[..., Any]) -> None:
    _, out, _ = ae("list")
    rows = [line.split()[:2] for line in out.splitlines() if line.startswith("rap ")]
    assert rows == [["rap", "native"], ["rap", "upstream*"]]
    code, out, _ = ae("show", "rap")
    assert code == 0
    for words in ("(never built here)", "up to 8 GPUs of 20 GB", "80 points", "fig10"):
        assert words in out, words
    code, out, _ = ae("show", "rap", "--all")
    assert code == 0
    for words in ("RAP w/o mapping", "not transcribed", "gurobi", "for a look on a CPU"):
        assert words in out, words


def test_what_the_recipe_asks_of_a_machine(recipe: Recipe) -> None:
    needs = [point.needs for point in plan(recipe, 1).points]
    assert {one.gpus.count if one.gpus else 0 for one in needs} == {0, 1}  # 0: the solver alone
    assert {one.shm_bytes for one in needs} == {8 * 10**9}


def test_the_records_made_up_here_are_those_of_the_points(recipe: Recipe) -> None:
    made = plan(recipe, 2, experiments=tuple(EXPERIMENTS))
    axes = ("gpus", "plan", "batch", "variant")

    def cells(rows: Sequence[Row]) -> set[tuple[str, ...]]:
        return {(r.experiment, *(r.labels.get(axis, "") for axis in axes)) for r in rows}

    planned = {
        (point.experiment, *(point.labels.get(axis, "") for axis in axes[:3]), variant)
        for point in made.points
        for variant in point.variants or ("",)
    }
    rows = everything().rows
    of_points = {  # not of a variant
        "measured_ratio", "busy_ratio", "tried_busy_ratio", "training_busy", "preprocessing_busy",
        "operators",
    }  # fmt: skip
    without = [row for row in rows if row.metric not in of_points]
    assert cells(without) == planned
    assert {row.labels["ratio"] for row in rows if row.experiment == "ratio"} == {
        f"{float(word):.2f}" for word in recipe.parameters["ratios"].value(quick=False)
    }


def test_without_a_gpu_the_full_size_is_warned_of(recipe: Recipe) -> None:
    made = plan(recipe, 0)
    assert {point.experiment for point in made.points} == PLAIN - ON_GPUS
    (sized,) = [note.partition(":")[0] for note in made.notes if "--quick" in note]
    assert set(sized.split(", ")) == {"fig9", "fig10", "predictor", "capacity"}
    assert not any("--quick" in note for note in plan(recipe, 0, quick=True).notes)
    assert not any("--quick" in note for note in plan(recipe, 1).notes)
    (left,) = [note for note in made.notes if note.startswith("left out: ")]
    assert left.endswith(" cannot run here: this machine shows no GPU")
    assert all(name in left for name in ON_GPUS)


def test_with_a_number_of_gpus_runs_what_has_it(recipe: Recipe) -> None:
    made = plan(recipe, 2, gpus=2)
    assert {point.experiment for point in made.points} == PLAIN
    with pytest.raises(UsageError, match="ratio of rap has no point with 2 GPUs"):
        plan(recipe, 2, gpus=2, experiments=("ratio",))


def test_sizes_of_the_paper_cannot_be_changed_unnoticed(recipe: Recipe) -> None:
    sizes = {name for name, about in recipe.parameters.items() if about.size}
    # mps_percentage: less than 100 slows a baseline down
    assert sizes == {"scale", "matmul", "plan_file", "mps_percentage", "load"}
    made = plan(recipe, 1, settings={"matmul": "tf32"}, experiments=("fig10",))
    assert made.reduced == ("--set matmul=tf32",)


# What is drawn.


@pytest.mark.slow
def test_every_figure_draws_from_a_full_record_table(frame: pd.DataFrame) -> None:
    drawn = draw(RECIPE, FIGURES, frame, H200, None)
    assert [item.reason for item in drawn] == [""] * len(FIGURES)
    for item in drawn:
        assert item.table is not None
        assert len(item.table) >= 12


def test_every_figure_says_why_it_is_not_drawn(recipe: Recipe) -> None:
    drawn = draw(RECIPE, list(recipe.figures), pd.DataFrame(), H200, None)
    assert all(item.reason.startswith("no record of ") for item in drawn)
    for name in FIGURES:  # another experiment's records do not do
        only = Records()
        training(only, "other", FIG9)
        (item,) = draw(RECIPE, [name], only.frame(), H200, None)
        assert (f"experiment {name}" if name in EXPERIMENTS else "in fig") in item.reason


@pytest.mark.parametrize(
    ("name", "over", "baseline"),
    [
        ("fig9", FIG9, "cpu"), ("fig10", OVER_SEQUENTIAL, "sequential"),
        ("heavy", HEAVY, "sequential"),
    ],
)  # fmt: skip
def test_bars_are_throughput_over_the_baseline_of_the_same_cell(
    frame: pd.DataFrame, name: str, over: dict[str, float], baseline: str
) -> None:
    plot = getattr(load_code(RECIPE, "figures"), name)(frame[::-1])  # as runs may come
    table = plot.table
    plans = HEAVY_PLANS if name == "heavy" else PLANS
    batches = ("4096",) if name == "heavy" else ("4096", "8192")
    cells = [(gpus, plan, batch) for gpus in "12" for plan in plans for batch in batches]
    assert len(table) == len(cells) * len(over)
    for row in table.to_dict("records"):
        assert row["speedup"] == pytest.approx(over[row["variant"]] / over[baseline], rel=0.02)
        assert row["low"] <= row["speedup"] <= row["high"]
        assert row["n"] == 5
    panels = [axis for axis in plot.figure.axes if axis.get_visible()]
    assert [axis.get_title() for axis in panels] == [
        f"{gpus} GPU{'s' if gpus == '2' else ''}, plan {plan}\nbatch {batch}"
        for gpus, plan, batch in cells
    ]


def test_without_a_cpu_figure_9_is_over_the_stream() -> None:
    records = Records()
    training(records, "fig9", {key: value for key, value in FIG9.items() if key != "cpu"})
    plot = load_code(RECIPE, "figures").fig9(records.frame())
    assert plot.figure.get_suptitle() == "End to end: throughput over CUDA stream"
    streams = plot.table[plot.table["variant"] == "stream"]["speedup"]
    assert set(streams) == {1.0}


@pytest.mark.parametrize("name", ["fig10", "heavy"])
def test_ideal_is_a_line_and_no_bar(frame: pd.DataFrame, name: str) -> None:
    plot = getattr(load_code(RECIPE, "figures"), name)(frame)
    axis = plot.figure.axes[0]
    assert "Ideal" not in [label.get_text() for label in axis.get_yticklabels()]
    lines = [line.get_xdata()[0] for line in axis.lines if len(set(line.get_xdata())) == 1]
    assert any(x == pytest.approx(1.92, rel=0.02) for x in lines)
    (rap,) = plot.table[(plot.table["variant"] == "rap")][:1].to_dict("records")
    wanted = {"fig10": 1.86, "heavy": 1.7}[name] / 1.92
    assert rap["share_of_ideal"] == pytest.approx(wanted, rel=0.02)
    words = f"{rap['speedup']:.2f}×  \u2007{100 * rap['share_of_ideal']:.1f} %"
    assert words in [text.get_text() for text in axis.texts], "under each other"


def test_the_papers_averages_are_diamonds_on_raps_row(frame: pd.DataFrame) -> None:
    figures = load_code(RECIPE, "figures")

    def diamonds(axis: Any) -> list[tuple[float, str]]:
        first = axis.figure.axes[0]  # panels share their rows' names
        names = [label.get_text() for label in first.get_yticklabels()]
        return [
            (float(line.get_xdata()[0]), names[int(line.get_ydata()[0])])
            for line in axis.lines
            if line.get_marker() == "D" and line.get_markerfacecolor() == "white"
        ]

    fig10 = figures.fig10(frame)
    assert all(diamonds(a) == [(1.99, "RAP")] for a in fig10.figure.axes if a.get_visible())
    assert set(fig10.table[fig10.table["variant"] == "rap"]["paper"]) == {1.99}
    share = {axis.get_title(): axis for axis in figures.share(frame).figure.axes}
    assert diamonds(share["Figure 10, 1 GPU"]) == [(0.9676, "RAP")]
    assert diamonds(share["Heavier plans, 1 GPU"]) == []
    fig9 = figures.fig9(frame)  # 78.3 times, where ours is 9
    assert not any(diamonds(axis) for axis in fig9.figure.axes)
    assert any("78.3× (beyond" in t.get_text() for t in fig9.figure.legends[0].get_texts())


def test_shares_of_ideal_begin_at_nine_tenths_when_all_are_above() -> None:
    records = Records()
    training(records, "fig10", {"sequential": 1.8, "rap": 1.86, "ideal": 1.92}, (1,))
    training(records, "heavy", HEAVY, (1,), HEAVY_PLANS)
    plot = load_code(RECIPE, "figures").share(records.frame())
    begins = {axis.get_title(): axis.get_xlim()[0] for axis in plot.figure.axes if axis.lines}
    assert begins == {"Figure 10, 1 GPU": 0.9, "Heavier plans, 1 GPU": 0.5}


def test_the_gain_is_split_by_part(frame: pd.DataFrame) -> None:
    table = load_code(RECIPE, "figures").gain(frame).table
    assert set(table[table["gpus"] == "2"]["part"]) == set(GAINS)
    assert set(table[table["gpus"] == "1"]["part"]) == set(GAINS) - {"mapping"}
    for row in table[table["plan"] == "0"].to_dict("records"):
        before, after = GAINS[row["part"]]
        wanted = OVER_SEQUENTIAL[after] / OVER_SEQUENTIAL[before]
        assert row["gain"] == pytest.approx(wanted, rel=0.02)
    assert list(table).index("gain") == list(table).index("low") - 1, "a view shows the gain"


def test_an_axis_of_large_gains_begins_at_zero() -> None:
    records = Records()
    training(records, "fig10", OVER_SEQUENTIAL, (1,), ("0",))
    many = {name: value if name == "sequential" else 5 * value for name, value in HEAVY.items()}
    training(records, "heavy", many, (1,), ("2",))
    axes = load_code(RECIPE, "figures").gain(records.frame()).figure.axes
    begins = [axis.get_xlim()[0] for axis in axes if axis.get_visible()]
    assert begins == [1, 1, 0, 0], "two batches of plan 0, then two of plan 2"


def test_ticks_reach_the_largest_value(frame: pd.DataFrame) -> None:
    figures = load_code(RECIPE, "figures")
    for name, column in (("fig9", "high"), ("fig10", "high"), ("heavy", "high"), ("gain", "high")):
        plot = getattr(figures, name)(frame)
        assert max(plot.figure.axes[0].get_xticks()) >= plot.table[column].max(), name


def test_the_predictors_share_is_of_the_points_drawn(frame: pd.DataFrame) -> None:
    plot = load_code(RECIPE, "figures").predictor(frame)
    assert set(plot.table["family"]) == set(FAMILIES)
    part = plot.table[(plot.table["family"] == "1d") & (plot.table["split"] == "test")]
    error = 100 * (part["predicted_us"] / part["measured_us"] - 1)
    assert part["error_percent"].tolist() == pytest.approx(error.tolist())
    hits = (error.abs() <= 10).sum()
    assert set(plot.table["evidence"]) == {"measured+simulated"}
    words = [text.get_text() for text in plot.figure.axes[0].get_legend().get_texts()]
    assert words[1] == f"test: {hits} of {len(part)} within 10 %"


def test_a_prediction_far_off_is_within_the_axes() -> None:
    records = Records()
    predictor(records, spread=0.35)
    plot = load_code(RECIPE, "figures").predictor(records.frame())
    low, high = plot.figure.axes[0].get_ylim()
    assert low < plot.table["predicted_us"].min() < plot.table["measured_us"].min()
    assert plot.table["predicted_us"].max() < high


def test_capacity_stands_beside_the_time_of_its_stage(frame: pd.DataFrame) -> None:
    plot = load_code(RECIPE, "figures").capacity(frame)
    assert plot.spread == "one measurement a bar, no spread"
    table = plot.table.set_index(["gpus", "plan", "stage", "what"])
    assert len(table) == 2 * len(PLANS) * len(STAGES) * 2
    for gpus, (stage, (time, free)) in product("12", STAGES.items()):
        assert table.loc[(gpus, "0", stage, "time"), "value_us"] == pytest.approx(time)
        share = table.loc[(gpus, "0", stage, "capacity"), "share_of_stage"]
        assert share == pytest.approx(free / time)


def test_ratio_is_drawn_over_what_was_measured(frame: pd.DataFrame) -> None:
    plot = load_code(RECIPE, "figures").ratio(frame)
    table = plot.table
    assert "ideal" not in set(table["variant"])
    row = table[(table["variant"] == "sequential") & (table["ratio"] == "1.00")].iloc[0]
    assert row["measured_ratio"] == pytest.approx(1.03, rel=0.01)
    assert plot.over == "measured_ratio", "so is the interactive view"
    assert row["over_ideal"] == pytest.approx(0.5, rel=0.02)
    assert len(table) == len(RATIOS) * 5
    drawn, names = plot.figure.axes[0].get_legend_handles_labels()
    assert names == ["Sequential", "Sequential (fused)", "CUDA stream", "RAP", "RAP+"]
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn}) == len(drawn)
    assert len({line.get_marker() for line in drawn}) == len(drawn)
    several = [pd.concat(frame.assign(repeat=at) for at in range(count)) for count in (1, 5)]
    said = [face(plot, Environment(), rows_of(one)) for one in several]
    assert ["95 %" in one for one in said] == [False, True], "one process has no interval"


def test_a_timeline_has_the_spans_of_the_most_gpus(frame: pd.DataFrame) -> None:
    plot = load_code(RECIPE, "figures").timeline(frame)
    table = plot.table
    assert set(table["gpus"]) == {"2"}
    again = frame.assign(process="another", samples=[[2 * x for x in s] for s in frame["samples"]])
    both = load_code(RECIPE, "figures").timeline(pd.concat([frame, again]))
    assert both.table.equals(table), "of several processes the first is drawn"
    first = table[(table["variant"] == "rap") & (table["name"] == "mlp_fwd")].iloc[0]
    assert (first["start_us"], first["end_us"]) == (300.0, 950.0)
    assert [axis.get_title(loc="left") for axis in plot.figure.axes[::2]] == [
        "Sequential   (2 GPUs, plan 0, batch 4096)", "CUDA stream", "RAP", "RAP+",
    ]  # fmt: skip


def test_spans_that_look_like_one_are_one() -> None:
    records = Records()
    for start, end in ((0, 10), (10.4, 20), (18, 30), (31, 40), (40, 100), (600, 1000)):
        labels = {"gpus": 1, "plan": "2", "batch": "4096", "variant": "rap", "lane": "train"}
        labels |= {"name": "all" if start == 600 else "kernel", "index": start}
        records.add("timeline", "span", [float(start), float(end)], "us", labels)
    table = load_code(RECIPE, "figures").timeline(records.frame()).table
    seen = table[["name", "start_us", "end_us"]].to_numpy().tolist()
    assert seen == [["", 0.0, 30.0], ["", 31.0, 100.0], ["all", 600.0, 1000.0]]


def test_fusion_says_launches_time_and_gap(frame: pd.DataFrame) -> None:
    plot = load_code(RECIPE, "figures").fusion(frame)
    table = plot.table.set_index(["graph", "solver"])
    assert table.loc[("plan0", "unfused"), "launches"] == 106
    assert table.loc[("random_26x6", "highs"), "gap_percent"] == pytest.approx(0.154)
    assert table.loc[("plan0", "highs"), "evidence"] == "measured+static"
    words = [text.get_text() for text in plot.figure.axes[5].texts]
    assert words == ["156", "30 (4 ms)", "29 (16.9 s, gap 0.15 %)"]
    assert [axis.get_title() for axis in plot.figure.axes] == [
        "Plan 0", "Plan 1", "Plan 2", "Plan 3", "13 random chains of 6", "26 random chains of 6",
    ]  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("gpus", [(1,), (1, 2)])
def test_no_text_is_cut_off_or_overlaps(name: str, gpus: tuple[int, ...]) -> None:
    with mpl.rc_context(STYLE):
        figure = getattr(load_code(RECIPE, "figures"), name)(everything(gpus).frame()).figure
        figure.draw_without_rendering()
    title = figure._suptitle.get_window_extent()
    for axis in figure.axes:
        if not axis.get_visible():
            continue
        labels = [label for label in axis.get_yticklabels() if label.get_visible()]
        boxes = [label.get_window_extent() for label in labels]
        boxes = sorted((box for box in boxes if box.width > 1), key=lambda box: box.y0)
        for below, above in pairwise(boxes):
            assert below.y1 <= above.y0 + 1
        assert all(box.x0 >= 0 for box in boxes)
        area = axis.get_window_extent()
        for text in axis.texts:
            box = text.get_window_extent()
            assert area.x0 - 1 <= box.x0, text.get_text()
            assert box.x1 <= area.x1 + 12, text.get_text()
        assert area.y1 <= title.y0

"""The DLRM recipe: it fits the workload, and its figures and claims say what the records say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest
from dlrm_inference import config as workload
from dlrm_inference.cli import parse
from dlrm_records import (
    BASE_US,
    CPU,
    DATASETS,
    FACTOR,
    GPU,
    LIMIT_US,
    PIN_US,
    Records,
    embedding,
    everything,
    grid,
)

from ae.claims.tables import load_claims
from ae.figures.draw import STYLE, NoData, Plot
from ae.model import Gpu, Machine, Plan, Point
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.code import load_code
from ae.recipe.load import load_recipe
from ae.recipe.models import Experiment, Recipe
from ae.records.files import Row
from ae.report.chapter import draw
from tests.judged import judge

ROOT = Path(__file__).resolve().parents[3]
H200 = Gpu(
    index=0, uuid="GPU-0", name="NVIDIA H200", memory_gib=139.0, memory_free_gib=138.0,
    compute_capability=(9, 0), driver="580.159.03",
)  # fmt: skip
WITH_GPU = Machine(gpus=(H200,), cpus=16, memory_gib=128)
WITHOUT_GPU = Machine(cpus=2, memory_gib=8)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(ROOT, "dlrm")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return everything().frame()


def plan(recipe: Recipe, machine: Machine, **selection: object) -> Plan:
    return make_plan(recipe, Selection(**selection), machine, ROOT, {"dlrm": "0" * 64})  # type: ignore[arg-type]


def native(recipe: Recipe) -> dict[str, Experiment]:
    return {name: e for name, e in recipe.experiments.items() if e.lane == "native"}


def native_parameters(recipe: Recipe) -> set[str]:
    words = [word for e in native(recipe).values() for word in e.command]
    return {name for name in recipe.parameters if f"{{{name}}}" in words}


def parsed(point: Point) -> workload.Config:
    assert point.argv[:3] == ("python", "-m", "dlrm_inference")
    return parse(point.argv[3:])


@pytest.mark.parametrize(
    ("machine", "quick"), list(product([WITH_GPU, WITHOUT_GPU], [False, True]))
)
def test_every_command_line_parses_with_the_workloads_own_parser(
    recipe: Recipe, machine: Machine, quick: bool
) -> None:
    experiments = [
        name for name, e in native(recipe).items() if e.gpu != "required" or machine.gpus
    ]
    points = plan(recipe, machine, experiments=tuple(experiments), quick=quick).points
    assert {point.experiment for point in points} == set(experiments)
    for point in points:
        config = parsed(point)
        assert config.experiment == point.experiment
        assert config.device == ("cuda" if point.needs.gpus else "cpu")
        assert config.variants == point.variants
        assert config.dataset == point.labels.get("dataset", config.dataset)


def test_every_setting_reaches_the_workload(recipe: Recipe) -> None:
    settings = {
        "tables": "3", "rows": "77", "dim": "64", "batch": "9", "pooling": "11", "batches": "5",
        "dtype": "bfloat16", "index_dtype": "int32", "samples": "51", "warmup": "7", "seed": "99",
        "distance": "6", "register_cap": "48", "warps_per_sm": "32", "l2_mode": "hint,window",
        "hot_list": "oracle", "hot_rows": "123", "launch": "one_table", "threads": "2",
        "bags": "file", "bag_file": "/data/bags.txt", "mode": "mean", "shapes": "77x64,9x64",
        "trace": "/data/trace.txt", "distances": "2,4", "warps": "40,48", "archs": "80,90",
    }  # fmt: skip
    assert set(settings) == native_parameters(recipe)
    points = plan(
        recipe, WITH_GPU, settings=settings, experiments=tuple(native(recipe))
    ).points  # fmt: skip
    arrived: dict[str, set[str]] = {}
    for point in points:
        for name, value in parsed(point).facts().items():
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            arrived.setdefault(name, set()).add(text)
    for name, text in settings.items():
        assert text in arrived[name], name


def test_the_defaults_are_the_papers_sizes(recipe: Recipe) -> None:
    ours = workload.Config().facts()
    for name in native_parameters(recipe):
        value = recipe.parameters[name].default
        theirs = ours[name]
        if isinstance(value, list):
            theirs = theirs if isinstance(theirs, list) else str(theirs).split(",")
            assert value == [str(item) for item in theirs], name
        else:
            assert value == theirs, name
    sizes = {name: recipe.parameters[name].default for name in ("tables", "rows", "dim", "batch")}
    assert sizes == {"tables": 12, "rows": 500_000, "dim": 128, "batch": 2048}
    assert recipe.parameters["pooling"].default == 150


def test_the_words_are_the_workloads_words(recipe: Recipe) -> None:
    assert set(recipe.variants) == set(workload.VARIANTS)
    assert tuple(recipe.axes["dataset"].values) == workload.DATASETS
    assert set(native(recipe)) == set(workload.EXPERIMENTS)
    assert set(recipe.parameters["dtype"].choices or ()) == set(workload.DTYPES)
    assert set(recipe.parameters["bags"].choices or ()) == set(workload.BAGS)
    assert set(recipe.parameters["mode"].choices or ()) == set(workload.MODES)
    assert set(recipe.parameters["hot_list"].choices or ()) == set(workload.HOT_LISTS)
    assert set(recipe.parameters["launch"].choices or ()) == set(workload.LAUNCHES)


def test_choosing_a_variant_brings_the_baselines_it_is_measured_against(recipe: Recipe) -> None:
    points = plan(recipe, WITH_GPU, variants=("rpf_l2p",)).points
    assert {point.variants for point in points} == {("stock21", "base", "rpf_l2p")}
    points = plan(recipe, WITH_GPU, variants=("best",), experiments=("embedding",)).points
    assert {point.variants for point in points} == {("stock", "best")}


def test_only_counters_ask_for_a_capability(recipe: Recipe) -> None:
    points = plan(recipe, WITH_GPU, experiments=tuple(native(recipe))).points
    asked = {point.experiment: point.needs.cap_add for point in points}
    assert asked.pop("profile") == ("SYS_ADMIN",)
    assert set(asked.values()) == {()}


def test_static_never_takes_a_gpu(recipe: Recipe) -> None:
    (point,) = plan(recipe, WITH_GPU, experiments=("static",)).points
    assert point.needs.gpus is None
    assert "cpu" in point.argv


@pytest.mark.slow
def test_every_figure_draws_from_a_full_record_table(recipe: Recipe, frame: pd.DataFrame) -> None:
    figures = [name for name in recipe.figures if name != "upstream"]
    drawn = draw(ROOT / "recipes" / "dlrm", figures, frame, GPU, None)
    assert [item.name for item in drawn] == figures
    assert [item.reason for item in drawn] == [""] * len(drawn)
    for item in drawn:
        assert item.table is not None
        assert len(item.table) >= 12


def test_every_figure_says_why_it_is_not_drawn(recipe: Recipe) -> None:
    drawn = draw(ROOT / "recipes" / "dlrm", list(recipe.figures), pd.DataFrame(), GPU, None)
    assert all(item.reason.startswith("no record of") for item in drawn)


def figure(name: str, frame: pd.DataFrame) -> Plot:
    plot: Plot = getattr(load_code(ROOT / "recipes" / "dlrm", "figures"), name)(frame)
    return plot


def test_speedup_is_over_the_real_pytorch_2_1_and_base_stands_apart(frame: pd.DataFrame) -> None:
    plot = figure("speedup", frame)
    table = plot.table[plot.table["pin"] == "left out"].set_index(["dataset", "variant"])
    assert len(table) == (len(DATASETS) + 1) * len(FACTOR)
    for dataset, (variant, factor) in product(DATASETS, FACTOR.items()):
        row = table.loc[(dataset, variant)]
        want = FACTOR["stock21"] / factor
        assert row["speedup"] == pytest.approx(want, rel=0.02), (dataset, variant)
        assert row["low"] <= row["speedup"] <= row["high"]
        assert row["n"] == 60
        assert row["baseline_time_us"] == pytest.approx(1.05 * BASE_US[dataset], rel=0.02)
    axes = [axis for axis in plot.figure.axes if axis.get_visible()]
    titles = [axis.get_title() for axis in axes]
    assert titles[:5] == ["One item", "High hot", "Medium hot", "Low hot", "Random"]
    assert titles[5].startswith("Largest")
    assert all(axis.get_xlim()[0] == 0 for axis in axes)
    names = [label.get_text() for label in axes[0].get_yticklabels()]
    assert names[:3] == ["PyTorch 2.1", "", "Base (ours)"]


def test_speedup_shows_the_papers_values_where_they_belong(frame: pd.DataFrame) -> None:
    table = figure("speedup", frame).table
    said = table[table["paper"].notna()].set_index("variant")
    assert said["paper"].to_dict() == {"optmt": 1.53, "rpf_l2p": 2.03}
    assert set(said["dataset"]) == {"largest"}
    largest = table[(table["dataset"] != "largest") & (table["row"] == "OptMT")]["speedup"].max()
    assert said.loc["optmt", "speedup"] == largest
    lacks = ~((frame["dataset"] == "random") & (frame["variant"] == "best"))
    fewer = figure("speedup", frame[lacks]).table.query("dataset == 'largest'")["variant"]
    assert set(table["variant"]) - set(fewer) == {"best"}
    for claim, variant in (("D2", "optmt"), ("D3", "rpf_l2p")):
        (found,) = [one for one in load_claims(ROOT, "dlrm") if one.id == claim]
        assert said.loc[variant, "paper"] == found.reference


def test_speedup_counts_the_cost_of_pinning_in_and_out(frame: pd.DataFrame) -> None:
    table = figure("speedup", frame).table.set_index(["dataset", "row"])
    for name in ("L2P", "RPF+L2P+OptMT", "RPF+L2P, tuned"):
        alone, both = (table.loc[("random", name + end)] for end in ("", ", pin counted"))
        assert both["time_us"] - alone["time_us"] == pytest.approx(PIN_US, abs=3)


def test_speedup_without_any_baseline_is_not_drawn() -> None:
    records = Records()
    embedding(records, {"rpf": 0.6})
    with pytest.raises(NoData, match="baseline base was not measured"):
        figure("speedup", records.frame())


def test_endtoend_has_both_modes_and_the_papers_value(frame: pd.DataFrame) -> None:
    table = figure("endtoend", frame).table
    assert set(table["mode"]) == {"eager", "graph"}
    part = table[(table["dataset"] == "random") & (table["variant"] == "fbgemm")]
    for mode, extra in (("eager", 90.0), ("graph", 20.0)):
        us = {name: 12 * BASE_US["random"] * FACTOR[name] + extra for name in ("stock21", "fbgemm")}
        found = part[part["mode"] == mode]["speedup"].item()
        assert found == pytest.approx(us["stock21"] / us["fbgemm"], rel=0.02)
    said = table[table["paper"].notna()]
    assert set(zip(said["variant"], said["paper"], strict=True)) == {("rpf_l2p", 1.77)}


def test_bandwidth_plots_limit_over_time_also_for_one_launch(frame: pd.DataFrame) -> None:
    table = figure("bandwidth", frame).table
    row = table[(table["dataset"] == "random") & (table["row"] == "Best (ours)")].iloc[0]
    expected = 100 * LIMIT_US["random"] / (BASE_US["random"] * FACTOR["best"])
    assert row["share_of_limit_percent"] == pytest.approx(expected, rel=0.02)
    assert row["evidence"] == "measured+scaled"
    assert "Best (ours), one launch" in set(table["row"])


def test_shares_above_the_limit_stay_on_their_axis(frame: pd.DataFrame) -> None:
    """On a CPU small tables lie in a cache, and the limit is a rate of memory."""
    samples = [tuple(8 * one for one in some) if metric == "limit_time" else some
               for metric, some in zip(frame["metric"], frame["samples"], strict=True)]  # fmt: skip
    plot = figure("bandwidth", frame.assign(samples=samples))
    assert plot.table["high"].max() > 200
    drawn = [axis for axis in plot.figure.axes if axis.patches]
    assert all(bar.get_width() < axis.get_xlim()[1] for axis in drawn for bar in axis.patches)


def test_pin_adds_the_cost_of_pinning_once(frame: pd.DataFrame) -> None:
    table = figure("pin", frame).table
    part = table[(table["dataset"] == "random") & (table["variant"] == "l2p")]
    assert set(part["l2_mode"]) == set(workload.L2_MODES)
    cost = part["pin_and_kernel_time_us"] - part["kernel_time_us"]
    assert cost.tolist() == pytest.approx([PIN_US] * 4, abs=3)  # noise; twice would be 30
    assert table[table["variant"] == "base"]["pin_and_kernel_time_us"].isna().all()


def test_sweep_colours_by_the_fastest_and_has_a_bar_for_it(frame: pd.DataFrame) -> None:
    plot = figure("sweep", frame)
    assert set(plot.table["variant"]) == {"rpf"}
    assert plot.table.groupby("dataset")["times_the_fastest"].min().tolist() == [1] * 5
    bar, titles = plot.figure.axes[-1], [axis.get_title() for axis in plot.figure.axes]
    assert bar.get_ylabel() == "times the fastest"
    assert any("PyTorch 2.1: " in title for title in titles)


def test_grid_shows_every_cell_and_frames_those_that_fbgemm_wins() -> None:
    records = Records()
    grid(records, slowest=0.97)
    plot = figure("grid", records.frame())
    table = plot.table
    cells = [row for row in records.rows if row.metric == "cell_time"]
    assert len(table) == len(cells) == 2 * 324  # a page then has no other table of these rows
    assert not table.duplicated(["launch", "inputs", "pooling", "variant"]).any()
    first, *_ = table.index[table["speedup"] < 1]
    lost = table.loc[first]
    assert (lost["launch"], lost["inputs"], lost["pooling"], lost["variant"]) == (
        "one_table", "64 bags, uniform, 0.5 M rows", 1, "best",
    )  # fmt: skip
    assert (lost["speedup"], lost["time_us"]) == pytest.approx((0.97, 4.0064), rel=0.005)
    assert (lost["n"], lost["processes"], lost["evidence"]) == (5, 1, "measured")
    assert table[table["variant"] == "fbgemm"]["speedup"].eq(1).all()
    assert table["speedup"].lt(1).sum() == 1
    above, below, bar = plot.figure.axes
    assert above.get_title().startswith("One table a launch: least 0.97")
    assert below.get_title().startswith("All tables in one launch: least 1.49")
    assert [len(axis.texts) for axis in (above, below)] == [162, 162 + 9 + 3]
    assert [len(axis.patches) for axis in (above, below)] == [1, 0]
    red, _, blue, _ = above.images[0].to_rgba(0.99)
    assert red > 1.5 * blue
    assert bar.get_ylabel() == "times as fast as FBGEMM"
    assert [text.get_text() for text in below.texts[162:]] == [
        *(3 * ["uniform", "Zipf", "sorted"]), "64 bags", "2,048 bags", "16,384 bags",
    ]  # fmt: skip


def test_grid_leaves_a_cell_empty_that_was_not_measured_and_needs_both_variants() -> None:
    records = Records()
    grid(records)
    fbgemm = [row for row in records.rows if row.labels.get("variant") == "fbgemm"]
    for rows, said in (
        ([row for row in records.rows if row not in fbgemm], "no records that fit together"),
        (fbgemm, "best was not measured"),
    ):
        records.rows = rows
        with pytest.raises(NoData, match=said):
            figure("grid", records.frame())
    records = Records()
    grid(records)
    records.rows = [row for row in records.rows if row.labels.get("pooling") != "1"
                    or row.labels["batch"] == "64"]  # fmt: skip
    above, *_ = figure("grid", records.frame()).figure.axes
    (image,) = above.images
    assert image.get_array().mask.sum() == 12
    assert len(above.texts) == 162 - 12


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (1.5312, 1.5301, 1.5322, "1.53"),
        (1.5312, 1.49, 1.58, "1.53"),
        (1.5312, 1.4, 1.7, "1.5"),
        (1.5312, 1.5312, 1.5312, "1.5"),
        (116.2, 116.1, 116.3, "116"),
        (0.1234, 0.12, 0.13, "0.12"),
        (1.0, 1.0, 1.0, "1.0"),
        (0.0, 0.0, 0.0, "0.0"),
    ],
)
def test_a_number_has_no_more_digits_than_its_spread_allows(
    value: float, low: float, high: float, text: str
) -> None:
    panels = load_code(ROOT / "recipes" / "dlrm", "panels")
    assert panels.number(value, low, high) == text


def test_ticks_reach_the_largest_value_and_one_process_has_no_whisker() -> None:
    records = Records()
    embedding(records)
    records.rows = [replace(row, samples=row.samples[:1]) for row in records.rows]
    for axis in figure("speedup", records.frame()).figure.axes:
        if axis.get_visible():
            longest = max(bar.get_width() for bar in axis.patches)
            assert axis.get_xticks().max() >= longest
            assert not any(end.size for line in axis.collections for end in line.get_segments())


def test_a_quick_run_on_a_cpu_draws_with_the_cpu_on_its_face() -> None:
    records = Records()
    embedding(records, {"base": 1.0, "rpf": 0.8, "l2p": 0.9})
    records.rows = [
        replace(row, evidence="emulated") if row.labels.get("variant") == "l2p" else row
        for row in records.rows
    ]
    (drawn,) = draw(ROOT / "recipes" / "dlrm", ["speedup"], records.frame(), CPU, None)
    assert drawn.table is not None
    assert set(drawn.table["variant"]) == {"base", "rpf", "l2p"}
    assert set(drawn.table["dataset"]) == set(DATASETS)  # no panel beside the paper
    stand_in = drawn.table["variant"] == "l2p"
    assert drawn.table["row"].str.contains("(emulated)", regex=False).equals(stand_in)


@pytest.mark.parametrize("name", ["speedup", "bandwidth", "endtoend", "pin", "occupancy", "grid"])
def test_no_text_is_cut_off_or_overlaps(frame: pd.DataFrame, name: str) -> None:
    with mpl.rc_context(STYLE):
        figure = getattr(load_code(ROOT / "recipes" / "dlrm", "figures"), name)(frame).figure
        figure.draw_without_rendering()
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
        texts = [(text.get_text(), text.get_window_extent()) for text in axis.texts]
        for (_, one), (text, other) in combinations(texts, 2):
            assert not one.overlaps(other), text
        for text, box in texts:
            # A text at the end of a bar may pass the axis by a little, never reach the next panel.
            assert box.x1 <= area.x1 + 12, text
            for line in axis.lines:
                if line.get_linestyle() == "--":  # at the baseline
                    where = axis.transData.transform((line.get_xdata()[0], 0))[0]
                    assert not box.x0 < where < box.x1, f"{text} lies across a line"


PAPER_IDS = {f"D{number}" for number in range(1, 14)}
OURS = {f"B{number}" for number in range(1, 7)}
MAGNITUDES = {"D1", "D2", "D3", "D4"} | {"D1-base", "D2-base", "D3-base", "D4-base"}


def verdicts(rows: Sequence[Row], gpu: str | None, **options: Any) -> dict[str, str]:
    claims = load_claims(ROOT, "dlrm")
    claims = tuple(claim for claim in claims if "upstream" not in claim.id)
    return {v.id: str(v.verdict) for v in judge(claims, rows, {"gpu": gpu}, **options)}


def test_every_claim_of_the_brief_is_there_and_none_unread_is_scored() -> None:
    claims = {claim.id: claim for claim in load_claims(ROOT, "dlrm")}
    assert set(claims) >= PAPER_IDS | OURS
    assert {name for name, claim in claims.items() if not claim.transcribed} == {
        "D5", "D13", *(f"U{number}" for number in range(1, 10)),
    }  # fmt: skip
    bands = {
        name: (claims[name].reference, claims[name].lower) for name in ("D1", "D2", "D3", "D4")
    }
    assert bands == {"D1": (3.2, 2.2), "D2": (1.53, 1.2), "D3": (2.03, 1.6), "D4": (1.77, 1.4)}
    for name in MAGNITUDES:
        assert claims[name].scored_on == ("A100",), name
        assert claims[name].evidence == ("measured",), name


def test_magnitudes_are_scored_on_an_a100_and_their_direction_elsewhere() -> None:
    rows = everything().rows
    a100 = verdicts(rows, "NVIDIA A100-SXM4-40GB")
    h200 = verdicts(rows, "NVIDIA H200")
    assert {a100[name] for name in MAGNITUDES} == {"reproduced"}
    assert {h200[name] for name in MAGNITUDES} == {"direction holds"}
    everywhere = ["D1-order", "D3-monotone", "D6", "D6-base", "D7", "D8", "D9", "D10", "D11", "D12"]
    for name in everywhere:
        assert a100[name] == h200[name] == "reproduced", name
    assert (a100["B1"], h200["B1"]) == ("direction holds", "reproduced")
    assert h200["B2"] == "not reproduced"  # 0.68 / 0.28 = 2.43, the goal is 2.8
    assert h200["B4"] == h200["B5"] == h200["B6"] == "reproduced"


def test_every_claim_finds_the_records_of_a_whole_run() -> None:
    found = verdicts(everything().rows, "NVIDIA A100-SXM4-40GB")
    assert [name for name, verdict in found.items() if verdict in ("not run", "undecided")] == []


def test_what_pinning_costs_and_what_tuning_brings_are_judged() -> None:
    found = verdicts(everything().rows, "NVIDIA H200")
    assert (found["D3-tuned"], found["D4-tuned"]) == ("direction holds", "direction holds")
    assert found["pin.rpf_l2p-left-out"] == "reproduced"  # 0.52 of base against 0.62
    assert found["pin.rpf_l2p-counted"] == found["D3-monotone-pin"] == "not reproduced"  # 15 us
    assert found["tuned.rpf_tuned-artifact"] == found["tuned.rpf_tuned-stock"] == "reproduced"
    assert found["B7"] == found["B7-eager"] == found["fbgemm.random-eager"] == "reproduced"
    worse = Records()
    embedding(worse, FACTOR | {"rpf_tuned": 0.7, "smpf": 0.4, "fbgemm": 0.2})
    found = verdicts(worse.rows, "NVIDIA H200")
    names = (
        "tuned.rpf_tuned-artifact",
        "tuned.rpf_tuned-stock",
        "D3-best",
        "fbgemm.random-one_table",
    )
    assert {found[name] for name in names} == {"not reproduced"}


def test_one_cell_of_the_grid_that_is_lost_or_missing_breaks_the_promise() -> None:
    records = Records()
    grid(records)
    found = verdicts(records.rows, "NVIDIA H200")
    assert (found["B9"], found["B9-mean"]) == ("reproduced", "reproduced")
    assert (found["B10.ten_of_5000"], found["B10.one_of_100000"]) == (
        "reproduced",
        "not reproduced",
    )
    cells = [row for row in records.rows if row.metric == "cell_time"]
    found = verdicts(cells[2:], "NVIDIA H200")
    assert (found["B9"], found["B9-mean"], found["B10.ten_of_5000"]) == ("not run",) * 3
    lost = Records()
    grid(lost, slowest=0.97)
    found = verdicts(lost.rows, "NVIDIA H200")
    assert (found["B9"], found["B9-mean"]) == ("not reproduced", "reproduced")


def test_one_dataset_that_is_missing_is_no_promise_kept() -> None:
    rows = [row for row in everything().rows if row.labels.get("dataset") != "one_item"]
    judged = judge(load_claims(ROOT, "dlrm"), rows, {"gpu": "NVIDIA H200"})
    found = {one.id: one for one in judged}
    for name in ("D3-monotone", "D11", "B4", "B6", "share", "versus.best-kernel"):
        assert found[name].verdict == "not run", name
        assert "1 of 5 cells" in found[name].reason


def test_without_the_real_baseline_its_claims_are_not_run_and_ours_are_judged() -> None:
    rows = [row for row in everything().rows if row.labels.get("variant") != "stock21"]
    found = verdicts(rows, "NVIDIA A100-SXM4-40GB")
    assert {found[name] for name in ("D1", "D1-order", "D2", "D3", "D4", "D6", "D11")} == {
        "not run"
    }
    for name in ("D1-base", "D1-order-base", "D2-base", "D3-base", "D4-base", "D6-base"):
        assert found[name] == "reproduced", name


def test_a_slower_kernel_fails_the_claims_about_it() -> None:
    slow = Records()
    embedding(slow, FACTOR | {"optmt": 1.2, "rpf_l2p": 0.9, "best": 0.45})
    a100 = verdicts(slow.rows, "NVIDIA A100-SXM4-40GB")
    h200 = verdicts(slow.rows, "NVIDIA H200")
    assert a100["D2"] == a100["D2-base"] == a100["D3"] == a100["D3-monotone"] == "not reproduced"
    assert h200["D2"] == "not reproduced"  # even the direction is wrong
    assert h200["D3"] == "direction holds"
    assert h200["B1"] == h200["B3"] == h200["B4"] == h200["B5"] == "not reproduced"


def test_a_cpu_or_a_small_run_proves_and_disproves_nothing_about_gpus() -> None:
    static = {"D6", "D6-base", "D6-sm_90", "D7", "D8", "D9", "D9-local"}
    derived = {"D12", "D12-order"}
    unread = {"not transcribed"}
    on_cpu = verdicts(everything().rows, None)
    assert {v for name, v in on_cpu.items() if name not in static | derived} - unread == {
        "not comparable"
    }
    assert {on_cpu[name] for name in derived} == {"reproduced"}
    quick = verdicts(everything().rows, "NVIDIA H200", reduced=["--quick"])
    assert {v for name, v in quick.items() if name not in static} - unread == {"not comparable"}
    assert {quick[name] for name in static} == {"reproduced"}


def test_sizes_of_the_paper_cannot_be_changed_unnoticed(recipe: Recipe) -> None:
    for name in ("tables", "rows", "dim", "batch", "pooling", "dtype", "distance", "register_cap",
                 "bags", "bag_file", "mode", "shapes"):  # fmt: skip
        assert recipe.parameters[name].size, name
    made = plan(recipe, WITH_GPU, settings={"rows": "1000"}, experiments=("embedding",))
    assert made.reduced == ("--set rows=1000",)

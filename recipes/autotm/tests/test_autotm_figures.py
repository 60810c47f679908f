"""The figures of the native lane, drawn from the reference results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ae.figures.draw import Plot
from ae.recipe.code import load_code
from ae.recipe.load import load_recipe
from ae.records.files import Environment, frame
from ae.records.results import load_reference
from ae.report.chapter import face
from ae.report.views import view

ROOT = Path(__file__).resolve().parents[3]
RESULTS = load_reference(ROOT / "results/reference/cpu/autotm")
TRAINED = load_reference(ROOT / "results/reference/h200/autotm")


@pytest.mark.parametrize("name", ["speedup", "losses", "hardware_cache", "costs", "limits"])
def test_networks_and_rates_have_names_for_people(name: str) -> None:
    plot: Plot = getattr(load_code(ROOT / "recipes/autotm", "figures"), name)(frame(RESULTS.rows))
    assert name in load_recipe(ROOT, "autotm").figures
    words = [plot.figure.get_suptitle()]
    for axis in plot.figure.axes:
        words += [axis.get_title(), *(label.get_text() for label in axis.get_yticklabels())]
    assert not [word for word in words if "_" in word or re.search(r"r[\d.]+w", word)]
    nets = {"vgg19_2048": "VGG-19, batch 2,048", "vgg416_320": "VGG-416, batch 320"}
    for net, said in nets.items():
        assert (net in set(plot.table["net"])) == (said in words)
    if name == "hardware_cache":
        assert "Static, misses 20 and 8 GB/s" in words
    numbers = [text.get_text() for axis in plot.figure.axes for text in axis.texts]
    assert all(len(number.replace(".", "").lstrip("0")) == 3 for number in numbers), numbers
    if name == "costs":  # calculated, where speeds are simulated
        kinds = plot.table.groupby(plot.table["policy"] == "cost")["evidence"].unique()
        assert [list(one) for one in kinds] == [["simulated"], ["static"]]


@pytest.mark.parametrize(
    ("name", "axes"),
    [("limits", ["dram [GB]", "slowdown"]), ("plans", ["memory [%]", "over uncapped"]),
     ("errors", ["error [%]"]), ("losses", ["loss [%]"]), ("costs", ["over all DRAM"]),
     ("oversubscription", ["speedup"])],
)  # fmt: skip
def test_an_interactive_view_has_the_axes_of_its_figure(name: str, axes: list[str]) -> None:
    plot: Plot = getattr(load_code(ROOT / "recipes/autotm", "figures"), name)(frame(RESULTS.rows))
    shown = view(plot.table, plot.over)
    assert shown is not None
    [layer, *_] = shown.get("spec", shown)["layer"]
    titles = [layer["encoding"][one]["title"] for one in "xy"]
    assert [title for title in titles if title] == axes
    if name == "plans":
        first = [at for at, axis in enumerate(plot.figure.axes) if axis.get_ylabel()]
        assert first == [0, 4, 8], "of every line"


def test_a_face_of_simulated_numbers_says_what_the_lines_on_bars_are() -> None:
    plot: Plot = load_code(ROOT / "recipes/autotm", "figures").oversubscription(frame(RESULTS.rows))
    assert (plot.table["low"] < plot.table["high"]).any()
    assert "lines: the cheapest, the dearest" in face(plot, Environment(), [])


def test_a_front_shows_every_point_and_the_legend_every_system() -> None:
    plot: Plot = load_code(ROOT / "recipes/autotm", "figures").fronts(frame(TRAINED.rows))
    shown = 0
    for axis in plot.figure.axes:
        (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
        for x, y in (point for marks in axis.collections for point in marks.get_offsets()):
            assert left <= x <= right
            assert low <= y <= high
            shown += 1
    assert shown == len(plot.table)
    [legend] = plot.figure.legends
    assert {text.get_text() for text in legend.get_texts()} == set(plot.table["variant"])

"""The figures of the native lane, drawn from the reference results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ae.figures.draw import Plot
from ae.recipe.load import load_recipe
from ae.records.results import load_reference
from ae.report.chapter import load_figures

ROOT = Path(__file__).resolve().parents[3]
RESULTS = load_reference(ROOT / "results/reference/cpu/autotm")


@pytest.mark.parametrize("name", ["speedup", "losses", "hardware_cache", "costs", "limits"])
def test_networks_and_rates_have_names_for_people(name: str) -> None:
    plot: Plot = getattr(load_figures(ROOT / "recipes/autotm"), name)(RESULTS.frame)
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

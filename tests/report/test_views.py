"""Interactive views: which label goes where is decided by the table alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import pandas as pd
import pytest

from ae.report.views import view

ENDS = {"low": None, "high": None, "n": 3, "evidence": "measured"}


def spec(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = view(pd.DataFrame(rows))
    assert found is not None
    return found


def inner(found: dict[str, Any]) -> dict[str, Any]:
    return found.get("spec", found)


def encoding(found: dict[str, Any]) -> dict[str, Any]:
    return inner(found)["layer"][0]["encoding"]


def fields(found: dict[str, Any]) -> dict[str, str]:
    return {k: v["field"] for k, v in encoding(found).items() if "field" in v}


def test_few_bars_are_grouped_by_colour_in_the_order_of_the_table() -> None:
    rows = [
        {"dataset": d, "row": r, "speedup": v, **ENDS}
        for v, (d, r) in enumerate(product("zy", ("slow", "fast", "best")), 1)
    ]
    found = spec(rows)
    assert fields(found) == {"y": "row", "x": "speedup", "color": "dataset", "yOffset": "dataset"}
    assert encoding(found)["y"]["sort"] is None
    assert encoding(found)["x"]["scale"]["domain"] == [0.0, pytest.approx(6.3)]


def test_many_bars_get_a_panel_for_each_value_in_the_order_of_the_table() -> None:
    rows = [
        {"dataset": d, "variant": r.lower(), "row": r, "time_us": 5.0, **ENDS}
        for d, r in product("zyxw", "ABCDEFGHIJ")
    ]
    found = spec(rows)
    assert fields(found) == {"y": "row", "x": "time_us"}
    assert found["facet"]["sort"] == ["z", "y", "x", "w"]
    assert encoding(found)["x"]["title"] == "time [us]"


def test_numbers_are_axes_only_where_words_do_not_tell_rows_apart() -> None:
    line = [
        {"run": r, "device": d, "progress": p / 10, "median": p, **ENDS, "unit": "MiB"}
        for r, d, p in product(("dp", "tp"), (0, 1), range(10))
    ]
    found = spec(line)
    assert fields(found) == {"x": "progress", "y": "median", "color": "device"}
    assert found["facet"]["sort"] == ["dp", "tp"]
    assert encoding(found)["y"]["title"] == "median [MiB]"
    heat = [
        {"dataset": s, "distance": a, "warps": b, "time_us": a * b + 1.5, **ENDS}
        for s, a, b in product("xy", range(6), range(5))
    ]
    found = spec(heat)
    assert inner(found)["layer"][0]["mark"] == "rect"
    assert fields(found) == {"x": "distance", "y": "warps", "color": "time_us"}
    told = [
        {"row": r, "time_us": 1.5 * i, "all_us": 2.0 * i, **ENDS} for i, r in enumerate("abc", 1)
    ]
    assert fields(spec(told)) == {"y": "row", "x": "all_us"}


def test_points_over_a_number_are_a_cloud() -> None:
    """A panel for each of the first label, colour and shape by the second; not by one of many."""
    rows = [
        {"net": net, "knob": f"{v}{net}", "variant": f"v{v}", "time_s": v + 0.5, **ENDS,
         "unit": "s", "peak_gb": 9.0 - v}
        for net, v in product("ab", range(8))
    ]  # fmt: skip
    found = view(pd.DataFrame(rows), "peak_gb")
    assert found is not None
    assert found["facet"]["sort"] == ["a", "b"]
    colours = {"color": "variant", "shape": "variant"}
    assert fields(found) == {"x": "peak_gb", "y": "time_s", **colours}
    titles = [encoding(found)[axis]["title"] for axis in "xy"]
    assert titles == ["peak [GB]", "time [s]"]
    alone = view(pd.DataFrame({"us": [1.0, 2.0], "told_us": [1.5, 2.5], "n": 1}), "us")
    assert alone is not None
    assert fields(alone) == {"x": "us", "y": "told_us"}


def test_two_ends_of_one_unit_are_a_time_line() -> None:
    line = [
        {"variant": v, "lane": lane, "start_us": s, "end_us": s + 2.5, "n": 1}
        for v, lane, s in product("ab", ("train", "copy"), (0.0, 3.0))
    ]
    found = spec(line)
    assert fields(found) == {"x": "start_us", "x2": "end_us", "y": "lane", "color": "lane"}
    assert found["columns"] == 1
    heavier = [{"plan": plan, **row} for plan in (0, 2) for row in line]
    found = spec(heavier)
    assert fields(found)["y"] == "lane"
    assert found["facet"]["sort"] == ["plan 0, a", "plan 0, b", "plan 2, a", "plan 2, b"]
    [panel] = found["transform"]
    assert panel["calculate"] == "'plan ' + datum['plan'] + ', ' + datum['variant']"


def test_bars_that_are_all_negative_reach_to_zero() -> None:
    rows = [{"row": r, "error_percent": v, "n": 1} for r, v in (("a", -14.7), ("b", -6.6))]
    assert encoding(spec(rows))["x"]["scale"]["domain"] == [-14.7, 0.0]


def test_whiskers_the_papers_value_and_a_logarithmic_scale() -> None:
    rows = [
        {"row": r, "median": v, "low": v / 2, "high": v * 2, "n": 3, "evidence": "measured",
         "paper": p}
        for r, v, p in (("a", 1.0, None), ("b", 2.0, 3.0))
    ]  # fmt: skip
    layers = spec(rows)["layer"]
    assert [one["encoding"]["x"]["field"] for one in layers] == ["median", "low", "paper"]
    assert layers[0]["mark"]["type"] == "bar"
    assert layers[0]["encoding"]["x"]["scale"]["domain"][1] == pytest.approx(4.2)  # the whisker
    rows[1]["median"], rows[1]["paper"] = 3.0, 78.0  # far beyond: it does not stretch the axis
    assert spec(rows)["layer"][0]["encoding"]["x"]["scale"]["domain"][1] < 7
    rows[1]["median"] = 1000.0
    wide = spec(rows)["layer"][0]
    assert wide["encoding"]["x"]["scale"] == {"type": "log"}
    assert wide["mark"]["type"] == "point"  # a bar has no foot on such a scale


def test_the_value_is_a_number_wherever_its_ends_stand() -> None:
    rows = [{"row": r, "value": 1.0, "n": 1, "evidence": "simulated", "low": 0.5} for r in "ab"]
    assert fields(spec(rows))["x"] == "value"


def test_rows_that_nothing_tells_apart_have_no_view() -> None:
    rows = [{"row": "a", "median": v, **ENDS} for v in (1.0, 2.0)]
    assert view(pd.DataFrame(rows)) is None
    assert view(pd.DataFrame([{"row": "a"}, {"row": "b"}])) is None

"""Table V of the PASTA paper beside ours: as bars, and cell by cell. Sizes are MiB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, isnan, log10, nan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from ae.figures.draw import PALETTE, NoData, Plot, new_panels
from ae.figures.summary import in_order, join_evidence, pool
from ae.recipe.code import load_code

naming = load_code(Path(__file__).parent, "naming")

KIB = 1 / 1024
CELLS = ("kernels", "footprint", "max", "min", "mean", "median", "p90")
MAPS = "tensor_map_launches"
TITLES = {
    "kernels": "launches", "footprint": "footprint", "max": "WS max", "min": "WS min",
    "mean": "WS mean", "median": "WS median", "p90": "WS p90", MAPS: "by tensor maps",
}  # fmt: skip
# What the paper prints: launches, mean footprint, and five statistics of the working set.
PAPER: dict[tuple[str, str], tuple[float, ...]] = {
    ("alexnet", "test"): (1428, 1528.13, 876.12, 1.01, 216.25, 148.26, 406.33),
    ("resnet18", "test"): (1497, 1232.13, 1024.00, 1.00 * KIB, 86.07, 64.00, 172.27),
    ("resnet34", "test"): (2657, 1261.59, 1024.00, 1.00 * KIB, 76.61, 43.25, 164.00),
    ("bert", "test"): (487, 1179.64, 212.62, 47.50 * KIB, 75.23, 37.69, 141.75),
    ("gpt2", "test"): (583, 4148.10, 1493.85, 4.00 * KIB, 59.02, 25.08, 138.00),
    ("whisper", "test"): (663, 2304.15, 627.44, 2.25, 78.54, 20.81, 153.81),
    ("alexnet", "train"): (4040, 3285.17, 1512.09, 0.5 * KIB, 188.60, 144.62, 406.33),
    ("resnet18", "train"): (1542, 3165.13, 1024.00, 0.5 * KIB, 84.58, 43.25, 172.27),
    ("resnet34", "train"): (2734, 4316.86, 1024.00, 0.5 * KIB, 75.33, 43.25, 164.00),
    ("bert", "train"): (554, 5679.03, 235.47, 1.00 * KIB, 77.71, 37.97, 209.30),
    ("gpt2", "train"): (2004, 7862.10, 2240.77, 0.5 * KIB, 51.37, 24.00, 137.66),
    ("whisper", "train"): (665, 2104.80, 937.01, 2.25, 80.42, 20.81, 153.81),
}
# The experiments that calculate for the sizes that they measure.
MEASURED = ("table_v", "table_v_paper", "table_v_bf16")
FULL = ("", "full")  # of the label size: only the paper's sizes are held against the paper
BARS = {
    "footprint": ("memory footprint", "grey"), "max": ("largest working set", "vermilion"),
    "p90": ("90th percentile", "orange"), "median": ("median", "blue"),
}  # fmt: skip
MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "arguments": ("from arguments", {"marker": "|", "markersize": 8, "color": "#222222"}),
    "median": ("ours", {"marker": "o", "markersize": 6, "color": "#8c8c8c"}),
    "oracle": ("from shapes (line: as cuBLAS chooses)",
               {"marker": "x", "markersize": 4, "color": "#222222"}),
    "paper": ("paper", {"marker": "D", "markersize": 7, "color": "#222222",
                        "markerfacecolor": "none"}),
}  # fmt: skip
# A cell is good within this share of the paper's value; the claims say where it is judged.
CLOSE = {"kernels": 0.15, "footprint": 0.20, "max": 0.01, "median": 0.05, "p90": 0.05}
CLOSE_BF16 = {"max": 0.01, "mean": 0.05}  # of the calculated range


def paper_value(model: str, mode: str, cell: str) -> float:
    """The paper's cell; not a number where it has none. Whisper has one row, and two of ours."""
    row = PAPER.get((model.removesuffix("_paper"), mode), ())
    return dict(zip(CELLS, row, strict=False)).get(cell, nan)


def cells(frame: pd.DataFrame, names: Sequence[str] = CELLS) -> pd.DataFrame:
    """Every cell of Table V that was measured or calculated: ours, the paper's, the oracle's.

    `oracle_low` and `oracle_high` are over what cuBLAS may choose; `arguments` is the cheap bound.
    """
    ours: dict[tuple[str, str, str], Any] = {}
    for metric in ("kernels", "footprint", MAPS):
        for row in pool(frame, metric, ["model", "mode", "size"]).to_dict("records"):
            if row["mode"]:  # other experiments have a footprint of their own
                ours[row["model"], row["mode"], metric] = row
    for row in pool(frame, "working_set", ["model", "mode", "stat", "size"]).to_dict("records"):
        ours[row["model"], row["mode"], row["stat"]] = row
    oracle = _calculated(frame, "working_set_oracle")
    launches = _calculated(frame, "kernels_oracle")
    oracle |= {(model, mode, "kernels"): row for (model, mode, _), row in launches.items()}
    low = _calculated(frame, "working_set_oracle_low")
    high = _calculated(frame, "working_set_oracle_high")
    arguments = _calculated(frame, "working_set_bound")
    rows = []
    for key in dict.fromkeys((*ours, *oracle)):
        model, mode, cell = key
        own, calculated = ours.get(key), oracle.get(key)
        if cell not in names:
            continue
        told = paper_value(model, mode, cell)
        if own and own["size"] not in FULL:
            told = nan
        value = own["median"] if own else nan
        evidence = [row["evidence"] for row in (own, calculated) if row]
        rows.append(
            {
                "model": model,
                "mode": mode,
                "stat": cell,
                "median": value,
                "low": own["low"] if own else nan,
                "high": own["high"] if own else nan,
                "paper": told,
                "oracle": _median(oracle, key),
                "oracle_low": _median(low, key),
                "oracle_high": _median(high, key),
                "arguments": _median(arguments, key),
                "over_paper_percent": 100 * (value / told - 1),
                "n": own["n"] if own else calculated["n"] if calculated else 0,
                "evidence": join_evidence(*evidence),
            }
        )
    found = pd.DataFrame(rows)
    if found.empty:
        return found
    orders = {"mode": list(naming.MODES), "model": naming.MODELS, "stat": list(TITLES)}
    return naming.ordered(found, orders)


def working_sets(frame: pd.DataFrame) -> Plot:
    """Footprint and working sets of every model and mode: dots ours, marks the paper's and the
    oracle's; logarithmic, since the largest is hundreds of times the median."""
    rows = cells(frame)
    if rows.empty or not set(rows["stat"]) & {"footprint", "max"}:
        raise NoData("no record of metric working_set and footprint")
    rows = rows[rows["stat"].isin(list(BARS))].reset_index(drop=True)
    rows["row"] = [
        f"{naming.name_of(row['model'])}: {BARS[row['stat']][0]}" for row in rows.to_dict("records")
    ]
    orders = {"mode": list(naming.MODES), "model": naming.MODELS, "stat": list(BARS)}
    rows = naming.ordered(rows, orders)
    modes = in_order(rows["mode"], list(naming.MODES))
    names = list(
        dict.fromkeys(naming.ordered(rows, {k: orders[k] for k in ("model", "stat")})["row"])
    )
    figure, axes = new_panels(
        len(modes), len(names), title="Memory footprint and working sets", row_inches=0.22
    )
    drawn = rows[["median", "paper", "oracle", "oracle_low", "oracle_high", "arguments"]]
    low = 10.0 ** floor(log10(float(drawn[drawn > 0].min().min())))
    high = 10.0 ** ceil(log10(float(drawn.max().max())))
    for axis, mode in zip(axes, modes, strict=True):
        _dots(axis, rows[rows["mode"] == mode].set_index("row"), names)
        axis.set_xscale("log")
        axis.set_xlim(low / 1.3, 1.3 * high)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.xaxis.grid(True)
        axis.set_title(naming.MODES.get(mode, mode))
        axis.set_xlabel("MiB (log)")
    axes[0].set_yticks(range(len(names)), labels=names)
    axes[0].set_ylim(len(names) - 0.4, -0.6)
    handles = [
        Line2D([], [], linestyle="none", label=label, **look) for label, look in MARKS.values()
    ]
    naming.legend_above(figure, handles)
    spread = naming.spread_words(rows, "dots: median, whiskers: 95 % interval")
    return Plot(figure=figure, table=rows.drop(columns="over_paper_percent"), spread=spread)


def _dots(axis: Axes, part: pd.DataFrame, names: Sequence[str]) -> None:
    """A line per name: ours, the paper's, the calculated; our value as a number at the right."""
    for place, name in enumerate(names):
        if place % len(BARS) == 0 and place:
            axis.axhline(place - 0.5, color="#dddddd", linewidth=0.6)
        if name not in part.index:
            continue
        row = part.loc[name]
        axis.hlines(place, row["oracle_low"], row["oracle_high"], linewidth=1.0, color="#222222")
        if row["low"] < row["high"]:
            axis.hlines(place, row["low"], row["high"], linewidth=2.5, color="#999999")
        for key, (_, look) in MARKS.items():
            if not isnan(row[key]):
                own = {"markerfacecolor": PALETTE[BARS[row["stat"]][1]]} if key == "median" else {}
                axis.plot(row[key], place, **(look | own))
        text = "not measured" if isnan(row["median"]) else f"{row['median']:,.0f}"
        axis.text(1.02, place, text, transform=axis.get_yaxis_transform(), fontsize=7.5,
                  va="center_baseline")  # fmt: skip
    axis.tick_params(axis="y", length=0)


def table_v(frame: pd.DataFrame) -> Plot:
    """Table V as a page: in every cell our value, the paper's below it, and how far they are."""
    rows = cells(frame)
    spread = (
        "within the band of the claims (launches 15 %, footprint 20, max 1, median, p90 5): "
        "green, outside: orange, no claim: white"
    )
    title = "Table V: ours, the paper's below it (MiB; launches are counts)"
    return _page(rows, title, ("paper", "paper", "paper"), CELLS, CLOSE, spread)


def table_v_bf16(frame: pd.DataFrame) -> Plot:
    """The same of rows in bf16, which the paper does not have: below ours what the shapes give."""
    columns = (*CELLS, MAPS)
    spread = (
        "within 1 % (max) and 5 % (mean) of what the shapes give, whatever cuBLAS does with its "
        "workspace: green, outside: orange, no claim: white"
    )
    title = "Rows in bf16: ours, what the shapes give below it (MiB; launches are counts)"
    against = ("oracle", "oracle_low", "oracle_high")
    return _page(cells(frame, columns), title, against, columns, CLOSE_BF16, spread)


def _page(
    rows: pd.DataFrame, title: str, against: tuple[str, str, str], columns: Sequence[str],
    close: Mapping[str, float], spread: str,
) -> Plot:  # fmt: skip
    """`against`: what stands below a value, and between which two it is good, within `close`."""
    if rows.empty or set(rows["stat"]) <= {"kernels", "footprint", MAPS}:
        raise NoData("no record of metric working_set or working_set_oracle")
    lines = list(dict.fromkeys(zip(rows["mode"], rows["model"], strict=True)))
    there = {(r["mode"], r["model"], r["stat"]): r for r in rows.to_dict("records")}
    height = 1.7 + 0.42 * (len(lines) + 1)
    figure = Figure(figsize=(2.2 + 1.33 * len(columns), height))
    figure.suptitle(title, fontsize=11.5, fontweight="bold")
    axis = figure.add_axes((0.01, 0.62 / height, 0.98, 1 - 1.15 / height))
    axis.set_axis_off()
    found = [[there.get((*line, cell)) for cell in columns] for line in lines]
    text = [[_words(row, against[0]) for row in line] for line in found]
    shade = [[_shade(row, *against[1:], close) for row in line] for line in found]
    drawn = axis.table(
        cellText=text, cellColours=shade, colLabels=[TITLES[cell] for cell in columns],
        cellLoc="right", bbox=(0.185, 0.0, 0.815, 1.0),
    )  # fmt: skip
    for place, (mode, model) in enumerate(lines, 1):  # matplotlib's own labels are cut where long
        label = f"{naming.name_of(model)}, {naming.MODES.get(mode, mode)}"
        middle = 1 - (place + 0.5) / (len(lines) + 1)
        axis.text(0.178, middle, label, fontsize=7.5, ha="right", va="center_baseline")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7.5)
    for cell in drawn.get_celld().values():
        cell.set_edgecolor("#cccccc")
    return Plot(figure=figure, table=rows, spread=spread)


def _words(row: dict[Any, Any] | None, against: str) -> str:
    if row is None:
        return "not measured"
    unit = "launches" if row["stat"] in ("kernels", MAPS) else ""
    own, told = _amount(row["median"], unit), _amount(row[against], unit)
    if isnan(row["median"]):
        calculated = _amount(row["oracle"], unit)
        own = "not measured" if isnan(row["oracle"]) else f"shapes {calculated}"
    away = 100 * (row["median"] / row[against] - 1)
    return f"{own}\n{told}" + ("" if isnan(away) else f"  ({round(away, 1) + 0.0:+.1f} %)")


def _amount(value: float, unit: str = "") -> str:
    if isnan(value):
        return "–"
    if unit:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value >= 0.1 else f"{value * 1024:,.2f} KiB"


def _shade(row: dict[Any, Any] | None, low: str, high: str, close: Mapping[str, float]) -> str:
    if row is None or row["stat"] not in close or isnan(row["median"] + row[low]):
        return "#ffffff"
    least, most = row[low] * (1 - close[row["stat"]]), row[high] * (1 + close[row["stat"]])
    return "#e3f4ec" if least <= row["median"] <= most else "#fdebdf"


def _calculated(frame: pd.DataFrame, metric: str) -> dict[tuple[str, str, str], Any]:
    """What was calculated, by model, mode and statistic; not what was seen on a CPU's tiny run."""
    keys = ["experiment", "device", "model", "mode", "stat"]
    found: dict[tuple[str, str, str], Any] = {}
    for row in pool(frame, metric, keys).to_dict("records"):
        key = (row["model"], row["mode"], row["stat"])
        if row["device"] or (key in found and row["experiment"] not in MEASURED):
            continue
        found[key] = row
    return found


def _median(rows: dict[tuple[str, str, str], Any], key: tuple[str, str, str]) -> float:
    return float(rows[key]["median"]) if key in rows else nan

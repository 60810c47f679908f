"""Figures 9 and 10 of the PASTA paper: what profiling costs, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isnan, log, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ae.figures.draw import PALETTE, NoData, Plot, new_panels
from ae.figures.summary import in_order, join_evidence, pool
from ae.recipe.code import load_code

naming = load_code(Path(__file__).parent, "naming", fix="restore it")

PARTS = {
    "execution": PALETTE["grey"], "collection": PALETTE["sky"], "transfer": PALETTE["orange"],
    "analysis": PALETTE["vermilion"],
}  # fmt: skip
SCALINGS = {"none": "", "": "", "authors": ", whole time × N", "sound": ", added time scaled"}
MEAN = "geo-mean"
SMALL = "small"  # the size at which CPU-side tracing analyses every launch
KEYS = ["model", "variant", "scaling", "sampling", "sample", "size"]
_FLOOR = 0.5  # where bars on a logarithmic axis begin
_PAGE = 11.8  # inches


def overhead(frame: pd.DataFrame) -> Plot:
    """Figure 9: time under each variant over time without it, logarithmic, with both scalings."""
    rows = pool(frame, "slowdown", KEYS)
    title = "Time under the profiler over time without it"
    return _slowdowns(rows[rows["size"] != SMALL], title, "no record of metric slowdown")


def overhead_small(frame: pd.DataFrame) -> Plot:
    """The same on small models, where every variant analysed every launch."""
    rows = pool(frame, "slowdown", KEYS)
    title = "Small models, every launch analysed: time over time without the profiler"
    why = f"no record of metric slowdown at size {SMALL}"
    return _slowdowns(rows[rows["size"] == SMALL], title, why)


def extrapolation(frame: pd.DataFrame) -> Plot:
    """The two scalings of sampled runs side by side, and the factor between them."""
    both: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in pool(frame, "slowdown", KEYS).to_dict("records"):
        place = (row["variant"], row["model"], row["sampling"] or row["sample"])
        both.setdefault(place, {})[row["scaling"]] = row
    found = [
        {
            "variant": variant,
            "model": model,
            "sampling": sampling,
            "authors": pair["authors"]["median"],
            "sound": pair["sound"]["median"],
            "inflation": pair["authors"]["median"] / pair["sound"]["median"],
            "n": min(pair[name]["n"] for name in ("authors", "sound")),
            "evidence": join_evidence(*(one["evidence"] for one in pair.values())),
        }
        for (variant, model, sampling), pair in both.items()
        if {"authors", "sound"} <= set(pair)
    ]
    if not found:
        raise NoData("no record of metric slowdown with both scalings")
    orders = {"variant": list(naming.VARIANTS), "model": naming.MODELS}
    table = naming.ordered(pd.DataFrame(found), orders)
    variants = list(dict.fromkeys(table["variant"]))
    models = in_order(table["model"], naming.MODELS)
    figure, axes = new_panels(
        len(variants), 2 * len(models), across=3,
        title="One launch in N was analysed: what the rest is taken for",
    )  # fmt: skip
    top = float(table[["authors", "sound"]].max().max())
    for axis, variant in zip(axes, variants, strict=True):
        part = table[table["variant"] == variant].drop_duplicates("model", keep="last")
        here = {row["model"]: row for row in part.to_dict("records")}
        for place, model in enumerate(models):
            if (row := here.get(model)) is None:
                continue
            for shift, name, colour in ((-0.2, "authors", "orange"), (0.2, "sound", "blue")):
                axis.barh(place + shift, row[name] - _FLOOR, left=_FLOOR, height=0.38,
                          color=PALETTE[colour], label=name)  # fmt: skip
            axis.text(1.15 * max(row["authors"], row["sound"]), place,
                      f"{naming.factor(row['inflation'])}×", va="center", fontsize=7.5)  # fmt: skip
        axis.set_xscale("log")
        axis.set_xlim(_FLOOR, 30 * top)
        axis.set_yticks(range(len(models)), labels=[naming.name_of(model) for model in models])
        axis.set_ylim(len(models) - 0.45, -1.6)  # room for the legend at the top
        axis.xaxis.grid(True)
        axis.tick_params(axis="x", labelsize=7)
        _plain(axis.xaxis)
        axis.set_title(naming.VARIANTS.get(variant, variant))
        axis.set_xlabel("slowdown, x (log)")
    handles, _ = axes[0].get_legend_handles_labels()
    words = ["paper: whole time × N", "sound: added time × launches / analysed"]
    axes[0].legend(handles[:2], words, fontsize=7, frameon=False, loc="upper left")
    spread = "the paper's formula scales start-up and the plain run too; text: paper's / sound"
    return Plot(figure=figure, table=table, spread=spread)


def breakdown(frame: pd.DataFrame) -> Plot:
    """Figure 10: shares of execution, collection, transfer and analysis, stacked to 100 %."""
    rows = pool(frame, "tool_time", ["model", "variant", "size", "sample", "part"])
    if rows.empty:
        raise NoData("no record of metric tool_time")
    orders = {"variant": list(naming.VARIANTS), "size": [], "sample": [], "model": naming.MODELS,
              "part": list(PARTS)}  # fmt: skip
    rows = naming.ordered(rows, orders)
    totals = rows.groupby(["model", "variant", "size", "sample"])["median"].transform("sum")
    rows["share_percent"] = 100 * rows["median"] / totals.where(totals > 0)
    rows["run"] = [_run_words(row) for row in rows.to_dict("records")]
    runs, models = list(dict.fromkeys(rows["run"])), in_order(rows["model"], naming.MODELS)
    figure, axes = new_panels(
        len(runs), len(models) + 1, title="Where the profiler's time goes", across=4
    )
    for axis, run in zip(axes, runs, strict=True):
        _stack(axis, rows[rows["run"] == run], models)
        axis.set_title(run, fontsize=9)
    axes[0].legend(fontsize=6.5, ncols=2, frameon=False, loc="upper left", columnspacing=0.8)
    spread = naming.spread_words(rows, "median of the rounds") + "; text: the time itself"
    return Plot(figure=figure, table=rows.drop(columns="samples"), spread=spread)


def _stack(axis: Axes, part: pd.DataFrame, models: Sequence[str]) -> None:
    """One run: a line per model, its parts stacked to 100 %, and the whole time as text."""
    left = [0.0] * len(models)
    for name, colour in PARTS.items():
        shares = part[part["part"] == name].set_index("model")["share_percent"]
        widths = [float(shares.get(model, 0.0)) for model in models]
        axis.barh(range(len(models)), widths, left=left, color=colour, label=name, height=0.74)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for place, model in enumerate(models):
        total = float(part[part["model"] == model]["median"].sum())
        if total > 0:
            axis.text(102, place, _seconds(total), va="center", fontsize=7)
    axis.set_yticks(range(len(models)), labels=[naming.name_of(model) for model in models])
    axis.set_ylim(len(models) - 0.45, -1.7)  # room for the legend at the top
    axis.set_xlim(0, 140)
    axis.set_xticks(range(0, 101, 50))
    axis.set_xlabel("% of the time")


def _slowdowns(rows: pd.DataFrame, title: str, why: str) -> Plot:
    """Bars grouped by model on a logarithmic axis, with a geometric mean a variant."""
    rows = rows[rows["variant"] != "native"]
    if rows.empty:
        raise NoData(why)
    order = {"model": naming.MODELS, "variant": list(naming.VARIANTS), "scaling": list(SCALINGS)}
    rows = naming.ordered(rows, order)
    rows["row"] = [
        naming.VARIANTS.get(r["variant"], r["variant"]) + SCALINGS.get(r["scaling"], r["scaling"])
        for r in rows.to_dict("records")
    ]
    by_kind = {"variant": order["variant"], "scaling": order["scaling"]}
    kinds = list(dict.fromkeys(naming.ordered(rows, by_kind)["row"]))
    models = [*in_order(rows["model"], naming.MODELS), MEAN]
    table = pd.concat([rows, _means(rows, kinds)], ignore_index=True)
    figure = Figure(figsize=(_PAGE, 5.6))
    figure.suptitle(title, fontsize=11.5, fontweight="bold")
    axis = figure.add_axes((0.075, 0.2, 0.915, 0.58))
    width = 0.86 / len(kinds)
    for index, kind in enumerate(kinds):
        part = table[table["row"] == kind].drop_duplicates("model", keep="last")
        here = {row["model"]: row for row in part.to_dict("records")}
        places = [place for place, model in enumerate(models) if model in here]
        spots = [place - 0.43 + width * (index + 0.5) for place in places]
        found = [here[models[place]] for place in places]
        _bars(axis, spots, found, width)
    axis.set_yscale("log")
    top = float(table["high"].max())
    axis.set_ylim(_FLOOR, 12 * top)
    axis.axhline(1.0, color="#222222", linewidth=0.8, linestyle=(0, (4, 3)))
    axis.yaxis.grid(True)
    _plain(axis.yaxis)
    axis.set_ylabel("slowdown, x (log)")
    axis.set_xticks(range(len(models)),
                    labels=[naming.name_of(model) for model in models])  # fmt: skip
    axis.set_xlim(-0.5, len(models) - 0.5)
    axis.tick_params(axis="x", length=0)
    handles = [axis.containers[place] for place in range(len(axis.containers))]
    bars = [one for one in handles if type(one).__name__ == "BarContainer"]
    figure.legend(bars, kinds, fontsize=7.5, frameon=False, ncols=min(4, len(kinds)),
                  loc="upper center", bbox_to_anchor=(0.5, 0.93))  # fmt: skip
    sets = {int(n) for n in table[table["model"] == MEAN]["models"]}
    many = "bars: median, whiskers: 95 % interval" if rows["n"].max() > 1 else naming.ONE_NUMBER
    mean = f"geo-mean over {min(sets)}" + (f" to {max(sets)}" if len(sets) > 1 else "")
    return Plot(
        figure=figure, table=table.drop(columns="samples"),
        spread=f"{many}; {mean} model{'' if sets == {1} else 's'}",
    )  # fmt: skip


def _means(rows: pd.DataFrame, kinds: Sequence[str]) -> pd.DataFrame:
    """The geometric mean of every kind of bar over the models that have it."""
    found = []
    for kind in kinds:
        part = rows[rows["row"] == kind].drop_duplicates("model", keep="last")
        values = [float(value) for value in part["median"]]
        mean = exp(float(np.mean([log(value) for value in values])))
        found.append(
            {
                "model": MEAN,
                "variant": part["variant"].iloc[0],
                "scaling": part["scaling"].iloc[0],
                "sampling": part["sampling"].iloc[0],
                "sample": part["sample"].iloc[0],
                "size": part["size"].iloc[0],
                "median": mean,
                "low": nan,
                "high": nan,
                "models": len(values),
                "n": int(part["n"].min()),
                "unit": "x",
                "evidence": join_evidence(*part["evidence"]),
                "row": kind,
            }
        )
    return pd.DataFrame(found)


def _bars(axis: Axes, spots: Sequence[float], found: Sequence[naming.Row], width: float) -> None:
    values = [float(row["median"]) for row in found]
    colour = naming.VARIANT_COLOURS.get(found[0]["variant"], "#8c8c8c")
    hatch = "//" if found[0]["scaling"] == "authors" else None
    axis.bar(spots, [value - _FLOOR for value in values], bottom=_FLOOR, width=0.92 * width,
             color=colour, hatch=hatch, edgecolor="white", linewidth=0.3)  # fmt: skip
    for spot, value, row in zip(spots, values, found, strict=True):
        low, high = float(row["low"]), float(row["high"])
        if not isnan(low) and row["n"] > 1:
            axis.vlines(spot, low, high, color="#222222", linewidth=0.8)
        end = value if isnan(high) else max(value, high)
        axis.text(spot, end * 1.12, f"{naming.factor(value)}×", rotation=90, ha="center",
                  va="bottom", fontsize=6)  # fmt: skip


def _run_words(row: naming.Row) -> str:
    """Which runs a panel of Figure 10 is of: a sampled one analysed a part of the launches."""
    words = naming.VARIANTS.get(row["variant"], row["variant"])
    words += f", {row['size']}" if row["size"] not in ("", "full") else ""
    return words + (f"\n1 launch in {row['sample']}" if row["sample"] else "")


def _plain(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:,.0f} min" if value < 7200 else f"{value / 3600:,.1f} h"
    return f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.3g} ms"

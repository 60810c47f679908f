"""Figures 9 and 10 of the PASTA paper: what profiling costs, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isnan, log, nan
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ae.figures import PALETTE, NoData, Plot, new_panels
from ae.recipe_code import load_code
from ae.summary import in_order, join_evidence, pool

naming = load_code(Path(__file__).parent, "naming", fix="restore it")

PARTS = {
    "execution": PALETTE["grey"], "collection": PALETTE["sky"], "transfer": PALETTE["orange"],
    "analysis": PALETTE["vermilion"],
}  # fmt: skip
SCALINGS = {"none": "", "": "", "authors": ", whole time × N", "sound": ", added time scaled"}
MEAN = "geo-mean"
KEYS = ["model", "variant", "scaling", "sampling"]
_FLOOR = 0.5  # where bars on a logarithmic axis begin
_PAGE = 11.8  # inches


def overhead(frame: pd.DataFrame) -> Plot:
    """Figure 9: time under each variant over time without it, logarithmic, with both scalings."""
    rows = pool(naming.of_paper(frame), "slowdown", KEYS)
    title = "Time under the profiler over time without it"
    return _slowdowns(rows, title, "no record of metric slowdown")


def overhead_small(frame: pd.DataFrame) -> Plot:
    """The same on small models, where every variant analysed every launch."""
    rows = pool(naming.of_paper(frame), "small_slowdown", KEYS)
    title = "Small models, every launch analysed: time over time without the profiler"
    return _slowdowns(rows, title, "no record of metric small_slowdown")


def extrapolation(frame: pd.DataFrame) -> Plot:
    """The two scalings of sampled runs side by side, and the factor between them."""
    rows = pool(naming.of_paper(frame), "slowdown", KEYS)
    both = {}
    for row in rows.to_dict("records"):
        place = (row["variant"], row["model"], row["sampling"])
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
        axis.set_ylim(len(models) - 0.45, -0.55)
        axis.xaxis.grid(True)
        axis.set_title(naming.VARIANTS.get(variant, variant))
        axis.set_xlabel("slowdown, x (log)")
    handles, _ = axes[0].get_legend_handles_labels()
    words = ["paper: whole time × N, start-up and plain run too",
             "sound: what profiling added × launches / analysed"]  # fmt: skip
    figure.legend(handles[:2], words, fontsize=7.5, frameon=False, loc="outside upper center")
    spread = "a bar: median; text: how far the paper's formula lies above the sound one"
    return Plot(figure=figure, table=table, spread=spread)


def breakdown(frame: pd.DataFrame) -> Plot:
    """Figure 10: shares of execution, collection, transfer and analysis, stacked to 100 %."""
    rows = pool(naming.of_paper(frame), "tool_time", ["model", "variant", "part"])
    if rows.empty:
        raise NoData("no record of metric tool_time")
    orders = {"model": naming.MODELS, "variant": list(naming.VARIANTS), "part": list(PARTS)}
    rows = naming.ordered(rows, orders)
    totals = rows.groupby(["model", "variant"])["median"].transform("sum")
    rows["share_percent"] = 100 * rows["median"] / totals.where(totals > 0)
    rows["row"] = [
        f"{naming.name_of(r['model'])}, {naming.VARIANTS.get(r['variant'], r['variant'])}"
        for r in rows.to_dict("records")
    ]
    names = list(dict.fromkeys(rows["row"]))
    figure, (axis,) = new_panels(1, len(names), title="Where the profiler's time goes")
    left = [0.0] * len(names)
    for part, colour in PARTS.items():
        shares = rows[rows["part"] == part].set_index("row")["share_percent"]
        widths = [float(shares.get(name, 0.0)) for name in names]
        axis.barh(range(len(names)), widths, left=left, color=colour, label=part, height=0.74)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for place, name in enumerate(names):
        total = float(rows[rows["row"] == name]["median"].sum())
        axis.text(101, place, _seconds(total), va="center", fontsize=7.5)
    axis.set_yticks(range(len(names)), labels=names)
    axis.set_ylim(len(names) - 0.45, -0.55)
    axis.set_xlim(0, 114)
    axis.set_xticks(range(0, 101, 20))
    axis.set_xlabel("% of the time (text: the time itself)")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=4, frameon=False)
    spread = naming.spread_words(rows, "median of the rounds")
    return Plot(figure=figure, table=rows.drop(columns="samples"), spread=spread)


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
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
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


def _seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:,.0f} min" if value < 7200 else f"{value / 3600:,.1f} h"
    return f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.3g} ms"

"""Figures 9 and 10 of the PASTA paper: what profiling costs, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, isnan, log, log10, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from ae.figures.draw import PALETTE, NoData, Plot, new_panels
from ae.figures.summary import in_order, join_evidence, pool
from ae.recipe.code import load_code

naming = load_code(Path(__file__).parent, "naming")

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
_LINE = 0.19  # inches of a line of Figure 10


def overhead(frame: pd.DataFrame) -> Plot:
    """Figure 9: time under each variant over time without it, logarithmic, with both scalings."""
    rows = pool(frame[~_small(frame)], "slowdown", KEYS)
    title = "Time under the profiler over time without it"
    return _slowdowns(rows, title, "no record of metric slowdown")


def overhead_small(frame: pd.DataFrame) -> Plot:
    """The same on small models, where every variant analysed every launch."""
    rows = pool(frame[_small(frame)], "slowdown", KEYS)
    title = "Small models, every launch analysed: time over time without the profiler"
    why = f"no record of metric slowdown at size {SMALL}"
    return _slowdowns(rows, title, why)


def inferred(frame: pd.DataFrame) -> Plot:
    """Ours: time of 100 iterations, one in fifty analysed and the others inferred, by mode."""
    rows = pool(frame, "slowdown", [*KEYS, "mode"])
    rows["variant"] = "distinct-" + rows["mode"]
    title = "One iteration in fifty analysed: time over time without the profiler"
    return _slowdowns(rows, title, "no record of metric slowdown in distinct")


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
                          color=PALETTE[colour])  # fmt: skip
            axis.text(1.15 * max(row["authors"], row["sound"]), place,
                      f"{naming.factor(row['inflation'])}×", va="center", fontsize=7.5)  # fmt: skip
        axis.set_xscale("log")
        axis.set_xlim(_FLOOR, max(6 * top, 10.0 ** ceil(log10(top))))
        axis.set_yticks(range(len(models)), labels=[naming.name_of(model) for model in models])
        axis.set_ylim(len(models) - 0.45, -0.55)
        axis.xaxis.grid(True)
        axis.tick_params(axis="x", labelsize=7)
        _plain(axis.xaxis)
        axis.set_title(naming.VARIANTS.get(variant, variant))
        axis.set_xlabel("slowdown, x (log)")
    words = {"orange": "paper: whole time × N", "blue": "sound: added time × launches / analysed"}
    handles = [Patch(color=PALETTE[colour], label=label) for colour, label in words.items()]
    naming.legend_above(figure, handles)
    return Plot(figure=figure, table=table, spread="text: the paper's over the sound")


def breakdown(frame: pd.DataFrame) -> Plot:
    """Figure 10: shares of execution, collection, transfer and analysis, stacked to 100 %.

    Where the time under the profiler is recorded, collection is what the other parts leave of it:
    less than nothing where the program alone was measured slower.
    """
    keys = ["model", "variant", "size", "sample"]
    rows = pool(frame, "tool_time", [*keys, "part"])
    if rows.empty:
        raise NoData("no record of metric tool_time")
    orders = {"size": ["full", "", SMALL], "sample": [], "model": naming.MODELS,
              "variant": list(naming.VARIANTS), "part": list(PARTS)}  # fmt: skip
    rows = naming.ordered(rows, orders)
    whole = pool(frame, "iteration_time", keys).set_index(keys)["median"]
    totals = rows.groupby(keys)["median"].sum()
    totals.update(whole)
    rows["total"] = [totals[tuple(row[key] for key in keys)] for row in rows.to_dict("records")]
    others = rows[rows["part"] != "collection"].groupby(keys)["median"].sum()
    rows["seconds"] = [
        row["total"] - others.get(tuple(row[key] for key in keys), 0.0)
        if row["part"] == "collection" else row["median"]
        for row in rows.to_dict("records")
    ]  # fmt: skip
    rows["share_percent"] = 100 * rows["seconds"] / rows["total"].where(rows["total"] > 0)
    rows["row"] = [
        f"{naming.name_of(r['model'])}: {naming.VARIANTS.get(r['variant'], r['variant'])}"
        for r in rows.to_dict("records")
    ]
    runs = dict(list(rows.groupby(["size", "sample"], sort=False)))
    lines = [part["row"].nunique() for part in runs.values()]
    height = 1.9 + sum(0.6 + _LINE * count for count in lines)
    strip = 0.52 / height  # kept free for the facts on the figure's face
    figure = Figure(
        figsize=(8.4, height),
        layout=ConstrainedLayoutEngine(rect=(0.0, strip, 1.0, 1.0 - strip)),
    )
    figure.suptitle("Where the profiler's time goes", fontsize=11.5, fontweight="bold")
    axes = figure.subplots(len(runs), 1, squeeze=False, sharex=True, height_ratios=lines)[:, 0]
    for axis, ((size, sample), part) in zip(axes, runs.items(), strict=True):
        _stack(axis, part)
        axis.set_title(_run_words(size, sample), fontsize=9)
    least = min(0.0, float(rows["share_percent"].min()))
    axes[0].set_xlim(1.05 * least, max(100.0, 100.0 - least) + 25)
    axes[-1].set_xticks(range(0, 101, 25))
    axes[-1].set_xlabel("% of the time under the profiler")
    handles = [Patch(color=colour, label=name) for name, colour in PARTS.items()]
    naming.legend_above(figure, handles)
    spread = naming.spread_words(rows, "median of the rounds") + "; text: the time itself"
    if least < 0:
        spread += "; left of 0: faster than the program alone"
    return Plot(figure=figure, table=rows.drop(columns="samples"), spread=spread)


def _stack(axis: Axes, part: pd.DataFrame) -> None:
    """A line per model and variant: its parts from 0 on, less than nothing to the left of 0."""
    names = list(dict.fromkeys(part["row"]))
    for place, name in enumerate(names):
        ends = [0.0, 0.0]  # of what lies left and right of 0
        line = part[part["row"] == name].set_index("part")
        for kind, colour in PARTS.items():
            share = float(line["share_percent"].get(kind, 0.0))
            if not isnan(share) and share:
                side = int(share > 0)
                axis.barh(place, share, left=ends[side], color=colour, height=0.74)
                ends[side] += share
        axis.text(max(ends[1], 100.0) + 1.5, place, _seconds(float(line["total"].iloc[0])),
                  va="center_baseline", fontsize=7)  # fmt: skip
    models = [name.partition(":")[0] for name in names]
    for place in range(1, len(names)):
        if models[place] != models[place - 1]:
            axis.axhline(place - 0.5, color="#dddddd", linewidth=0.6)
    axis.set_yticks(range(len(names)), labels=names, fontsize=7.5)
    axis.set_ylim(len(names) - 0.45, -0.55)
    axis.axvline(0, color="#222222", linewidth=0.8)
    axis.spines.left.set_visible(False)
    axis.tick_params(axis="y", length=0)


def _small(frame: pd.DataFrame) -> pd.Series[bool]:
    """Which records are of small models."""
    return frame.get("size", pd.Series("", frame.index)) == SMALL


def _slowdowns(rows: pd.DataFrame, title: str, why: str) -> Plot:
    """Bars grouped by model, with a geometric mean a variant; logarithmic where some are long."""
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
    models = in_order(rows["model"], naming.MODELS)
    means = _means(rows, kinds)
    table = pd.concat([rows, means], ignore_index=True)
    models += [MEAN] if len(means) else []
    for kind in list(kinds):  # whoever compares with the CPU compares with all of its cores too
        one, every = (naming.VARIANTS[name] for name in ("cs_cpu", "cs_cpu_mt"))
        if kind.startswith(one) and every not in kind and kind.replace(one, every) not in kinds:
            kinds.insert(kinds.index(kind) + 1, kind.replace(one, every))
    page = min(_PAGE, max(7.0, 1.2 + 0.24 * len(kinds) * len(models)))
    figure = Figure(figsize=(page, 5.2))
    figure.suptitle(title, fontsize=11.5, fontweight="bold")
    axis = figure.add_axes((0.85 / page, 0.17, 1 - 0.95 / page, 0.64))
    width = 0.86 / len(kinds)
    top = max(1.0, float(table[["median", "high"]].max().max()))
    floor = _FLOOR if top >= 10 else 0.0
    for index, kind in enumerate(kinds):
        part = table[table["row"] == kind].drop_duplicates("model", keep="last")
        here = {row["model"]: row for row in part.to_dict("records")}
        places = [place for place, model in enumerate(models) if model in here]
        spots = [place - 0.43 + width * (index + 0.5) for place in places]
        found = [here[models[place]] for place in places]
        if found:
            _bars(axis, spots, found, width, floor)
        else:
            for place, model in enumerate(models):
                if model != MEAN:
                    axis.text(place - 0.43 + width * (index + 0.5), 1.12, f"{kind}: not measured",
                              rotation=90, ha="center", va="bottom", fontsize=6.5,
                              color="#777777", fontstyle="italic")  # fmt: skip
    _scale(axis, floor, top)
    axis.axhline(1.0, color="#222222", linewidth=0.8, linestyle=(0, (4, 3)))
    axis.set_xticks(range(len(models)),
                    labels=[naming.name_of(model) for model in models])  # fmt: skip
    axis.set_xlim(-0.5, len(models) - 0.5)
    axis.tick_params(axis="x", length=0)
    bars = [one for one in axis.containers if type(one).__name__ == "BarContainer"]
    drawn = [kind for kind in kinds if kind in set(table["row"])]
    across = min(len(drawn), 3 + (page > 8))
    figure.legend(bars, drawn, fontsize=7.5, frameon=False, ncols=across,
                  loc="upper center", bbox_to_anchor=(0.5, 0.94))  # fmt: skip
    spread = naming.spread_words(rows, "bars: median, whiskers: 95 % interval")
    if len(means):
        sets = sorted(set(means["models"]))
        spread += (
            f"; geo-mean over {' to '.join(map(str, dict.fromkeys((sets[0], sets[-1]))))} models"
        )
    return Plot(figure=figure, table=table.drop(columns="samples"), spread=spread)


def _means(rows: pd.DataFrame, kinds: Sequence[str]) -> pd.DataFrame:
    """The geometric mean of every kind of bar over the models that have it, if several."""
    found = []
    for kind in kinds:
        part = rows[rows["row"] == kind].drop_duplicates("model", keep="last")
        if len(part) < 2:
            continue
        values = [float(value) for value in part["median"]]
        mean = exp(float(np.mean([log(value) for value in values])))
        found.append(
            {
                **part.iloc[0][KEYS],
                "model": MEAN,
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


def _scale(axis: Axes, floor: float, top: float) -> None:
    """Linear from 0, else logarithmic."""
    axis.set_ylabel("slowdown, x (log)" if floor else "slowdown, x")
    if floor:
        axis.set_yscale("log")
        _plain(axis.yaxis)
    axis.set_ylim(floor, max(4 * top, 10.0 ** ceil(log10(top))) if floor else 1.2 * top)


def _bars(
    axis: Axes, spots: Sequence[float], found: Sequence[naming.Row], width: float, floor: float
) -> None:
    values = [float(row["median"]) for row in found]
    colour = naming.VARIANT_COLOURS.get(found[0]["variant"], "#8c8c8c")
    hatch = "//" if found[0]["scaling"] == "authors" else None
    axis.bar(spots, [value - floor for value in values], bottom=floor, width=0.92 * width,
             color=colour, hatch=hatch, edgecolor="white", linewidth=0.3)  # fmt: skip
    for spot, value, row in zip(spots, values, found, strict=True):
        low, high = float(row["low"]), float(row["high"])
        if low < high:  # else there is no spread
            axis.vlines(spot, low, high, color="#222222", linewidth=0.8)
        end = max(1.0, value if isnan(high) else high)  # never across the line at 1
        axis.annotate(f"{naming.factor(value)}×", (spot, end), (0, 4), textcoords="offset points",
                      rotation=90, ha="center", va="bottom", fontsize=7)  # fmt: skip


def _run_words(size: str, sample: str) -> str:
    """Which runs a panel of Figure 10 is of: a sampled one analysed a part of the launches."""
    words = "the paper's sizes" if size in ("", "full") else f"{size} models"
    return words + (f", 1 launch in {sample} analysed" if sample else ", every launch analysed")


def _plain(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:,.0f} min" if value < 7200 else f"{value / 3600:,.1f} h"
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"

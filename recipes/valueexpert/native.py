"""Figures of the mini-benchmarks: gains, promises, and the values where a pattern was found."""

from __future__ import annotations

from math import isnan, nan
from typing import Any

import pandas as pd

from ae.figures.draw import PALETTE, NoData, Plot, new_panels
from ae.figures.summary import pool, ratio_interval

TITLES = {
    "backprop": "backprop, zeros", "backprop_copy": "backprop, download", "srad": "srad_v1",
    "pathfinder": "pathfinder", "hotspot3d": "hotspot3D", "darknet": "Darknet layers",
    "castro": "Castro slopes", "barracuda": "BarraCUDA copies",
    "replication_pad": "ReplicationPad", "embedding": "BERT embedding",
    "resnet_ones": "ResNet conv", "lammps": "LAMMPS growth", "deepwave": "Deepwave",
    "bfs": "bfs", "cfd": "cfd", "huffman": "huffman", "lavamd": "lavaMD",
    "streamcluster": "streamcluster",
}  # fmt: skip
PAPER = {  # the table of a talk: RTX 2080 Ti and A100; kernel, memory
    "backprop": ((8.18, 1.67), (1.01, 1.01)), "srad": ((1.52, 1.11), (1.03, 1.06)),
    "pathfinder": ((1.13, 1.37), (4.21, 3.27)), "hotspot3d": ((2.00, 1.99), (1.00, 0.99)),
    "darknet": ((1.06, 1.05), (1.82, 1.73)), "castro": ((1.27, 1.24), (1.00, 1.02)),
    "barracuda": ((1.06, 1.06), (1.13, 1.13)),
    "replication_pad": ((1.07, 1.04), (1.01, 1.00)), "embedding": ((1.57, 1.59), (1.01, 1.00)),
    "resnet_ones": ((1.02, 1.03), (1.00, 0.98)), "lammps": ((nan, nan), (6.03, 5.19)),
}  # fmt: skip
PARTS = {"kernel": "kernels", "memory": "copies and fills"}
OTHERS = "all others"
LEAST_SHARE = 0.01
BESIDE, LEGEND_INCHES = (1.02, 0.5), 1.9  # a legend covers no row


def _names(minis: list[str]) -> list[str]:
    return [TITLES.get(mini, mini) for mini in minis]


def _known(frame: pd.DataFrame) -> list[str]:
    there = set(frame["mini"].dropna()) if "mini" in frame else set()
    return [mini for mini in TITLES if mini in there]


def _gain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Before over after, by mini and part of the time."""
    found = []
    for part in PARTS:
        pooled = pool(frame, f"{part}_time", ["mini", "variant"])
        for mini in _known(frame):
            mine = {r["variant"]: r for r in pooled.to_dict("records") if r["mini"] == mini}
            if {"before", "after"} <= set(mine):
                before, after = mine["before"], mine["after"]
                ratio = ratio_interval(before["samples"], after["samples"])
                found.append({
                    "mini": mini, "part": part, "gain": ratio.value, "low": ratio.low,
                    "high": ratio.high, "n": after["n"], "evidence": after["evidence"],
                })  # fmt: skip
    return found


def gains(frame: pd.DataFrame) -> Plot:
    """Time before over time after, kernels and copies apart, with the paper's values."""
    table = pd.DataFrame(_gain_rows(frame))
    if table.empty:
        raise NoData("no mini-benchmark with times before and after; they are measured on a GPU")
    minis = [mini for mini in TITLES if mini in set(table["mini"])]
    paper = {mini: PAPER.get(mini, ((nan, nan), (nan, nan))) for mini in minis}
    for at, gpu in enumerate(("rtx_2080_ti", "a100")):
        table[gpu] = [
            paper[row["mini"]][list(PARTS).index(row["part"])][at]
            for row in table.to_dict("records")
        ]
    figure, axes = new_panels(2, len(minis), title="Gain of a change: time before over time after")
    for axis, (number, (part, words)) in zip(axes, enumerate(PARTS.items()), strict=True):
        own = table[table["part"] == part].set_index("mini").reindex(minis)
        values = own[["gain", "low", "high", "rtx_2080_ti", "a100"]]
        least, most = min(0.8, float(values.min().min()) / 1.1), float(values.max().max())
        span = least, most * (most / least) ** 0.3  # room for numbers
        rows = range(len(minis))
        for at, marker in enumerate("Dd"):
            spots = [paper[mini][number][at] for mini in minis]
            name = ("paper, RTX 2080 Ti", "paper, A100")[at]
            axis.scatter(spots, rows, marker=marker, s=30, zorder=3, label=name,
                         facecolor="none", edgecolor="#222222", linewidth=0.9)  # fmt: skip
        axis.hlines(rows, own["low"], own["high"], color=PALETTE["green"], linewidth=2.5, zorder=4)
        axis.scatter(own["gain"], rows, color=PALETTE["green"], s=22, zorder=5, label="ours")
        axis.axvline(1, color="#222222", linewidth=0.8, linestyle=(0, (4, 3)))
        multiples(axis, *span)
        for row, gain in zip(rows, own["gain"], strict=True):
            said = "" if isnan(gain) else f"{gain:.2f}x" if gain < 10 else f"{gain:.3g}x"
            axis.text(0.98 * span[1], row, said, ha="right", va="center", fontsize=7)
        axis.set_yticks(rows, labels=_names(minis))
        axis.set_ylim(len(minis) - 0.45, -0.55)
        axis.tick_params(axis="y", length=0)
        axis.set_title(words)
        axis.set_xlabel("speed-up (ours at the right)")
        axis.grid(True)
    axes[1].legend(loc="center left", bbox_to_anchor=BESIDE, fontsize=7)
    figure.set_figwidth(figure.get_figwidth() + LEGEND_INCHES)
    return Plot(
        figure=figure, table=table, spread="marks: ratio of medians; whiskers: its interval"
    )


def multiples(axis: Any, low: float, high: float) -> None:
    """A logarithmic axis of multiples, with as many of them as can be read."""
    decades = range(-2, 6)
    spread = high / low
    steps = (1, 1.2, 1.5, 2, 3, 5, 7) if spread < 10 else (1, 2, 5) if spread < 200 else (1,)
    marks = [step * 10.0**decade for decade in decades for step in steps]
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.set_xticks([mark for mark in marks if low <= mark <= high])
    axis.set_xticks([], minor=True)
    axis.xaxis.set_major_formatter("{x:g}x")


def promises(frame: pd.DataFrame) -> Plot:
    """What findings promise from before alone, bytes before over after, and time where measured."""
    measured = {(r["mini"], r["part"]): r["gain"] for r in _gain_rows(frame)}
    found = []
    for metric in ("promised", "fewer"):
        for row in pool(frame, metric, ["mini", "variant", "part"]).to_dict("records"):
            if row["variant"] == "after":
                keys = {name: row[name] for name in ("mini", "part", "n", "evidence")}
                found.append(keys | {"what": metric, "value": row["median"]})
    if not found:
        raise NoData("no record of metric fewer: mechanism has it")
    for (mini, part), gain in measured.items():
        keys = {"mini": mini, "part": part, "n": 1, "evidence": "measured"}
        found.append(keys | {"what": "measured", "value": gain})
    table = pd.DataFrame(found)
    minis = [mini for mini in TITLES if mini in set(table["mini"])]
    figure, axes = new_panels(2, len(minis), title="Promised and spared bytes, before over after")
    looks = {
        "promised": ("D", PALETTE["orange"], "promised by the findings,\nfrom before alone"),
        "fewer": ("o", PALETTE["blue"], "bytes before over after"),
        "measured": ("x", "#222222", "time before over after"),
    }
    for axis, (part, words) in zip(axes, PARTS.items(), strict=True):
        own = table[table["part"] == part]
        for what, (marker, colour, label) in looks.items():
            mine = own[own["what"] == what]
            if len(mine):
                rows = [minis.index(mini) for mini in mine["mini"]]
                own_look = {"facecolors": "none", "s": 72} if marker == "o" else {"s": 26}
                axis.scatter(mine["value"], rows, marker=marker, label=label, zorder=3,
                             linewidths=1.3, color=colour, **own_look)  # fmt: skip
        axis.axvline(1, color="#222222", linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set_xscale("log", base=2)
        top = max(float(table["value"].max()) * 1.3, 2.0)
        axis.set_xlim(0.8, top)
        axis.set_xticks([2**n for n in range(8) if 2**n <= top])
        axis.xaxis.set_major_formatter("{x:g}x")
        axis.set_yticks(range(len(minis)), labels=_names(minis))
        axis.set_ylim(len(minis) - 0.45, -0.55)
        axis.tick_params(axis="y", length=0)
        axis.grid(True)
        axis.set_title(words)
        axis.set_xlabel("before over after")
    axes[1].legend(loc="center left", bbox_to_anchor=BESIDE, fontsize=7)
    figure.set_figwidth(figure.get_figwidth() + LEGEND_INCHES)
    return Plot(figure=figure, table=table, spread="marks: exact counts, or medians of times")


def values(frame: pd.DataFrame) -> Plot:
    """The most frequent values of an object, as shares of its accesses, and what the others are."""
    keys = ["mini", "object", "rank", "value"]
    pooled = pool(frame, "value_share", keys).drop(columns="samples")
    if pooled.empty:
        raise NoData("no record of value_share")
    minis = [mini for mini in TITLES if mini in set(pooled["mini"])]
    tables = [_with_others(pooled[pooled["mini"] == mini]) for mini in minis]
    table = pd.concat(tables, ignore_index=True)
    most = max(map(len, tables))
    figure, axes = new_panels(
        len(minis), most, title="The most frequent values, share of the accesses"
    )
    for axis, mini, own in zip(axes, minis, tables, strict=True):
        colours = [PALETTE["grey" if value == OTHERS else "orange"] for value in own["value"]]
        axis.barh(range(len(own)), own["median"], height=0.74, color=colours)
        for row, (value, share) in enumerate(zip(own["value"], own["median"], strict=True)):
            words = OTHERS if value == OTHERS else f"value {float(value):.4g}"
            axis.text(share + 0.02, row, f"{words}, {share:.1%}", va="center", fontsize=7)
        axis.set_yticks([])
        axis.set_ylim(most - 0.4, -0.6)
        axis.set_xlim(0, 1.6)
        axis.set_xticks([0, 0.5, 1], labels=["0", "50 %", "100 %"])
        axis.set_title(f"{TITLES.get(mini, mini)}: {own['object'].iloc[0]}", fontsize=9)
        axis.set_xlabel("share of accesses")
    return Plot(figure=figure, table=table, spread="bars: exact counts of a recorded trace")


def _with_others(own: pd.DataFrame) -> pd.DataFrame:
    """Values with a hundredth of the accesses at least, and all others in one row."""
    own = own.sort_values("rank")
    shown = own[own["median"] >= LEAST_SHARE]
    left = 1 - float(shown["median"].sum())
    if left < 1e-9:
        return shown
    others = own.iloc[:1].assign(rank="other", value=OTHERS, median=left, low=left, high=left)
    return pd.concat([shown, others], ignore_index=True)

"""The sharing map: who touched which page of managed memory in which window, before and after."""

from __future__ import annotations

import pandas as pd

from ae.figures.draw import PALETTE, NoData, Plot, new_panels
from ae.figures.summary import pool

KINDS = {  # colour and words
    "cpu": ("#a9c8e8", "CPU only"), "gpu": ("#b7d9b1", "GPU only"),
    "read": ("#c9b8dd", "both read"), "false": (PALETTE["orange"], "falsely shared"),
    "true": ("#b2182b", "truly shared"),
}  # fmt: skip
TITLES = {"before": "Before: a number of each side on every page", "after": "After: pages apart"}


def sharing(frame: pd.DataFrame) -> Plot:
    """Objects down, windows between synchronisations across; neighbours of one history as one."""
    keys = ["variant", "row", "object", "window", "kind"]
    table = pool(frame, "touched", keys).drop(columns="samples")
    if table.empty:
        raise NoData("no record of touched")
    variants = [name for name in TITLES if name in set(table["variant"])]
    bands = {name: _bands(table[table["variant"] == name]) for name in variants}
    objects = list(dict.fromkeys(name for one in bands.values() for name in one))
    needed = {name: max(len(one.get(name, ())) for one in bands.values()) for name in objects}
    places, y = {}, 0
    for name in objects:
        places[name], y = y, y + needed[name]
    windows = int(table["window"].astype(int).max()) + 1
    figure, axes = new_panels(
        len(variants), max(y, 5), title="Pages of managed memory by window, who touched them"
    )
    figure.set_figwidth(9.5)
    for axis, variant in zip(axes, variants, strict=True):
        for name, own in bands[variant].items():
            for at, (count, history) in enumerate(own, places[name]):
                for window, kind in history:
                    axis.barh(at, 1, left=window, height=0.84, color=KINDS[kind][0], linewidth=0)
                axis.text(
                    0.15, at, f"{count} page{'s' * (count > 1)}", va="center", fontsize=7,
                    color="white" if history[0][1] == "true" else "#222222",
                )  # fmt: skip
        axis.set_yticks([places[n] + (needed[n] - 1) / 2 for n in objects], labels=objects)
        axis.set_ylim(y - 0.4, -0.6)
        axis.set_xlim(0, windows)
        step = -(-windows // 12)
        shown = range(0, windows, step)
        axis.set_xticks([n + 0.5 for n in shown], labels=[str(n + 1) for n in shown])
        axis.tick_params(length=0)
        axis.set_title(TITLES[variant], fontsize=9)
        axis.set_xlabel("window between synchronisations")
    from matplotlib.patches import Patch

    there = set(table["kind"])
    handles = [Patch(color=c, label=words) for kind, (c, words) in KINDS.items() if kind in there]
    axes[-1].legend(handles=handles, loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=7)
    starts = table["window"].astype(int)
    plotted = table.drop(columns=["window", "median", "low", "high", "spread", "unit"])
    plotted["row"] = plotted["row"].astype(int)
    plotted = plotted.assign(start_window=starts, end_window=starts + 1)
    return Plot(figure=figure, table=plotted, spread="exact, of a recorded trace")


History = tuple[tuple[int, str], ...]


def _bands(table: pd.DataFrame) -> dict[str, list[tuple[int, History]]]:
    """By object, runs of pages with one history: how many pages, and kinds by window."""
    found: dict[str, list[tuple[int, History]]] = {}
    for _, page in table.sort_values(["row", "window"]).groupby("row", sort=True):
        history = tuple(zip(page["window"].astype(int), page["kind"], strict=True))
        own = found.setdefault(page["object"].iloc[0], [])
        if own and own[-1][1] == history:
            own[-1] = own[-1][0] + 1, history
        else:
            own.append((1, history))
    return found

"""The figure of real training under caps: peak and time of ours and of every rival."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ae.figures.draw import PALETTE, NoData, Plot, new_panels
from ae.figures.summary import in_order, pool
from ae.recipe.code import load_code

_simulated = load_code(Path(__file__).parent, "simulated")

OURS = "Ours"
LOOKS = {
    OURS: (PALETTE["vermilion"], "*"), "plain": (PALETTE["black"], "s"),
    "save_on_cpu": (PALETTE["sky"], "v"), "offload_activations": (PALETTE["blue"], "^"),
    "activation_offloading": (PALETTE["blue"], "D"), "checkpoint": (PALETTE["green"], "o"),
    "selective_checkpoint": (PALETTE["green"], "P"),
    "selective_checkpoint_ilp": (PALETTE["green"], "X"),
    "torchtune_offload": (PALETTE["blue"], "<"), "memory_budget_dp": (PALETTE["orange"], "o"),
    "memory_budget_greedy": (PALETTE["orange"], "v"), "memory_budget_ilp": (PALETTE["orange"], "^"),
}  # fmt: skip


def fronts(frame: pd.DataFrame) -> Plot:
    """Every point that was measured, a panel for each network; ours once for each cap and rival."""
    keys = ["real_net", "variant", "rival", "form", "knob", "cap"]
    peaks = pool(frame, "peak", keys)
    times = pool(frame, "point_time", keys)
    if peaks.empty or times.empty:
        raise NoData("no peak of a training step was measured")
    table = times.rename(columns={"median": "iteration_s"}).drop(columns="samples", errors="ignore")
    table["peak_gb"] = peaks["median"].to_numpy()
    point = ["real_net", "variant", "form", "knob", "peak_gb"]
    table = table.drop_duplicates(point)
    table.loc[table["variant"] != OURS, ["rival", "cap"]] = ""  # a rival's serves at several caps
    nets = list(dict.fromkeys(table["real_net"]))
    names = in_order(table["variant"], list(LOOKS))
    figure, shared = new_panels(len(nets), 9, title="Peak and time of a training step", across=3)
    for axis, net in zip(shared, nets, strict=True):
        own = table[table["real_net"] == net]
        for name in names:
            colour, mark = LOOKS.get(name, (PALETTE["grey"], "."))
            some = own[own["variant"] == name]
            size, order = (70, 3) if name == OURS else (18, 2)
            axis.scatter(some["peak_gb"], some["iteration_s"], s=size, color=colour, marker=mark,
                         label=name, zorder=order)  # fmt: skip
        axis.set_title(_simulated.network(net))
        axis.set_xlabel("measured peak (GB)")
        axis.set_xlim(left=0)
        axis.grid(True)
    shared[0].set_ylim(bottom=0)  # of all panels, so when all are drawn
    for axis in shared[::3]:
        axis.set_ylabel("iteration (s)")
    figure.legend(*shared[0].get_legend_handles_labels(), fontsize=7, loc="outside right upper")
    return Plot(figure=figure, table=table, over="peak_gb",
                spread="points: median time of an iteration")  # fmt: skip

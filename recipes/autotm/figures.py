"""Figure 12 of the authors' GPU part, by formulation.

The native lane's figures are in simulated.py and measured.py.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ae.figures.draw import PALETTE, NoData, Plot, bars, new_panels
from ae.figures.summary import pool
from ae.recipe.code import load_code

_simulated = load_code(Path(__file__).parent, "simulated")
speedup, losses, costs = _simulated.speedup, _simulated.losses, _simulated.costs
hardware_cache, limits, plans = _simulated.hardware_cache, _simulated.limits, _simulated.plans
oversubscription, errors = _simulated.oversubscription, _simulated.errors
fronts = load_code(Path(__file__).parent, "measured").fronts

COLOURS = {"Synchronous": PALETTE["sky"], "Asynchronous": PALETTE["green"]}
SPREAD = "bars: ratio of least times; the authors keep no samples"


def managed(frame: pd.DataFrame) -> Plot:
    """Managed memory's time over AutoTM's, per network and formulation."""
    times = pool(frame, "iteration_time", ["net", "variant"])
    bases = pool(frame, "managed_time", ["net"]).set_index("net")["median"]
    found = [
        {
            "net": row["net"], "variant": row["variant"],
            "speedup": float(bases[row["net"]]) / row["median"],
            "n": row["n"], "evidence": row["evidence"],
        }
        for row in times.to_dict("records")
        if row["net"] in bases
    ]  # fmt: skip
    if not found:
        raise NoData("no network with a time under AutoTM and one with managed memory")
    table = pd.DataFrame(found)
    variants = [name for name in COLOURS if name in set(table["variant"])]
    nets = list(dict.fromkeys(table["net"]))
    figure, axes = new_panels(len(variants), len(nets), title="Speed-up over managed memory")
    reach = float(table["speedup"].max())
    for axis, variant in zip(axes, variants, strict=True):
        own = table[table["variant"] == variant].set_index("net")["speedup"].reindex(nets)
        values = [float(value) for value in own]
        bars(
            axis,
            nets,
            values,
            low=values,
            high=values,
            colours=[COLOURS[variant]] * len(nets),
            texts=["" if pd.isna(value) else f"{value:.2f}x" for value in values],
            reach=reach,
            mark=1.0,
        )
        axis.set_title(variant)
        axis.set_xlabel("speed-up")
    return Plot(figure=figure, table=table, spread=SPREAD)

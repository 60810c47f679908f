"""The figures of the RAP recipe: from the record table to matplotlib figures.

So far those of the authors' own programs (lane upstream). Their logs give one number per run, so a
value has a spread only where a point was repeated.
"""

from __future__ import annotations

from math import isnan, nan
from typing import Any

import pandas as pd

from ae.figures import PALETTE, NoData, Plot, bars, new_panels
from ae.summary import in_order, pool

NAMES = {
    "cpu": "CPU (TorchArrow)", "stream": "CUDA stream", "sequential": "Sequential", "mps": "MPS",
    "no_mapping": "RAP w/o mapping", "no_fusion": "RAP w/o fusion", "rap": "RAP", "ideal": "Ideal",
}  # fmt: skip
COLOURS = {
    "cpu": PALETTE["grey"], "stream": PALETTE["sky"], "sequential": PALETTE["grey"],
    "mps": PALETTE["orange"], "no_mapping": PALETTE["sky"], "no_fusion": PALETTE["blue"],
    "rap": PALETTE["green"], "ideal": PALETTE["black"],
}  # fmt: skip
KEYS = ["experiment", "gpus", "plan", "batch", "variant"]
SPREAD = "bars: median over repeats; one number per run of the authors' programs"


def end_to_end(frame: pd.DataFrame) -> Plot:
    """Figure 9: throughput over the CPU baseline of the same cell, a panel per cell."""
    return _over(frame, "figure9", "cpu", "Throughput over the CPU baseline")


def breakdown(frame: pd.DataFrame) -> Plot:
    """Figure 10: throughput over Sequential of the same cell, a panel per cell."""
    return _over(frame, "figure10", "sequential", "Throughput over Sequential")


def _over(frame: pd.DataFrame, experiment: str, baseline: str, title: str) -> Plot:
    rows = pool(frame, "throughput", KEYS)
    rows = rows[rows["experiment"].str.startswith(experiment)]
    cells = list(dict.fromkeys(zip(rows["gpus"], rows["plan"], rows["batch"], strict=True)))
    found: list[dict[str, Any]] = []
    for gpus, plan, batch in cells:
        cell = rows[(rows["gpus"] == gpus) & (rows["plan"] == plan) & (rows["batch"] == batch)]
        base = cell[cell["variant"] == baseline]["median"]
        for row in cell.to_dict("records"):
            over = float(base.iloc[0]) if len(base) else nan
            found.append(
                {
                    "cell": f"{gpus} GPUs, plan {plan}\nbatch {batch}",
                    "variant": row["variant"],
                    "speedup": row["median"] / over,
                    "low": row["low"] / over,
                    "high": row["high"] / over,
                    "samples_per_s": row["median"],
                    "n": row["n"],
                    "evidence": row["evidence"],
                }
            )
    table = pd.DataFrame(found)
    if table.empty or table["speedup"].isna().all():
        raise NoData(f"no cell with throughput of {baseline} and of another method")
    names = in_order(table["variant"], list(NAMES))
    panels = list(dict.fromkeys(table["cell"]))
    figure, axes = new_panels(len(panels), len(names), title=title)
    reach = float(table["speedup"].max())
    for axis, panel in zip(axes, panels, strict=True):
        by_name = table[table["cell"] == panel].set_index("variant")
        values = [float(by_name["speedup"].get(name, nan)) for name in names]
        bars(
            axis,
            [NAMES.get(name, name) for name in names],
            values,
            low=[float(by_name["low"].get(name, nan)) for name in names],
            high=[float(by_name["high"].get(name, nan)) for name in names],
            colours=[COLOURS.get(name, PALETTE["purple"]) for name in names],
            texts=["" if isnan(value) else f"{value:.2f}x" for value in values],
            reach=reach,
            mark=1.0,
        )
        axis.set_title(panel)
        axis.set_xlabel("speed-up")
    return Plot(figure=figure, table=table, spread=SPREAD)

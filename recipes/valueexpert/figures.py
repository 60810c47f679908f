"""The figures: of the authors' samples here, of the mini-benchmarks in the modules beside this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from ae.figures.draw import PALETTE, NoData, Plot, bars, new_panels
from ae.figures.summary import pool
from ae.recipe.code import load_code

_native, _drawn, _costs, _sharing = (
    load_code(Path(__file__).parent, name) for name in ("native", "drawn", "costs", "sharing")
)
gains, promises, values = _native.gains, _native.promises, _native.values
flow = _drawn.flow
slowdown, foretold, operators = _costs.slowdown, _costs.foretold, _costs.operators
sharing = _sharing.sharing

METRICS = {"gpu_kernel_time": "all kernels", "gpu_memory_time": "copies and fills"}
SPREAD = "bars: ratio of medians; whiskers: interval of the optimised version's time"


def speedup(frame: pd.DataFrame) -> Plot:
    """Original over optimised time, a panel per sample; kernels and copies are rows."""
    found: list[dict[str, Any]] = []
    for metric, words in METRICS.items():
        rows = pool(frame, metric, ["case", "version"])
        for row in rows[rows["version"] != "base"].to_dict("records"):
            base = rows[(rows["case"] == row["case"]) & (rows["version"] == "base")]["median"]
            if len(base):
                over = float(base.iloc[0])
                found.append(
                    {
                        "case": row["case"], "row": f"{row['version']}: {words}", "metric": metric,
                        "speedup": over / row["median"], "low": over / row["high"],
                        "high": over / row["low"], "n": row["n"], "evidence": row["evidence"],
                    }
                )  # fmt: skip
    if not found:
        raise NoData("no sample with times of the original and of an optimised version")
    table = pd.DataFrame(found)
    cases = list(dict.fromkeys(table["case"]))
    names = list(dict.fromkeys(table["row"]))
    figure, axes = new_panels(len(cases), len(names), title="Original over optimised time")
    reach = float(table["high"].max())
    for axis, case in zip(axes, cases, strict=True):
        own = table[table["case"] == case].set_index("row").reindex(names)
        bars(
            axis,
            names,
            [float(value) for value in own["speedup"]],
            low=[float(value) for value in own["low"]],
            high=[float(value) for value in own["high"]],
            colours=[PALETTE["green" if "kernels" in name else "sky"] for name in names],
            texts=["" if pd.isna(value) else f"{value:.2f}x" for value in own["speedup"]],
            reach=reach,
            mark=1.0,
        )
        axis.set_title(case)
        axis.set_xlabel("speed-up")
    return Plot(figure=figure, table=table, spread=SPREAD)

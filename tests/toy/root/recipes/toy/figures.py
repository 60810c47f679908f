"""The figure of the toy: from the record table to a matplotlib figure."""

from __future__ import annotations

import pandas as pd

from ae.figures.draw import PALETTE, NoData, Plot, bars, new_panels
from ae.figures.summary import pool


def times(frame: pd.DataFrame) -> Plot:
    """Median time of every variant on every dataset, in microseconds."""
    table = pool(frame, "work_time", ["experiment", "dataset", "variant"])
    if table.empty:
        raise NoData("no record of metric work_time")
    figure, (axis,) = new_panels(1, len(table), title="Time of every variant")
    names = [f"{row.variant}, {row.dataset} ({row.experiment})" for row in table.itertuples()]
    bars(
        axis,
        names,
        list(table["median"]),
        low=list(table["low"]),
        high=list(table["high"]),
        colours=[PALETTE["blue"]] * len(table),
        texts=[f"{value:.0f} us" for value in table["median"]],
        reach=float(table["high"].max()),
    )
    return Plot(figure=figure, table=table.drop(columns="samples"))

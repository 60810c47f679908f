"""DLRM's figure of many cells: our kernel over FBGEMM's at every pooling, batch, ids and rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from ae.figures.draw import PALETTE, NoData, Plot, new_panels
from ae.figures.summary import against, in_order, join_evidence, pool, ratio_interval
from ae.recipe.code import load_code

_p = load_code(Path(__file__).parent, "panels")

LAUNCHES = {"one_table": "One table a launch", "all_tables": "All tables in one launch"}
IDS = {"uniform": "uniform", "zipf": "Zipf", "sorted": "sorted"}
_LABELS = ("launch", "batch", "ids", "rows", "pooling")
_COLUMN_INCHES, _BESIDE_INCHES = 0.37, 1.9  # a column; the texts and the colour bar beside them
_TICKS = (0.25, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
_COLOURS = ListedColormap(  # nothing below 1 is pale, so that the least loss is seen
    [*colormaps["RdBu"](np.linspace(0, 0.25, 128)), *colormaps["RdBu"](np.linspace(0.5, 0.95, 128))]
)
_Column = tuple[int, str, int]  # bags of a batch, kind of ids, rows of a table


def grid(frame: pd.DataFrame) -> Plot:
    """Speed-up of our best kernel over FBGEMM's, a cell for each pooling (down) and each batch,
    kind of ids and number of table rows (across), a panel for each way to launch.

    The table has the time of both kernels in every cell, a row each.
    """
    table = _pairs(frame)
    ours = table[table["variant"] == "best"]
    if ours.empty:
        raise NoData("the variant best was not measured")
    columns, panels = list(dict.fromkeys(ours["column"])), list(dict.fromkeys(ours["launch"]))
    figure, axes = new_panels(
        len(panels), ours["pooling"].nunique(), across=1, row_inches=0.22,
        title="Our kernel's speed-up over FBGEMM's at every pooling",
    )  # fmt: skip
    figure.set_figwidth(max(figure.get_figwidth(), _BESIDE_INCHES + _COLUMN_INCHES * len(columns)))
    least, most = min(0.9, ours["speedup"].min()), max(1.25, ours["speedup"].max())
    norm = LogNorm(min(least, 1 / most), max(most, 1 / least))  # 1 is in the middle
    for axis, launch in zip(axes, panels, strict=True):
        part = ours[ours["launch"] == launch]
        image = _heat(axis, part, columns, norm)
        mean = float(np.exp(np.log(part["speedup"]).mean()))
        axis.set_title(
            f"{LAUNCHES.get(launch, launch)}: least {part['speedup'].min():.3f}×, "
            f"geometric mean {mean:.3f}×"
        )
    _name_columns(axes[-1], columns)
    bar = figure.colorbar(image, ax=axes, label="times as fast as FBGEMM", aspect=40)
    ticks = [one for one in _TICKS if least <= one <= most]
    bar.set_ticks(ticks, labels=[f"{one:g}" for one in ticks])
    bar.ax.minorticks_off()
    bar.ax.set_ylim(least, most)
    inputs = [
        f"{batch:,} bags, {IDS.get(ids, ids)}, {_millions(rows)} rows"
        for batch, ids, rows in table["column"]
    ]
    table.insert(1, "inputs", inputs)
    return Plot(
        figure=figure, table=table.drop(columns="column").round(4),
        spread="ratio of medians; framed: FBGEMM is faster",
    )  # fmt: skip


def _pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Every kernel that was measured beside FBGEMM in a cell, and FBGEMM: its time, and its
    speed-up over FBGEMM. In the order of panels, columns and poolings."""
    times = pool(_p.of_experiment(frame, "grid"), "cell_time", [*_LABELS, "variant"])
    rows = []
    for row, base in against(times, "fbgemm", _LABELS):
        itself = row["variant"] == "fbgemm"
        ratio = (1.0, 1.0, 1.0) if itself else ratio_interval(base["samples"], row["samples"])
        rows.append(
            {
                "launch": row["launch"],
                "column": (int(row["batch"]), row["ids"], int(row["rows"])),
                "pooling": int(row["pooling"]),
                "variant": row["variant"],
                **dict(zip(("speedup", "low", "high"), ratio[:3], strict=True)),
                "time_us": row["median"],
                "time_low_us": row["low"],
                "time_high_us": row["high"],
                "n": row["n"],
                "processes": row["processes"],
                "evidence": join_evidence(row["evidence"], base["evidence"]),
            }
        )
    panels, kinds = (in_order(times[key], [*known]) for key, known in
                     (("launch", LAUNCHES), ("ids", IDS)))  # fmt: skip
    rows.sort(
        key=lambda row: (
            panels.index(row["launch"]), row["column"][0], kinds.index(row["column"][1]),
            row["column"][2], row["pooling"],
        )
    )  # fmt: skip
    table: pd.DataFrame = _p.table_of(rows)
    return table


def _heat(axis: Axes, part: pd.DataFrame, columns: Sequence[_Column], norm: LogNorm) -> AxesImage:
    """The cells of a panel with their values; those that FBGEMM wins in a frame."""
    poolings = sorted(set(part["pooling"]))
    values = np.full((len(poolings), len(columns)), nan)
    for column, pooling, speedup in zip(
        part["column"], part["pooling"], part["speedup"], strict=True
    ):
        across, down = columns.index(column), poolings.index(pooling)
        values[down, across] = speedup
        digits = 3 if 0.995 <= speedup < 1.005 else 2
        axis.text(
            across, down, f"{speedup:.{digits}f}", ha="center", va="center_baseline", fontsize=6.5,
            color="#111111" if 0.2 < norm(speedup) < 0.85 else "#ffffff",
        )  # fmt: skip
        if speedup < 1:
            corner = across - 0.45, down - 0.43
            axis.add_patch(Rectangle(corner, 0.9, 0.86, fill=False, lw=1.6,
                                     edgecolor=PALETTE["black"]))  # fmt: skip
    image = axis.imshow(values, cmap=_COLOURS, norm=norm, aspect="auto", interpolation="nearest")
    for depth, width in ((1, 3.0), (2, 1.0)):  # between batches, between kinds of ids
        for place in _starts(columns, depth)[1:]:
            axis.axvline(place - 0.5, color="white", linewidth=width)
    axis.set_yticks(range(len(poolings)), labels=[str(one) for one in poolings])
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.set_ylabel("pooling")
    axis.spines[:].set_visible(False)
    return image


def _name_columns(axis: Axes, columns: Sequence[_Column]) -> None:
    """Below the cells: rows of a table, below them the kind of ids, below those the batch."""
    axis.set_xticks(range(len(columns)), labels=[_millions(rows) for *_, rows in columns])
    axis.tick_params(axis="x", labelsize=6.5, pad=2)
    for depth, points in ((2, 14), (1, 27)):
        for start, end in pairwise([*_starts(columns, depth), len(columns)]):
            batch, ids, _ = columns[start]
            axis.annotate(
                IDS.get(ids, ids) if depth == 2 else f"{batch:,} bags",
                ((start + end - 1) / 2, 0), xycoords=("data", "axes fraction"),
                xytext=(0, -points), textcoords="offset points", ha="center", va="top",
                fontsize=7.5 if depth == 2 else 8.5,
            )  # fmt: skip
    axis.set_xlabel("table rows, kind of ids, bags in a batch", labelpad=30)


def _starts(columns: Sequence[_Column], depth: int) -> list[int]:
    """Where columns begin that differ from those before them in their first `depth` parts."""
    parts = [None, *(one[:depth] for one in columns)]
    return [place for place, (before, one) in enumerate(pairwise(parts)) if before != one]


def _millions(rows: int) -> str:
    return f"{rows / 1e6:g} M"

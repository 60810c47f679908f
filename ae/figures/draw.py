"""What a recipe draws with: colours, panels, bars.

A recipe's `figures.py` holds one function per figure, from the record table to a `Plot`. It raises
`NoData` when the table holds nothing to draw. Matplotlib is imported on first use; no display.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

from ae.errors import AeError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by people with any kind of colour vision.
PALETTE = {
    "grey": "#8c8c8c",
    "black": "#222222",
    "sky": "#56b4e9",
    "blue": "#0072b2",
    "orange": "#e69f00",
    "green": "#009e73",
    "vermilion": "#d55e00",
    "purple": "#cc79a7",
    "olive": "#999933",
}

STYLE: Any = {
    "figure.dpi": 160,  # the PNG's, so that texts take the room that the layout gave them
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],  # an SVG names all three
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ae",
}

INTERVAL_WORDS = "bars: median, whiskers: bootstrap 95 % interval"
_PANEL_INCHES = 2.35
_TITLE_INCHES = 0.1  # of a letter of a title
_FACE_INCHES = 0.52


class NoData(AeError):
    """The records hold nothing that this figure could show."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What a figure function returns.

    `table` is exactly what is plotted, one row per mark, with at least the columns `evidence` and
    `n` (samples behind the mark). `spread` says in words how the figure shows the spread; `over`
    is the column that points lie over, where they do.
    """

    figure: Figure
    table: pd.DataFrame
    spread: str = INTERVAL_WORDS
    over: str = ""


def new_panels(
    count: int, rows: int, *, title: str, row_inches: float = 0.27, across: int = 5
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, at most `across` a line, each `rows` bars tall, sharing y."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    across = min(count, across)
    down = -(-count // across)
    width = max(6.4, 1.9 + _PANEL_INCHES * across, 0.5 + _TITLE_INCHES * len(title))
    height = 1.45 + down * (0.62 + row_inches * max(rows, 3))
    # The bottom strip is kept free for the facts on the figure's face.
    strip = _FACE_INCHES / height
    layout = ConstrainedLayoutEngine(rect=(0.0, strip, 1.0, 1.0 - strip))
    figure = Figure(figsize=(width, height), layout=layout)
    figure.suptitle(title, fontsize=11.5, fontweight="bold")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    axes = [axis for line in grid for axis in line]
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def bars(
    axis: Axes,
    names: Sequence[str],
    values: Sequence[float],
    *,
    low: Sequence[float],
    high: Sequence[float],
    colours: Sequence[str],
    texts: Sequence[str],
    reach: float,
    text_room: float = 0.34,
    mark: float | None = None,
    beyond: Sequence[float] = (),
) -> None:
    """Horizontal bars from 0, one per name from the top down, with whiskers and a text at the end.

    `reach` is the largest value of the whole figure: panels share one scale and keep `text_room`
    of it free for the texts. A value that is not a number leaves its place empty but for its text.
    `mark` draws a dashed line, e.g. at the baseline. `beyond`: values, one per name, that are drawn
    beside the bars and that the texts keep clear of.
    """
    from matplotlib.ticker import MaxNLocator

    there = [index for index, value in enumerate(values) if not isnan(value)]
    axis.barh(there, [values[i] for i in there], height=0.74, color=[colours[i] for i in there])
    if mark is not None:
        axis.axvline(mark, color="#222222", linewidth=0.8, linestyle=(0, (4, 3)))
    whiskers(axis, low, high)
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
    for index, text in enumerate(texts):
        if index in there:
            drawn = [values[index], high[index], *beyond[index : index + 1]]
            end = max(value for value in drawn if not isnan(value)) + 0.03 * reach
            axis.text(end, index, text, va="center_baseline", fontsize=7.5, bbox=paper)
        else:
            axis.text(0.02 * reach, index, text, va="center_baseline", fontsize=7.0,
                      color="#777777", fontstyle="italic", bbox=paper)  # fmt: skip
    axis.set_yticks(range(len(names)), labels=list(names))
    axis.set_ylim(len(names) - 0.45, -0.55)
    ticks = MaxNLocator(nbins=4, steps=[1, 2, 2.5, 3, 4, 5, 10]).tick_values(0.0, reach)
    axis.set_xticks(ticks)
    axis.set_xlim(0, max(reach * (1 + text_room), ticks[-1]))
    axis.xaxis.grid(True)
    axis.tick_params(axis="y", length=0)


def whiskers(axis: Axes, low: Sequence[float], high: Sequence[float]) -> None:
    """A whisker in every row from the top down; none where its ends are equal or no numbers."""
    there = [place for place in range(len(low)) if low[place] < high[place]]
    lengths = [high[place] - low[place] for place in there]
    axis.errorbar(
        [low[place] for place in there], there, xerr=[[0.0] * len(there), lengths], fmt="none",
        ecolor="#222222", elinewidth=0.9, capsize=1.8, capthick=0.8,
    )  # fmt: skip

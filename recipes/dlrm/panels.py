"""What the DLRM figures share: names, colours, rows in groups, and a panel of bars per data set.

A value with a spread has `low` below `high`; without one (one process) no whisker is drawn, and it
is printed with two digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor, isnan, log10, nan
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ae.figures.draw import PALETTE, NoData, bars, new_panels
from ae.figures.summary import against, in_order, join_evidence, ratio_interval

Row = Mapping[Any, Any]  # one row of a record table

DATASETS = {
    "one_item": "One item", "high_hot": "High hot", "med_hot": "Medium hot",
    "low_hot": "Low hot", "random": "Random",
}  # fmt: skip
GROUPS = (  # with some room between them: the paper's baseline, its techniques, tuned, today's
    {"stock21": "PyTorch 2.1"},
    {
        "base": "Base (ours)", "optmt": "OptMT", "rpf": "RPF", "smpf": "SMPF", "lmpf": "LMPF",
        "l1dpf": "L1DPF", "l2p": "L2P", "rpf_l2p": "RPF+L2P+OptMT",
    },
    {"rpf_tuned": "RPF, tuned", "smpf_tuned": "SMPF, tuned", "rpf_l2p_tuned": "RPF+L2P, tuned"},
    {"stock": "PyTorch, installed", "fbgemm": "FBGEMM", "best": "Best (ours)"},
)  # fmt: skip
NAMES = {variant: name for group in GROUPS for variant, name in group.items()}
MODES = {"setaside": "set-aside", "setaside_reset": "set-aside, reset"}
COLOURS = {"stock21": "purple", "stock": "purple", "base": "grey", "rpf_l2p": "blue",
           "rpf_tuned": "blue", "smpf_tuned": "blue", "rpf_l2p_tuned": "blue",
           "fbgemm": "orange", "best": "green"}  # fmt: skip
TITLES = {**DATASETS, "largest": "Largest of the data sets\n(diamonds: the paper, A100)"}
MARKERS = {"paper": ("D", 4.5), "circle": ("o", 3.5)}
PINNED = "vermilion"  # the cost of pinning counted in
LETTER_INCHES, MARKER_INCHES = 0.062, 0.04  # of a text at the end of a bar; half a diamond
ACROSS, PANEL_INCHES, ROW_INCHES = 3, 2.4, 0.2


def name_of(row: Row, modes: bool = False) -> str:
    """A variant in the paper's words; with `modes` also how it pins."""
    name = NAMES.get(str(row["variant"]), str(row["variant"]))
    if "emulated" in str(row.get("evidence")):
        name += " (emulated)"
    mode = str(row.get("l2_mode") or "")
    return f"{name}, {MODES.get(mode, mode)}" if mode and modes else name


def several_modes(times: pd.DataFrame) -> bool:
    """Whether rows must name their L2 mode to be told apart."""
    return len(set(times["l2_mode"]) - {""}) > 1


def of_experiment(frame: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """The records of one experiment. Raises NoData without any."""
    part = frame[frame["experiment"] == experiment] if "experiment" in frame else frame
    if part.empty:
        raise NoData(f"no record of experiment {experiment}")
    return part


def baseline_of(times: pd.DataFrame) -> str:
    """The real kernel of PyTorch 2.1 where it was measured, else our rendering of it."""
    return "stock21" if "stock21" in set(times["variant"]) else "base"


def over_baseline(
    times: pd.DataFrame,
    baseline: str,
    name: Callable[[Row], str],
    same: tuple[str, ...] = ("dataset",),
) -> pd.DataFrame:
    """Speed-up of each row over the baseline's row that agrees in the columns `same`."""
    pairs = against(times, baseline, same)
    if not pairs:
        raise NoData(f"the baseline {baseline} was not measured")
    rows = []
    for row, base in pairs:
        ratio = ratio_interval(base["samples"], row["samples"])
        rows.append(
            {
                **{key: row[key] for key in times if key in (*same, "variant", "l2_mode", "pin")},
                "row": name(row),
                "speedup": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "time_us": row["median"],
                "baseline_time_us": base["median"],
                "n": row["n"],
                "evidence": join_evidence(row["evidence"], base["evidence"]),
                "text": times_text(*ratio[:3]),
            }
        )
    return table_of(rows)


def with_largest(rows: pd.DataFrame, paper: Mapping[str, float]) -> pd.DataFrame:
    """Beside the data sets a panel `largest`: each row's largest value, and the paper's by row.

    The abstract says "up to", so its values belong there and to no data set. No such panel where
    there is nothing to compare: one data set, or no row that the paper has. Nor has it a row that
    some data set lacks, whose largest value may be that data set's.
    """
    rows = rows.assign(paper=nan)
    if rows["dataset"].nunique() < 2 or not rows["row"].isin(list(paper)).any():
        return rows
    datasets = rows.groupby("row")["dataset"].transform("nunique")
    whole = rows[datasets == rows["dataset"].nunique()]
    largest = whole.loc[whole.groupby("row", sort=False)["speedup"].idxmax()]
    largest = largest.assign(
        of_dataset=largest["dataset"], dataset="largest", paper=largest["row"].map(paper)
    )
    return pd.concat([rows, largest], ignore_index=True)


def number(value: float, low: float, high: float) -> str:
    """A value with as many digits as its spread allows, three at most, two where there is none."""
    size = floor(log10(abs(value))) if value else 0
    places = min(2 - size, -floor(log10(high - low))) if _spreads(low, high) else 1 - size
    return f"{value:.{max(places, 0)}f}"


def times_text(value: float, low: float, high: float) -> str:
    """A factor, as `1.53×`."""
    return f"{number(value, low, high)}×"


def panel_bars(
    table: pd.DataFrame,
    value: str,
    *,
    title: str,
    axis: str,
    panel: str = "dataset",
    titles: Mapping[str, str] = {},
    mark: float | None = None,
    reach: float = 0.0,
    text_room: float = 0.42,
    missing: str = "not measured",
) -> tuple[Figure, list[tuple[Axes, list[Row | None]]]]:
    """One panel per value of `panel`, one bar per `row`, rows of a group together.

    Returns the figure, and per panel its axis and its rows by their places. Columns `paper` and
    `circle`, where there, are drawn so; texts keep clear of both and of the line at `mark`.
    """
    panels = in_order(table[panel], [*DATASETS, "largest"])
    order = _row_order(table)
    top = max(float(table[["high", value]].max().max()), mark or 0.0)
    reach = max(reach, float(MaxNLocator(nbins=4).tick_values(0.0, top)[-1]))
    figure, axes = new_panels(
        len(panels), len(order), title=title, across=ACROSS, row_inches=ROW_INCHES
    )
    inch = reach * (1 + text_room) / PANEL_INCHES
    places = []
    for place, name in zip(axes, panels, strict=True):
        part = {row["row"]: row for row in table[table[panel] == name].to_dict("records")}
        cells = [part.get(row) for row in order]
        marks = {key: [_at(cell, key) for cell in cells] for key in MARKERS}
        beyond = [
            max(
                (end for end in (*ends, _crossed(cell, value, mark, inch)) if not isnan(end)),
                default=nan,
            )
            for cell, *ends in zip(
                cells, *([x + MARKER_INCHES * inch for x in at] for at in marks.values()),
                strict=True,
            )
        ]  # fmt: skip
        bars(
            place, order, [_at(cell, value) for cell in cells],
            low=[_end(cell, "low") for cell in cells],
            high=[_end(cell, "high") for cell in cells],
            colours=[colour_of(cell) if cell else "" for cell in cells],
            texts=[
                str(cell["text"]) if cell else missing if row else ""
                for row, cell in zip(order, cells, strict=True)
            ],
            reach=reach, text_room=text_room, mark=mark, beyond=beyond,
        )  # fmt: skip
        for key, (shape, size) in MARKERS.items():
            place.plot(
                marks[key], range(len(order)), shape, markersize=size, markerfacecolor="white",
                markeredgecolor=PALETTE["black"], linestyle="none", zorder=4,
            )  # fmt: skip
        place.set_title(titles.get(name, TITLES.get(name, name)))
        place.set_xlabel(axis)
        places.append((place, cells))
    return figure, places


def colour_of(row: Row) -> str:
    """The colour of a bar: its family's, or that of pinning counted in."""
    family = PINNED if row.get("pin") == "counted" else COLOURS.get(str(row["variant"]), "sky")
    return PALETTE[family]


def table_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The rows as a table. Raises NoData without any."""
    if not rows:
        raise NoData("no records that fit together (a baseline or a limit is missing)")
    return pd.DataFrame(rows)


def _row_order(table: pd.DataFrame) -> list[str]:
    """The rows by group and variant, an empty one between groups; unknown variants come last."""
    pairs = list(dict.fromkeys(zip(table["row"], table["variant"], strict=True)))
    unknown = dict.fromkeys(variant for _, variant in pairs if variant not in NAMES)
    order: list[str] = []
    for group in (*GROUPS, unknown):
        rows = [row for wanted in group for row, variant in pairs if variant == wanted]
        order += ([""] if order and rows else []) + rows
    return order


def _at(row: Row | None, key: str) -> float:
    return float(row.get(key, nan)) if row else nan


def _end(row: Row | None, end: str) -> float:
    """An end of a whisker; NaN where there is no spread, so that none is drawn."""
    return float(row[end]) if row and _spreads(row["low"], row["high"]) else nan


def _spreads(low: float, high: float) -> bool:
    """Whether there is a spread: not where its ends are the value but for rounding, or NaN."""
    return high - low > 1e-9 * abs(high)


def _crossed(row: Row | None, value: str, mark: float | None, inch: float) -> float:
    """The line at `mark` if the text of a bar that ends before it would cross it."""
    if row is None or mark is None:
        return nan
    end = max(float(row[value]), float(row["high"]))
    return mark if end < mark < end + LETTER_INCHES * inch * (len(str(row["text"])) + 1) else nan

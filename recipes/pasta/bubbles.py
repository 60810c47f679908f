"""Figure 7 of the PASTA paper: launches per kernel as packed bubbles, and as a plain ranked bar."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import hypot, sqrt
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle as Patch
from matplotlib.ticker import StrMethodFormatter

from ae.figures.draw import PALETTE, NoData, Plot, bars
from ae.figures.summary import pool
from ae.recipe.code import load_code

naming = load_code(Path(__file__).parent, "naming")

TOP = 20
OTHERS = "(others)"
Circle = tuple[float, float, float]  # x, y, radius
_SLACK = 1e-9  # of rounding, when two circles touch


def pack(areas: Sequence[float]) -> list[Circle]:
    """Circles of these areas (times pi) that touch and do not overlap, in the order given.

    Largest first, each is put where it touches two that are there, as near to the middle as it
    can be. Raises ValueError for an area that is not positive.
    """
    if any(not area > 0 for area in areas):
        raise ValueError("a bubble's area must be positive")
    order = sorted(range(len(areas)), key=lambda index: -areas[index])
    placed: list[Circle] = []
    for index in order:
        placed.append(_place(placed, sqrt(areas[index])))
    found = dict(zip(order, placed, strict=True))
    return [found[index] for index in range(len(areas))]


def kernels(frame: pd.DataFrame) -> Plot:
    """Launches per kernel over all runs together: the most launched, the rest as one."""
    counts = pool(frame, "kernel_launches", ["kernel", "model", "mode"])
    if counts.empty:
        raise NoData("no record of metric kernel_launches")
    runs = len(counts[["model", "mode"]].drop_duplicates())
    sums = counts.groupby("kernel", sort=False)["median"].sum().sort_values(ascending=False)
    named = sums.drop(OTHERS, errors="ignore")
    rest = float(sums.sum() - named.head(TOP).sum())
    shown = [*named.head(TOP).items(), *([(OTHERS, rest)] if rest else [])]
    samples, evidence = int(counts["n"].min()), "+".join(sorted(set(counts["evidence"])))
    rows = pd.DataFrame(
        [
            {"kernel": str(name), "launches": value, "n": samples, "evidence": evidence}
            for name, value in shown
        ]
    )
    height = max(5.2, 2.0 + 0.27 * len(rows))
    figure = Figure(figsize=(12.6, height))
    figure.suptitle(
        f"Most launched kernels, {runs} runs together", fontsize=11.5, fontweight="bold"
    )
    low, room = 0.85 / height, 1 - 1.45 / height
    colours = [_colour(name, rank) for rank, name in enumerate(rows["kernel"])]
    _bubbles(figure.add_axes((0.01, low, 0.36, room)), rows, colours)
    values = list(rows["launches"])
    axis = figure.add_axes((0.66, low, 0.33, room))
    bars(
        axis, [naming.cut(name) for name in rows["kernel"]], values, low=values, high=values,
        reach=max(values), texts=[f"{value:,.0f}" for value in values], colours=colours,
    )  # fmt: skip
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_xlabel("launches")
    return Plot(figure=figure, table=rows, spread="area and length: launches; no spread")


def _bubbles(axis: Axes, rows: pd.DataFrame, colours: Sequence[str]) -> None:
    packed = pack(list(rows["launches"]))
    whole = sum(radius**2 for _, _, radius in packed)
    middle_x, middle_y = (sum(c[k] * c[2] ** 2 for c in packed) / whole for k in (0, 1))
    circles = [(x - middle_x, y - middle_y, radius) for x, y, radius in packed]
    reach = max(hypot(x, y) + radius for x, y, radius in circles)
    for (x, y, radius), colour, row in zip(circles, colours, rows.to_dict("records"), strict=True):
        axis.add_patch(Patch((x, y), radius, facecolor=colour, edgecolor="white", linewidth=0.6))
        if radius > 0.11 * reach:
            size = min(8.0, 60 * radius / reach)
            dark = colour in {PALETTE[word] for word in ("blue", "green", "vermilion")}
            axis.text(x, y, f"{row['launches']:,.0f}", ha="center", va="center", fontsize=size,
                      color="white" if dark else "#222222")  # fmt: skip
    axis.set_xlim(-1.02 * reach, 1.02 * reach)
    axis.set_ylim(-1.02 * reach, 1.02 * reach)
    axis.set_aspect("equal")
    axis.set_axis_off()


def _place(placed: Sequence[Circle], radius: float) -> Circle:
    if not placed:
        return (0.0, 0.0, radius)
    if len(placed) == 1:
        return (placed[0][2] + radius, 0.0, radius)
    free = [
        spot
        for one, other in combinations(placed, 2)
        for spot in _touching(one, other, radius)
        if not any(_overlap(spot, there) for there in placed)
    ]
    return min(free, key=lambda spot: hypot(spot[0], spot[1]))


def _touching(one: Circle, other: Circle, radius: float) -> list[Circle]:
    """Where a circle of this radius touches both, outside; none when they are too far apart."""
    far_one, far_other = one[2] + radius, other[2] + radius
    along_x, along_y = other[0] - one[0], other[1] - one[1]
    apart = hypot(along_x, along_y)
    along = (far_one**2 - far_other**2 + apart**2) / (2 * apart)
    across = far_one**2 - along**2
    if across < 0:
        return []
    unit_x, unit_y, side = along_x / apart, along_y / apart, sqrt(across)
    return [
        (one[0] + along * unit_x - sign * side * unit_y,
         one[1] + along * unit_y + sign * side * unit_x, radius)
        for sign in (1, -1)
    ]  # fmt: skip


def _overlap(one: Circle, other: Circle) -> bool:
    reach = one[2] + other[2]
    return hypot(one[0] - other[0], one[1] - other[1]) < reach * (1 - _SLACK)


def _colour(name: str, rank: int) -> str:
    """The others are grey; the named ones alternate, so that neighbours are told apart."""
    if name == OTHERS:
        return PALETTE["grey"]
    shades = [PALETTE[word] for word in ("blue", "sky", "green", "orange", "vermilion", "purple")]
    return shades[rank % len(shades)]

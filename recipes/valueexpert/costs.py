"""What looking costs: the time of a run under the tool over that alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from ae.figures.draw import PALETTE, NoData, Plot, new_panels
from ae.figures.summary import pool, ratio_interval
from ae.recipe.code import load_code

TITLES = load_code(Path(__file__).parent, "native", fix="restore it").TITLES
LOOKS = {  # level: marker, colour, words
    "empty": ("x", "#222222", "patches that do nothing"),
    "coarse": ("o", PALETTE["sky"], "coarse: copies and fills"),
    "every": ("^", PALETTE["green"], "fine, one run in ten"),
    "blocks": ("s", PALETTE["orange"], "fine, one block in ten"),
    "fine": ("D", PALETTE["vermilion"], "fine"),
}
TRAINING = "training step"


def slowdown(frame: pd.DataFrame) -> Plot:
    """A row for each program, a mark for each level."""
    pooled = pool(frame, "run_time", ["experiment", "mini", "level"]).to_dict("records")
    alone = {(row["experiment"], row["mini"]): row for row in pooled if row["level"] == "native"}
    found: list[dict[str, Any]] = []
    for row in pooled:
        base = alone.get((row["experiment"], row["mini"]))
        if base is None or row["level"] not in LOOKS:
            continue
        low, high, *_ = ratio_interval(row["samples"], base["samples"])
        found.append({
            "program": TITLES.get(row["mini"], TRAINING), "level": row["level"],
            "slowdown": row["median"] / base["median"], "low": low, "high": high, "n": row["n"],
            "evidence": row["evidence"],
        })  # fmt: skip
    if not found:
        raise NoData("no run was timed both alone and under the tool; it is measured on a GPU")
    table = pd.DataFrame(found)
    programs = list(dict.fromkeys(table["program"]))
    figure, (axis,) = new_panels(1, len(programs), title="Time under the tool over time alone")
    for level, (marker, colour, words) in LOOKS.items():
        own = table[table["level"] == level]
        rows = [programs.index(program) for program in own["program"]]
        axis.scatter(
            own["slowdown"], rows, marker=marker, s=30, color=colour, label=words, zorder=3
        )
    axis.axvline(1, color="#222222", linewidth=0.8, linestyle=(0, (4, 3)))
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}x")
    axis.set_yticks(range(len(programs)), labels=programs)
    axis.set_ylim(len(programs) - 0.45, -0.55)
    axis.set_xlabel("slowdown")
    axis.grid(True)
    axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=7)
    return Plot(figure=figure, table=table, spread="marks: ratio of medians")

"""The value flow graph as a figure; the page with search and zoom lies among a point's files."""

from __future__ import annotations

import pandas as pd

from ae.figures.draw import PALETTE, NoData, Plot, new_panels
from ae.figures.summary import pool

BUCKETS = ((0.99, "#b2182b", "99 % unchanged and more"), (0.66, "#ef8a62", "66 %"),
           (0.33, "#c9a227", "33 %"), (0.0, "#6b7a8f", "less"))  # fmt: skip
FILLS = {"kernel": "#eef7ee", "alloc": "#e8eef5", "host": "#e8eef5"}
MOST = 60  # nodes of a figure
ROW_INCHES = 0.42


def flow(frame: pd.DataFrame) -> Plot:
    """Who overwrites or reads whose values: rows in the order of the program."""
    keys = ["mini", "node", "kind", "context"]
    spots = pool(frame, "node_x", keys)
    if spots.empty:
        raise NoData("no record of node_x")
    if len(spots) > MOST:
        raise NoData(f"a graph of {len(spots)} places is for the page, not for a figure")
    downs = dict(zip(*pool(frame, "node_y", keys)[["node", "median"]].T.values, strict=True))
    counts = dict(zip(*pool(frame, "node_count", keys)[["node", "median"]].T.values, strict=True))
    rows = int(max(downs.values()) - min(downs.values())) + 1
    figure, (axis,) = new_panels(
        1, rows, title="Value flow graph of the Darknet layers, before", row_inches=ROW_INCHES
    )
    figure.set_figwidth(10)
    where = {}
    for row in spots.to_dict("records"):
        where[row["node"]] = (row["median"], downs[row["node"]])
    boxes = {}
    for row in spots.to_dict("records"):
        x, y = where[row["node"]]
        many = f" ×{int(counts[row['node']])}" if counts[row["node"]] > 1 else ""
        shape = "round4" if row["kind"] == "kernel" else "square"
        boxes[row["node"]] = axis.text(
            x, y, f"{row['context']}{many}", ha="center", va="center", fontsize=6.5,
            bbox={"boxstyle": f"{shape},pad=0.3", "facecolor": FILLS.get(row["kind"], "white"),
                  "edgecolor": "#40566f", "linewidth": 0.8},
        )  # fmt: skip
    edges = pool(frame, "edge_redundancy", ["mini", "source", "target", "flow", "object"])
    drawn = set()
    for edge in edges.to_dict("records"):
        colour, words = next((c, w) for least, c, w in BUCKETS if edge["median"] >= least)
        style = "dashed" if edge["flow"] == "read" else "solid"
        bend = 0.0 if where[edge["target"]][1] > where[edge["source"]][1] else -0.5
        axis.annotate(
            "", xy=where[edge["target"]], xytext=where[edge["source"]],
            arrowprops={"arrowstyle": "-|>", "color": colour, "linestyle": style, "shrinkA": 0,
                        "shrinkB": 1, "connectionstyle": f"arc3,rad={bend}", "linewidth": 1.1,
                        "patchA": boxes[edge["source"]].get_bbox_patch(),
                        "patchB": boxes[edge["target"]].get_bbox_patch()},
        )  # fmt: skip
        if style == "solid" and words not in drawn:
            drawn.add(words)
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=c, label=w) for _, c, w in BUCKETS if w in drawn]
    handles.append(Line2D([], [], color=PALETTE["black"], linestyle="dashed", label="read"))
    axis.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7,
                title="writes, by bytes", title_fontsize=7)  # fmt: skip
    xs, ys = [x for x, _ in where.values()], [y for _, y in where.values()]
    axis.set_xlim(min(xs) - 0.7, max(xs) + 0.5)
    axis.set_ylim(max(ys) + 0.6, min(ys) - 0.6)
    axis.set_axis_off()
    names = dict(zip(spots["node"], spots["context"], strict=True))
    table = edges.drop(columns="samples").rename(columns={"median": "redundancy"})
    table = table.replace({"source": names, "target": names})
    return Plot(figure=figure, table=table, spread="exact counts of a recorded trace")

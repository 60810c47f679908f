"""The value flow graph to look at: one page that needs no network, and the words of graphviz."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path

from accel_trace.tools.base import bytes_text
from accel_trace.values.findings import Finding
from accel_trace.values.flow import HOST, Edge, Graph, Node
from accel_trace.values.layout import place
from accel_trace.values.shadow import ALLOC, KERNEL

WIDE, HIGH = 190, 96  # of a node's place
BOX, LINE = 160, 44  # of its shape
COLOURS = ((0.99, "#b2182b"), (0.66, "#ef8a62"), (0.33, "#c9a227"), (0.0, "#6b7a8f"))
_LETTERS = 22
_PAGE = Path(__file__).with_name("page.html")


def colour(edge: Edge) -> str:
    """By the share of redundant bytes: the viewer's buckets of the paper's code."""
    return next(name for least, name in COLOURS if edge.redundancy >= least)


def width(edge: Edge, most: int) -> float:
    """Thicker for more bytes, 1 to 5, by their root."""
    return 1 + 4 * math.sqrt(edge.bytes / max(most, 1))


def page(graph: Graph, findings: Sequence[Finding], title: str) -> str:
    """HTML with search, zoom and the findings first; a click on one goes to its node."""
    spots = place(graph)
    left = min((x for x, _ in spots.values()), default=0) - 1
    shape = {n: ((x - left) * WIDE, (y + 1) * HIGH) for n, (x, y) in spots.items()}
    most = max((edge.bytes for edge in graph.edges), default=1)
    lines = [_edge(edge, shape, most) for edge in graph.edges]
    boxes = [_node(node, *shape[number]) for number, node in graph.nodes.items()]
    rows = [_row(number, one, graph) for number, one in enumerate(findings, 1)]
    size = [
        max((x for x, _ in shape.values()), default=0) + WIDE,
        max((y for _, y in shape.values()), default=0) + HIGH,
    ]
    parts = {
        "TITLE": html.escape(title), "ROWS": "\n".join(rows), "SIZE": json.dumps(size),
        "SUMMARY": f"{len(graph.nodes)} places, {len(graph.edges)} flows, "
        f"{bytes_text(graph.bytes)} written, {len(findings)} findings",
        "GRAPH": "\n".join(lines + boxes),
    }  # fmt: skip
    text = _PAGE.read_text(encoding="utf-8")
    for name, value in parts.items():
        text = text.replace(f"<!--{name}-->", value)
    return text


def dot(graph: Graph) -> str:
    """The same for graphviz; quotes and backslashes of names are escaped."""
    lines = ["digraph values {", '  node [fontname="sans-serif"];']
    for node in graph.nodes.values():
        form = "ellipse" if node.kind == KERNEL else "box"
        label = _quoted(f"{node.kind}: {node.context}\n{node.count} times")
        lines.append(f'  n{node.number} [shape={form}, label="{label}"];')
    most = max((edge.bytes for edge in graph.edges), default=1)
    for edge in graph.edges:
        style = ', style="dashed"' if edge.kind == "read" else ""
        label = _quoted(_words(edge))
        lines.append(
            f'  n{edge.source} -> n{edge.target} [color="{colour(edge)}", '
            f'penwidth={width(edge, most):.1f}, label="{label}"{style}];'
        )
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _words(edge: Edge) -> str:
    flow = f"{edge.kind} {bytes_text(edge.bytes)} of {edge.thing}"
    return flow if edge.kind == "read" else f"{flow}, {edge.redundancy:.0%} unchanged"


def _short(text: str) -> str:
    head = _LETTERS - 9  # names differ at their ends
    return text if len(text) <= _LETTERS else f"{text[:head]}…{text[-8:]}"


def _edge(edge: Edge, shape: dict[int, tuple[float, float]], most: int) -> str:
    (x1, y1), (x2, y2) = shape[edge.source], shape[edge.target]
    half = LINE / 2
    if edge.source == edge.target:
        path = f"M{x1 + BOX / 2} {y1 - 8} c34 -22 34 38 0 16"
    elif y2 > y1:
        bend = (y2 - y1) / 2
        path = f"M{x1} {y1 + half} C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2 - half - 7}"
    else:  # back, around the side
        side = max(x1, x2) + WIDE * 0.7
        path = f"M{x1 + BOX / 2} {y1} C{side} {y1} {side} {y2} {x2 + BOX / 2 + 7} {y2}"
    dash = ' stroke-dasharray="5 4"' if edge.kind == "read" else ""
    title = html.escape(_words(edge))
    waste = int(edge.kind != "read" and edge.redundancy >= COLOURS[2][0])
    return (
        f'<path class="e" data-a="{edge.source}" data-b="{edge.target}" data-waste="{waste}" '
        f'd="{path}" stroke="{colour(edge)}" stroke-width="{width(edge, most):.1f}"{dash} '
        f'marker-end="url(#tip)">'
        f"<title>{title}</title></path>"
    )


def _node(node: Node, x: float, y: float) -> str:
    name = html.escape(_short(node.context), quote=False)
    words = html.escape(f"{node.kind}: {node.context}, {node.count} times")
    if node.kind == KERNEL:
        form = f'<ellipse cx="{x}" cy="{y}" rx="{BOX / 2}" ry="{LINE / 2}"/>'
    else:
        corner = 0 if node.kind in (ALLOC, HOST) else 14
        form = (
            f'<rect x="{x - BOX / 2}" y="{y - LINE / 2}" width="{BOX}" height="{LINE}" '
            f'rx="{corner}"/>'
        )
    many = f" ×{node.count}" if node.count > 1 else ""
    return (
        f'<g class="n {node.kind}" id="n{node.number}" data-x="{x}" data-y="{y}">'
        f"<title>{words}</title>{form}"
        f'<text x="{x}" y="{y - 3}">{name}</text>'
        f'<text class="k" x="{x}" y="{y + 12}">{node.kind}{many}</text></g>'
    )


def _row(number: int, one: Finding, graph: Graph) -> str:
    node = next(
        (n for n in graph.nodes.values() if n.context == one.context and n.kind != ALLOC), None
    )
    bound = "all of it" if one.bound is None else f"at most {one.bound:.2f}x"
    if one.gain is not None and one.gain != one.bound:
        bound = f"{one.gain:.2f}x; {bound}"
    cells = [
        str(number), one.name.replace("_", " "), one.context, one.thing, str(one.times),
        f"{bytes_text(one.at_stake)} of {bytes_text(one.of)}", bound, one.fix,
    ]  # fmt: skip
    target = f' data-node="{node.number}"' if node else ""
    return f"<tr{target}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"

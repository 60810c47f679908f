"""What the detectors find in the recorded traces, against the labels; no GPU is used.

Counts and bytes are arithmetic on the trace of a bit-exact replay (evidence static); a bound is a
model's (simulated).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from accel_trace.tools.value_patterns import NODES
from accel_trace.values.elements import numbers_of
from accel_trace.values.findings import Finding
from accel_trace.values.flow import build, prune
from accel_trace.values.layout import place
from accel_trace.values.patterns import number_text
from accel_trace.values.picture import page
from accel_trace.values.recorded import Replay, View
from reprokit.progress import Progress
from reprokit.records import RecordWriter

from valueexpert import traces
from valueexpert.bounds import KERNELS, MEMORY, gain, moved, spared
from valueexpert.catalog import MINIS, Mini
from valueexpert.cli import Config

DRAWN = "darknet"  # whose value flow graph is a figure
VALUES = 12  # of a histogram
HISTOGRAMS = {  # object of a mini whose values are drawn
    "pathfinder": "wall", "castro": "limiter", "lavamd": "charges", "huffman": "parts",
}  # fmt: skip


def run(config: Config, out: RecordWriter) -> None:
    """One mini after the other."""
    progress = Progress(len(config.minis))
    for name in config.minis:
        _mini(MINIS[name], config.variants, out)
        progress.step(name)


def _mini(mini: Mini, variants: Sequence[str], out: RecordWriter) -> None:
    """All variants are read, since the findings of one are compared with those of another."""
    wanted = traces.labels()[mini.name]
    found: dict[str, tuple[Replay, list[Finding]]] = {}
    with traces.opened(mini) as folders:
        for variant, folder in folders.items():
            found[variant] = traces.findings(folder)
            if variant not in variants:
                continue
            said = traces.said(folder)
            labels = {"mini": mini.name, "variant": variant}
            for metric, unit in (
                ("copied", "B"), ("filled", "B"), ("launches", "launches"), ("error", "1"),
            ):  # fmt: skip
                out.write(metric, unit, [float(said[metric])], labels, evidence="static")
            _variant(mini, variant, *found[variant], out)
            score = traces.score(found[variant][1], wanted[variant])
            for metric, value in (("precision", score.precision), ("recall", score.recall)):
                note = "; ".join(map(str, (*score.false, *score.missed)))
                out.write(metric, "share", [value], labels, evidence="static", note=note or None)
    own = {"mini": mini.name}
    fixed = traces.fixed(mini, {variant: rows for variant, (_, rows) in found.items()})
    out.write("fixed", "1", [float(fixed)], own, evidence="static", note=mini.why or None)
    _bounds(mini, found, variants, out)
    if mini.name == DRAWN:
        _graph(mini, found["before"][0], out)


def _variant(
    mini: Mini, variant: str, found: Replay, findings: list[Finding], out: RecordWriter
) -> None:
    labels = {"mini": mini.name, "variant": variant}
    out.write("findings", "count", [len(findings)], labels, evidence="static")
    out.write("accesses", "accesses", [found.accesses], labels, evidence="static")
    out.write("atomics", "accesses", [found.atomics], labels, evidence="static")
    for part, size in moved(found).items():
        out.write("moved", "B", [size], labels | {"part": part}, evidence="static")
    for one in findings:
        where = labels | {"pattern": one.name, "place": one.context, "object": one.thing}
        out.write("at_stake", "B", [one.at_stake], where, evidence="static", note=one.text or None)
        if one.bound is not None:
            out.write("bound", "x", [one.bound], where, evidence="simulated", note=one.fix)
    if variant == "before" and mini.name in HISTOGRAMS:
        views = [v for v in found.views if v.thing.context == HISTOGRAMS[mini.name]]
        for view in views[:1]:
            _histogram(view, labels, out)
    graph = build(found.shadow.effects)
    drawn = graph if len(graph.nodes) <= NODES else prune(graph)
    html = Path(out.out_dir) / f"value-flow-{mini.name}-{variant}.html"
    html.write_text(page(drawn, findings, f"{mini.title}, {variant}"), encoding="utf-8")


def _bounds(
    mini: Mini, found: dict[str, tuple[Replay, list[Finding]]], variants: Sequence[str],
    out: RecordWriter,
) -> None:  # fmt: skip
    """What the findings of `before` promise, and what its bytes over those of a variant are."""
    replayed, findings = found["before"]
    total = moved(replayed)
    for variant in variants:
        if variant == "before" or variant not in found:
            continue
        gone = mini.fixed.get(variant, ())
        stakes = spared(replayed, findings, set(gone))
        after = moved(found[variant][0])
        for part in (KERNELS, MEMORY):
            labels = {"mini": mini.name, "variant": variant, "part": part}
            promised = gain(total[part], stakes[part])
            if promised is not None:
                out.write("promised", "x", [promised], labels, evidence="simulated")
            if after[part]:
                out.write("fewer", "x", [total[part] / after[part]], labels, evidence="static")


def _histogram(view: View, labels: dict[str, str], out: RecordWriter) -> None:
    items = view.items
    values, where = np.unique(items.value, return_inverse=True)
    weights = np.bincount(where.ravel(), weights=items.count) / items.accesses
    names = [number_text(one) for one in numbers_of(values, items.element)]
    top = np.argsort(-weights, kind="stable")[:VALUES]
    for rank, at in enumerate(top, 1):
        own = labels | {"object": view.thing.context, "value": names[at], "rank": f"{rank:02d}"}
        out.write("value_share", "share", [weights[at]], own, evidence="static")


def _graph(mini: Mini, found: Replay, out: RecordWriter) -> None:
    graph = build(found.shadow.effects)
    own = {"mini": mini.name, "variant": "before"}
    for number, (x, y) in place(graph).items():
        node = graph.nodes[number]
        labels = own | {"node": number, "kind": node.kind, "context": node.context}
        for metric, value in (("node_x", x), ("node_y", y), ("node_count", node.count)):
            out.write(metric, "1", [value], labels, evidence="static")
    for edge in graph.edges:
        labels = own | {
            "source": edge.source, "target": edge.target, "flow": edge.kind, "object": edge.thing,
        }  # fmt: skip
        out.write("edge_bytes", "B", [edge.bytes], labels, evidence="static")
        out.write("edge_redundancy", "share", [edge.redundancy], labels, evidence="static")

"""Real training under caps: ours against a rival, at equal measured peak. Needs a GPU.

A cap is a share of what the plain step needs. The rival's knob is searched until its measured peak
is within 1 % below the cap; ours gets that peak as its budget; both then run in turns, and so do
ours and the rival's fastest smaller point (`smaller_time`). Beside `plain`, the step without a cap,
ours gets the cap itself; where another rival does not reach a cap, there is nothing to compare. At
a cap all have the same workspace; `uncapped_time` is that of the plain step with it (`same`, in
turns), with what is fastest, and with what PyTorch takes `first`. What was measured of a rival at a
cap serves at the next with the same workspace, the operators are timed once, and the plans for all
such caps are made at the same time. A CPU runs a small network for a look: its peaks are what
PyTorch's profiler saw.
"""

from __future__ import annotations

import math

import torch
from reprokit.progress import Progress
from reprokit.records import Evidence, RecordWriter
from reprokit.skip import cannot_run

from autotm.config import Config
from autotm.executor.errors import AutotmError
from autotm.networks.modules import module
from autotm.planner.apart import once_planned
from autotm.rivals.cell import OURS, Cell
from autotm.rivals.compare import Comparison
from autotm.rivals.exact import exactly

ONLY = "only"  # the form of a rival that has one


def run(config: Config, out: RecordWriter) -> None:
    """Records of every rival at every cap; skipped with the reason where one of them cannot run."""
    if config.device == "cpu" and not config.network.startswith("small-"):
        cannot_run("rivals measures a GPU's memory; fix: --device cuda, or a network small-*")
    if config.device == "cuda" and not torch.cuda.is_available():
        cannot_run("PyTorch sees no GPU; fix: --device cpu with a network small-*")
    exactly()
    net, sample = module(config.network, config.device, config.precision)
    only = ("plain", *config.rivals)
    found = Comparison(
        net, sample, torch.nn.functional.cross_entropy, only=only, most=config.knobs,
        planner=once_planned(config.solver_seconds, config.gap),
    )  # fmt: skip
    missing = [each for each in found.rivals.values() if each.missing]
    for rival in missing:
        out.skip({"variant": rival.name, "form": rival.form or ONLY}, rival.missing)
    names = [name for name in config.rivals if found.forms(name)]
    if not names:
        cannot_run(missing[0].missing)
    try:
        unlimited = found.unlimited()
        found.within(math.inf)
        plain = found.plain()
    except AutotmError as error:
        cannot_run(str(error))
    alone = {"fastest": plain} | ({"first": unlimited} if unlimited is not None else {})
    for name, point in alone.items():
        out.write("need", "GB", [point.peak / 1e9], {"workspace": name}, "measured")
    caps = config.capacities(plain.peak)
    progress = Progress(len(set(caps.values())) * len(names))
    named = {size: cap for cap, size in caps.items()}
    for cell in found.cells(list(named), *names):
        which = {"cap": (cap := named[cell.cap]), "rival": cell.rival}
        _write(out, cell, which)
        if cell.rival == "plain" and cell.ours is not None:
            times = {name: [point.seconds] for name, point in alone.items()}
            for name, seconds in (times | {"same": cell.turns["plain"]}).items():
                out.write("uncapped_time", "s", seconds, which | {"workspace": name}, "measured")
        progress.step(f"{cap} {cell.rival}")
    for phase, spent in found.spent.items():
        out.write("spent", "s", [spent], {"phase": phase}, "measured")
    for (name, form, knob), why in found.failed.items():
        out.skip({"variant": name, "form": form or ONLY, "knob": f"{knob:.4g}"}, why)


def _write(out: RecordWriter, cell: Cell, which: dict[str, str]) -> None:
    for point in cell.points:
        labels = {**which, "variant": point.rival, "form": point.form or ONLY,
                  "knob": f"{point.knob:.4g}"}  # fmt: skip
        out.write("peak", "GB", [point.peak / 1e9], labels, "measured")
        out.write("point_time", "s", [point.seconds], labels, "measured")
    for point in cell.closest:
        labels = {**which, "variant": point.rival, "form": point.form or ONLY}
        out.write("of_cap", "%", [100 * point.peak / cell.cap], labels, "measured")
    for name, seconds in cell.turns.items():
        out.write("iteration_time", "s", seconds, {**which, "variant": name}, "measured")
    for name, seconds in cell.against.items():
        out.write("smaller_time", "s", seconds, {**which, "variant": name}, "measured")
    ours = {**which, "variant": OURS}
    for metric, value in cell.expected.items():
        kind: Evidence = "simulated" if metric in ("predicted_time", "bound") else "measured"
        out.write(metric, "s", [value], ours, kind)
    if cell.ours is not None:
        error = 100 * (cell.expected["predicted_time"] / cell.ours.seconds - 1)
        out.write("prediction_error", "%", [error], ours, "measured")
        out.write("unsteady", "1", [cell.unsteady], ours, "measured")
        out.write("workspace", "GB", [cell.workspace / 1e9], which, "measured")
        for name, seconds in (vars(cell.lost) if cell.lost is not None else {}).items():
            out.write("lost_time", "s", [seconds], {**ours, "part": name}, "measured")
        best = cell.best
        if best is not None:
            out.write("rival_time", "s", cell.turns[best.rival], which, "measured",
                      note=f"{best.rival} {best.form}".strip())  # fmt: skip
    note = cell.note or None
    ran = cell.ours is not None
    if ran or cell.empty:
        out.write("comparable", "1", [ran], which, "measured", note=note)
    if ran or cell.empty or (cell.unplanned and cell.best is not None):
        out.write("dominated", "1", [cell.dominated], which, "measured", note=note)
    if cell.note:
        out.skip(ours, cell.note)

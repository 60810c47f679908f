"""Real training under caps: ours against every rival, at equal measured peak. Needs a GPU.

A cap is a share of what the plain step needs. Each rival's knob is searched until its measured peak
is within 1 % below the cap; ours gets the best rival's peak as its budget; both then run in turns.
A CPU runs a small network for a look: its peaks are what PyTorch's profiler saw.
"""

from __future__ import annotations

import torch
from reprokit.progress import Progress
from reprokit.records import Evidence, RecordWriter
from reprokit.skip import cannot_run

from autotm.config import Config
from autotm.networks.modules import module
from autotm.rivals.compare import OURS, Cell, Comparison, once_planned
from autotm.rivals.exact import exactly
from autotm.rivals.search import Point, front, hypervolume

ONLY = "only"  # the form of a rival that has one


def run(config: Config, out: RecordWriter) -> None:
    """Records of every cell; skipped with the reason where ours cannot run or is void."""
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
        cache=out.out_dir / "times.jsonl",
    )  # fmt: skip
    for rival in found.rivals.values():
        if rival.missing:
            out.skip({"variant": rival.name, "form": rival.form or ONLY}, rival.missing)
    plain = found.plain()
    out.write("need", "GB", [plain.peak / 1e9], {}, "measured")
    out.write("plain_time", "s", [plain.seconds], {}, "measured")
    caps = {f"{cap:g}": int(cap * plain.peak) for cap in config.caps}
    if config.cap_gb:
        caps[f"{config.cap_gb:g}GB"] = int(config.cap_gb * 1e9)
    progress = Progress(len(caps))
    ours = []
    for cap, capacity in caps.items():
        cell = found.cell(capacity)
        _write(out, cell, cap)
        ours += [cell.ours] if cell.ours is not None else []
        progress.step(cap)
    for (name, form, knob), why in found.failed.items():
        out.skip({"variant": name, "form": form or ONLY, "knob": f"{knob:.4g}"}, why)
    _write_front(out, ours, found.points(), plain)


def _write(out: RecordWriter, cell: Cell, cap: str) -> None:
    for point in cell.points:
        labels = {"variant": point.rival, "form": point.form or ONLY, "cap": cap,
                  "knob": f"{point.knob:.4g}"}  # fmt: skip
        out.write("peak", "GB", [point.peak / 1e9], labels, "measured")
        out.write("point_time", "s", [point.seconds], labels, "measured")
    for point in cell.closest:
        labels = {"variant": point.rival, "form": point.form or ONLY, "cap": cap}
        out.write("of_cap", "%", [100 * point.peak / cell.cap], labels, "measured")
    for name, seconds in cell.turns.items():
        out.write("iteration_time", "s", seconds, {"variant": name, "cap": cap}, "measured")
    ours = {"variant": OURS, "cap": cap}
    for metric, value in cell.expected.items():
        kind: Evidence = "simulated" if metric in ("predicted_time", "bound") else "measured"
        out.write(metric, "s", [value], ours, kind)
    if cell.ours is not None:
        error = 100 * (cell.expected["predicted_time"] / cell.ours.seconds - 1)
        out.write("prediction_error", "%", [error], ours, "measured")
        out.write("unsteady", "1", [cell.unsteady], ours, "measured")
        out.write("dominated_by", "1", [len(cell.dominated_by)], {"cap": cap}, "measured")
        best = cell.best
        if best is not None:
            note = f"{best.rival} {best.form}".strip()
            theirs = cell.turns.get(best.rival, [best.seconds])
            out.write("best_rival_time", "s", theirs, {"cap": cap}, "measured", note=note)
    if cell.note:
        out.skip(ours, cell.note)


def _write_front(out: RecordWriter, ours: list[Point], rivals: list[Point], plain: Point) -> None:
    """The points that no other one beats, and of the area that all dominate, whose share."""
    everyone = [*ours, *rivals]
    for point in front(everyone):
        labels = {"variant": point.rival, "form": point.form or ONLY, "knob": f"{point.knob:.4g}"}
        out.write("front_peak", "GB", [point.peak / 1e9], labels, "measured")
        out.write("front_time", "s", [point.seconds], labels, "measured")
    corner = plain.peak * 1.01, 1.01 * max(point.seconds for point in everyone)
    union = hypervolume(everyone, *corner)
    for name, points in ((OURS, [*ours, plain]), ("rivals", rivals)):
        share = hypervolume(points, *corner) / union
        out.write("hypervolume", "1", [share], {"variant": name}, "measured")

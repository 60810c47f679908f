"""Real training under caps: ours against every rival, at equal measured peak. Needs a GPU.

A cap is a share of what the plain step needs. Each rival's knob is searched until its measured peak
is within 1 % below the cap; ours gets the best rival's peak as its budget; both then run in turns.
"""

from __future__ import annotations

import torch
from reprokit.progress import Progress
from reprokit.records import Evidence, RecordWriter
from reprokit.skip import cannot_run

from autotm.config import Config
from autotm.networks.modules import module
from autotm.rivals.compare import OURS, Cell, Comparison


def run(config: Config, out: RecordWriter) -> None:
    """Records of every cell; skipped with the reason where ours cannot run or is void."""
    if config.device == "cpu" or not torch.cuda.is_available():
        cannot_run("rivals measures a GPU's memory; fix: --device cuda")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    try:
        net, sample = module(config.network, "cuda")
    except ValueError as error:
        cannot_run(str(error))
    only = ("plain", *config.rivals)
    found = Comparison(net, sample, torch.nn.functional.cross_entropy, only=only)
    for rival in found.rivals.values():
        if rival.missing:
            out.skip({"variant": rival.name}, rival.missing)
    plain = found.plain()
    out.write("need", "GB", [plain.peak / 1e9], {}, "measured")
    out.write("plain_time", "s", [plain.seconds], {}, "measured")
    caps = {f"{cap:g}": int(cap * plain.peak) for cap in config.caps}
    if config.cap_gb:
        caps[f"{config.cap_gb:g}GB"] = int(config.cap_gb * 1e9)
    progress = Progress(len(caps))
    for cap, capacity in caps.items():
        _write(out, found.cell(capacity), cap)
        progress.step(cap)


def _write(out: RecordWriter, cell: Cell, cap: str) -> None:
    for point in cell.points:
        labels = {"variant": point.rival, "cap": cap, "knob": f"{point.knob:.4g}"}
        out.write("peak", "GB", [point.peak / 1e9], labels, "measured")
        out.write("point_time", "s", [point.seconds], labels, "measured")
    for name, seconds in cell.turns.items():
        out.write("iteration_time", "s", seconds, {"variant": name, "cap": cap}, "measured")
    ours = {"variant": OURS, "cap": cap}
    for metric, value in cell.expected.items():
        kind: Evidence = "simulated" if metric in ("predicted_time", "bound") else "measured"
        out.write(metric, "s", [value], ours, kind)
    if cell.ours is not None:
        error = 100 * (cell.expected["predicted_time"] / cell.ours.seconds - 1)
        out.write("prediction_error", "%", [error], ours, "measured")
        out.write("dominated_by", "1", [len(cell.dominated_by)], {"cap": cap}, "measured")
        if cell.best is not None:
            best = cell.turns[cell.best.rival]
            out.write("best_rival_time", "s", best, {"cap": cap}, "measured", note=cell.best.rival)
    if cell.note:
        out.skip(ours, cell.note)

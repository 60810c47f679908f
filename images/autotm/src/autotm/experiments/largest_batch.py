"""The largest batch within some budgets: ours against the plain step and others. Needs a GPU.

The plain step's largest batch comes first; its time per sample there, times `--slower`, is what a
sample may take with all others. Where the plain step fits with no batch, that is what
`--sample-seconds` says, or else nothing further is tried.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from autotm.config import Config
from autotm.networks.catalogue import TRAINED, named
from autotm.planner.apart import once_planned
from autotm.rivals.cell import OURS
from autotm.rivals.exact import exactly
from autotm.rivals.largest import Task, Trial, largest


def run(config: Config, out: RecordWriter) -> None:
    """Every trial and the largest success, for each budget."""
    network, first = named(config.network, TRAINED)
    if config.device == "cpu" and not network.startswith("small-"):
        cannot_run("largest_batch needs a GPU; fix: --device cuda, or a network small-*")
    if config.device == "cuda" and not torch.cuda.is_available():
        cannot_run("PyTorch sees no GPU; fix: --device cpu with a network small-*")
    exactly()
    names = dict.fromkeys(("plain", *config.systems))
    progress = Progress(len(config.budgets_gb) * len(names))
    for budget in config.budgets_gb:
        cap = int(budget * 1e9)
        there = torch.cuda.mem_get_info()[1] if config.device == "cuda" else cap
        if cap > there:
            out.skip({"budget": f"{budget:g}"}, f"the GPU has {there / 1e9:.1f} GB")
            continue
        task = Task(
            network, config.device, config.precision, cap, torch.nn.functional.cross_entropy,
            planner=once_planned(config.solver_seconds, config.gap), knobs=config.knobs,
        )  # fmt: skip
        plain: Trial | None = None
        for name in names:
            labels = {"variant": name, "budget": f"{budget:g}"}
            if name != "plain" and plain is None and not config.sample_seconds:
                out.skip(labels, "no batch of the plain step fits, so no time per sample is known; "
                         "fix: --sample-seconds")  # fmt: skip
                continue
            start = 2 * plain.batch if plain is not None else first
            best = _largest(out, task, name, start, config.resolution, labels)
            if name == "plain":
                plain = best
                seconds = config.slower * best.seconds if best else config.sample_seconds
                task = replace(task, limit=seconds)
            elif plain is not None:
                gain = best.batch / plain.batch if best is not None else 0.0
                out.write("batch_gain", "1", [gain], labels, "measured")
            progress.step(f"{budget:g} GB {name}")


def _largest(
    out: RecordWriter, task: Task, name: str, start: int, resolution: float,
    labels: dict[str, str],
) -> Trial | None:  # fmt: skip
    """The largest success; every trial is written as soon as it is known."""

    def attempt(batch: int) -> Trial:
        trial = task.attempt(name)(batch)
        own = {**labels, "batch": str(batch)}
        if trial.peak:
            note = trial.why or None
            out.write("trial_peak", "GB", [trial.peak / 1e9], own, "measured", note=note)
            out.write("sample_time", "s", [trial.seconds], own, "measured", note=note)
            if name == OURS and not trial.why:  # else they were not compared
                out.write("unsteady", "1", [trial.unsteady], own, "measured")
        else:
            out.skip(own, trial.why)
        return trial

    cap = task.cap if name == "plain" else 0
    best, tried = largest(attempt, start, resolution, cap)
    if best is None:
        out.skip(labels, f"not even {tried[-1].batch} succeeds: {tried[-1].why}")
    else:
        out.write("largest_batch", "1", [best.batch], labels, "measured")
    return best

"""Figure 11, emulated: what the formulations predict against what an iteration takes.

Kernels and copies are real and run on this host's CPU; slow memory is DRAM with delays.
"""

from __future__ import annotations

import torch
from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from autotm.config import RATIOS, Config
from autotm.networks.catalogue import footprint
from autotm.networks.modules import module
from autotm.planner.model import NoPlan
from autotm.planner.paper import Allocated, allocated, at_ratio
from autotm.sim.emulated import Emulated

LAYERS, WIDTH = 4, 4096  # of the perceptron, as in the artifact's example


def run(config: Config, out: RecordWriter) -> None:
    """Predicted and measured time of every formulation and ratio, and the signed error."""
    try:
        net, sample = _module(config.network)
    except ValueError as error:
        cannot_run(str(error))
    host = config.hosts[0]
    there = Emulated(net, sample, host)
    out.write("profile_time", "s", [there.profile_seconds], {}, "measured")
    out.write("iteration_time", "s", there.measure(), {"variant": "DRAM", "ratio": "any"},
              "measured")  # fmt: skip
    progress = Progress(len(config.ratios) * len(config.variants))
    for ratio in config.ratios:
        for variant in config.variants:
            labels = {"variant": variant, "ratio": ratio}
            try:
                found = _planned(config, there, RATIOS[ratio], static=variant == "Static")
            except NoPlan as error:
                out.skip(labels, str(error))
            else:
                times = there.measure(found.placement)
                said, took = found.placement.seconds, min(times)
                out.write("iteration_time", "s", times, labels, "emulated")
                out.write("predicted_time", "s", [said], labels, "emulated")
                out.write("prediction_error", "%", [100 * (said / took - 1)], labels, "emulated")
            progress.step(f"{ratio} {variant}")


def _module(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A network that can be run, and a sample. Raises ValueError."""
    if not name.startswith("perceptron_"):
        return module(name, "cpu")
    batch = int(name.removeprefix("perceptron_"))
    layers = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(LAYERS)]
    sample = torch.randn(batch, WIDTH), torch.randint(0, WIDTH, (batch,))
    return torch.nn.Sequential(*(each for layer in layers for each in layer)), sample


def _planned(config: Config, there: Emulated, share: float, *, static: bool) -> Allocated:
    pool = footprint(there.graph).pool
    room, limit, gap = int(share * pool), config.solver_seconds, config.gap
    machine = there.host.machine(room)
    if 0 < share < 1:
        return at_ratio(
            there.graph, machine, pool, 1 / share - 1, static=static, seconds=limit, gap=gap
        )
    return allocated(there.graph, machine, room, static=static, seconds=limit, gap=gap, retries=0)

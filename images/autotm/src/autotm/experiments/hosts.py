"""One iteration on a simulated host under each policy: what the host's experiments share."""

from __future__ import annotations

from collections.abc import Mapping

from reprokit.records import RecordWriter

from autotm.config import Config
from autotm.graph import Graph
from autotm.planner.formulations import Placement, TwoTiers
from autotm.planner.model import NoPlan
from autotm.sim.baselines import first_touch
from autotm.sim.tiers import Host, all_slow

FORMULATIONS = ("Static", "Synchronous")


def iteration(
    config: Config, out: RecordWriter, graph: Graph, host: Host, variant: str, room: int,
    labels: Mapping[str, object],
) -> None:  # fmt: skip
    """Write the records of `variant` with `room` bytes of DRAM for activations and gradients."""
    named = {**labels, "variant": variant}
    if variant in FORMULATIONS:
        machine = host.machine(room)
        try:
            placed = TwoTiers(graph, machine, room, static=variant == "Static").solve(
                config.solver_seconds, config.gap
            )
        except NoPlan as error:
            out.skip(named, str(error))
            return
        _write(out, graph, placed, named)
        return
    seconds = {
        "DRAM": lambda: graph.seconds,
        "PMM": lambda: all_slow(graph),
        "NUMA": lambda: first_touch(graph, room),
    }[variant]()
    out.write("iteration_time", "s", [seconds], named, "simulated")


def _write(out: RecordWriter, graph: Graph, placed: Placement, labels: dict[str, object]) -> None:
    away, back = placed.moved(graph)
    read, written = placed.shares(graph)
    gap = 1 - placed.bound / placed.seconds if placed.seconds else 0.0
    for metric, unit, value, evidence in (
        ("iteration_time", "s", placed.seconds, "simulated"),
        ("gap", "%", 100 * max(gap, 0.0), "simulated"),
        ("solve_time", "s", placed.solve_seconds, "measured"),
        ("moved_out", "GB", away / 1e9, "simulated"),
        ("moved_in", "GB", back / 1e9, "simulated"),
        ("inputs_in_dram", "1", read, "simulated"),
        ("outputs_in_dram", "1", written, "simulated"),
    ):
        out.write(metric, unit, [value], labels, evidence)  # type: ignore[arg-type]

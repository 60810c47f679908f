"""One iteration on a simulated host under each policy: what the host's experiments share."""

from __future__ import annotations

from collections.abc import Mapping

from reprokit.records import RecordWriter

from autotm.config import Config
from autotm.graph import Graph
from autotm.networks.catalogue import footprint
from autotm.planner.model import NoPlan
from autotm.planner.paper import RETRIES, Allocated, allocated, at_ratio
from autotm.sim.baselines import first_touch
from autotm.sim.tiers import Host, all_slow

FORMULATIONS = ("Static", "Synchronous")


def iteration(
    config: Config, out: RecordWriter, graph: Graph, host: Host, variant: str, room: int,
    labels: Mapping[str, object], share: float | None = None,
) -> None:  # fmt: skip
    """Write the records of `variant` with `room` bytes of DRAM for activations and gradients.

    share: of DRAM; the formulations are then solved until their pools have this share.
    """
    named = {**labels, "variant": variant}
    if variant in FORMULATIONS:
        try:
            found = _allocated(config, graph, host, room, share, static=variant == "Static")
        except NoPlan as error:
            out.skip(named, str(error))
        else:
            _write(out, graph, found, named)
        return
    seconds = {
        "DRAM": lambda: graph.seconds,
        "PMM": lambda: all_slow(graph),
        "NUMA": lambda: first_touch(graph, room),
    }[variant]()
    out.write("iteration_time", "s", [seconds], named, "simulated")


def _allocated(
    config: Config, graph: Graph, host: Host, room: int, share: float | None, *, static: bool
) -> Allocated:
    machine, limit, gap = host.machine(room), config.solver_seconds, config.gap
    if share is None or not 0 < share < 1:
        retries = RETRIES if room < footprint(graph).pool else 0
        return allocated(
            graph, machine, room, static=static, seconds=limit, gap=gap, retries=retries
        )
    pool, ratio = footprint(graph).pool, 1 / share - 1
    return at_ratio(graph, machine, pool, ratio, static=static, seconds=limit, gap=gap)


def _write(out: RecordWriter, graph: Graph, found: Allocated, labels: dict[str, object]) -> None:
    placed = found.placement
    away, back = placed.moved(graph)
    read, written = placed.shares(graph)
    gap = 1 - placed.bound / placed.seconds if placed.seconds else 0.0
    for metric, unit, value, evidence in (
        ("iteration_time", "s", placed.seconds, "simulated"),
        ("gap", "%", 100 * max(gap, 0.0), "simulated"),
        ("solve_time", "s", sum(found.solves), "measured"),
        ("retries", "1", len(found.solves) - 1, "simulated"),
        ("refinements", "1", found.refinements, "simulated"),
        ("pool_dram", "GB", found.fast / 1e9, "simulated"),
        ("pool_pmm", "GB", found.slow / 1e9, "simulated"),
        (
            "pool_over",
            "%",
            100 * max(found.fast / found.room - 1, 0) if found.room else 0.0,
            "simulated",
        ),
        ("moved_out", "GB", away / 1e9, "simulated"),
        ("moved_in", "GB", back / 1e9, "simulated"),
        ("inputs_in_dram", "1", read, "simulated"),
        ("outputs_in_dram", "1", written, "simulated"),
    ):
        out.write(metric, unit, [value], labels, evidence)  # type: ignore[arg-type]

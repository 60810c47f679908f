"""Plans for a GPU with too little memory: the paper's formulations, ours, and parts of ours."""

from __future__ import annotations

import time
from dataclasses import replace

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from autotm.check import check
from autotm.config import Config
from autotm.graph import Graph, Machine, Plan
from autotm.networks.catalogue import build
from autotm.planner import ours, paper
from autotm.planner.model import NoPlan
from autotm.sim.paging import managed
from autotm.sim.tiers import timed_on_gpu


def run(config: Config, out: RecordWriter) -> None:
    """Every variant at every cap; a plan counts when the replay finds nothing wrong with it.

    `planned` is 1 where one was found, else 0.
    """
    graph = timed_on_gpu(build(config.network), config.gpu)
    out.write("iteration_time", "s", [graph.seconds], {"variant": "uncapped"}, "simulated")
    caps = config.capacities(graph.peak_bytes)
    progress = Progress(len(caps) * len(config.variants))
    for cap, capacity in caps.items():
        machine = Machine(capacity, config.gpu.link, config.gpu.link)
        for variant in config.variants:
            labels = {"variant": variant, "cap": cap}
            if variant == "Managed":
                _managed(config, out, graph, capacity, labels)
                progress.step(f"{cap} {variant}")
                continue
            began = time.perf_counter()
            try:
                plan = planned(config, graph, machine, variant)
            except NoPlan as error:
                out.skip(labels, str(error))
                out.write("planned", "1", [0.0], labels, "simulated")
            else:
                out.write("planned", "1", [1.0], labels, "simulated")
                _write(out, graph, machine, plan, labels, time.perf_counter() - began)
            progress.step(f"{cap} {variant}")


def _managed(
    config: Config, out: RecordWriter, graph: Graph, capacity: int, labels: dict[str, str]
) -> None:
    """Managed memory for each cost of a fault: the label `fault`, in us."""
    for fault in config.fault:
        named = {**labels, "fault": f"{fault:g}"}
        found = managed(graph, config.gpu, capacity, fault * 1e-6)
        out.write("iteration_time", "s", [found.seconds], named, "simulated")
        out.write("moved_in", "GB", [found.came / 1e9], named, "simulated")
        out.write("moved_out", "GB", [found.went / 1e9], named, "simulated")


def planned(config: Config, graph: Graph, machine: Machine, variant: str) -> Plan:
    """The plan of one variant. Raises NoPlan."""
    seconds, gap = config.solver_seconds, config.gap
    if variant == "Synchronous":
        return paper.plan(graph, machine, "synchronous", seconds=seconds, gap=gap)
    if variant == "Asynchronous":
        return _asynchronous(config, graph, machine)
    limits = ours.limits_for(graph, machine)
    if variant == "OursOffload":
        limits = replace(limits, depth=0)
    if variant == "OursRecompute":
        limits = replace(limits, offload=False)
    if variant == "OursHalfDuplex":
        machine = replace(machine, duplex=False)
    planner = ours.outside if variant == "OursOutside" else ours.plan
    return planner(graph, machine, limits, seconds=seconds, gap=gap)


def _asynchronous(config: Config, graph: Graph, machine: Machine) -> Plan:
    """The faster of two plans: a large window's may be the worse one when its time is over."""
    found, problem = list[Plan](), NoPlan("no plan was found in time")
    for window in sorted({-(-config.window // 3), config.window}):
        try:
            found.append(
                paper.plan(
                    graph, machine, "asynchronous", seconds=config.solver_seconds,
                    gap=config.gap, window=window,
                )
            )  # fmt: skip
        except NoPlan as error:
            problem = error
    if not found:
        raise problem
    return min(found, key=lambda plan: plan.seconds)


def _write(
    out: RecordWriter, graph: Graph, machine: Machine, plan: Plan, labels: dict[str, str],
    spent: float,
) -> None:  # fmt: skip
    ran = check(graph, machine, plan)
    for metric, unit, value, evidence in (
        ("iteration_time", "s", plan.seconds, "simulated"),
        ("bound", "s", plan.bound, "simulated"),
        ("gap", "%", 100 * plan.gap, "simulated"),
        ("solve_time", "s", spent, "measured"),
        ("peak", "GB", plan.peak_bytes / 1e9, "simulated"),
        ("moved_out", "GB", ran.out_bytes / 1e9, "simulated"),
        ("moved_in", "GB", ran.in_bytes / 1e9, "simulated"),
        ("recomputed", "s", ran.recompute_seconds, "simulated"),
        ("retries", "1", plan.notes.get("retries", 0.0), "simulated"),
    ):
        out.write(metric, unit, [value], labels, evidence)  # type: ignore[arg-type]

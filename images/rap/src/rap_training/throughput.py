"""Throughput of variants, measured in turns; what rank 0 tells of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from rap_training.busy import batch_of
from rap_training.gating import choose_way
from rap_training.measure import LEAST, alone_us, sample, training_us
from rap_training.planner.shortfall import ENOUGH, why_below
from rap_training.rank import CannotRun, Rank
from rap_training.sharing.green import GreenError
from rap_training.sharing.preparation import Preparation
from rap_training.sharing.variants import STEPS, VARIANTS
from rap_training.sharing.workers import FromWorkers

_SECONDS = 1.0  # that a slow variant's sample lasts at most
_SWEEPS = 3  # samples of every number of workers; their median decides
_AS_FAST = 0.995  # of the fastest number of workers


def compare(rank: Rank, names: Sequence[str]) -> None:
    """Throughput of the variants `names`, in turns and in random order (figures 9 and 10)."""
    _say_what_is_measured(rank)
    found = measure(rank, names)
    for name, seconds in found.items():
        tell_throughput(rank, name, seconds)
    _tell_gains(rank, found)
    _tell_shares(rank, names, found)
    tell_shortfall(rank, found)


def measure(rank: Rank, names: Sequence[str]) -> dict[str, list[float]]:
    """Seconds an iteration takes on the slowest rank, a sample a repeat, of every variant."""
    config = rank.config
    ready: dict[str, Preparation] = {}
    for name in names:
        variant = VARIANTS[name]
        rank.tell("progress", words=f"preparing {name}")
        try:
            ready[name] = rank.preparation(variant)
        except (CannotRun, GreenError) as error:
            rank.tell("skip", labels={**rank.labels, "variant": name}, reason=str(error))
            continue
        if variant.chooses:
            clock = partial(_iteration_us, rank, name)
            ready[name] = choose_way(rank, variant, ready[name], clock)
        if isinstance(way := ready[name], FromWorkers):
            _sweep_workers(rank, way)
    counts = {name: _iterations(rank, name, ready[name]) for name in ready}
    rank.tell("measuring")  # every process has used its GPU by now
    found: dict[str, list[float]] = {name: [] for name in ready}
    for repeat in range(config.repeats):
        order = list(ready)
        random.Random(config.seed * 1000 + repeat).shuffle(order)
        for name in order:
            seconds = sample(rank, name, ready[name], config.warmup, counts[name])
            found[name].append(seconds / counts[name])
            rank.tell("step", words=f"{name}, repeat {repeat + 1}")
    return found


def _iteration_us(rank: Rank, name: str, way: str, preparation: Preparation) -> float:
    del way  # the rank knows what it runs as
    count = min(LEAST, rank.config.iterations)
    warmup = min(rank.config.warmup, count)
    return 1e6 * sample(rank, name, preparation, warmup, count) / count


def _iterations(rank: Rank, name: str, preparation: Preparation) -> int:
    """Iterations of a sample: as configured, fewer where a variant is slow."""
    first = min(LEAST, rank.config.iterations)
    seconds = sample(rank, name, preparation, min(rank.config.warmup, first), first) / first
    affordable = max(LEAST, int(_SECONDS / seconds))
    return min(rank.config.iterations, affordable)


def _sweep_workers(rank: Rank, preparation: FromWorkers) -> None:
    """Try every number of workers, on batches that are not measured, and keep the most of those
    that are as fast as any: a few that just keep up fall behind as soon as the host is slower."""
    workers = rank.workers
    assert workers
    labels = {**rank.labels, "variant": "cpu"}
    on = "other batches than the measured" if rank.tuning else "the measured batches: no others"
    first = min(LEAST, rank.config.iterations)
    best: dict[int, float] = {}
    preparation.tuning = True
    for count in sorted({min(count, workers.count) for count in rank.config.workers}):
        preparation.used = count
        rates = [
            rank.config.batch * rank.world * first
            / sample(rank, "cpu", preparation, min(2 * count + 2, LEAST), first)
            for _ in range(_SWEEPS)
        ]  # fmt: skip
        best[count] = median(rates)
        rank.tell(
            "record", metric="workers_throughput", unit="samples/s", samples=rates,
            labels={**labels, "workers": count}, note=f"workers a GPU, the sweep before, on {on}",
        )  # fmt: skip
    preparation.tuning = False
    fastest = max(best.values())
    preparation.used = max(count for count, rate in best.items() if rate >= _AS_FAST * fastest)
    rank.tell(
        "record", metric="workers_chosen", unit="1", samples=[float(preparation.used)],
        labels=labels, note="workers a GPU: the most of those that were as fast as any",
    )  # fmt: skip


def tell_throughput(rank: Rank, name: str, seconds: Sequence[float]) -> None:
    """Records of `throughput` and `iteration_time` from seconds an iteration."""
    rows = rank.config.batch * rank.world
    named = {**rank.labels, "variant": name}
    note = describe(rank, name)
    rank.tell(
        "record", metric="throughput", unit="samples/s", samples=[rows / each for each in seconds],
        labels=named, warmup=rank.config.warmup, note=note,
    )  # fmt: skip
    rank.tell(
        "record", metric="iteration_time", unit="ms", samples=[1e3 * each for each in seconds],
        labels=named, warmup=rank.config.warmup,
    )  # fmt: skip


def _tell_gains(rank: Rank, found: Mapping[str, Sequence[float]]) -> None:
    """What each part of RAP brings: throughput with it over that without it, round by round."""
    for part, before, after in STEPS:
        if before not in found or after not in found or (part == "mapping" and rank.world == 1):
            continue
        gains = [old / new for old, new in zip(found[before], found[after], strict=True)]
        rank.tell(
            "record", metric="gain", unit="1", samples=gains,
            labels={**rank.labels, "variant": after, "part": part},
            note=f"{after} over {before}, in turns in one process",
        )  # fmt: skip


def _tell_shares(rank: Rank, names: Sequence[str], found: Mapping[str, Any]) -> None:
    """Time of preprocessing by itself, and over that of training by itself, per way of fusing."""
    training = training_us(rank)
    for name in ("sequential", "sequential_graph", "sequential_fused", "rap_plus"):
        if name not in names or name not in found:
            continue
        alone = alone_us(rank, rank.run_as(name))
        for metric, unit, value in (
            ("preprocessing_time", "us", alone),
            ("preprocessing_share", "1", alone / training),
        ):
            rank.tell(
                "record", metric=metric, unit=unit, samples=[value],
                labels={**rank.labels, "variant": name},
                note="by itself, batches in a row, launches included",
            )  # fmt: skip


def tell_shortfall(rank: Rank, found: Mapping[str, Sequence[float]]) -> None:
    """How much work RAP and RAP+ are for the GPU, against what training hides; and why they are
    below ENOUGH of training alone, where they are: words, fact, record."""
    there = [name for name in ("rap", "rap_plus") if name in found and "ideal" in found]
    stages = [probe.cost() for probe in rank.stage_probes] if there else []
    for name in there:
        labels = {**rank.labels, "variant": name}
        batch = batch_of(rank, rank.run_as(name))
        for metric, value, note in (
            ("gpu_work", rank.collectives.largest(batch.busy_us, rank.device),
             "kernels of a batch's preprocessing by themselves, on the busiest rank"),
            ("idle_capacity", sum(stage.capacity_us for stage in stages),
             "preprocessing that the stages of a training step hide, found by probes"),
        ):  # fmt: skip
            rank.tell("record", metric=metric, unit="us", samples=[value], labels=labels, note=note)
        ours, ideal = (1e6 * median(found[each]) for each in (name, "ideal"))
        if ideal / ours >= ENOUGH:
            continue
        reason = why_below(ours, ideal, batch, stages)
        shares = [alone / beside for alone, beside in zip(found["ideal"], found[name], strict=True)]
        rank.tell("progress", words=f"{name}: {reason}")
        rank.tell_fact(f"{name}_below_ideal", reason)
        rank.tell(
            "record", metric="share_of_ideal", unit="1", samples=shares, labels=labels, note=reason
        )


def _say_what_is_measured(rank: Rank) -> None:
    rank.tell("fact", name="tables_bytes", value=[int(load) for load in rank.placement.load])
    rank.tell("fact", name="home", value=list(rank.home))
    if rank.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(rank.device)
        rank.tell("fact", name="gpu_memory_free", value=[free, total])


def describe(rank: Rank, name: str) -> str:
    """A note for a record: what a variant is."""
    config, variant = rank.config, rank.run_as(name)
    words = [
        f"as the variant {variant.name}" if variant.name != name else "",
        {"none": "input prepared beforehand", "serial": "one lane",
         "line": "one lane, copies beside it",
         "side": f"beside training{f', from {variant.begins} on' if variant.begins else ''}",
         "stages": f"gated by {'steps' if config.trainer == 'torchrec' else 'training stages'}",
         "process": "a second process",
         "workers": "processes on the CPU"}[variant.place],
        f"{variant.fusion} fusion" if variant.place not in ("none", "workers") else "",
        "MPS" if variant.mps else "",
        "one CUDA graph with the training step" if rank.one_graph(variant) else "",
        "CUDA graph" if variant.graph and not rank.one_graph(variant) else "",
        "one launch after another" if variant.graph and not variant.branches else "",
        "green context" if variant.green else "",
        "training has priority" if variant.priority and variant.place != "none" else "",
        "synchronised as in the artifact" if variant.synchronise or variant.barrier else "",
        f"trainer {config.trainer}, {config.matmul}, input {config.loader}",
    ]  # fmt: skip
    return "; ".join(word for word in words if word)

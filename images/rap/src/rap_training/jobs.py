"""What the ranks of a session do: measure variants, kernels, stages, ratios, a timeline."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rap_training.measure import settle, train
from rap_training.planner.latency import Accuracy, LatencyModel, shapes
from rap_training.rank import CannotRun, Rank
from rap_training.sharing import probes
from rap_training.sharing.green import GreenError
from rap_training.sharing.preparation import Preparation
from rap_training.sharing.variants import VARIANTS, Variant
from rap_training.sharing.workers import FromWorkers

_SECONDS = 1.0  # that a slow variant's sample lasts at most
_LEAST = 20  # iterations of a sample
_ALONE = 50  # iterations of preprocessing by itself
_GAIN = 1.05  # more workers must bring at least this


def throughput(rank: Rank, names: Sequence[str]) -> None:
    """Throughput of the variants `names`, in turns and in random order (figures 9 and 10)."""
    _say_what_is_measured(rank)
    found = measure(rank, names)
    labels = rank.config.labels
    for name, seconds in found.items():
        _tell_throughput(rank, name, seconds, labels)
    _tell_shares(rank, names, found, labels)


def measure(
    rank: Rank, names: Sequence[str], extra: Mapping[str, str] | None = None
) -> dict[str, list[float]]:
    """Seconds an iteration takes on the slowest rank, a sample a repeat, of every variant."""
    config = rank.config
    ready: dict[str, Preparation] = {}
    for name in names:
        variant = VARIANTS[name]
        rank.tell("progress", words=f"preparing {name}")
        try:
            ready[name] = rank.preparation(variant)
        except (CannotRun, GreenError) as error:
            rank.tell(
                "skip", labels={**config.labels, **(extra or {}), "variant": name},
                reason=str(error),
            )  # fmt: skip
            continue
        if isinstance(ready[name], FromWorkers):
            _sweep_workers(rank, ready[name])
    counts = {name: _iterations(rank, name, ready[name]) for name in ready}
    rank.tell("measuring")  # every process has used its GPU by now
    found: dict[str, list[float]] = {name: [] for name in ready}
    for repeat in range(config.repeats):
        order = list(ready)
        random.Random(config.seed * 1000 + repeat).shuffle(order)
        for name in order:
            seconds = _sample(rank, name, ready[name], config.warmup, counts[name])
            found[name].append(seconds / counts[name])
            rank.tell("step", words=f"{name}, repeat {repeat + 1}")
    return found


def predictor(rank: Rank, names: Sequence[str]) -> None:
    """The latency predictor's training and its error on what it has not seen."""
    config = rank.config
    batch = config.batch
    asked = shapes([batch, 2 * batch, 4 * batch], seed=config.seed)
    if rank.device.type == "cpu":
        asked = tuple(probes.few(asked, 20))
    rank.tell("total", steps=len(asked))
    model = LatencyModel.fit(
        probes.measure_latencies(
            asked, rank.backend, rank.device, lambda: rank.tell("step", words="kernel")
        ),
        seed=config.seed,
    )
    parts = list(model.accuracy())
    for split in ("test", "train"):
        of_split = [part for part in parts if part.split == split]
        count = sum(part.count for part in of_split)
        share = sum(part.share * part.count for part in of_split) / count
        parts.append(Accuracy("all", split, share, count))
    for part in parts:
        rank.tell(
            "record", metric="within_10_percent", unit="%", samples=[100.0 * part.share],
            labels={"family": part.family, "split": part.split}, note=f"of {part.count} kernels",
        )  # fmt: skip
    for pair in model.pairs:
        shape = pair.shape
        labels = {
            "family": shape.family, "op": shape.op, "rows": shape.rows, "width": shape.width,
            "fused": shape.fused, "split": pair.split,
        }  # fmt: skip
        rank.tell("record", metric="latency", unit="us", samples=[pair.us], labels=labels)
        rank.tell(
            "record", metric="prediction", unit="us", samples=[pair.predicted_us], labels=labels,
            evidence="simulated", note="by boosted trees trained on the other kernels",
        )  # fmt: skip


def capacity(rank: Rank, names: Sequence[str]) -> None:
    """Time of every training stage and the preprocessing that fits beside it."""
    for probe in rank.stage_probes:
        labels = {**rank.config.labels, "stage": probe.stage}
        for metric, unit, value in (
            ("stage_time", "us", probe.us),
            ("capacity", "us", probe.capacity_us),
            ("probes", "1", float(probe.capacity.probes)),
        ):
            rank.tell(
                "record", metric=metric, unit=unit, samples=[value], labels=labels,
                note=f"probes of {probe.probe_us:.2f} us, slowdown below 7 %, times 0.8",
            )  # fmt: skip


def ratio(rank: Rank, names: Sequence[str]) -> None:
    """Throughput over the ratio of preprocessing to training: where does sharing stop paying?"""
    from rap_training.ratios import plans

    for target, plan in plans(rank):
        rank.use(plan)
        share = alone_us(rank, VARIANTS["sequential"]) / training_us(rank)
        labels = {**rank.config.labels, "ratio": f"{target:.2f}"}
        found = measure(rank, names, {"ratio": labels["ratio"]})
        rank.tell(
            "record", metric="measured_ratio", unit="1", samples=[share], labels=labels,
            note="unfused preprocessing by itself over training by itself",
        )  # fmt: skip
        for name, seconds in found.items():
            _tell_throughput(rank, name, seconds, labels)


def timeline(rank: Rank, names: Sequence[str]) -> None:
    """What runs beside what in one iteration of every variant."""
    from rap_training.timeline import spans

    for name in names:
        try:
            preparation = rank.preparation(VARIANTS[name])
        except (CannotRun, GreenError) as error:
            rank.tell("skip", labels={**rank.config.labels, "variant": name}, reason=str(error))
            continue
        for index, span in enumerate(spans(rank, VARIANTS[name], preparation)):
            rank.tell(
                "record", metric="span", unit="us", samples=[span.start, span.end],
                labels={**rank.config.labels, "variant": name, "lane": span.lane,
                        "name": span.name, "index": index},
            )  # fmt: skip


def alone_us(rank: Rank, variant: Variant) -> float:
    """Time in us that the preprocessing of a batch takes by itself, launches included."""
    steps = rank.steps_alone(variant)
    lane = rank.lanes(False)[0]
    for number in range(4):
        lane.submit(lambda n=number: steps.all(n))  # type: ignore[misc]
    settle(rank.device, rank.collectives)
    start = time.perf_counter()
    count = min(_ALONE, rank.config.iterations)
    for number in range(count):
        lane.submit(lambda n=number: steps.all(n))  # type: ignore[misc]
    settle(rank.device, rank.collectives)
    return rank.collectives.largest(1e6 * (time.perf_counter() - start) / count, rank.device)


def training_us(rank: Rank) -> float:
    """Time in us of an iteration of `ideal`."""
    preparation = rank.preparation(VARIANTS["ideal"])
    count = min(2 * _LEAST, rank.config.iterations)
    seconds = _sample(rank, "ideal", preparation, min(_LEAST, rank.config.warmup), count)
    return 1e6 * seconds / count


def _sample(rank: Rank, name: str, preparation: Preparation, warmup: int, count: int) -> float:
    variant = VARIANTS[name]
    return train(
        rank.trainer, preparation, rank.lanes(variant.priority)[0], rank.collectives,
        warmup=warmup, iterations=count, barrier=variant.barrier,
    )  # fmt: skip


def _iterations(rank: Rank, name: str, preparation: Preparation) -> int:
    """Iterations of a sample: as configured, fewer where a variant is slow."""
    first = min(_LEAST, rank.config.iterations)
    seconds = _sample(rank, name, preparation, min(rank.config.warmup, first), first) / first
    affordable = max(_LEAST, int(_SECONDS / seconds))
    return min(rank.config.iterations, affordable)


def _sweep_workers(rank: Rank, preparation: FromWorkers) -> None:
    """As many workers as still bring more, every count's throughput recorded."""
    workers = rank.workers
    assert workers
    best = 0.0
    chosen = 1
    for count in sorted({min(count, workers.count) for count in rank.config.workers}):
        preparation.used = count
        first = min(_LEAST, rank.config.iterations)
        seconds = _sample(rank, "cpu", preparation, min(2 * count + 2, _LEAST), first) / first
        rate = rank.config.batch * rank.world / seconds
        rank.tell(
            "record", metric="workers_throughput", unit="samples/s", samples=[rate],
            labels={**rank.config.labels, "variant": "cpu", "workers": count},
            note="workers a GPU, the sweep before the measurement",
        )  # fmt: skip
        if rate < best * _GAIN:
            break
        best, chosen = rate, count
    preparation.used = chosen
    rank.tell("fact", name="cpu_workers", value=chosen)


def _tell_throughput(
    rank: Rank, name: str, seconds: Sequence[float], labels: Mapping[str, str]
) -> None:
    rows = rank.config.batch * rank.world
    named = {**labels, "variant": name}
    note = describe(rank, VARIANTS[name])
    rank.tell(
        "record", metric="throughput", unit="samples/s", samples=[rows / each for each in seconds],
        labels=named, warmup=rank.config.warmup, note=note,
    )  # fmt: skip
    rank.tell(
        "record", metric="iteration_time", unit="ms", samples=[1e3 * each for each in seconds],
        labels=named, warmup=rank.config.warmup,
    )  # fmt: skip


def _tell_shares(
    rank: Rank, names: Sequence[str], found: Mapping[str, Any], labels: Mapping[str, str]
) -> None:
    """Time of preprocessing by itself, and over that of training by itself, per way of fusing."""
    training = training_us(rank)
    for name in ("sequential", "sequential_fused", "rap_plus"):
        if name not in names or name not in found:
            continue
        alone = alone_us(rank, VARIANTS[name])
        for metric, unit, value in (
            ("preprocessing_time", "us", alone),
            ("preprocessing_share", "1", alone / training),
        ):
            rank.tell(
                "record", metric=metric, unit=unit, samples=[value],
                labels={**labels, "variant": name},
                note="by itself, batches in a row, launches included",
            )  # fmt: skip


def _say_what_is_measured(rank: Rank) -> None:
    rank.tell("fact", name="tables_bytes", value=[int(load) for load in rank.placement.load])
    rank.tell("fact", name="home", value=list(rank.home))
    if rank.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(rank.device)
        rank.tell("fact", name="gpu_memory_free", value=[free, total])


def describe(rank: Rank, variant: Variant) -> str:
    """A note for a record: what a variant is."""
    config = rank.config
    words = [
        {"none": "input prepared beforehand", "serial": "one lane", "side": "beside training",
         "stages": f"gated by {'steps' if config.trainer == 'torchrec' else 'training stages'}",
         "process": "a second process",
         "workers": "processes on the CPU"}[variant.place],
        f"{variant.fusion} fusion" if variant.place not in ("none", "workers") else "",
        "MPS" if variant.mps else "",
        "CUDA graph" if variant.graph else "",
        "green context" if variant.green else "",
        "training has priority" if variant.priority and variant.place != "none" else "",
        "synchronised as in the artifact" if variant.synchronise or variant.barrier else "",
        f"trainer {config.trainer}, {config.matmul}, input {config.loader}",
    ]  # fmt: skip
    return "; ".join(word for word in words if word)

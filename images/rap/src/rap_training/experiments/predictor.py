"""The latency predictor: its training, and its error on what it has not seen."""

from __future__ import annotations

from collections.abc import Sequence

from reprokit.records import RecordWriter

from rap_training.config import Config
from rap_training.planner.latency import FAMILIES, HeldOut, LatencyModel, shapes
from rap_training.rank import Rank
from rap_training.sessions import run_sessions
from rap_training.sharing import probes


def run(config: Config, out: RecordWriter) -> None:
    """Start the sessions and write their records."""
    run_sessions(config, out, on_rank)


def on_rank(rank: Rank, names: Sequence[str]) -> None:
    """Measure kernels, train on most of them, predict the others."""
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
    for (family, split), hits in hits_of(model.pairs).items():
        rank.tell(
            "record", metric="predicted_within_10_percent", unit="1", samples=hits,
            labels={"family": family, "split": split}, note="1 or 0 for each kernel",
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


def hits_of(pairs: Sequence[HeldOut]) -> dict[tuple[str, str], list[float]]:
    """For every kernel 1 where it is predicted within 10 %, else 0, by family and split.

    The family `all` is of all kernels; a family without kernels in a split is left out.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for family in (*FAMILIES, "all"):
        for split in ("train", "test"):
            hits = [
                float(pair.within)
                for pair in pairs
                if family in (pair.shape.family, "all") and pair.split == split
            ]
            if hits:
                found[family, split] = hits
    return found

"""The latency predictor: its training, and its error on what it has not seen."""

from __future__ import annotations

from collections.abc import Sequence

from reprokit.records import RecordWriter

from rap_training.config import Config
from rap_training.planner.latency import Accuracy, LatencyModel, shapes
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

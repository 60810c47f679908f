"""The latency predictor's error on what it has not seen: ten-fold cross-validation."""

from __future__ import annotations

from collections.abc import Sequence

from reprokit.records import RecordWriter

from rap_training.config import Config
from rap_training.planner.latency import FAMILIES, HeldOut, cross_validated, shapes
from rap_training.rank import Rank
from rap_training.sessions import run_sessions
from rap_training.sharing import probes

SPLIT = "test"  # as opposed to older records of kernels that were learnt from


def run(config: Config, out: RecordWriter) -> None:
    """Start the sessions and write their records."""
    run_sessions(config, out, on_rank)


def on_rank(rank: Rank, names: Sequence[str]) -> None:
    """Measure kernels; predict each by a model of nine tenths of the others."""
    config = rank.config
    batch = config.batch
    asked = shapes([batch, 2 * batch, 4 * batch], seed=config.seed)
    if rank.device.type == "cpu":
        asked = tuple(probes.few(asked, 20))
    rank.tell("total", steps=len(asked))
    measured = probes.measure_latencies(
        asked, rank.backend, rank.device, lambda: rank.tell("step", words="kernel")
    )
    pairs = cross_validated(measured, seed=config.seed)
    for family, hits in hits_of(pairs).items():
        rank.tell(
            "record", metric="predicted_within_10_percent", unit="1", samples=hits,
            labels={"family": family, "split": SPLIT}, note="1 or 0 for each kernel",
        )  # fmt: skip
    for pair in pairs:
        shape = pair.shape
        labels = {
            "family": shape.family, "op": shape.op, "rows": shape.rows, "width": shape.width,
            "fused": shape.fused, "split": SPLIT,
        }  # fmt: skip
        rank.tell("record", metric="latency", unit="us", samples=[pair.us], labels=labels)
        rank.tell(
            "record", metric="prediction", unit="us", samples=[pair.predicted_us], labels=labels,
            evidence="simulated", note="by boosted trees trained on nine tenths of the others",
        )  # fmt: skip


def hits_of(pairs: Sequence[HeldOut]) -> dict[str, list[float]]:
    """For every kernel 1 where it is predicted within 10 %, else 0, by family.

    The family `all` is of all kernels; a family without kernels is left out.
    """
    hits = {
        family: [float(p.within) for p in pairs if family in (p.shape.family, "all")]
        for family in (*FAMILIES, "all")
    }
    return {family: found for family, found in hits.items() if found}

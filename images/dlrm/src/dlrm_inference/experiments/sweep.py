"""Sweep: RPF over prefetch distance and occupancy, behind the paper's choice of both."""

from __future__ import annotations

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import Config
from dlrm_inference.cuda.bench import Bench, make_variant, one_table
from dlrm_inference.cuda.rounds import in_rounds
from dlrm_inference.cuda.scheme import Scheme
from dlrm_inference.cuda.tensors import UnsupportedError
from dlrm_inference.cuda.tuning import choose


def run(config: Config, out: RecordWriter) -> None:
    """Write `kernel_time` (us) of RPF over prefetch distance and resident warps per SM, and of the
    other variants asked for as they are."""
    bench = Bench(config, out)
    variant = make_variant("rpf", config)
    others = {n: v for n, v in choose(bench, out).items() if n != "rpf"}
    points: dict[str, tuple[dict[str, str], Scheme]] = {}
    for distance in config.distances:
        for warps in config.warps:
            labels = {
                "variant": "rpf",
                "dataset": config.dataset,
                "distance": str(distance),
                "warps_per_sm": str(warps),
            }
            try:
                point = variant.tuned(distance, 0, warps)
                bench.prove(f"rpf at distance {distance}", point.forward)
            except UnsupportedError as error:
                out.skip(labels, str(error))
                continue
            points[f"{distance}/{warps}"] = labels, point
    targets = {name: one_table(bench, point) for name, (_, point) in points.items()}
    targets |= {name: one_table(bench, other) for name, other in others.items()}
    progress = Progress(config.samples + config.warmup)
    for name, samples in in_rounds(bench, targets, progress).items():
        if name in others:
            labels = {"variant": name, "dataset": config.dataset}
            out.write("kernel_time", "us", samples, labels, warmup=config.warmup)
            continue
        labels, point = points[name]
        facts = point.attributes(bench.device)
        note = f"{facts.registers} registers, {facts.spill_bytes} bytes spilled"
        if str(facts.warps_per_sm) != labels["warps_per_sm"]:
            note += f"; in fact {facts.warps_per_sm} warps fit an SM"
        out.write("kernel_time", "us", samples, labels, warmup=config.warmup, note=note)
    bench.finish()

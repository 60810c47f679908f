"""The programs that the collector profiles: a model, the ranks of a step, known kernels."""

from __future__ import annotations

from pathlib import Path

from pasta_workloads.collector import require_collector, require_gpus
from pasta_workloads.config import Config
from pasta_workloads.errors import RunFailed


def run(config: Config) -> None:
    """Run it; it prints its times, and `ranks` leaves files in --out."""
    if config.experiment == "model":
        if config.device == "cuda":
            require_gpus()
        from pasta_workloads.target import run_model

        run_model(
            config.model, config.mode, config.scale, config.device, iterations=config.iterations,
            warmup=config.warmup, seed=config.seed,
        )  # fmt: skip
        return
    if config.experiment == "samples":
        require_gpus()
        from pasta_workloads.exact import run_kernels
        from pasta_workloads.experiments.counts import ELEMENTS

        run_kernels(ELEMENTS)
        return
    if config.experiment == "managed":
        _managed(config)
        return
    ranks = 1 if config.parallelism == "one" else 2
    if config.device == "cuda":
        require_gpus(ranks)
    from pasta_workloads.parallel.ranks import Job, run_ranks

    job = Job(
        kind=config.parallelism, size=config.scale, device=config.device, ranks=ranks,
        folder=Path(config.out or "ranks"), iterations=config.iterations, seed=config.seed,
    )  # fmt: skip
    try:
        for found in run_ranks(job):
            print(f"rank {found.rank} lost {found.losses[-1]:.6f}, peak {found.peak} B", flush=True)
    except ChildProcessError as error:
        raise RunFailed(str(error)) from error


def _managed(config: Config) -> None:
    require_gpus()
    require_collector(patches=False)
    from pasta_workloads.managed import Managed, allow_oversubscription, run_managed

    if config.leave:
        allow_oversubscription()
    run_managed(
        Managed(
            model=config.model, mode=config.mode, size=config.scale, policy=config.policies[0],
            advice=config.advice, leave=config.leave, iterations=config.iterations,
            seed=config.seed,
        )
    )  # fmt: skip

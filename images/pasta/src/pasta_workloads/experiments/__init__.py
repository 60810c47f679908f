"""The experiments of the recipe: each a function of a Config and a RecordWriter."""

from __future__ import annotations

import shutil
from importlib import import_module

from reprokit.environment import gpu_clocks, machine_facts
from reprokit.records import RecordWriter

from pasta_workloads.config import PROGRAMS, Config

_WORK = ("traces", "ranks")
_PACKAGES = ("torch", "triton", "numpy", "cuda-bindings", "nvidia-cuda-sanitizer-api")


def run(config: Config, out: RecordWriter | None) -> None:
    """Run one experiment. Raises RunFailed when a process of it failed."""
    if config.experiment in PROGRAMS:
        import_module("pasta_workloads.experiments.programs").run(config)
        return
    assert out is not None
    from pasta_workloads.pinned import pin_torch

    facts = machine_facts(_PACKAGES)
    out.environment(**facts, **pin_torch(), clocks_before=gpu_clocks())
    import_module(f"pasta_workloads.experiments.{config.experiment}").run(config, out)
    out.environment(clocks_after=gpu_clocks())
    for name in _WORK:  # logs of many megabytes; they stay where a run failed
        shutil.rmtree(out.out_dir / name, ignore_errors=True)

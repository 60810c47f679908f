"""The authors' own commands, in the words of the artifact's bin/run_figure_*.sh."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MODELS = ("alexnet", "resnet18", "resnet34", "bert", "gpt2", "whisper")
# One kernel in N is profiled by the CPU variants, per model in the order above.
SAMPLING = {
    "paper": (30, 30, 50, 10, 10, 10),  # the paper's evaluation
    "readme": (60, 60, 100, 20, 20, 20),  # the artifact's final README
    "early": (150, 150, 250, 50, 50, 50),  # its first scripts
}
TOOLS = {
    "cs_gpu": ("-t", "app_analysis"),
    "cs_cpu": ("-t", "app_analysis_cpu"),
    "nvbit_cpu": ("-d", "nvbit", "-t", "app_analysis"),
}


@dataclass(frozen=True)
class Step:
    """One command. `keep` maps files that it must leave in its folder to names in the results."""

    title: str
    argv: tuple[str, ...]
    keep: Mapping[str, str]
    log: str = ""  # of `keep`: the log that must say that something was measured
    sampling: int = 1
    environment: Mapping[str, str] | None = None


def profile(
    model: str,
    mode: str,
    tool: Sequence[str],
    keep: Mapping[str, str],
    *,
    log: str,
    sampling: int = 1,
) -> Step:
    """A benchmark under accelprof, in words of the artifact's scripts."""
    argv = ("accelprof", "-v", *tool, "python3", f"run_{model}.py", "-t", mode)
    return Step(" ".join(argv[:-4]) + f": {model} {mode}", argv, keep, log, sampling)


def checkpoint(model: str) -> Step:
    """The training run, untouched by any tool, that writes what `-t test` loads."""
    log = f"run_{model}.accelprof.log"
    return profile(model, "train", ("-t", "none"), {log: f"checkpoint_{model}.accelprof.log"},
                   log=log)  # fmt: skip


def working_sets(model: str) -> list[Step]:
    """Figure 7 and Table V."""
    log = f"run_{model}.accelprof.log"
    return [
        profile(
            model, mode, TOOLS["cs_gpu"],
            {f"run_{model}_app_analysis.log": f"{mode}_{model}_app_analysis.log",
             log: f"{mode}_{model}.accelprof.log"},
            log=log,
        )
        for mode in ("train", "test")
    ]  # fmt: skip


def overhead(model: str, variant: str, sampling: str) -> list[Step]:
    """Figures 9 and 10: the same run without and with one variant of the profiler."""
    log = f"run_{model}.accelprof.log"
    rate = 1 if variant == "cs_gpu" else SAMPLING[sampling][MODELS.index(model)]
    name = variant.removesuffix("_cpu") if variant == "nvbit_cpu" else variant.removeprefix("cs_")
    return [
        checkpoint(model),
        profile(model, "test", ("-t", "none"), {log: f"run_{model}.accelprof.log"}, log=log),
        profile(model, "test", TOOLS[variant], {log: f"test_{name}_{model}.accelprof.log"},
                log=log, sampling=rate),
    ]  # fmt: skip


def hotness() -> list[Step]:
    """Figure 13: BERT, inference."""
    log = "run_bert.accelprof.log"
    return [
        checkpoint("bert"),
        profile(
            "bert", "test", ("-t", "time_hotness_cpu"),
            {"run_bert.time_hotness_cpu.log": "bert_time_hotness_cpu.log",
             log: "hotness_bert.accelprof.log"},
            log=log,
        ),
    ]  # fmt: skip


def memory() -> list[Step]:
    """Figure 14, the NVIDIA line: GPT-2, training."""
    log = "run_gpt2.accelprof.log"
    return [profile("gpt2", "train", TOOLS["cs_gpu"], {log: "gpt2_app_analysis.accelprof.log"},
                    log=log)]  # fmt: skip


def parallel(mode: str) -> list[Step]:
    """Figure 15: Megatron-LM on two GPUs. The profiler reaches the ranks by CUDA's injection."""
    argv = ("accelprof", "-v", "-t", "event_trace_mgpu", "./run_dist_training.sh", mode)
    keep = {"run_dist_training.sh.accelprof.log": f"{mode}.accelprof.log"}
    return [Step(" ".join(argv), argv, keep, environment={"MGPU_PROFILING": "1"})]


def steps_of(args: argparse.Namespace) -> list[Step]:
    """The commands of an experiment."""
    if args.experiment == "working-sets":
        return working_sets(args.model)
    if args.experiment in ("overhead", "breakdown"):
        return overhead(args.model, args.variant, args.sampling)
    if args.experiment == "hotness":
        return hotness()
    if args.experiment == "memory":
        return memory()
    return parallel(args.mode)

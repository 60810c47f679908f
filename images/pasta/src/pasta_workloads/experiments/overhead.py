"""Figures 9 and 10: what the collector costs, by variant, each in a process of its own.

The GPU-resident variants run at the full size. Analysis on the CPU is measured whole on a small
problem, beside the GPU-resident one on the same problem: nothing there is extrapolated. With
--sample the CPU variants run at the full size too, one launch in N, and both extrapolations are
written (evidence scaled). Times are of the iteration, from idle GPU to idle GPU, after a warm-up.
A slowdown is a turn's: the median iteration under the variant over that without, one for each turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.timing import interleave

from pasta_workloads.breakdown import PARTS, breakdown
from pasta_workloads.collector import (
    Ran,
    require_collector,
    require_gpus,
    run_alone,
    run_traced,
    target,
)
from pasta_workloads.config import CPU_VARIANTS, Config
from pasta_workloads.errors import RunFailed
from pasta_workloads.extrapolate import paper, sound
from pasta_workloads.mapping import region_launches, stages_of
from pasta_workloads.turns import turn_name, write_turns

SETTINGS: dict[str, dict[str, int | str]] = {
    "events": {"mode": "events"},
    "sync": {"mode": "sync"},
    "empty": {"mode": "empty"},
    "cs_gpu": {"mode": "touch"},
    "cs_gpu_hot": {"mode": "hot"},
    "count": {"mode": "count"},
    "cs_cpu": {"mode": "trace", "analysis": "touch", "workers": 1},
    "cs_cpu_mt": {"mode": "trace", "analysis": "touch"},
}
# What the CPU variants are compared with on the small problem.
BESIDE = ("native", "empty", "cs_gpu")
WARMUP = 3  # an idle GPU's clock is low
ITERATIONS = 5  # at least, in a series without CPU variants: those are slow
MODE = "test"


@dataclass(frozen=True, kw_only=True)
class Series:
    """Variants that are measured in turns at one size."""

    size: str
    variants: tuple[str, ...]
    sample: int = 0


def series_of(config: Config) -> list[Series]:
    """What to measure at which size; `native` is always among it.

    Analysis by one CPU thread is never measured without that by all cores, nor the other way.
    """
    fast = tuple(name for name in config.variants if name not in CPU_VARIANTS)
    slow = CPU_VARIANTS if any(name in CPU_VARIANTS for name in config.variants) else ()
    if fast and slow and config.small == config.scale:  # one series, or labels would be equal
        every = dict.fromkeys((*_with_native(fast), *BESIDE, *slow))
        return [Series(size=config.scale, variants=tuple(every))]
    found = []
    if fast:
        found.append(Series(size=config.scale, variants=_with_native(fast)))
    if slow:
        found.append(Series(size=config.small, variants=(*BESIDE, *slow)))
    if slow and config.sample:
        found.append(
            Series(size=config.scale, variants=("native", *slow), sample=config.sample)
        )  # fmt: skip
    return found


def run(config: Config, out: RecordWriter) -> None:
    """Measure every series; a variant that fails ends the experiment."""
    if config.device == "cpu":
        from reprokit.skip import cannot_run

        cannot_run("overhead patches GPU kernels and needs a GPU; fix: --device cuda")
    require_gpus()
    require_collector()
    every = series_of(config)
    progress = Progress(sum(len(one.variants) for one in every) * config.repeats)
    for series in every:
        _Measurement(config, series, out, progress).run()


class _Measurement:
    """One series: its processes in turns, then its records."""

    def __init__(
        self, config: Config, series: Series, out: RecordWriter, progress: Progress
    ) -> None:
        self.config, self.series, self.out, self.progress = config, series, out, progress
        self.runs: defaultdict[str, list[Ran]] = defaultdict(list)
        self.stages: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
        self.launches: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        calls: dict[str, Callable[[int], float]] = {
            name: self._caller(name) for name in self.series.variants
        }
        times = interleave(calls, self.config.repeats, warmup=0)
        native = times["native"]
        for name, samples in times.items():
            self._write(name, samples, native)

    def _caller(self, name: str) -> Callable[[int], float]:
        def call(_round: int) -> float:
            ran = self._process(name)
            self.runs[name].append(ran)
            if name != "native":
                self.stages[name].append(stages_of(ran.folder))
                if self.series.sample and name not in self.launches:
                    self.launches[name] = region_launches(ran.folder)
            self.progress.step(f"{name} {self.series.size} {ran.iterations[-1]:.4g} s")
            return median(ran.iterations)

        return call

    def _process(self, name: str) -> Ran:
        config, series = self.config, self.series
        # The same for all of a series: of more than one, the median would leave out what a variant
        # lays out at its first analysed launch, and a slow one would pay for it alone.
        slow = any(one in CPU_VARIANTS for one in series.variants)
        iterations = 1 if slow else max(config.iterations, ITERATIONS)
        command = target(config, MODE, size=series.size, iterations=iterations, warmup=WARMUP)
        folder = self.out.out_dir / "traces" / f"{series.size}-{name}"
        if name == "native":
            return run_alone(command, folder, config.patience)
        return run_traced("overhead", folder, command, self._settings(name), config.patience)

    def _settings(self, name: str) -> dict[str, int | str]:
        """The options of the collector's tool for a variant that is not `native`."""
        settings = dict(SETTINGS[name])
        if name == "cs_cpu_mt":
            settings["workers"] = self.config.workers or _cpus()
        if name in CPU_VARIANTS and self.series.sample:
            settings["sample"] = self.series.sample
        return settings

    def _labels(self, name: str) -> dict[str, str]:
        labels = {"model": self.config.model, "mode": MODE, "variant": name}
        labels["size"] = self.series.size
        if self.series.sample:
            labels["sample"] = str(self.series.sample)
        return labels

    def _write(self, name: str, samples: list[float], native: list[float]) -> None:
        """Times, slowdown against the native run of the same turn, and the breakdown."""
        labels = self._labels(name)
        out = self.out
        if self.series.sample and name == "native":
            labels["sample"] = "0"
        for number, ran in enumerate(self.runs[name]):
            out.write(
                "iteration_time", "s", ran.iterations, labels, warmup=WARMUP,
                process=turn_name(number),
            )  # fmt: skip
        wall = [ran.seconds for ran in self.runs[name]]
        write_turns(out, "process_time", "s", wall, labels, note="with start-up and reports")
        if name == "native":
            return
        if not self.series.sample:
            ratios = [one / base for one, base in zip(samples, native, strict=True)]
            where = labels | {"scaling": "none"}
            write_turns(out, "slowdown", "x", ratios, where, warmup=WARMUP)
        elif name in CPU_VARIANTS:
            self._write_scaled(name, samples, native, labels)
        threads = int(self._settings(name).get("workers", 1))
        parts = [
            breakdown(base, one, stages, iterations=len(ran.iterations), threads=threads)
            for base, one, stages, ran in zip(
                native, samples, self.stages[name], self.runs[name], strict=True
            )
        ]
        for part in PARTS:
            seconds = [one[part] for one in parts]
            write_turns(out, "tool_time", "s", seconds, labels | {"part": part})

    def _write_scaled(
        self, name: str, samples: Sequence[float], native: Sequence[float], labels: dict[str, str]
    ) -> None:
        """Both extrapolations of one launch in N, of the iteration's time."""
        rate = self.series.sample
        total, profiled = self.launches[name]
        try:
            scaled = {
                "sound": [
                    sound(base, one, total, profiled) / base
                    for one, base in zip(samples, native, strict=True)
                ],
                "authors": [
                    paper(one, rate) / base for one, base in zip(samples, native, strict=True)
                ],
            }
        except ValueError as error:
            raise RunFailed(f"{name}: {error}") from error
        notes = {
            "sound": f"what profiling added, scaled: {profiled} of {total} launches",
            "authors": f"the paper's formula: the whole time by {rate}",
        }
        for scaling, values in scaled.items():
            write_turns(
                self.out, "slowdown", "x", values, labels | {"scaling": scaling},
                evidence="scaled", note=notes[scaling],
            )  # fmt: skip


def _with_native(names: tuple[str, ...]) -> tuple[str, ...]:
    return names if "native" in names else ("native", *names)


def _cpus() -> int:
    import os

    return len(os.sched_getaffinity(0))

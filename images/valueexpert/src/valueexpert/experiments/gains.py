"""What the changes are worth on a GPU: kernel time and time of copies and fills, before and after.

Every process runs one variant; the variants take turns. Times are CUDA events around each launch
and each copy, from and to page-locked memory, on a GPU that is busy until they are enqueued, added
up over a run. The gain of all that time is held against what the findings on the trace of `before`
promise of it: the time that is measured before, less the shares of the bytes at stake.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from reprokit.errors import Failure
from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import EXIT_CODE, cannot_run

from valueexpert import build, traces
from valueexpert.bounds import foretold, moved, spared
from valueexpert.catalog import MINIS, Mini
from valueexpert.cli import Config


def run(config: Config, out: RecordWriter) -> None:
    """Raises Failure where a program's result is wrong."""
    if config.device != "cuda":
        cannot_run("gains are measured on a GPU")
    progress = Progress(len(config.minis) * config.repeats)
    with tempfile.TemporaryDirectory() as work:
        for name in config.minis:
            mini = MINIS[name]
            binary = program(mini, Path(work))
            _same_bits(mini, binary, config, out)
            promises = _promises(mini)
            for number in range(config.repeats):
                spent = _turn(mini, binary, config, number, out)
                _judge(mini, promises, spent, number, out)
                progress.step(f"{name}, process {number}")


def program(mini: Mini, work: Path) -> Path:
    """The program as the image has it, else compiled now."""
    built = Path(os.environ.get("VALUEEXPERT_PROGRAMS", "/nowhere")) / mini.name
    if built.is_file():
        return built
    try:
        return build.cuda_program(mini.name, work)
    except build.BuildError as error:
        cannot_run(str(error))


def _lines(program: Path, variant: str, size: int, runs: int) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(program), variant, str(size), str(runs)], capture_output=True, text=True, check=False,
        env=os.environ | {"VALUEEXPERT_GPU_ALONE": "1"},
    )  # fmt: skip
    if done.returncode == EXIT_CODE:
        cannot_run(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise Failure(f"{program.name} {variant}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _same_bits(mini: Mini, program: Path, config: Config, out: RecordWriter) -> None:
    """Whether the GPU's result is the replay's, bit by bit, at the replay's size."""
    with traces.opened(mini) as folders:
        for variant, folder in folders.items():
            if variant not in config.variants:
                continue
            (line,) = _lines(program, variant, mini.replay, 1)
            same = line["digest"] == traces.said(folder)["digest"]
            labels = {"mini": mini.name, "variant": variant}
            out.write("same_bits", "1", [float(same)], labels)


def _turn(
    mini: Mini, program: Path, config: Config, number: int, out: RecordWriter
) -> dict[str, dict[str, float]]:
    """Medians of the parts' microseconds, by variant."""
    medians: dict[str, dict[str, float]] = {}
    size = mini.full if config.size == "full" else mini.quick
    shift = number % len(mini.variants)
    for variant in mini.variants[shift:] + mini.variants[:shift]:
        if variant not in config.variants:
            continue
        lines = _lines(program, variant, size, config.samples + 1)[1:]
        labels = {"mini": mini.name, "variant": variant}
        process = str(number)
        for metric in ("kernel", "memory"):
            times = [float(line[f"{metric}_us"]) for line in lines]
            out.write(f"{metric}_time", "us", times, labels, warmup=1, process=process)
            medians.setdefault(variant, {})[metric] = median(times)
        errors = [float(line["error"]) for line in lines]
        out.write("gpu_error", "1", errors, labels, warmup=1, process=process)
        for metric in ("copied", "filled", "launches"):
            unit = "launches" if metric == "launches" else "B"
            out.write(f"gpu_{metric}", unit, [float(lines[0][metric])], labels, process=process)
    return medians


def _promises(mini: Mini) -> dict[str, dict[str, float]]:
    """By variant, the shares of the parts that its findings of `before` say may go."""
    with traces.opened(mini) as folders:
        replayed, findings = traces.findings(folders["before"])
    total = moved(replayed)
    return {
        variant: {
            part: stake / total[part] if total[part] else 0.0
            for part, stake in spared(replayed, findings, set(gone)).items()
        }
        for variant, gone in mini.fixed.items()
    }


def _judge(
    mini: Mini, promises: dict[str, dict[str, float]], spent: dict[str, dict[str, float]],
    number: int, out: RecordWriter,
) -> None:  # fmt: skip
    """The gain of all GPU time, and how far the promised one, where there is one, is from it."""
    before = spent.get("before")
    for variant, after in spent.items():
        if before is None or variant == "before":
            continue
        labels, process = {"mini": mini.name, "variant": variant}, str(number)
        measured = sum(before.values()) / sum(after.values())
        out.write("gain", "x", [measured], labels, process=process)
        promised = foretold(before, promises[variant]) if variant in promises else None
        if promised is not None:  # else nothing would be left, which is no number
            out.write("gain_promised", "x", [promised], labels, "simulated", process=process)
            off = abs(promised - measured) / measured
            out.write("gain_off", "share", [off], labels, process=process)

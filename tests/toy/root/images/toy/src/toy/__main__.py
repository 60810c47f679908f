"""Command line of the toy workload; results go to `$AE_OUT`."""

from __future__ import annotations

import argparse
import glob
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from toy.adding import ROUNDS, add, numbers

MB = 10**6
NEVER_ENDS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def main() -> int:
    """Run one command; the exit code says how it ended."""
    parser = argparse.ArgumentParser(prog="toy")
    parser.add_argument("command", choices=sorted(COMMANDS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dataset", choices=["ones", "ramp"], default="ones")
    parser.add_argument("--variants", default="slow,fast")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--order", choices=["forward", "backward"], default="forward")
    parser.add_argument("--words", default="")
    parser.add_argument("--verbose", choices=["true", "false"], default="false")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--gpu-name", default="")
    parser.add_argument("--repeat", type=int, default=0)
    options = parser.parse_args()
    return COMMANDS[options.command](options)


def measure(options: argparse.Namespace) -> int:
    """Time every variant, one after another in every round."""
    variants = options.variants.split(",")
    data = numbers(options.dataset, options.size, options.scale)
    if options.order == "backward":
        data.reverse()
    samples: dict[str, list[float]] = {variant: [] for variant in variants}
    for variant in variants:
        add(variant, data)  # warm-up
    for index in range(options.samples):
        for variant in variants:
            start = time.perf_counter()
            add(variant, data)
            samples[variant].append((time.perf_counter() - start) * 1e6)
        print(f"::progress {index + 1}/{options.samples} {options.dataset}", flush=True)
    for variant in variants:
        labels = {"variant": variant, "dataset": options.dataset}
        note = f"{options.words} {ROUNDS[variant]}" if options.verbose == "true" else ""
        write(record(samples[variant], labels, note))
    environment(options)
    print(f"measured {options.variants} on {options.dataset}")
    return 0


def noop(options: argparse.Namespace) -> int:
    """Write one record."""
    write(record([1.0], {"variant": "slow", "dataset": "ones"}))
    environment(options)
    return 0


def device(options: argparse.Namespace) -> int:
    """Say which device was asked for and which GPUs can be seen."""
    seen = len(glob.glob("/dev/nvidia[0-9]*"))
    write({**record([float(seen)], {"device": options.device}), "metric": "gpus", "unit": "GPUs"})
    environment(options)
    return 0


def unfit(_: argparse.Namespace) -> int:
    """Say that the hardware will not do."""
    print("looking for an abacus", file=sys.stderr)
    print("this machine has no abacus", file=sys.stderr)
    return 77


def broken(_: argparse.Namespace) -> int:
    """Fail half-way."""
    write(record([1.0], {"variant": "slow", "dataset": "ones"}))
    print("about to divide by zero")
    print("the abacus fell down", file=sys.stderr)
    return 1


def stuck(_: argparse.Namespace) -> int:
    """Never end. The child's process id is left in `child.pid`."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with subprocess.Popen([sys.executable, "-c", NEVER_ENDS]) as child:
        (out() / "child.pid").write_text(str(child.pid))
        write(record([1.0], {"variant": "slow", "dataset": "ones"}))
        print("stuck", flush=True)
        while True:
            time.sleep(1)


def hungry(_: argparse.Namespace) -> int:
    """Take memory in pieces, and touch it."""
    pieces = []
    for _piece in range(100):
        pieces.append(bytearray(b"x") * (10 * MB))
        print(f"took {len(pieces) * 10} MB", flush=True)
        time.sleep(0.01)
    print("nobody stopped me", file=sys.stderr)
    return 3


def malformed(_: argparse.Namespace) -> int:
    """A good record, then something that is none, then another good one."""
    good = json.dumps(record([1.0], {"variant": "slow", "dataset": "ones"}))
    (out() / "records.jsonl").write_text(f"{good}\nmean = 3.5 us\n{good}\n")
    return 0


def truncated(_: argparse.Namespace) -> int:
    """A good record, then the first half of another."""
    good = json.dumps(record([1.0], {"variant": "slow", "dataset": "ones"}))
    (out() / "records.jsonl").write_text(f"{good}\n{good[: len(good) // 2]}")
    return 0


def future(_: argparse.Namespace) -> int:
    """A record of a later schema."""
    write({**record([1.0], {"variant": "slow", "dataset": "ones"}), "schema": 2})
    return 0


def partial(options: argparse.Namespace) -> int:
    """Measure slow, skip fast."""
    for variant in options.variants.split(","):
        labels = {"variant": variant, "dataset": "ones"}
        if variant == "fast":
            write({"labels": labels, "reason": "this machine has one abacus"}, "skipped.jsonl")
        else:
            write(record([2.0, 3.0], labels))
    environment(options)
    return 0


def record(samples: list[float], labels: Mapping[str, str], note: str = "") -> dict[str, object]:
    """One record of the metric work_time."""
    line: dict[str, object] = {
        "schema": 1,
        "metric": "work_time",
        "unit": "us",
        "samples": samples,
        "labels": dict(labels),
        "evidence": "measured",
        "warmup": 1,
    }
    return line | ({"note": note} if note else {})


def write(line: Mapping[str, object], name: str = "records.jsonl") -> None:
    """Append one line to a file of results."""
    with (out() / name).open("a") as file:
        file.write(json.dumps(line) + "\n")


def environment(options: argparse.Namespace) -> None:
    """Write environment.json, with the variables by which a container is given GPUs."""
    shown = ("AE_", "CUDA_", "NVIDIA_", "FAKE_", "HOME")
    facts = {
        "gpu": options.gpu_name or None,
        "python": sys.version.split()[0],
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(shown)},
    }
    (out() / "environment.json").write_text(json.dumps(facts))


def out() -> Path:
    """The folder for results."""
    return Path(os.environ["AE_OUT"])


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    function.__name__: function
    for function in (
        measure, noop, device, unfit, broken, stuck, hungry, malformed, truncated, future, partial,
    )
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

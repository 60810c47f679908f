"""Figures 11 and 12: prefetching of managed memory, by object and by tensor, against none.

The program is profiled once (uvm_advisor), then replayed under each policy in turns, each in a
process of its own. The paper switched the driver's own prefetching off, which a container cannot;
the label `driver_prefetch` says how it is here. Oversubscription (Figure 12) is asked for by
--oversubscribe alone: ballast then leaves the footprint divided by that factor. It can hang a GPU
that others use.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run
from reprokit.timing import interleave

from pasta_workloads.collector import Ran, require_collector, require_gpus, run_alone, run_traced
from pasta_workloads.config import Config
from pasta_workloads.errors import RunFailed
from pasta_workloads.turns import write_turns

MIB = 2**20
PRINTED = "managed "
MOVED = {"moved_in": "in", "moved_out": "out"}
PREFETCH_WORDS = {0: "off", 1: "on", None: "unknown"}


def run(config: Config, out: RecordWriter) -> None:
    """Profile, then replay --repeats times under each policy; `none` is always among them."""
    if config.device == "cpu":
        cannot_run("uvm needs a GPU and its managed memory; fix: --device cuda")
    require_gpus()
    require_collector()
    policies = config.policies if "none" in config.policies else ("none", *config.policies)
    progress = Progress(1 + len(policies) * config.repeats)
    traces = out.out_dir / "traces" / f"uvm-{config.model}"
    profiled = run_traced(
        "uvm_advisor", traces, command(config, "none"), {}, config.patience, region=""
    )  # fmt: skip
    advice = traces / "advice.json"
    if not advice.is_file():
        raise RunFailed("the advisor left no advice.json: did it see managed memory?")
    footprint = int(result_of(profiled)["footprint"])
    progress.step("profiled")
    leave = int(footprint / config.oversubscribe) if config.oversubscribe else 0
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    def caller(policy: str) -> Callable[[int], float]:
        def call(_round: int) -> float:
            words = command(config, policy, advice=advice, leave=leave)
            result = result_of(run_alone(words, traces, config.patience))
            found[policy].append(result)
            progress.step(f"{policy} {result['seconds']:.4g} s")
            return float(result["seconds"])

        return call

    interleave({name: caller(name) for name in policies}, config.repeats, warmup=0)
    labels = {"model": config.model, "oversubscription": f"{config.oversubscribe:g}"}
    out.write("footprint", "MiB", [footprint / MIB], labels, note="managed memory of the iteration")
    write_policies(dict(found), labels, out)


def command(
    config: Config, policy: str, *, advice: Path | None = None, leave: int = 0
) -> list[str]:
    """The command line of `managed`; without advice it is the run that is profiled."""
    words = [sys.executable, "-m", "pasta_workloads", "managed", "--device", "cuda"]
    words += ["--model", config.model, "--mode", config.mode, "--size", config.scale]
    words += ["--iterations", str(config.iterations), "--seed", str(config.seed)]
    words += ["--policies", policy, "--leave", str(leave)]
    return words + (["--advice", str(advice)] if advice else [])


def result_of(ran: Ran) -> dict[str, Any]:
    """The JSON line that `managed` printed. Raises RunFailed without one."""
    for line in ran.stdout.splitlines():
        if line.startswith(PRINTED):
            found: dict[str, Any] = json.loads(line.removeprefix(PRINTED))
            return found
    raise RunFailed("the program on managed memory ended well and printed no result")


def write_policies(
    found: dict[str, list[dict[str, Any]]], labels: dict[str, str], out: RecordWriter
) -> None:
    """Time, time over that of `none` in the same turn, and bytes moved and asked for."""
    base = [one["seconds"] for one in found["none"]]
    for policy, results in found.items():
        driver = PREFETCH_WORDS.get(results[0]["driver_prefetch"], "unknown")
        where = labels | {"policy": policy, "driver_prefetch": driver}
        seconds = [one["seconds"] for one in results]
        write_turns(out, "uvm_time", "s", seconds, where)
        ratios = [one / none for one, none in zip(seconds, base, strict=True)]
        write_turns(out, "normalized_time", "x", ratios, where)
        for name, direction in MOVED.items():
            if all(name in one for one in results):
                moved = [one[name] / MIB for one in results]
                write_turns(out, "moved", "MiB", moved, where | {"direction": direction})
        for name in ("faults", "thrashing"):
            if all(name in one for one in results):
                write_turns(out, name, "events", [one[name] for one in results], where)
        asked = [one["asked_bytes"] / MIB for one in results]
        write_turns(out, "prefetch_asked", "MiB", asked, where)
        write_turns(out, "prefetches", "calls", [one["prefetches"] for one in results], where)
        strange = [one["gone"] + one["strangers"] + one["mismatches"] for one in results]
        write_turns(
            out, "advice_misses", "pieces", strange, where,
            note="pieces or operators that were not as profiled",
        )  # fmt: skip

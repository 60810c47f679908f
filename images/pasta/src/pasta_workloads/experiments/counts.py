"""The exact test: counted accesses against counts that are known by construction."""

from __future__ import annotations

import sys

from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from pasta_workloads.collector import require_collector, require_gpus, run_traced
from pasta_workloads.config import Config
from pasta_workloads.errors import RunFailed
from pasta_workloads.mapping import counts_of
from pasta_workloads.turns import write_turns

ELEMENTS = 100_000


def run(config: Config, out: RecordWriter) -> None:
    """Count every kernel of `pasta_workloads.exact` in --repeats processes."""
    if config.device == "cpu":
        cannot_run("counts patches GPU kernels and needs a GPU; fix: --device cuda")
    require_gpus()
    require_collector()
    progress = Progress(config.repeats)
    command = [sys.executable, "-m", "pasta_workloads", "samples"]
    found = []
    for repeat in range(config.repeats):
        folder = out.out_dir / "traces" / f"counts-{repeat}"
        run_traced("access_counts", folder, command, {}, config.patience, region="")
        found.append(counts_of(folder))
        progress.step("known kernels")
    write_counts(found, ELEMENTS, out)


def write_counts(
    found: list[dict[str, list[dict[str, int]]]], elements: int, out: RecordWriter
) -> None:
    """For each kernel and counter: counted, expected, and their difference (0 is exact).

    Raises RunFailed when a kernel is missing, or was launched more than once.
    """
    from pasta_workloads.exact import KNOWN

    for known in KNOWN:
        launches = [run.get(known.kernel, []) for run in found]
        if any(len(one) != 1 for one in launches):
            raise RunFailed(
                f"{known.kernel} was counted {[len(one) for one in launches]} times, expected 1"
            )
        for counter, expected in known.counts(elements).items():
            counted = [one[0][counter] for one in launches]
            labels = {"kernel": known.kernel, "counter": counter}
            unit = "B" if "bytes" in counter else "accesses"
            write_turns(out, "counted", unit, counted, labels)
            out.write("expected", unit, [expected], labels, evidence="static")
            errors = [one - expected for one in counted]
            write_turns(out, "count_error", unit, errors, labels)

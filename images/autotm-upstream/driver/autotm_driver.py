"""Runs one of the authors' GPU benchmarks in a Julia process of its own.

    python3 -m autotm_driver --net vgg19_64 --optimizer Synchronous --overhead-mb 800

The authors store results in Julia's own format, so a few lines of Julia read them back and print
one line of JSON, which is the log that the recipe's parser reads. A fresh process for each run, as
in their gpu_script.jl. Their baseline allocates the whole network as managed memory: where that is
more than the GPU has free, the run is refused unless the GPU is the person's own (--own-gpu true),
since it can hang a shared one. Exit codes: 0 done, 77 this machine cannot run it, 1 failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CANNOT = 77
LICENCE = Path("/run/secrets/gurobi.lic")
PROJECT = Path("/opt/AutoTM/experiments/Benchmarker")
# In the order of the authors' gpu_fns(), with what the network takes, in GB.
NETS = {
    "inception_64": 7.0, "inception_128": 13.8, "inception_256": 27.5, "resnet200_32": 8.5,
    "resnet200_64": 16.8, "resnet200_128": 33.0, "densenet264_32": 7.5, "densenet264_64": 14.8,
    "densenet264_128": 29.2, "vgg19_64": 6.0, "vgg19_128": 10.5,
}  # fmt: skip
NEWEST = (7, 5)  # what CUDA 10.1 can compile for
JULIA = """\
using Benchmarker, AutoTM, Serialization
import nGraph
index, word, overhead = parse(Int, ARGS[1]), ARGS[2], parse(Int, ARGS[3])
Benchmarker.GPU_MEMORY_OVERHEAD[] = overhead
make = getfield(AutoTM.Optimizer, Symbol(word))
Benchmarker.run_gpu(index; optimizers = make)
network = Benchmarker.gpu_fns()[index]
limit = make(Benchmarker.gpu_adjusted_memory())
backend = nGraph.Backend("GPU")
path = Benchmarker.canonical_path(network, limit, AutoTM.Experiments.GPU_CACHE, backend)
stats = deserialize(path)
run = last(stats.runs)
show_number(name) = string("\\"", name, "\\": ", get(run, name, "null"))
fields = [show_number(name) for name in (:actual_runtime, :predicted_runtime, :oracle_time)]
push!(fields, string("\\"managed_runtime\\": ", stats.gpu_managed_runtime[]))
println("AUTOTM-RUN {", join(fields, ", "), "}")
"""


class Failed(Exception):
    """The authors' benchmark failed."""


class CannotRun(Exception):
    """This machine or image cannot run the point."""


def gpu() -> dict[str, str]:
    """Name, driver, compute capability and free MiB of the first GPU. Raises CannotRun."""
    names = ("name", "driver_version", "compute_cap", "memory.free")
    query = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    if shutil.which(query[0]) is None:
        raise CannotRun("there is no NVIDIA GPU in this container")
    said = subprocess.run(query, capture_output=True, text=True, check=False)
    values = said.stdout.partition("\n")[0].split(", ")
    if said.returncode != 0 or len(values) != len(names):
        raise CannotRun("nvidia-smi lists no GPU")
    return dict(zip(names, values, strict=True))


def check(facts: dict[str, str], net: str, own_gpu: bool) -> None:
    """Raise CannotRun for what is known not to work, or might hang somebody else's GPU."""
    capability = tuple(int(part) for part in facts["compute_cap"].split("."))
    if capability > NEWEST:
        raise CannotRun(
            f"{facts['name']} has compute capability {facts['compute_cap']}, and CUDA 10.1 cannot "
            "compile for more than 7.5"
        )
    free = int(facts["memory.free"]) * 2**20 / 1e9
    if NETS[net] > free and not own_gpu:
        raise CannotRun(
            f"the managed baseline of {net} takes {NETS[net]} GB and {free:.1f} GB are free; that "
            "can hang a GPU: --set own_gpu=true if it is your own"
        )


def run(net: str, optimizer: str, overhead_mb: int, project: Path) -> None:
    """Run one benchmark. Raises Failed."""
    environment = dict(os.environ)
    if LICENCE.exists():
        environment["GRB_LICENSE_FILE"] = str(LICENCE)
    index = list(NETS).index(net) + 1
    argv = ["julia", "--project=.", "--color=no", "-e", JULIA]
    argv += [str(index), optimizer, str(overhead_mb * 10**6)]
    done = subprocess.run(argv, cwd=project, env=environment, check=False)
    if done.returncode != 0:
        raise Failed(f"julia ended with {done.returncode}")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="autotm_driver", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--net", choices=list(NETS), required=True)
    parser.add_argument("--optimizer", choices=["Synchronous", "Asynchronous"], required=True)
    parser.add_argument("--overhead-mb", type=int, default=800)
    parser.add_argument("--own-gpu", choices=["true", "false"], default="false")
    parser.add_argument("--project", type=Path, default=PROJECT)
    return parser.parse_args(argv)


def main() -> int:
    """Run one point."""
    words = parse()
    try:
        facts = gpu()
        about: dict[str, object] = {"gpu": facts["name"], "driver": facts["driver_version"]}
        about["solver"] = "Gurobi" if LICENCE.exists() else "Cbc"
        sources = Path("/opt/sources.txt")
        if sources.is_file():
            about["sources"] = sources.read_text().splitlines()
        (Path(os.environ["AE_OUT"]) / "environment.json").write_text(json.dumps(about))
        check(facts, words.net, words.own_gpu == "true")
        run(words.net, words.optimizer, words.overhead_mb, words.project)
    except CannotRun as reason:
        print(reason, file=sys.stderr)
        return CANNOT
    except (Failed, OSError) as error:
        print(f"autotm_driver: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

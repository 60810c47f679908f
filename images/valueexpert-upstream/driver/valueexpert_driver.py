"""Runs the authors' own scripts for one point.

    python3 -m valueexpert_driver speedup --case backprop --arch sm_80 --rounds 5
    python3 -m valueexpert_driver overhead --case backprop --arch sm_80 --mode data_flow

`speedup` is their python/bench.py: every version of a sample, timed by Nsight Systems. `overhead`
runs the sample with and without gvprof, in turns, and prints the seconds. What is printed is the
log that the recipe's parser reads. Exit codes: 0 done, 77 this machine cannot run it, 1 failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

CANNOT = 77
ROOT = Path("/opt/GVProf")
# As in the authors' python/test_cases.py; the data are the samples' own (get_data.sh).
CASES = {
    "backprop": ("samples/backprop", ["./backprop", "65536"]),
    "bfs": ("samples/bfs", ["./bfs", "../data/graph1MW_6.txt"]),
    "cfd": ("samples/cfd", ["./euler3d", "../data/fvcorr.domn.097K"]),
    "hotspot": (
        "samples/hotspot",
        ["./hotspot", "512", "2", "2", "../data/temp_512", "../data/power_512", "output.out"],
    ),
}
MODES = ("redundancy", "data_flow", "value_pattern")


class Failed(Exception):
    """A script of the authors failed."""


class CannotRun(Exception):
    """This machine or image cannot run the point."""


def check(root: Path, case: str) -> None:
    """Raise CannotRun for what is known not to work."""
    data = [word for word in CASES[case][1] if word.startswith("../data/")]
    missing = [word for word in data if not (root / "samples" / word[3:]).exists()]
    if missing:
        raise CannotRun(f"the input {missing[0][3:]} is not in the image: mount it (get_data.sh)")
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise CannotRun("there is no CUDA toolkit in this image")
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    release = said.stdout.partition("release ")[2].partition(",")[0]
    numbers = tuple(int(part) for part in release.split(".") if part.isdigit())
    if not (11, 8) <= numbers <= (12, 2):
        raise CannotRun(
            f"CUDA {release or 'of unknown version'}: GVProf reads values rightly with 11.8 to 12.2"
        )


def speedup(root: Path, case: str, arch: str, rounds: int) -> None:
    """The authors' benchmark of one sample and its optimised versions."""
    _run(
        [sys.executable, "python/bench.py", "-c", case, "-v", "all", "-i", str(rounds), "-a", arch],
        root,
    )


def overhead(root: Path, case: str, arch: str, mode: str, rounds: int) -> None:
    """The seconds of a sample alone and under gvprof, in turns."""
    folder, command = root / CASES[case][0], CASES[case][1]
    _run(["make", "clean"], folder)
    _run(["make", f"ARCH={arch}"], folder)
    for number in range(rounds + 1):  # the first round warms up and is not printed
        for name, argv in (("alone", command), (mode, ["gvprof", "-e", mode, *command])):
            for made in ("gvprof-measurements", "gvprof-database"):
                shutil.rmtree(folder / made, ignore_errors=True)
            started = time.monotonic()
            _run(argv, folder)
            if number:
                print(f"{case}/{name}/seconds: {time.monotonic() - started:.6f}s", flush=True)


def _run(argv: Sequence[str], folder: Path) -> None:
    print(f"+ {shlex.join(argv)}", flush=True)
    done = subprocess.run(argv, cwd=folder, check=False)
    if done.returncode != 0:
        raise Failed(f"{argv[0]} ended with {done.returncode} in {folder.name}")


def write_environment(out: Path) -> None:
    """Facts for the record: GPU, driver, and the commits that the sources are of."""
    facts: dict[str, object] = {}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    if shutil.which(query[0]):
        said = subprocess.run(query, capture_output=True, text=True, check=False).stdout
        name, _, driver = said.partition("\n")[0].partition(", ")
        facts |= {"gpu": name, "driver": driver}
    sources = Path("/opt/sources.txt")
    if sources.is_file():
        facts["sources"] = sources.read_text().splitlines()
    (out / "environment.json").write_text(json.dumps(facts))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="valueexpert_driver", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("what", choices=["speedup", "overhead"])
    parser.add_argument("--case", choices=sorted(CASES), required=True)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--mode", choices=MODES, default="value_pattern")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=Path, default=ROOT)
    return parser.parse_args(argv)


def main() -> int:
    """Run one point."""
    words = parse()
    try:
        write_environment(Path(os.environ["AE_OUT"]))
        check(words.root, words.case)
        if words.what == "speedup":
            speedup(words.root, words.case, words.arch, words.rounds)
        else:
            overhead(words.root, words.case, words.arch, words.mode, words.rounds)
    except CannotRun as reason:
        print(reason, file=sys.stderr)
        return CANNOT
    except (Failed, OSError) as error:
        print(f"valueexpert_driver: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

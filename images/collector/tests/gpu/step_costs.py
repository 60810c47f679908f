"""Why a training step in which nothing is analysed is slower under the collector, by what is on.

`python step_costs.py [-n TURNS] [-o FILE]`, with the collector and its tests on PYTHONPATH. PyTorch
is imported once; each variant then runs in a forked child, by turns. Steps that are analysed, and
those just before them, are left out of all variants, the native one too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch  # noqa: F401  # before the children are forked; CUDA starts in them
from accel_trace import build
from accel_trace.builds import LIBRARY, PATCHES
from accel_trace.handlers import torch_native
from test_gpu_unseen import middle, ratio, training

STEPS, EVERY, FIRST = 100, 20, 21
ONE = {"EVERY": "1000000"}  # iteration 1 is analysed, and no other
BOTH, ALONE = {"HANDLERS": "sanitizer,torch"}, {"HANDLERS": "sanitizer"}
# What each adds to the one before it, from nothing to all that was watched between samples.
VARIANTS: dict[str, dict[str, str] | None] = {
    "native": None,
    "quiet": ONE | ALONE | {"MODE": "touch"},
    "quiet, tensors told of": ONE | BOTH | {"MODE": "touch"},
    "quiet, by launches": ONE | BOTH | {"MODE": "touch", "MARK": "pass"},
    "events": ALONE | {"MODE": "events"},
    "watched": ONE | ALONE | {"MODE": "touch", "BETWEEN": "all"},
    "watched, tensors told of": ONE | BOTH | {"MODE": "touch", "BETWEEN": "all"},
    "sampled": BOTH | {"MODE": "touch", "EVERY": str(EVERY)},
}


def child(variant: dict[str, str] | None, folder: Path) -> list[float]:
    """Run the program in this process; returns seconds of each step."""
    mark = "step()"
    if variant is not None:
        built = build.ensure_built()
        settings = {"OUT": str(folder), "PATCHES": str(built / PATCHES)} | variant
        mark = settings.pop("MARK", mark)
        os.environ |= {f"ACCEL_TRACE_{name}": value for name, value in settings.items()}
        os.environ["CUDA_INJECTION64_PATH"] = str(built / LIBRARY)
        from accel_trace.handlers import install

        install.after_torch()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(training(STEPS, mark), "step", "exec"), {})
    return [float(line.split()[1]) for line in said.getvalue().splitlines()]


def forked(variant: dict[str, str] | None) -> list[float]:
    """The same in a forked child; no steps where it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if (pid := os.fork()) == 0:
            try:
                (folder / "steps.json").write_text(json.dumps(child(variant, folder)))
            except BaseException as error:  # noqa: BLE001  # said, and the next one is tried
                print(f"    {error!r}", file=sys.stderr, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        found = folder / "steps.json"
        steps: list[float] = json.loads(found.read_text()) if found.exists() else []
        if variant is not None and not any(folder.glob("trace-*.atl")):
            print("    the collector was not there", file=sys.stderr)
            return []
        return steps


def main() -> int:
    """Run all by turns and print each variant's time and ratio; 1 where one did not run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=5, metavar="TURNS")
    parser.add_argument("-o", type=Path, metavar="FILE", help="seconds of all steps, as JSON")
    options = parser.parse_args()
    build.ensure_built()
    torch_native.build()
    counted = [i for i in range(FIRST, STEPS) if i % EVERY not in (0, 1)]
    steps = {name: [] for name in VARIANTS}
    for _ in range(options.n):
        for name, variant in VARIANTS.items():
            steps[name].append(forked(variant))
    if options.o:
        options.o.write_text(json.dumps(steps))
    if not all(steps["native"]):
        print("the program alone does not run")
        return 1
    native = [middle([turn[i] for i in counted]) for turn in steps["native"]]
    missing = False
    for name, turns in steps.items():
        if not all(turns):
            print(f"{name:28} did not run in {sum(not t for t in turns)} of {len(turns)} turns")
            missing = True
            continue
        times = [middle([turn[i] for i in counted]) for turn in turns]
        mean, low, high = ratio(times, native)
        print(
            f"{name:28} {middle(times) * 1e3:8.3f} ms  {mean:.4f} [{low:.4f} {high:.4f}] of native"
        )
    return int(missing)


if __name__ == "__main__":
    sys.exit(main())

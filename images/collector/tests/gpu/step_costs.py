"""Why a training step in which nothing is analysed is slower under the collector, by what is on.

`python step_costs.py [-n TURNS] [-o FILE] [VARIANT...]`, with the collector and its tests on
PYTHONPATH. All variants, or those that are named, run by turns, a process each. Steps that are
analysed, and those just before them, are left out of all of them, the native one too.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from accel_trace import build
from accel_trace.builds import LIBRARY, PATCHES
from accel_trace.handlers import torch_native
from forks import Variant, by_turns
from test_gpu_unseen import middle, ratio, training

STEPS, EVERY, FIRST = 100, 20, 21
COUNTED = [i for i in range(FIRST, STEPS) if i % EVERY not in (0, 1)]
ONE = {"EVERY": "1000000"}  # iteration 1 is analysed, and no other
BOTH, ALONE = {"HANDLERS": "sanitizer,torch"}, {"HANDLERS": "sanitizer"}
# What each adds to the one before it, from nothing to all that was watched between samples.
VARIANTS: dict[str, dict[str, str] | None] = {
    "native": None,
    "quiet": ONE | ALONE | {"MODE": "touch"},
    "tensors": ONE | BOTH | {"MODE": "touch"},
    "launches": ONE | BOTH | {"MODE": "touch", "MARK": "pass"},
    "events": ALONE | {"MODE": "events"},
    "watched": ONE | ALONE | {"MODE": "touch", "BETWEEN": "all"},
    "watched-tensors": ONE | BOTH | {"MODE": "touch", "BETWEEN": "all"},
    "sampled": BOTH | {"MODE": "touch", "EVERY": str(EVERY)},
}


def environ(settings: Mapping[str, str], out: Path) -> dict[str, str]:
    """The environment of a variant; makes the folder."""
    out.mkdir(parents=True)
    built = build.ensure_built()
    ours = {"OUT": str(out), "PATCHES": str(built / PATCHES)} | settings
    return {
        **os.environ, **{f"ACCEL_TRACE_{name}": value for name, value in ours.items()},
        "CUDA_INJECTION64_PATH": str(built / LIBRARY),
    }  # fmt: skip


def variant(name: str) -> Variant:
    """The program and the environment of one."""
    settings = dict(VARIANTS[name] or {})
    code = training(STEPS, settings.pop("MARK", "step()"))
    return code, functools.partial(environ, settings) if settings else None


def middle_of(steps: list[float]) -> float:
    """Of the steps that count."""
    return middle([steps[i] for i in COUNTED])


def main() -> int:
    """Run all by turns and print each time as it comes, then each variant's ratio to native."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=5, metavar="TURNS")
    parser.add_argument("-o", type=Path, metavar="FILE", help="seconds of all turns, as JSON")
    parser.add_argument("variants", nargs="*", help=", ".join(VARIANTS))
    options = parser.parse_args()
    if unknown := set(options.variants) - set(VARIANTS):
        parser.error(f"{', '.join(sorted(unknown))}: must be of {', '.join(VARIANTS)}")
    names = dict.fromkeys(["native", *(options.variants or VARIANTS)])
    build.ensure_built()
    torch_native.build()
    with tempfile.TemporaryDirectory() as folder:
        times = by_turns(Path(folder), options.n, {n: variant(n) for n in names}, middle_of,
                         functools.partial(print, flush=True))  # fmt: skip
    if options.o:
        options.o.write_text(json.dumps(times))
    for name, turns in times.items():
        mean, low, high = ratio(turns, times["native"])
        print(
            f"{name:16} {middle(turns) * 1e3:8.3f} ms  {mean:.4f} [{low:.4f} {high:.4f}] of native"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Times calls of CUDA under the Compute Sanitizer, by what of it is enabled (launch_costs.cu).

`python launch_costs.py [-n TURNS] [-o FILE]`, with the collector on PYTHONPATH. All configurations
run by turns, a process each; the table has the ratio to `native` of each turn, as their median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from accel_trace import build
from accel_trace.toolchain import find_toolchain

HERE = Path(__file__).resolve().parent
CONFIGURATIONS = (
    "native", "loaded", "subscribed", "resource", "synchronize", "memcpy", "memset", "graphs",
    "launch", "launch_begin", "driver", "driver_whole", "runtime_whole", "all", "residue",
    "between", "unsubscribed",
)  # fmt: skip


def main() -> int:
    """Build, run, print; 1 where a configuration does not run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=3, metavar="TURNS")
    parser.add_argument("-o", type=Path, metavar="FILE", help="a line of JSON for each process")
    options = parser.parse_args()
    tools, patches = find_toolchain(), build.ensure_built() / build.PATCHES
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "launch_costs"
        includes = [f"-I{tools.cuda_include}", f"-I{tools.sanitizer_include}"]
        subprocess.run(
            [str(tools.nvcc), "-std=c++17", "-O2", "-arch=native", *includes,
             str(HERE / "launch_costs.cu"), "-o", str(program), "-ldl"], check=True,
        )  # fmt: skip

        def run(what: str) -> dict[str, list[float]]:
            done = subprocess.run(
                [str(program), what, str(tools.sanitizer_library), str(patches)],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            if done.returncode:
                print(f"{what}: exit {done.returncode}: {done.stderr.strip()}")
                return {}
            found = json.loads(done.stdout)
            if options.o:
                with options.o.open("a") as file:
                    file.write(done.stdout)
            return {name: value for name, value in found.items() if name != "configuration"}

        turns = [{what: run(what) for what in CONFIGURATIONS} for _ in range(options.n)]
        inside = run("toggle_inside")
    print("switching callbacks within a callback:", "works" if inside else "DOES NOT WORK")
    calls = list(turns[0]["native"])
    for number, title in ((0, "us a call"), (1, "us a call with its work on the GPU")):
        print(
            f"\n{title}: native, then times native\n{'':26}"
            + "".join(f"{c[:13]:>14}" for c in calls)
        )
        for what in CONFIGURATIONS:
            cells = []
            for call in calls:
                pairs = [
                    (t[what][call][number], t["native"][call][number]) for t in turns if t[what]
                ]
                values = [a if what == "native" else a / b for a, b in pairs]
                cells.append(f"{statistics.median(values):14.3f}" if values else f"{'-':>14}")
            print(f"{what:26}" + "".join(cells))
    return 0 if inside and all(t[what] for t in turns for what in CONFIGURATIONS) else 1


if __name__ == "__main__":
    sys.exit(main())

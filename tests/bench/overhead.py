"""What the launcher itself takes: `ae --help`, and a no-op point against a bare `docker run`.

    python -m tests.bench.overhead [ROUNDS]

By hand, on a quiet machine with a Docker Engine that has ae/base:cpu; DOCKER_HOST says where. Runs
with and without `ae` alternate, so that a machine that changes speed does so for both. The limits
are for the medians: 0.2 s for `ae --help`, 0.35 s over `docker run` for the point.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.toy import make_checkout

HELP_LIMIT_S, OVER_LIMIT_S = 0.2, 0.35
ROOT = Path(__file__).resolve().parents[2]
AE = (sys.executable, "-m", "ae")


def seconds(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> float:
    """Wall time of a command that must succeed."""
    started = time.perf_counter()
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return taken


def main(rounds: int) -> int:
    """Measure and print; 1 when a limit is not kept."""
    with tempfile.TemporaryDirectory(prefix="ae-bench-") as temporary:
        folder = Path(temporary)
        name = f"bench{os.getpid()}"  # an image of its own: tests build and remove ae/toy
        root = make_checkout(folder / "root", name)
        # Compiled modules are part of an installation, also where a machine forbids to write them.
        env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        env |= {"AE_RESULTS": f"{folder}/results", "XDG_CACHE_HOME": f"{folder}/cache"}
        env |= {"MPLCONFIGDIR": f"{folder}/mpl", "PYTHONPATH": str(ROOT)}
        build = [*AE, "build", name, "--flavour", "cpu", "--base-image", "ae/base:cpu"]
        ours = [*AE, "run", name, "--experiment", "noop", "--engine", "docker", "--no-build"]
        out = folder / "out"
        out.mkdir()
        bare = ["docker", "run", "--rm", "--init", "--network", "none", "--env", "AE_OUT=/ae/out"]
        bare += ["--user", f"{os.getuid()}:{os.getgid()}"]  # so that it can write
        bare += ["--mount", f"type=bind,source={out},target=/ae/out", f"ae/{name}:cpu"]
        bare += ["python", "-m", "toy", "noop"]
        try:
            for argv in (build, ours, bare, [*AE, "--help"]):  # fills caches
                seconds(argv, root, env)
            each = [
                [seconds(argv, root, env) for argv in (bare, ours, [*AE, "--help"])]
                for _ in range(rounds)
            ]
        finally:
            remove = ["docker", "rmi", "--force", f"ae/{name}:cpu"]
            subprocess.run(remove, capture_output=True, check=False)
    docker, run, usage = (statistics.median(column) for column in zip(*each, strict=True))
    over = statistics.median(row[1] - row[0] for row in each)
    print(f"ae --help: {usage:.3f} s (limit {HELP_LIMIT_S} s)")
    print(f"docker run: {docker:.3f} s, ae run: {run:.3f} s; over it {over:.3f} s", end=" ")
    print(f"(limit {OVER_LIMIT_S} s); medians of {rounds}")
    return int(usage > HELP_LIMIT_S or over > OVER_LIMIT_S)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))

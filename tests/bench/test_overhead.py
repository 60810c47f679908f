"""What the launcher itself takes: `ae --help`, and a no-op point against a bare `docker run`.

The limit of a point is in seconds of a machine on which the yardstick takes `YARDSTICK_S`. Shared
machines change speed by half from one second to the next, so each round measures the yardstick
first, and its time counts less by as much as the machine was slower at that moment. The yardstick
is a loop that nothing of the launcher or its libraries has a part in.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ae.host.processes import run
from tests.toy import make_toy

HELP_LIMIT_S = 0.2
RUN_LIMIT_S = 0.5
YARDSTICK_S = 0.325  # the least of thirty on a machine of two cores
YARDSTICK = (sys.executable, "-c", "s = 0\nfor i in range(3_000_000): s += i")
ROUNDS = 7
AE = (str(Path(sys.executable).with_name("ae")),)

pytestmark = pytest.mark.slow


def seconds(argv: Sequence[str], root: Path, env: dict[str, str]) -> float:
    # Compiled modules are part of an installation, also where the machine forbids to write them.
    env = {key: value for key, value in env.items() if key != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    done = subprocess.run(argv, cwd=root, env=env, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    return taken


def slowness(root: Path) -> float:
    """How many times slower than the machine of the limit this one is now; never below 1."""
    return max(1.0, seconds(YARDSTICK, root, dict(os.environ)) / YARDSTICK_S)


def test_help_is_quick(tmp_path: Path) -> None:
    seconds([*AE, "--help"], tmp_path, dict(os.environ))  # compiled files and caches
    taken = [seconds([*AE, "--help"], tmp_path, dict(os.environ)) for _ in range(ROUNDS)]
    print(f"\nae --help: median {statistics.median(taken):.3f} s, least {min(taken):.3f} s")
    # The least: other programs on the machine only ever add to it.
    assert min(taken) < HELP_LIMIT_S


@pytest.mark.docker
def test_a_point_costs_little_over_docker_run(docker_host: str, tmp_path: Path) -> None:
    """Side by side in one run: `ae run` of a point that does nothing, and `docker run` of it."""
    root = make_toy(tmp_path / "toy")
    env = dict(os.environ) | {
        "AE_RESULTS": str(tmp_path / "results"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "MPLCONFIGDIR": str(tmp_path / "mpl"),
    }
    options = ["--engine", "docker", "--base-image", "ae/base:cpu"]
    ours = [*AE, "run", "toy", "--experiment", "noop", *options]
    seconds(ours, root, env)  # builds the image
    out = tmp_path / "out"
    out.mkdir()
    noop = ["python", "-m", "toy", "noop"]
    bare = ["docker", "run", "--rm", "--init", "--network", "none", "--env", "AE_OUT=/ae/out"]
    bare += ["--user", f"{os.getuid()}:{os.getgid()}"]  # as ae does, so that it can write
    bare += ["--mount", f"type=bind,source={out},target=/ae/out", "ae/toy:cpu", *noop]
    extra, with_ae, without = [], [], []
    for _ in range(ROUNDS):
        slower = slowness(root)
        without.append(seconds(bare, root, env))
        with_ae.append(seconds(ours, root, env))
        extra.append((with_ae[-1] - without[-1]) / slower)
    print(
        f"\nae run: median {statistics.median(with_ae):.3f} s; docker run: "
        f"{statistics.median(without):.3f} s; over it, scaled: {statistics.median(extra):.3f} s, "
        f"least {min(extra):.3f} s"
    )
    run(["docker", "rmi", "--force", "ae/toy:cpu"])
    # The least, as above.
    assert min(extra) < RUN_LIMIT_S

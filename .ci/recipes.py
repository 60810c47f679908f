"""Builds, runs and checks every recipe that says in tests/expected.yaml what CI may expect of it.

    python .ci/recipes.py BUILD_OPTION...      options of `ae build`, for every image

Keys of recipes/<name>/tests/expected.yaml, each of which may be left out:

    figures   figures that must have been drawn, as PDF, PNG and a CSV with rows
    verdicts  claim: verdict
    variants  experiment: variants of which every point must have records
    build     build arguments
    run       more options of `ae run <name> --quick`
    engines   docker (which builds the image), local; only docker if not given

A run is judged by its files alone.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import yaml

AE = [sys.executable, "-m", "ae"]
KEYS = {"figures", "verdicts", "variants", "build", "run", "engines"}


def main(options: Sequence[str]) -> None:
    """Every recipe with expectations. Raises CalledProcessError or AssertionError."""
    listed = json.loads(
        subprocess.run([*AE, "list", "--json"], check=True, capture_output=True).stdout
    )
    expected = {}
    for recipe in listed:
        path = Path("recipes", recipe["name"], "tests", "expected.yaml")
        if path.is_file():
            expected[recipe["name"]] = read(path)
    assert expected, "no recipe says what to expect of it"
    with ThreadPoolExecutor(1) as builder:  # the next image is built while a recipe runs
        built = {name: builder.submit(build, name, one, options) for name, one in expected.items()}
        for name, wanted in expected.items():
            print(f"\n=== {name} ===\n{built[name].result()}", flush=True)
            for engine in wanted.get("engines", ["docker"]):
                perform(name, engine, wanted)
    first = next(iter(expected))
    ae("plot", first)
    ae("report", first)  # of all recipes: tests/test_reference.py


def read(path: Path) -> dict[str, Any]:
    """One file. A key that nobody reads would protect nothing."""
    wanted = yaml.safe_load(path.read_text()) or {}
    unknown = set(wanted) - KEYS
    assert not unknown, f"{path}: unknown {sorted(unknown)}"
    assert wanted.get("figures"), f"{path}: no figure is expected"
    assert wanted.get("verdicts"), f"{path}: no verdict is expected"
    return wanted


def build(name: str, wanted: Mapping[str, Any], options: Sequence[str]) -> str:
    """Build the image; what was said, which is held back until the recipe's turn."""
    given = [f"--build-arg={key}={value}" for key, value in wanted.get("build", {}).items()]
    argv, began = [*AE, "build", name, "--flavour", "cpu", *given, *options], time.monotonic()
    done = subprocess.run(argv, stdout=PIPE, stderr=STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}ae build {name} ended with {done.returncode}"
    return f"{done.stdout}(in {time.monotonic() - began:.0f} s, beside what ran then)"


def perform(name: str, engine: str, wanted: Mapping[str, Any]) -> None:
    """Run and check with one engine."""
    print(f"\n--- on {engine} (at {time.monotonic() - _BEGAN:.0f} s)", flush=True)
    here = ["--engine", engine]
    if engine == "docker":
        ae("doctor", name)
        here.append("--no-build")
    ae("run", name, "--quick", *here, *wanted.get("run", []))
    print(verify(newest(Path("results/runs", name)), wanted), flush=True)


def ae(*words: str) -> None:
    """One command of `ae`, which must succeed."""
    subprocess.run([*AE, *words], check=True)


def newest(runs: Path) -> Path:
    """The folder of the newest run: their names begin with the time."""
    return max(path for path in runs.iterdir() if (path / "run.json").is_file())


def verify(run: Path, wanted: Mapping[str, Any]) -> str:
    """Check that all points, figures, verdicts and records are there; say what was checked."""
    points = json.loads((run / "run.json").read_text())["plan"]["points"]
    assert points, "nothing was planned"
    for point in points:
        path = run / "points" / point["id"] / "status.json"
        status = json.loads(path.read_text())["status"] if path.is_file() else "not begun"
        assert status == "done", f"point {point['id']} is {status}"
    for name in wanted.get("figures", []):
        for ending in ("pdf", "png", "csv"):
            path = run / "figures" / f"{name}.{ending}"
            assert path.is_file(), f"figure {name} has no {ending}"
            assert path.stat().st_size > 100, f"{path.name} is empty"
        with (run / "figures" / f"{name}.csv").open(newline="") as file:
            assert list(csv.DictReader(file)), f"figure {name} shows nothing"
    claims = json.loads((run / "claims.json").read_text())["claims"]
    verdicts = {claim["id"]: claim["verdict"] for claim in claims}
    for claim, verdict in wanted.get("verdicts", {}).items():
        found = verdicts.get(claim, "missing")
        assert found == verdict, f"claim {claim} is '{found}', not '{verdict}'"
    for experiment, variants in wanted.get("variants", {}).items():
        mine = [point["id"] for point in points if point["experiment"] == experiment]
        assert mine, f"no point of the experiment {experiment}"
        for point in mine:
            lines = (run / "points" / point / "records.jsonl").read_text().splitlines()
            measured = {json.loads(line)["labels"].get("variant") for line in lines}
            lacking = set(variants) - measured
            assert not lacking, f"point {point} has no records of {sorted(lacking)}"
    return f"{run.name}: {len(points)} points done, {len(verdicts)} verdicts, all as expected"


_BEGAN = time.monotonic()
if __name__ == "__main__":
    main(sys.argv[1:])

"""`ae run --against` on the real Docker Engine: two images of one toy, by turns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compare.calibrated import calibrate
from tests.servers.registry import registry
from tests.toy import make_toy

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]
NAME = f"turns{os.getpid()}"
ADDING = f"images/{NAME}/src/toy/adding.py"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, docker_endpoint: str) -> Iterator[Path]:
    """The toy under a name of its own, on the base image that is there."""
    made = make_toy(tmp_path_factory.mktemp("turns") / "checkout")
    for folder in ("recipes", "images"):
        (made / folder / "toy").rename(made / folder / NAME)
    calibrate(made / "images" / NAME)
    recipe = made / "recipes" / NAME / "recipe.yaml"
    text = recipe.read_text().replace("name: toy\n", f"name: {NAME}\n")
    recipe.write_text(text.replace("image: toy\n", f"image: {NAME}\n"))
    dockerfile = made / "images" / NAME / "Dockerfile"
    tail = dockerfile.read_text().partition("ARG FLAVOUR=cpu\nLABEL")[2].replace("toy/", f"{NAME}/")
    tail = tail.replace(f"/opt/{NAME}/", "/opt/toy/")
    dockerfile.write_text(f"FROM ae/base:cpu\nARG FLAVOUR=cpu\nLABEL{tail}")
    yield made
    remove(docker_endpoint, f"ae.image={NAME}")


def environment(root: Path, endpoint: str, **more: str) -> dict[str, str]:
    found = os.environ | more | {
        "DOCKER_HOST": endpoint, "AE_ROOT": str(root), "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(root / "cache"), "AE_REVISION": "a" * 40,
    }  # fmt: skip
    found.pop("AE_RESULTS", None)
    return found


def ae(root: Path, endpoint: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ae", *words], cwd=root, env=environment(root, endpoint, **more),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


RUN = ("run", NAME, "--engine", "docker", "--experiment", "together", "--dataset", "ones",
       "--samples", "15")  # fmt: skip


def run(root: Path, endpoint: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return ae(root, endpoint, *RUN, *words, **more)


def remove(endpoint: str, label: str) -> None:
    """Every image with that label."""
    docker = ["docker", "--host", endpoint]
    wanted = [*docker, "images", "--all", "--quiet", f"--filter=label={label}"]
    if ids := set(subprocess.check_output(wanted, text=True).split()):
        subprocess.run([*docker, "rmi", "--force", *ids], check=True, capture_output=True)


def runs(root: Path) -> list[Path]:
    """By when they were created."""
    found = (root / "results/runs" / NAME).glob("*/run.json")
    return sorted((p.parent for p in found), key=lambda p: record(p)["created"])


def record(folder: Path) -> Any:
    return json.loads((folder / "run.json").read_text())


def statuses(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("points/*/status.json")]


def test_the_other_image_is_measured_by_turns_and_what_is_slower_is_said(
    root: Path, docker_endpoint: str
) -> None:
    done = run(root, docker_endpoint)
    assert done.returncode == 0, done.stderr
    (first,) = runs(root)
    adding = root / ADDING
    adding.write_text(adding.read_text().replace('"fast": 1', '"fast": 2'))
    done = run(root, docker_endpoint, "--repeat", "6", "--against", first.name, "--json")
    assert done.returncode == 1, done.stderr
    assert "[12/12]" in done.stderr
    made = json.loads(done.stdout)
    _, a, b = runs(root)
    assert (made["a"], made["b"], made["worse"]) == (a.name, b.name, True)
    cells = {one["variant"]: one for one in made["cells"]}
    assert cells["fast"]["word"] == "slower"
    assert 1.6 < cells["fast"]["ratio"] < 2.5
    # No word is asked for: two images of one code may differ by more than 1 % on a busy machine.
    assert 0.8 < cells["slow"]["ratio"] < 1.25
    assert made["facts"]["image"]["a"] != made["facts"]["image"]["b"]
    # A B B A A B B A ..., A in the very image of the first run
    both = sorted((one["started"], side) for side, f in zip("AB", (a, b), strict=True)
                  for one in statuses(f))  # fmt: skip
    assert "".join(side for _, side in both) == "ABBA" * 3
    images = [{one["image_id"] for one in statuses(folder)} for folder in (first, a, b)]
    assert images[0] == images[1] != images[2]
    assert first.name in record(a)["plan"]["notes"][-1]
    assert not {p["key"] for p in record(a)["plan"]["points"]} & {
        p["key"] for p in record(b)["plan"]["points"]
    }


def test_ctrl_c_says_how_to_go_on(root: Path, docker_endpoint: str) -> None:
    first, *_ = before = runs(root)
    argv = [sys.executable, "-m", "ae", *RUN, "--repeat", "9", "--against", first.name]
    with subprocess.Popen(
        argv, cwd=root, env=environment(root, docker_endpoint), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        seen = iter(process.stderr)
        assert any(line.startswith("[3/18] ") for line in seen)  # A and B have a point each
        process.send_signal(signal.SIGINT)
        *_, last = seen
    assert process.returncode == 130
    a, b = (folder.name for folder in runs(root)[len(before) :])
    how = f"ae compare {NAME} {a} {b}"
    assert last == f"interrupted; {how} compares what is done, the same command measures anew\n"
    done = ae(root, docker_endpoint, *how.split()[1:])
    assert done.returncode == 0, done.stderr
    assert "undecided" in done.stdout


def test_an_image_that_is_gone_is_said_with_a_fix(root: Path, docker_endpoint: str) -> None:
    first, *_ = runs(root)
    content = record(first)["plan"]["points"][0]["image"]["content"]
    remove(docker_endpoint, f"ae.content={content}")
    before = runs(root)
    done = run(root, docker_endpoint, "--against", first.name)
    assert done.returncode == 3
    assert (
        f"engine docker has no image of the sources of {first.name} ({content[:12]})" in done.stderr
    )
    assert f"fix: check out {'a' * 40}, `ae build {NAME}`" in done.stderr
    assert runs(root) == before
    done = ae(root, docker_endpoint, "run", NAME, "--engine", "local", "--against", first.name)
    assert done.returncode == 3
    assert "engine local has no image of the sources" in done.stderr


def test_a_published_image_comes_from_the_registry(
    root: Path, docker_endpoint: str, tmp_path: Path
) -> None:
    *_, last = runs(root)
    content = record(last)["plan"]["points"][0]["image"]["content"]
    with registry(tmp_path / "registry") as place:
        pushed = ae(root, docker_endpoint, "push", NAME, "--flavour", "cpu", AE_REGISTRY=place.name)
        assert pushed.returncode == 0, pushed.stderr
        adding = root / ADDING
        adding.write_text(adding.read_text().replace('"fast": 2', '"fast": 4'))
        remove(docker_endpoint, f"ae.content={content}")
        words = ("--against", last.name, "--json")
        done = run(root, docker_endpoint, *words, AE_REGISTRY=place.name)
    assert done.returncode == 0, done.stderr  # one process of each decides nothing
    (fast,) = (one for one in json.loads(done.stdout)["cells"] if one["variant"] == "fast")
    assert 1.5 < fast["ratio"] < 2.7
    assert fast["word"] == "undecided"


@pytest.mark.parametrize("words", [("--resume",), ("--dry-run",)])
def test_against_measures_anew(root: Path, docker_endpoint: str, words: tuple[str, ...]) -> None:
    done = run(root, docker_endpoint, "--against", runs(root)[0].name, *words)
    assert done.returncode == 2
    assert "--against measures one paper anew" in done.stderr

"""docs/adding-a-paper.md, followed to the letter: its files make a paper that runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toy import make_checkout

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/adding-a-paper.md").read_text()
FILES = dict(
    re.findall(r"^`((?:images|recipes)/toy/\S+)`:\n\n```\w*\n(.*?)^```$", PAGE, re.M | re.S)
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the page's toy in place of the tests' one."""
    root = make_checkout(tmp_path / "tree")
    for folder in ("images/toy", "recipes/toy", "images/common/src", "images/base"):
        shutil.rmtree(root / folder)
    for folder in ("images/common/src", "images/base"):
        shutil.copytree(ROOT / folder, root / folder)
    shutil.copy(ROOT / "images/lock.py", root / "images")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def ae(root: Path, *words: str, **variables: str) -> str:
    environment = os.environ | {"AE_ROOT": str(root), "AE_RESULTS": str(root / "results")}
    done = subprocess.run(
        [sys.executable, "-m", "ae", *words], cwd=root, env=environment | variables,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_run(root: Path) -> None:
    (run,) = (path for path in (root / "results/runs/toy").iterdir() if path.name != "latest")
    claims = json.loads((run / "claims.json").read_text())["claims"]
    verdicts = {claim["id"]: claim["verdict"] for claim in claims}
    assert verdicts == {"T1": "reproduced", "T2": "not transcribed"}
    assert (run / "figures/times.png").stat().st_size > 1000


def test_the_page_shows_every_file() -> None:
    assert set(FILES) == {
        "images/toy/src/toy/__init__.py", "images/toy/src/toy/__main__.py",
        "images/toy/requirements-cpu.in", "images/toy/Dockerfile",
        "recipes/toy/recipe.yaml", "recipes/toy/figures.py", "recipes/toy/claims.yaml",
    }  # fmt: skip


def test_its_files_run_without_a_container(checkout: Path) -> None:
    ae(checkout, "run", "toy", "--engine", "local", AE_LOCAL_PYTHON=sys.executable)
    check_run(checkout)


def test_its_files_are_clean(checkout: Path) -> None:
    for words in (("check",), ("format", "--check")):
        argv = [sys.executable, "-m", "ruff", *words, "images/toy", "recipes/toy"]
        done = subprocess.run(argv, cwd=checkout, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_is_locked_built_and_run(docker_host: str, checkout: Path) -> None:
    """As the page says it, with what a machine behind a proxy needs added."""
    subprocess.run([sys.executable, "images/lock.py", "toy"], cwd=checkout, check=True, timeout=200)
    assert "--hash=sha256:" in (checkout / "images/toy/requirements-cpu.txt").read_text()
    ca = Path("/etc/ssl/certs/ca-certificates.crt")
    behind = ("--ca-bundle", str(ca)) if ca.is_file() else ()
    name = f"toy{os.getpid()}"  # the engine is everybody's: an image of our own
    for path in [path for path in checkout.rglob("*") if "/toy" in str(path) and path.is_file()]:
        if path.is_relative_to(checkout / "images") or path.is_relative_to(checkout / "recipes"):
            path.write_text(re.sub(r"\btoy\b", name, path.read_text()))
    for place in (f"images/toy/src/{name}", f"images/{name}", f"recipes/{name}"):
        (checkout / place.replace(name, "toy")).rename(checkout / place)
    try:
        ae(checkout, "build", name, "--flavour", "cpu", "--network", "host", *behind)
        ae(checkout, "run", name, "--engine", "docker", "--no-build")
    finally:
        argv = ["docker", "--host", docker_host, "image", "rm", "--force", f"ae/{name}:cpu"]
        subprocess.run(argv, capture_output=True, check=False)
    (checkout / f"results/runs/{name}").rename(checkout / "results/runs/toy")
    check_run(checkout)

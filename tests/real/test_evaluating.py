"""What an evaluator and an agent ask, over a real Docker Engine: a budget, and whether an image is
that of the tree and starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BASE_IMAGE
from tests.toy import make_checkout

pytestmark = pytest.mark.docker
NAME = f"judged{os.getpid()}"
CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs" / "evaluating.md"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, docker_endpoint: str) -> Iterator[Path]:
    """A toy of these tests alone; its image goes when they end."""
    made = make_checkout(tmp_path_factory.mktemp("judged"), NAME)
    yield made
    words = ["docker", "--host", docker_endpoint, "image", "rm", "--force", f"ae/{NAME}:cpu"]
    subprocess.run(words, capture_output=True, check=False)


def ae(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The engine's variables come from the test, see docker_host.
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "AE_ROOT": str(root)}
    argv = [sys.executable, "-m", "ae", *words]
    return subprocess.run(
        argv, env=environment, cwd=root, capture_output=True, text=True, check=False, timeout=600
    )


def judged(root: Path) -> tuple[int, dict[str, Any], str]:
    done = ae(root, "oracle", "build", NAME, "--engine", "docker", "--json")
    return done.returncode, json.loads(done.stdout), done.stdout


def test_an_image_is_judged_and_a_budget_spent(root: Path, docker_host: str) -> None:
    code, said, _ = judged(root)
    assert (code, said["pass"]) == (22, False)
    assert said["findings"][0]["fix"].startswith(f"ae build {NAME}")

    done = ae(root, "build", NAME, "--flavour", "cpu", "--base-image", BASE_IMAGE)
    assert done.returncode == 0, done.stderr
    done = ae(root, "run", NAME, "--engine", "docker", "--no-build", "--budget", "4s")
    assert done.returncode == 0, done.stderr
    assert "budget 4 s: 2 of 6 points, about 4 s, to decide 2 of 3 claims" in done.stderr
    (claims,) = root.glob("results/runs/*/*/claims.json")
    rest = f"to run the rest: ae run {claims.parent.name} --resume"
    assert f"of 6 points are done and kept; {rest}" in done.stderr
    verdicts = {one["id"]: one["verdict"] for one in json.loads(claims.read_text())["claims"]}
    assert verdicts["T1"] == "reproduced"

    code, said, text = judged(root)
    assert (code, said["pass"]) == (0, True)
    assert [one["check"] for one in said["findings"]] == [f"ae/{NAME}:cpu"]
    assert judged(root)[2] == text


def test_the_example_of_the_docs_goes_through(
    root: Path, docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = re.findall(r"```\n(#!/bin/sh.*?)```", DOCS.read_text(), re.S)
    for old, new in (
        ("paper=pasta", f"paper={NAME}"),
        ("ae build", f"ae build --base-image {BASE_IMAGE}"),
    ):
        assert old in script
        script = script.replace(old, new)
    program = tmp_path / "ae"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ae "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AE_REVISION", "a" * 40)

    def example() -> tuple[int, str]:
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "AE_ROOT": str(root)}
        done = subprocess.run(
            ["sh", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True,
            check=False, timeout=600,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    code, said = example()
    assert code == 23, said  # nothing is committed: who knows what it was made from?
    commit(root)
    code, said = example()
    assert (code, "reference: there is no reference set of toy-gpu-1" in said) == (24, True), said
    latest = max((root / f"results/runs/{NAME}").iterdir())
    assert ae(root, "keep", latest.name).returncode == 0
    commit(root)
    code, said = example()
    assert code == 0, said


def commit(root: Path) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-mx"]):
        subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)


def test_no_engine_is_a_no_of_the_judge(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    code, said, _ = judged(root)
    assert (code, said["pass"]) == (22, False)
    assert [one["check"] for one in said["findings"]] == ["build"]
    assert said["findings"][0]["fix"]


def test_an_image_of_other_sources_is_not_that_of_the_tree(root: Path, docker_host: str) -> None:
    source = next((root / "images" / NAME / "src").rglob("adding.py"))
    source.write_text(source.read_text() + "\n# changed\n")
    code, said, _ = judged(root)
    assert (code, said["pass"]) == (22, False)
    assert "has none of the sources" in said["findings"][0]["detail"]

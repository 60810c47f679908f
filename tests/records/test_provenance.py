"""What a run says of the source it came from: revision, changes, files that git does not know."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from ae.records.models import Source, source_facts


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("AE_REVISION", raising=False)
    (tmp_path / "images").mkdir()
    (tmp_path / "images/Dockerfile").write_text("FROM scratch\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "-m", "one")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_clean_checkout_is_its_revision(checkout: Path) -> None:
    assert source_facts(checkout) == Source(
        revision=git(checkout, "rev-parse", "HEAD"), dirty=False
    )


def test_a_change_is_kept_with_its_hash(checkout: Path) -> None:
    (checkout / "images/Dockerfile").write_text("FROM other\n")
    facts = source_facts(checkout)
    assert facts.dirty is True
    assert "+FROM other" in (facts.diff or "")
    assert facts.diff_sha256 == hashlib.sha256((facts.diff or "").encode()).hexdigest()
    assert "new_files" not in facts


def test_new_files_that_a_run_is_made_from_count(checkout: Path) -> None:
    (checkout / "images/kernel.py").write_text("x = 1\n")
    (checkout / "notes.txt").write_text("mine\n")
    facts = source_facts(checkout)
    assert facts.dirty is True
    assert facts.new_files == {"images/kernel.py": hashlib.sha256(b"x = 1\n").hexdigest()}


def test_a_stray_note_does_not(checkout: Path) -> None:
    (checkout / "notes.txt").write_text("mine\n")
    assert source_facts(checkout).dirty is False


def test_a_stated_revision_is_kept_beside_what_git_says(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AE_REVISION", "abc")
    facts = source_facts(checkout)
    assert facts.stated_revision == "abc"
    assert facts.revision == git(checkout, "rev-parse", "HEAD")
    bare = tmp_path_factory.mktemp("bare")
    assert source_facts(bare) == Source(revision="abc")

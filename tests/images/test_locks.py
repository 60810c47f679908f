"""Lock files: everything pinned by hash, and each lock fits what it was made from. No network."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.images.dockerfiles import IMAGES
from tests.images.requirements import LOCKS, SOURCES, entries, header, label


@pytest.mark.parametrize("path", LOCKS, ids=label)
def test_every_entry_is_pinned_by_hash(path: Path) -> None:
    loose = [one.name for one in entries(path) if not one.version or not one.hashes]
    assert loose == []
    assert entries(path), "the file pins nothing"


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_a_lock_fits_its_source(path: Path) -> None:
    locked = {one.name: one for one in entries(path.with_suffix(".txt"))}
    for wanted in entries(path):
        assert wanted.name in locked, f"{wanted.name} is not locked: python images/lock.py"
        version = locked[wanted.name].version
        assert wanted.requirement.specifier.contains(version, prereleases=True), wanted.requirement
    if header(path).get("dependencies") == "none":
        assert len(locked) == len(entries(path))


def test_every_image_with_sources_has_all_its_locks() -> None:
    """A lock without a source cannot be made again; upstream images pin by hand what once was."""
    orphans = [
        label(path)
        for path in LOCKS
        if not path.parent.name.endswith("-upstream") and path.with_suffix(".in") not in SOURCES
    ]
    assert orphans == []


@pytest.fixture
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", IMAGES / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_how_a_file_is_resolved(lock: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "requirements-x.in"
    source.write_text(
        "# Why.\n# python: 3.8\n# index: https://i.org/\n# dependencies: none\nnumpy\n"
    )
    argv = lock.compile_argv("uv", source, tmp_path / "x.txt", wheels=None, upgrade=True)
    words = " ".join(argv)
    assert "--generate-hashes" in argv
    assert "--python-version 3.8 --python-platform x86_64-manylinux_2_28 --no-deps" in words
    assert "--index https://i.org/" in words
    assert words.endswith("--upgrade")
    argv = lock.compile_argv("uv", source, tmp_path / "x.txt", wheels=tmp_path, upgrade=False)
    assert "https://i.org/" not in argv
    assert argv[-2:] == ["--find-links", str(tmp_path)]


def test_a_setting_that_is_not_known(lock: ModuleType) -> None:
    with pytest.raises(lock.Fault, match="dependencies: some"):
        lock.settings("# dependencies: some\n")


def test_an_image_without_sources(lock: ModuleType) -> None:
    with pytest.raises(lock.Fault, match=r"images/base has no requirements-\*\.in"):
        lock.main(["base"])

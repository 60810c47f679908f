"""Where images are published: the lock says it, or a variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from ae.errors import UsageError
from ae.images import lockfile, registry
from ae.images.lockfile import Entry
from ae.model import Flavour


def test_a_registry_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("localhost:5000/ae", "ghcr.io/x/ae", "host"):
        monkeypatch.setenv("AE_REGISTRY", name)
        assert registry.place(tmp_path) == registry.require_place(tmp_path) == name


def test_the_registry_of_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AE_REGISTRY", raising=False)
    path = tmp_path / lockfile.PATH
    path.parent.mkdir()
    path.write_text("schema: 1\nregistry: ghcr.io/x/ae\nimages: {}\n")
    assert registry.place(tmp_path) == "ghcr.io/x/ae"
    digest = "sha256:" + "0" * 64
    entry = Entry(content="0" * 64, digest=digest, image_id=digest)
    lockfile.store(tmp_path, "one", Flavour.CPU, entry)  # as `ae push` does, wherever it pushes
    assert registry.place(tmp_path) == "ghcr.io/x/ae"
    for name in ("localhost:5000/ae", ""):
        monkeypatch.setenv("AE_REGISTRY", name)
        assert registry.place(tmp_path) == (name or None)
    path.write_text("schema: 1\nregistry: https://ghcr.io/x/ae\nimages: {}\n")
    monkeypatch.delenv("AE_REGISTRY")
    with pytest.raises(UsageError, match="is no registry"):
        registry.place(tmp_path)


@pytest.mark.parametrize("name", ["https://ghcr.io/x", "Ghcr.io/X", "host/", "a b", "host:port/x"])
def test_what_is_no_registry(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AE_REGISTRY", name)
    with pytest.raises(UsageError, match="is no registry") as caught:
        registry.place(tmp_path)
    assert "HOST[:PORT]/PATH" in caught.value.fix


@pytest.mark.parametrize("name", [None, ""])
def test_no_registry_says_how_to_name_one(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AE_REGISTRY", raising=False)
    if name is not None:
        monkeypatch.setenv("AE_REGISTRY", name)
    assert registry.place(tmp_path) is None
    with pytest.raises(UsageError, match="no registry is named") as caught:
        registry.require_place(tmp_path)
    assert "AE_REGISTRY" in caught.value.fix

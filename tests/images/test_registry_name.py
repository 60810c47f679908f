"""Where images are published: one variable."""

from __future__ import annotations

import pytest

from ae.errors import UsageError
from ae.images import registry


def test_a_registry_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("localhost:5000/ae", "ghcr.io/x/ae", "host"):
        monkeypatch.setenv("AE_REGISTRY", name)
        assert registry.place() == registry.require_place() == name


@pytest.mark.parametrize("name", ["https://ghcr.io/x", "Ghcr.io/X", "host/", "a b", "host:port/x"])
def test_what_is_no_registry(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AE_REGISTRY", name)
    with pytest.raises(UsageError, match="is no registry") as caught:
        registry.place()
    assert "HOST[:PORT]/PATH" in caught.value.fix


@pytest.mark.parametrize("name", [None, ""])
def test_no_registry_says_how_to_name_one(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AE_REGISTRY", raising=False)
    if name is not None:
        monkeypatch.setenv("AE_REGISTRY", name)
    assert registry.place() is None
    with pytest.raises(UsageError, match="no registry is named") as caught:
        registry.require_place()
    assert "AE_REGISTRY" in caught.value.fix

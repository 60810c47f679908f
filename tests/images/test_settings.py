"""The person's settings: one file, and variables that win over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ae.errors import RecipeError, UsageError
from ae.images import settings


def write(folder: Path, text: str) -> dict[str, str]:
    (folder / "ae").mkdir()
    (folder / "ae/config.yaml").write_text(text)
    return {"XDG_CONFIG_HOME": str(folder)}


def test_the_variable_wins(tmp_path: Path) -> None:
    environment = write(tmp_path, "registry: localhost:5000/ae\n")
    assert settings.registry(environment) == "localhost:5000/ae"
    assert settings.registry(environment | {"AE_REGISTRY": "ghcr.io/x/ae"}) == "ghcr.io/x/ae"
    assert settings.registry({"XDG_CONFIG_HOME": "/nonexistent"}) is None


@pytest.mark.parametrize("name", ["https://ghcr.io/x", "Ghcr.io/X", "host/", "a b", "host:port/x"])
def test_what_is_no_registry(name: str) -> None:
    with pytest.raises(UsageError, match="is no registry") as caught:
        settings.registry({"AE_REGISTRY": name})
    assert "HOST[:PORT]/PATH" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("registy: x\n", "config.yaml:1: unknown key 'registy'; did you mean 'registry'?"),
        ("registry: [a]\n", "config.yaml:1: registry"),
        ("registry: x\n  y: z\n", "not valid YAML"),
    ],
)
def test_a_wrong_file_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        settings.registry(write(tmp_path, text))
    assert message in caught.value.message


def test_no_registry_says_where_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AE_REGISTRY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    with pytest.raises(UsageError, match="no registry is named") as caught:
        settings.require_registry()
    assert "AE_REGISTRY" in caught.value.fix

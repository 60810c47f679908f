"""What a person has set for all runs: $XDG_CONFIG_HOME/ae/config.yaml. Variables win over it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ae.errors import UsageError
from ae.recipe.yamlfile import read_yaml, validate

_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?(/[a-z0-9]+([._-][a-z0-9]+)*)*")


class Settings(BaseModel):
    """The keys that the file may have."""

    model_config = ConfigDict(extra="forbid", strict=True)
    registry: str | None = None


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the settings are."""
    folder = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "ae" / "config.yaml"


def registry(environment: Mapping[str, str] = os.environ) -> str | None:
    """Where images are pushed to and pulled from: AE_REGISTRY, else `registry:` of the settings.

    Raises UsageError for a name that no registry can have, RecipeError (file and line) for a
    settings file that is wrong.
    """
    path = config_file(environment)
    named, where = environment.get("AE_REGISTRY"), "AE_REGISTRY"
    if not named and path.is_file():
        named, where = validate(read_yaml(path, path.parent), Settings).registry, str(path)
    if named and not _REGISTRY.fullmatch(named):
        raise UsageError(
            f"'{named}' ({where}) is no registry", fix="write HOST[:PORT]/PATH, as ghcr.io/you/ae"
        )
    return named or None


def require_registry() -> str:
    """The registry. Raises UsageError when none is named."""
    found = registry()
    if found is None:
        raise UsageError(
            "no registry is named",
            fix=f"set AE_REGISTRY=HOST[:PORT]/PATH, or `registry:` in {config_file()}",
        )
    return found

"""Where images are pushed to and pulled from: the variable AE_REGISTRY."""

from __future__ import annotations

import os
import re

from ae.errors import UsageError

_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?(/[a-z0-9]+([._-][a-z0-9]+)*)*")
_FORM = "HOST[:PORT]/PATH, as ghcr.io/you/ae"


def registry() -> str | None:
    """The registry; None where none is named. Raises UsageError for what no registry can be."""
    named = os.environ.get("AE_REGISTRY")
    if named and not _REGISTRY.fullmatch(named):
        raise UsageError(f"'{named}' (AE_REGISTRY) is no registry", fix=f"write {_FORM}")
    return named or None


def require_registry() -> str:
    """The registry. Raises UsageError when none is named."""
    if found := registry():
        return found
    raise UsageError("no registry is named", fix=f"set AE_REGISTRY={_FORM}")

"""Words of containers: image references, names, labels, time stamps. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime

from ae.errors import EnvironmentFault
from ae.model import Point


def split_reference(reference: str) -> tuple[str, str | None]:
    """Split into repository and tag or digest: a registry may have a port, a digest has a colon."""
    if "@" in reference:
        repository, _, digest = reference.partition("@")
        return repository, digest
    head, slash, last = reference.rpartition("/")
    name, colon, tag = last.partition(":")
    return f"{head}{slash}{name}", tag if colon else "latest"


def borrowed(reference: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Host folders that an image borrows, from its label `ae.binds`."""
    text = labels.get("ae.binds")
    if not text:
        return ()
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(
        isinstance(path, str) and path.startswith("/") and path != "/" for path in paths
    ):
        raise EnvironmentFault(
            f"the label ae.binds of {reference} is not a JSON list of absolute folders",
            fix="build the image again",
        )
    return tuple(paths)


def container_name(point: Point, token: str) -> str:
    """A name that says what runs in the container; `token` makes it the only one."""
    return f"ae-{_safe(point.recipe)}-{_safe(point.id)}-{token}"


def seconds_between(start: str, end: str) -> float:
    """Time between two of Docker's time stamps, which have nanoseconds."""
    return max(0.0, (_stamp(end) - _stamp(start)).total_seconds())


def _stamp(text: str) -> datetime:
    match = re.fullmatch(r"(.*?)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", text)
    if match is None:
        return datetime.fromisoformat("0001-01-01T00:00:00+00:00")
    zone = "+00:00" if match[3] == "Z" else match[3]
    return datetime.fromisoformat(f"{match[1]}.{(match[2] or '0')[:6]:0<6}{zone}")


def _safe(word: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", word)[:60] or "x"

"""Secrets of a run, such as a licence: files that only the container may read.

A secret reaches a container as a read-only bind of the person's own file and nothing else. Its
content is in no argument, variable or label; a line of output that repeats it is masked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ae.engines.base import Job
from ae.errors import UsageError, nearest
from ae.model import Mount, Secret

LIMIT = 2**20  # bytes
SHORTEST = 6  # characters; shorter words of a secret occur anywhere


def resolve(
    known: Sequence[str], asked: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Path]:
    """The file of every secret that a person gave, by name: `--secret`, else the variable.

    `known` are the recipe's secrets. Raises UsageError for a secret that the recipe does not have
    and for a file that cannot be one.
    """
    for name in asked:
        if name not in known:
            said = f"the recipe has no secret '{name}'; {nearest(name, known)}"
            raise UsageError(said, fix="drop it, or see the recipe's `secrets`")
    files = {}
    for name in known:
        if word := asked.get(name) or environment.get(Secret(name=name, target="").variable):
            files[name] = path = Path(word).expanduser().absolute()
            if not (path.is_file() and os.access(path, os.R_OK)):
                said = f"{path}, for the secret '{name}', is no file that you can read"
                raise UsageError(said, fix="check the path and its permissions")
            if not 0 < path.stat().st_size <= LIMIT:
                said = f"{path}, for the secret '{name}', is empty or larger than 1 MiB"
                raise UsageError(said, fix="give the file itself")
    return files


def mounts_of(job: Job) -> tuple[Mount, ...]:
    """The read-only mounts of a job's secrets; the plan has seen to it that all are there."""
    return tuple(
        Mount(source=job.secrets[secret.name], target=secret.target)
        for secret in job.point.needs.secrets
    )


class Mask:
    """Knows the contents of secrets and strikes them out of lines."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        pairs = [(word, name) for name, path in files.items() for word in _words(path)]
        pairs.sort(key=lambda pair: -len(pair[0]))  # a whole line before its parts
        self._stand_ins = {word: f"[secret {name}]" for word, name in pairs}

    def text(self, text: str) -> str:
        """Return `text` without the contents of secrets."""
        for word, stand_in in self._stand_ins.items():
            text = text.replace(word, stand_in)
        return text


def _words(path: Path) -> list[str]:
    """The lines of a secret, and the values in lines of the form `KEY=value` or `key: value`."""
    found: set[str] = set()
    for line in path.read_bytes().decode("utf-8", "replace").splitlines():
        parts = [line, line.partition("=")[2], line.partition(":")[2]]
        found |= {part.strip().strip("\"'") for part in parts}
    return [word for word in found if len(word) >= SHORTEST]

"""Secrets of a run, such as a licence: files that only the container may read.

A secret reaches a container as a read-only bind of the person's own file and nothing else. Its
content is in no argument, variable or label; a line of output that repeats it is masked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ae.engines.base import Job, Sink
from ae.errors import EnvironmentFault, UsageError, nearest
from ae.model import Mount, Secret

LIMIT = 2**20  # bytes
SHORTEST = 6  # characters; shorter words of a secret occur anywhere


@dataclass(frozen=True)
class Given:
    """The files that a person gave, by secret, and what the person should know about them."""

    files: Mapping[str, Path]
    notes: tuple[str, ...] = ()


def resolve(
    known: Sequence[str], asked: Mapping[str, str], environment: Mapping[str, str]
) -> Given:
    """Find the file of every secret that a person gave: `--secret`, else the variable.

    `known` are the recipe's secrets. Raises UsageError for a secret that the recipe does not have
    and for a file that cannot be one.
    """
    for name in asked:
        if name not in known:
            raise UsageError(
                f"the recipe has no secret '{name}'; {nearest(name, known)}",
                fix="drop it, or see the recipe's `secrets`",
            )
    files, notes = {}, []
    for name in known:
        word = asked.get(name) or environment.get(Secret(name=name, target="").variable)
        if word:
            files[name] = path = Path(word).expanduser().absolute()
            _check(name, path)
            if path.stat().st_mode & 0o004:
                notes.append(f"everybody on this machine can read {path}: chmod 600 it")
    return Given(files, tuple(notes))


def mounts_of(job: Job) -> tuple[Mount, ...]:
    """The read-only mounts of a job's secrets. Raises EnvironmentFault for a missing one."""
    found = []
    for secret in job.point.needs.secrets:
        if secret.name not in job.secrets:
            raise EnvironmentFault(
                f"{job.point.id} needs the secret '{secret.name}'",
                fix=f"give its file: --secret {secret.name}=FILE, or {secret.variable}=FILE",
            )
        found.append(Mount(source=job.secrets[secret.name], target=secret.target))
    return tuple(found)


class Mask:
    """Knows the contents of secrets and strikes them out of lines."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        pairs = [(word, name) for name, path in files.items() for word in _words(name, path)]
        pairs.sort(key=lambda pair: -len(pair[0]))  # a whole line before its parts
        self._stand_ins = {word: f"[secret {name}]" for word, name in pairs}

    def text(self, text: str) -> str:
        """Return `text` without the contents of secrets."""
        for word, stand_in in self._stand_ins.items():
            text = text.replace(word, stand_in)
        return text

    def sink(self, forward: Sink) -> Sink:
        """A sink that passes every line on without them."""
        return _Masked(self, forward) if self._stand_ins else forward


class _Masked:
    def __init__(self, mask: Mask, forward: Sink) -> None:
        self._mask = mask
        self._forward = forward

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        self._forward.line(stream, self._mask.text(text))


def _words(name: str, path: Path) -> list[str]:
    """The lines of a secret, and the values in lines of the form `KEY=value` or `key: value`."""
    try:
        content = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise EnvironmentFault(
            f"the file of the secret '{name}' cannot be read: {error.strerror}",
            fix=f"check {path}",
        ) from error
    found: set[str] = set()
    for line in content.splitlines():
        parts = [line, line.partition("=")[2], line.partition(":")[2]]
        found |= {part.strip().strip("\"'") for part in parts}
    return [word for word in found if len(word) >= SHORTEST]


def _check(name: str, path: Path) -> None:
    size = path.stat().st_size if path.is_file() else 0
    faults = (
        (not path.exists(), "is not there"),
        (path.exists() and not path.is_file(), "is a folder, or no ordinary file"),
        (path.is_file() and size == 0, "is empty"),
        (size > LIMIT, "is larger than 1 MiB"),
        (not os.access(path, os.R_OK), "may not be read by you"),
    )
    if words := next((words for wrong, words in faults if wrong), None):
        raise UsageError(f"the file of the secret '{name}' {words}: {path}", fix=f"check {path}")

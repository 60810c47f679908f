"""Reads `images/docker-bake.hcl`: buildx resolves it, and what comes out is data.

We build target by target with `docker buildx build`, because bake before version 0.17 knows no
network, and so that every image has its own log and the label of its own content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ae.errors import EnvironmentFault, UsageError
from ae.host import processes
from ae.model import Flavour
from ae.units import parse_size

DISK_LABEL = "ae.build.disk"
SHARED = Path("images/docker-bake.hcl")
_LINK = "target:"  # a build context that is another target's result
_OURS = ("AE_BASE_IMAGE", "AE_WHEELS", "AE_CA_BUNDLE", "AE_CACHE", "AE_REVISION", "AE_SOURCE")


@dataclass(frozen=True, kw_only=True)
class Target:
    """One image of the bake file. Paths are relative to the repository's root."""

    name: str  # <image>-<flavour>
    context: str
    dockerfile: str  # below the context
    stage: str | None
    tags: tuple[str, ...]
    args: Mapping[str, str]
    labels: Mapping[str, str]
    contexts: Mapping[str, str]  # name -> folder, docker-image://..., or target:...
    secrets: tuple[str, ...]
    cache_from: tuple[str, ...]
    cache_to: tuple[str, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        """The targets that this one is built on."""
        values = self.contexts.values()
        return tuple(v.removeprefix(_LINK) for v in values if v.startswith(_LINK))


def files(root: Path, image: str) -> tuple[Path, ...]:
    """The bake files of an image, relative to `root`. Raises UsageError when one is missing."""
    own = SHARED.parent / image / "bake.hcl"
    wanted = (SHARED,) if image == "base" else (SHARED, own)
    for path in wanted:
        if not (root / path).is_file():
            raise UsageError(
                f"there is no {path}, which says how the image {image} is built",
                fix="write it like that of another image (docs/adding-a-paper.md)",
            )
    return wanted


def flavours(root: Path, image: str) -> tuple[Flavour, ...]:
    """The flavours that an image comes in: its fragment names them. Raises UsageError."""
    text = (root / files(root, image)[-1]).read_text()
    found = tuple(f for f in Flavour if re.search(rf'["-]{f}"', text))
    if not found:
        raise UsageError(
            f"{files(root, image)[-1]} names no flavour", fix="name a target <image>-cpu or -cuda"
        )
    return found


def stated_disk(root: Path, image: str) -> int | None:
    """The free disk (bytes) that an image's fragment asks a build for; None: it says nothing."""
    text = (root / files(root, image)[-1]).read_text()
    match = re.search(rf'"{re.escape(DISK_LABEL)}"\s*=\s*"([^"]+)"', text)
    return parse_size(match[1]) if match else None


def plan_argv(buildx: Sequence[str], root: Path, image: str, target: str) -> tuple[str, ...]:
    """The command that prints what bake would build."""
    named = [word for path in files(root, image) for word in ("--file", str(path))]
    return (*buildx, "bake", *named, "--print", target)


def resolve(
    buildx: Sequence[str], root: Path, image: str, target: str, environment: Mapping[str, str]
) -> list[Target]:
    """Return a target and what it is built on, in the order of building.

    `environment` holds the bake file's variables. Raises UsageError when the files have no such
    target or are wrong, with buildx's own words.
    """
    # Ours come from the options alone: a stray variable of the shell changes nothing unseen.
    clean = {key: value for key, value in environment.items() if value or key not in _OURS}
    argv = plan_argv(buildx, root, image, target)
    done = processes.run(argv, timeout_s=60, env=clean, cwd=root)
    if done.returncode != 0:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = words[0].removeprefix("ERROR: ") if words else done.stderr.strip()[-300:]
        raise UsageError(f"the bake files of {image} give no {target}: {why}", fix=" ".join(argv))
    try:
        plan = json.loads(done.stdout)["target"]
        found = {name: _target(name, data) for name, data in plan.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvironmentFault(
            f"buildx prints its plan in a form that is not known here ({error})",
            fix="use buildx 0.13 or later",
        ) from error
    ordered: list[Target] = []

    def visit(name: str) -> None:
        if any(one.name == name for one in ordered):
            return
        for below in found[name].needs:
            visit(below)
        ordered.append(found[name])

    visit(target)
    return ordered


def _target(name: str, data: Mapping[str, Any]) -> Target:
    return Target(
        name=name,
        context=data.get("context", "."),
        dockerfile=data.get("dockerfile", "Dockerfile"),
        stage=data.get("target"),
        tags=tuple(data.get("tags", ())),
        args=dict(data.get("args", {})),
        labels={key: value for key, value in data.get("labels", {}).items() if value},
        contexts=dict(data.get("contexts", {})),
        secrets=_words(data.get("secret", ())),
        cache_from=_words(data.get("cache-from", ())),
        cache_to=_words(data.get("cache-to", ())),
    )


def _words(items: Sequence[Any]) -> tuple[str, ...]:
    """Older buildx prints `id=ca,src=x`, newer ones an object."""
    return tuple(
        item if isinstance(item, str) else ",".join(f"{k}={v}" for k, v in item.items())
        for item in items
    )

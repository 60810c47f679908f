"""Reads `images/docker-bake.hcl`: buildx resolves it, and what comes out is data.

We build target by target with `docker buildx build`, because bake before version 0.17 knows no
network, and so that every image has its own log and the label of its own content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ae.errors import EnvironmentFault, UsageError
from ae.host import processes
from ae.model import Flavour
from ae.units import parse_size

SHARED = Path("images/docker-bake.hcl")
LINK = "target:"  # a build context that is another target's result


def _words(items: Any) -> Any:
    """Older buildx prints `id=ca,src=x`, newer ones an object."""
    return [",".join(f"{k}={v}" for k, v in x.items()) if isinstance(x, dict) else x for x in items]


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Labels = Annotated[Mapping[str, str], BeforeValidator(lambda x: {k: v for k, v in x.items() if v})]


class Target(BaseModel):
    """One image of the bake file. Paths are relative to the repository's root."""

    model_config = ConfigDict(populate_by_name=True, frozen=True, defer_build=True)
    name: str = ""  # <image>-<flavour>
    context: str = "."
    dockerfile: str = "Dockerfile"  # below the context
    stage: str | None = Field(None, alias="target")
    tags: tuple[str, ...] = ()
    args: Mapping[str, str] = {}
    labels: Labels = {}
    contexts: Mapping[str, str] = {}  # name -> folder, docker-image://..., or target:...
    secrets: Words = Field((), alias="secret")
    cache_from: Words = Field((), alias="cache-from")
    cache_to: Words = Field((), alias="cache-to")

    @property
    def needs(self) -> tuple[str, ...]:
        """The targets that this one is built on."""
        values = self.contexts.values()
        return tuple(v.removeprefix(LINK) for v in values if v.startswith(LINK))


class _Plan(BaseModel):
    target: dict[str, Target]


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
    path = files(root, image)[-1]
    text = (root / path).read_text()
    found = tuple(flavour for flavour in Flavour if re.search(rf'["-]{flavour}"', text))
    if not found:
        raise UsageError(f"{path} names no flavour", fix="name a target <image>-cpu or -cuda")
    return found


def stated_disk(root: Path, image: str) -> int | None:
    """The free disk (bytes) that an image's label `ae.build.disk` asks a build for."""
    text = (root / files(root, image)[-1]).read_text()
    match = re.search(r'"ae\.build\.disk"\s*=\s*"([^"]+)"', text)
    return parse_size(match[1]) if match else None


def resolve(
    buildx: Sequence[str], root: Path, image: str, target: str, environment: Mapping[str, str]
) -> list[Target]:
    """Return a target and what it is built on, in the order of building.

    `environment` holds the bake file's variables. Raises UsageError when the files have no such
    target or are wrong, with buildx's own words.
    """
    named = [word for path in files(root, image) for word in ("--file", str(path))]
    argv = (*buildx, "bake", *named, "--print", target)
    done = processes.run(argv, timeout_s=60, env=environment, cwd=root)
    if done.returncode != 0:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = words[0].removeprefix("ERROR: ") if words else done.stderr.strip()[-300:]
        raise UsageError(f"the bake files of {image} give no {target}: {why}", fix=" ".join(argv))
    try:
        return _below(_Plan.model_validate_json(done.stdout).target, target)
    except (ValidationError, KeyError) as error:
        raise EnvironmentFault(
            "buildx prints its plan in a form that is not known here",
            fix="use buildx 0.13 or later",
        ) from error


def _below(found: Mapping[str, Target], name: str) -> list[Target]:
    """What a target is built on, in order, and itself."""
    own = found[name].model_copy(update={"name": name})
    below = {one.name: one for need in own.needs for one in _below(found, need)}
    return [*below.values(), own]

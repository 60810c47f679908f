"""Images: what they are built from, how they are known again, and the client that builds them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ae.daemon.connection import Daemon
from ae.errors import EnvironmentFault, UsageError, nearest
from ae.host import processes
from ae.model import Flavour, ImageRef

# Folders under images/ that are shared without sources on the path of Python.
_TOOLS = ("common", "sources")
# Paths of the build context, which is images/: as in `COPY common/src` or `--mount=source=common`.
_TAKES_SOURCES = re.compile(
    r"(?:(?<![\w./-])(?P<copied>\w[\w.-]*)/src|\bsource=(?P<bound>\w[\w.-]*))(?![\w.-])"
)
# What does not change an image.
_IGNORED = {"tests", "docs", "build", "dist", "__pycache__", "node_modules"}
_IGNORED_ENDINGS = (".pyc", ".md", ".egg-info", ".rst", ".swp", "~")


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What a person may say about a build. Folders and files must exist."""

    base_image: str | None = None
    wheels: Path | None = None  # a folder that pip looks into first
    ca_bundle: Path | None = None
    network: str | None = None  # of RUN steps, e.g. host
    contexts: Mapping[str, Path] = field(default_factory=dict)  # named contexts of the Dockerfile
    arguments: Mapping[str, str] = field(default_factory=dict)  # its ARGs; not those of its base
    fresh: bool = False  # every step anew


def image_ref(root: Path, name: str, flavour: Flavour) -> ImageRef:
    """Return the image of the folder images/<name>. Raises UsageError when there is none."""
    folder = root / "images" / name
    if not (folder / "Dockerfile").is_file():
        known = [path.parent.name for path in (root / "images").glob("*/Dockerfile")]
        raise UsageError(
            f"there is no image '{name}' (no images/{name}/Dockerfile); {nearest(name, known)}",
            fix="see the folders under images/",
        )
    return ImageRef(name=name, flavour=flavour, content=content_hash(root, name), source=folder)


def content_hash(root: Path, name: str) -> str:
    """Return a hash over all that images/<name> is built from, see `source_files`."""
    digest = hashlib.sha256()
    for path in source_files(root, name):
        data = path.read_bytes()
        executable = "x" if os.access(path, os.X_OK) else "-"
        label = path.relative_to(root / "images").as_posix()
        digest.update(f"{label}\0{executable}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def source_files(root: Path, name: str) -> Iterator[Path]:
    """The files that images/<name> is built from: no tests, documentation and caches."""
    for part in made_from(root, name):
        folder = root / "images" / part
        inside = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        kept = [one for one in inside if not any(map(_is_ignored, one.parts))]
        yield from (inside[one] for one in sorted(kept, key=Path.as_posix))


def made_from(root: Path, name: str) -> tuple[str, ...]:
    """The folders under images/ that images/<name> is built from, itself first.

    Of `common` and `sources` those that its Dockerfile names, every folder with a `src` that it
    copies that from, or mounts, and `base` where its `BASE_IMAGE` is `ae/base`.
    """
    dockerfile = _dockerfile(root, name)
    found = [name, *(tool for tool in _TOOLS if re.search(rf"\b{tool}/", dockerfile))]
    named = {match["copied"] or match["bound"] for match in _TAKES_SOURCES.finditer(dockerfile)}
    found += sorted(other for other in named if (root / "images" / other / "src").is_dir())
    if "\nARG BASE_IMAGE=ae/base:" in f"\n{dockerfile}":
        found.append("base")
    return tuple(dict.fromkeys(found))


def source_paths(root: Path, name: str) -> tuple[Path, ...]:
    """The folders `src` whose Python modules images/<name> runs: shared ones first, its own last.

    `common` is always among them.
    """
    shared = [part for part in made_from(root, name) if part not in (name, *_TOOLS, "base")]
    return tuple(root / "images" / part / "src" for part in ("common", *shared, name))


def stated(root: Path, name: str, key: str) -> list[str]:
    """The words of the line `# key: words` in a Dockerfile's comments; none without one."""
    line = re.search(rf"^# {key}: (.+)$", _dockerfile(root, name), re.MULTILINE)
    return line[1].split() if line else []


def flavours(root: Path, name: str) -> tuple[Flavour, ...]:
    """What an image comes in: what its Dockerfile states as `# flavours:`, else all."""
    said = stated(root, name, "flavours")
    return tuple(one for one in Flavour if one in said) or tuple(Flavour)


def labels(image: ImageRef) -> dict[str, str]:
    """The labels by which a built image is known again."""
    return {"ae.image": image.name, "ae.flavour": str(image.flavour), "ae.content": image.content}


def labels_of(found: Mapping[str, Any] | None) -> dict[str, str]:
    """The labels of an image as `docker image inspect` gives it; none of no image."""
    return dict(((found or {}).get("Config") or {}).get("Labels") or {})


def find_client(endpoint: str) -> str:
    """The path of the docker client, which must have buildx. Raises EnvironmentFault."""
    if (client := shutil.which("docker")) is None:
        raise EnvironmentFault(
            "images are built with the docker client, and there is none on PATH",
            fix="install docker-cli and docker-buildx; or ae run --engine local",
        )
    environment = Daemon(endpoint).environment
    asked = processes.run([client, "buildx", "version"], timeout_s=20, env=environment)
    if asked.returncode != 0:
        raise EnvironmentFault(
            f"the docker client {client} has no buildx",
            fix="install the package docker-buildx (or docker-buildx-plugin)",
        )
    return client


def _dockerfile(root: Path, name: str) -> str:
    path = root / "images" / name / "Dockerfile"
    return path.read_text() if path.is_file() else ""


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name in _IGNORED or name.endswith(_IGNORED_ENDINGS)

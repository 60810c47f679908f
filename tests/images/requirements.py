"""Reads requirements files and lists of Debian packages with the settings at their heads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from tests.images.dockerfiles import IMAGES

LOCKS = sorted(IMAGES.glob("*/requirements*.txt"))
SOURCES = sorted(IMAGES.glob("*/requirements*.in"))
DEBIAN = sorted(IMAGES.glob("*/debian-packages*.txt"))


@dataclass(frozen=True)
class Entry:
    """One line of a requirements file."""

    requirement: Requirement
    hashes: tuple[str, ...]  # sha256, hexadecimal

    @property
    def name(self) -> str:
        return re.sub(r"[-_.]+", "-", self.requirement.name).lower()

    @property
    def version(self) -> str:
        """The pinned version; empty when it is not pinned to one."""
        found = re.fullmatch(r"===?([^*,]+)", str(self.requirement.specifier))
        return found[1] if found else ""


def label(path: Path) -> str:
    return str(path.relative_to(IMAGES))


def header(path: Path) -> dict[str, str]:
    """`# key: value` comments; python defaults to 3.11 and index to PyPI (empty)."""
    pairs = re.findall(
        r"^# (python|index|platform|dependencies|suite): +(\S+)", path.read_text(), re.M
    )
    return {"python": "3.11", "index": "", "suite": "bookworm", **dict(pairs)}


def entries(path: Path) -> list[Entry]:
    """The requirements of a file; options such as --find-links are an error there."""
    text = re.sub(r"\\\n", " ", path.read_text())
    found = []
    for line in text.splitlines():
        words = line.split(" #")[0].strip()
        if not words or words.startswith("#"):
            continue
        if words.startswith("-"):
            raise ValueError(f"{path.name}: an option in a requirements file: {words}")
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", words))
        found.append(Entry(Requirement(words.split(" --hash")[0].strip()), hashes))
    return found


def debian_names(path: Path) -> list[str]:
    """`name` or `name=version`, one a line."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [word for line in lines for word in line.split()]

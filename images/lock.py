#!/usr/bin/env python3
"""Makes the lock files of an image: requirements-X.in -> requirements-X.txt, every file by hash.

    python images/lock.py dlrm               keep the versions that are locked, where they still fit
    python images/lock.py dlrm --upgrade     take the newest that fit
    python images/lock.py dlrm --wheels DIR  look into a folder of wheels first
    python images/lock.py dlrm --check       change nothing; exit 1 when a lock would change

It runs `uv pip compile` (uv is installed with the extra `dev`) and needs the network. How a file is
resolved stands in the comments at its head:

    # python: 3.11                          default 3.11
    # platform: x86_64-manylinux_2_28       default; or `universal`, for several systems at once
    # index: https://...                    an index beside PyPI, left out when --wheels is given
    # dependencies: none                    lock what is named and nothing that it asks for
"""

from __future__ import annotations

import argparse
import difflib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).resolve().parent
DEFAULTS = {"python": "3.11", "platform": "x86_64-manylinux_2_28", "index": "", "dependencies": ""}


class Fault(Exception):
    """One sentence for the person at the keyboard."""


def settings(text: str) -> dict[str, str]:
    """What the comments at the head of a requirements file say. Raises Fault for other words."""
    found = dict(DEFAULTS)
    for line in head(text):
        key, colon, value = line.lstrip("# ").partition(": ")
        if colon and key in found:
            found[key] = value.strip()
    if found["dependencies"] not in ("", "none"):
        raise Fault(f"dependencies: {found['dependencies']} is not known; say `none` or nothing")
    return found


def head(text: str) -> list[str]:
    """The comment lines before the first requirement."""
    lines = text.splitlines()
    ends = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return lines[:ends]


def compile_argv(
    uv: str, source: Path, target: Path, *, wheels: Path | None, upgrade: bool
) -> list[str]:
    """The command that resolves one file. Pure but for reading `source`."""
    said = settings(source.read_text())
    words = [uv, "pip", "compile", str(source), "--output-file", str(target), "--quiet"]
    words += ["--generate-hashes", "--only-binary", ":all:", "--no-annotate", "--no-header"]
    words += ["--python-version", said["python"]]
    universal = said["platform"] == "universal"
    words += ["--universal"] if universal else ["--python-platform", said["platform"]]
    if said["dependencies"] == "none":
        words += ["--no-deps"]
    if wheels is not None:
        words += ["--find-links", str(wheels)]
    elif said["index"]:
        # An index may hold old copies of what is on PyPI: the version decides, not the place.
        words += ["--index", said["index"], "--index-strategy", "unsafe-best-match"]
    if upgrade:
        words += ["--upgrade"]
    return words


def lock(source: Path, *, wheels: Path | None, upgrade: bool) -> str:
    """Return the lock of one .in file. Raises Fault with uv's own words."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise Fault("uv is not installed: pip install uv (it comes with the extra `dev`)")
    old = source.with_suffix(".txt")
    with tempfile.TemporaryDirectory(prefix="ae-lock-") as folder:
        target = Path(folder) / old.name
        if old.is_file():
            shutil.copy(old, target)  # uv keeps the versions that it finds there
        argv = compile_argv(uv, source, target, wheels=wheels, upgrade=upgrade)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Fault(f"{source.name} does not resolve: {done.stderr.strip()}")
        resolved = target.read_text()
    body = [line for line in resolved.splitlines() if not line.startswith(("#", "--find-links"))]
    folder = source.parent.relative_to(IMAGES)
    made = f"# Made from {source.name} by: python images/lock.py {folder}"
    return "\n".join([*head(source.read_text()), made, *(line for line in body if line), ""])


def main(arguments: list[str]) -> int:
    """Lock every requirements-*.in of the named images."""
    parser = argparse.ArgumentParser(description="Make the lock files of images.")
    parser.add_argument("image", nargs="+", help="a folder under images/")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to look into first")
    parser.add_argument("--upgrade", action="store_true", help="take the newest that fit")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 on a change")
    given = parser.parse_args(arguments)
    changed = False
    for name in given.image:
        sources = sorted((IMAGES / name).glob("requirements*.in"))
        if not sources:
            raise Fault(f"images/{name} has no requirements-*.in")
        for source in sources:
            target = source.with_suffix(".txt")
            old = target.read_text() if target.is_file() else ""
            new = lock(source, wheels=given.wheels, upgrade=given.upgrade)
            where = target.relative_to(IMAGES.parent)
            if new == old:
                print(f"{where}: unchanged")
                continue
            changed = True
            if given.check:
                lines = (old.splitlines(), new.splitlines())
                print("\n".join(difflib.unified_diff(*lines, str(where), "as it would be", n=0)))
            else:
                target.write_text(new)
                print(f"{where}: written")
    return 1 if given.check and changed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Fault as fault:
        sys.exit(f"lock: {fault}")

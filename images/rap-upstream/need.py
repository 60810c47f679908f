"""Fails unless Python packages are installed, without importing them.

    python need.py NAME...          top-level packages
    python need.py NAME:FILE:WORD   and that a file of one holds a word: a method of a patch

Packages that load the GPU's driver cannot be imported while an image is built.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def lacks(wanted: str) -> str:
    """One sentence about what is missing; empty when nothing is."""
    name, _, rest = wanted.partition(":")
    found = importlib.util.find_spec(name)
    if found is None:
        return f"{name} is not installed"
    file, _, word = rest.partition(":")
    if not file:
        return ""
    paths = [Path(folder, file) for folder in found.submodule_search_locations or ()]
    if any(path.is_file() and word in path.read_text(encoding="utf-8") for path in paths):
        return ""
    return f"{name} that is installed has no {word} in {file}"


def main() -> int:
    """Look for every argument; 1 when something is missing."""
    missing = [words for words in map(lacks, sys.argv[1:]) if words]
    print("\n".join(missing) or "found: " + " ".join(sys.argv[1:]))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

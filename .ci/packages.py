"""Installs what the images' tests need, as locked.

    python .ci/packages.py             install into this Python
    python .ci/packages.py --dry-run   print the commands

images/<name>/tests/packages.txt names lock files of that image, one a line. How each is installed
stands at its head, as for images/lock.py: `# dependencies: none`, `# index: URL`. An index beside
PyPI is left out where pip has a folder of wheels of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PIP = [sys.executable, "-m", "pip"]


def locks(images: Path) -> list[Path]:
    """The lock files that the images' tests name, each once."""
    found = []
    for listing in sorted(images.glob("*/tests/packages.txt")):
        lines = (line.strip() for line in listing.read_text().splitlines())
        names = [line for line in lines if line and not line.startswith("#")]
        found += [listing.parent.parent / name for name in names]
    return list(dict.fromkeys(found))


def has_wheels() -> bool:
    """Whether pip is told of a folder of wheels, by a file or by PIP_FIND_LINKS."""
    said = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    places = re.findall(r"^\S+\.find-links='(.*)'$", said.stdout, re.M)
    return any(Path(word).is_dir() for place in places for word in place.split())


def command(lock: Path, *, wheels: bool) -> list[str]:
    """What installs one lock file."""
    head = lock.read_text()
    words = [*PIP, "install", "--quiet", "--quiet", "--no-compile", "--require-hashes"]
    if re.search(r"^# dependencies: none$", head, re.M):
        words.append("--no-deps")
    index = re.search(r"^# index: (\S+)$", head, re.M)
    if index and not wheels:
        words += ["--extra-index-url", index[1]]
    return [*words, "--requirement", str(lock)]


def main(arguments: Sequence[str]) -> None:
    """Install, or print. Raises CalledProcessError."""
    wheels = has_wheels()
    for lock in locks(Path("images")):
        words = command(lock, wheels=wheels)
        print(*words[3:], flush=True)
        if "--dry-run" not in arguments:
            subprocess.run(words, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])

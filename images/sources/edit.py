"""What the fixes share: edits that fail loudly when the text is not the one they were written for.

A fix says how often a text must occur. On another commit it may occur more or less often; then
nothing is written and the build stops.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path


class Unexpected(Exception):
    """The source is not what the fix was written for."""


def replace(path: Path, old: str, new: str, times: Collection[int]) -> int:
    """Replace every `old` in a file by `new`, if it occurs as often as one of `times`.

    Returns how often. Raises Unexpected, and leaves the file alone, when there is no such file or
    the count is another one.
    """
    text = read(path)
    count = text.count(old)
    if count not in times:
        wanted = " or ".join(str(number) for number in sorted(times))
        raise Unexpected(f"{path}: '{old}' occurs {count} times, expected {wanted}")
    path.write_text(text.replace(old, new), encoding="utf-8")
    return count


def read(path: Path) -> str:
    """Return a file's text. Raises Unexpected when there is no such file."""
    if not path.is_file():
        raise Unexpected(f"{path} does not exist")
    return path.read_text(encoding="utf-8")


def folder_argument(usage: str) -> Path:
    """The folder named on the command line. Ends the program with 2 when there is none."""
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        print(f"usage: {usage}", file=sys.stderr)
        raise SystemExit(2)
    return Path(sys.argv[1])


def done(words: str) -> None:
    """Say what a fix did."""
    print(f"fixed: {words}")

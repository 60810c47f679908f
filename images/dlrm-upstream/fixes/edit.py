"""Replaces text in a file, only where it stands exactly as often as expected.

The fixes use this, so that another commit of the artifact fails loudly and is never half mended.
"""

from __future__ import annotations

from pathlib import Path


def replace(path: Path, old: str, new: str, times: int) -> None:
    """Replace `old` by `new` in `path`. Raises SystemExit when it is not there `times` times."""
    text = path.read_text(encoding="utf-8")
    found = text.count(old)
    if found != times:
        raise SystemExit(
            f"{path}: {old!r} stands there {found} times and not {times}: another commit than the "
            "pinned one, or mended already"
        )
    path.write_text(text.replace(old, new), encoding="utf-8")

"""What git says of a checkout."""

from __future__ import annotations

from pathlib import Path

from ae.host import processes


def git(root: Path, *words: str) -> str | None:
    """Return what `git -C root words...` prints; None without git, a checkout, or an answer."""
    try:
        done = processes.run(["git", "-C", str(root), *words], timeout_s=60)
    except processes.ProcessFault:
        return None
    return done.stdout if done.returncode == 0 else None


def revision(root: Path) -> str | None:
    """Return the commit that is checked out at `root`; None where there is none."""
    said = git(root, "rev-parse", "HEAD")
    return said.strip() if said else None

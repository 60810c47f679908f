"""Removes what dead launchers left behind, and nothing else."""

from __future__ import annotations

from pathlib import Path

from ae.engines.base import Leftover
from ae.engines.select import present


def clean(root: Path, *, dry_run: bool) -> list[Leftover]:
    """Remove the orphans of every engine that answers; return what was (or would be) removed.

    A container or process whose launcher still runs, here or on another host, is left alone.
    """
    removed = []
    for engine in present(root):
        for leftover in engine.leftovers():
            if leftover.owner_alive:
                continue
            if not dry_run:
                engine.remove(leftover)
            removed.append(leftover)
    return removed

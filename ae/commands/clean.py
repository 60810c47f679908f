"""Removes what dead launchers left behind. What a living launcher owns, or another's, stays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ae.engines import choose as select
from ae.engines.base import Engine, Leftover


def clean(root: Path, *, dry_run: bool) -> list[Leftover]:
    """Remove the orphans of every engine on this machine and return them; dry: only return them."""
    return clean_engines(usable_engines(root), dry_run=dry_run)


def usable_engines(root: Path) -> list[Engine]:
    """The engines that answer; one that does not has nothing that we could see or remove."""
    made: list[Engine] = [select.make(name, root=root) for name in select.NAMES]
    return [engine for engine in made if engine.available().ok]


def clean_engines(engines: Sequence[Engine], *, dry_run: bool) -> list[Leftover]:
    """Like `clean`, for the engines given."""
    removed = []
    for engine in engines:
        for leftover in orphans(engine.leftovers()):
            if not dry_run:
                engine.remove(leftover)
            removed.append(leftover)
    return removed


def orphans(leftovers: Sequence[Leftover]) -> list[Leftover]:
    """What no living launcher owns."""
    return [one for one in leftovers if not one.owner_alive]


def to_text(removed: Sequence[Leftover], *, dry_run: bool) -> str:
    """A line for each leftover."""
    if not removed:
        return "nothing was left behind"
    verb = "would remove" if dry_run else "removed"
    return "\n".join(f"{verb} {one.kind} {one.id[:12]} of run {one.run}" for one in removed)

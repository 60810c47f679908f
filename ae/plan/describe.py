"""A plan as data, for the run folder and for `ae run --dry-run --json`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from ae.model import Plan


def describe(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-able data: the same plan always gives the same text.

    The folders of images start at the repository's root: a run's record goes to other machines.
    """
    points = tuple(
        replace(point, image=replace(point.image, source=Path("images") / point.image.name))
        for point in plan.points
    )
    described: dict[str, Any] = to_jsonable_python(replace(plan, points=points))
    return described | {
        "expected_s": sum(point.expected_s for point in plan.points),
        "disk_bytes": sum(point.disk_bytes for point in plan.points),
    }


def grouped(notes: Iterable[str], experiments: Iterable[str]) -> list[str]:
    """Notes that say the same of several experiments as one, in the order of the first."""
    names = sorted(experiments, key=len, reverse=True)
    found: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        start = "left out: " if note.startswith("left out: ") else ""
        rest = note[len(start) :]
        name = next((n for n in names if rest.startswith((f"{n} ", f"{n}:"))), "")
        found.setdefault((start, rest[len(name) :]), []).append(name)
    return [start + ", ".join(who) + rest for (start, rest), who in found.items()]

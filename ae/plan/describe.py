"""A plan as data: the key of a point, and what is written down of a plan. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from ae.model import Plan, Point


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


def point_key(point: Point, gpu_models: Sequence[str]) -> str:
    """The sha256 over everything that defines a point's result."""
    image = point.image
    defines: dict[str, Any] = {
        "recipe": point.recipe,
        "experiment": point.experiment,
        "labels": point.labels,
        "variants": point.variants,
        "argv": point.argv,
        "env": point.env,
        "image": [image.name, image.flavour, image.content, image.override],
        "needs": to_jsonable_python(point.needs),
        "repeat": point.repeat,
        "gpus": gpu_models,
    }
    if not point.needs.secrets:
        del defines["needs"]["secrets"]  # so that points without any keep their keys
    if point.parser is not None:
        defines["parser"] = point.parser
    text = json.dumps(to_jsonable_python(defines), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

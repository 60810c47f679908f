"""What a point is made of: command, image, needs, name, and the key of its result. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from ae.errors import EnvironmentFault
from ae.model import GpuRequest, ImageRef, Mount, Point, RuntimeNeeds, Secret, Ulimit
from ae.plan.selection import Selection, argument
from ae.recipe.models import Recipe, Value
from ae.recipe.needs import Needs


def runtime_needs(
    needs: Needs, gpus: GpuRequest | None, secrets: tuple[Secret, ...], root: Path
) -> RuntimeNeeds:
    """The recipe's needs without their reasons. A relative volume starts at `root`."""
    return RuntimeNeeds(
        gpus=gpus,
        cap_add=tuple(need.value for need in needs.cap_add),
        ipc=needs.ipc.value if needs.ipc else None,
        shm_bytes=needs.shm_size.value if needs.shm_size else None,
        ulimits=tuple(Ulimit(name=u.name, soft=u.soft, hard=u.hard) for u in needs.ulimits),
        network=needs.network.value if needs.network else "none",
        mounts=tuple(
            Mount(source=root / v.source, target=v.target, read_only=v.read_only)
            for v in needs.volumes
        ),
        memory_bytes=needs.memory.value if needs.memory else None,
        secrets=secrets,
    )


def secrets_of(recipe: Recipe, experiment: str, given: Collection[str]) -> tuple[Secret, ...]:
    """The secrets an experiment gets. Raises EnvironmentFault for one that it cannot do without."""
    found = []
    for need in recipe.needs_of(experiment).secrets:
        secret = Secret(name=need.name, target=need.target, optional=need.optional)
        if need.name in given:
            found.append(secret)
        elif not need.optional:
            raise EnvironmentFault(
                f"{experiment} needs the secret '{need.name}' ({need.why})",
                fix=f"give its file: --secret {need.name}=FILE, or {secret.variable}=FILE",
            )
    return tuple(found)


def points_of(
    recipe: Recipe,
    name: str,
    labels: Mapping[str, str],
    variants: tuple[str, ...],
    image: ImageRef,
    needs: RuntimeNeeds,
    gpu_models: Sequence[str],
    selection: Selection,
    values: Mapping[str, Value],
) -> list[Point]:
    """One point of an experiment, as often as it is repeated."""
    experiment, quick = recipe.experiments[name], selection.quick
    texts = {key: argument(value) for key, value in values.items()} | dict(labels)
    texts |= {"variants": ",".join(variants), "device": "cuda" if needs.gpus else "cpu"}
    points = []
    usual = 1 if selection.quick else experiment.processes
    for repeat in range(selection.repeat or usual):
        words = texts | {"repeat": str(repeat)}
        point = Point(
            id="-".join([name, *labels.values(), *([f"r{repeat}"] if repeat else [])]),
            recipe=recipe.name,
            experiment=name,
            labels=labels,
            variants=variants,
            argv=tuple(word.format_map(words) for word in experiment.command),
            env={"PYTHONUNBUFFERED": "1"},  # so that output streams live
            image=image,
            needs=needs,
            timeout_s=experiment.timeout.quick if quick else experiment.timeout.full,
            expected_s=experiment.time.quick if quick else experiment.time.full,
            disk_bytes=experiment.disk,
            repeat=repeat,
            parser=experiment.parse,
        )
        points.append(replace(point, key=point_key(point, sorted(set(gpu_models)))))
    return points


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
    if point.needs.gpus is not None:
        defines["needs"]["gpus"]["devices"] = []  # of equal GPUs, any gives the same result
    if not point.needs.secrets:
        del defines["needs"]["secrets"]  # so that points without any keep their keys
    if point.parser is not None:
        defines["parser"] = point.parser
    text = json.dumps(to_jsonable_python(defines), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def with_unique_ids(points: Sequence[Point]) -> list[Point]:
    """Names with dashes in them can meet (`a-b` and `c`, `a` and `b-c`): such ids get a tail."""
    ids = [point.id for point in points]
    return [p if ids.count(p.id) == 1 else replace(p, id=f"{p.id}-{p.key[:8]}") for p in points]

"""What `ae push` and `ae pull` do, and what they print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ae.daemon.connection import Daemon, connect, endpoint_of
from ae.errors import EnvironmentFault, ExitCode
from ae.model import ImageRef


def push_images(
    names: Sequence[str], *, flavour: str | None, lane: str | None, as_json: bool
) -> None:
    """`ae push`: publish images and lock their digests."""
    from ae.host import signals
    from ae.images import lockfile, registry, settings
    from ae.run.display import Display

    place = settings.require_registry()
    with signals.handled():
        images, daemon = _chosen(names, flavour, lane)
        done = []
        for image in images:
            entry = registry.push(daemon, image, place, Display(()))
            lockfile.store(image.source.parent.parent, image.name, image.flavour, entry)
            done.append({"image": image.reference, "digest": entry.digest, "registry": place})
            if not as_json:
                where = f"{registry.repository(place, image)}@{entry.digest}"
                print(f"pushed {where}; locked in images/lock.yaml")
    if as_json:
        _print_json(done)


def pull_images(
    names: Sequence[str], *, flavour: str | None, lane: str | None, as_json: bool
) -> int:
    """`ae pull`: fetch the locked images by digest."""
    from ae.host import signals
    from ae.images import registry, settings
    from ae.run.display import Display

    place = settings.require_registry()
    with signals.handled():
        images, daemon = _chosen(names, flavour, lane)
        pairs = [(image, _entry(image)) for image in images]
        done = []
        for image, entry in pairs:
            here = registry.find(daemon, image, entry) is not None
            registry.pull(daemon, image, entry, place, Display(()))
            state = "was here already" if here else "pulled"
            done.append({"image": image.reference, "digest": entry.digest, "state": state})
            if not as_json:
                print(f"{image.reference}: {state}, {entry.digest}")
    if as_json:
        _print_json(done)
    return ExitCode.OK


def verify_images(
    names: Sequence[str], *, flavour: str | None, lane: str | None, as_json: bool
) -> int:
    """`ae pull --verify`: check images against lock and registry; 3 when something is wrong."""
    from dataclasses import asdict

    from ae.host import signals
    from ae.images import registry, settings

    place = settings.registry()
    found: dict[str, list[registry.Finding]] = {}
    with signals.handled():
        images, daemon = _chosen(names, flavour, lane)
        for image in images:
            found[image.reference] = registry.verify(daemon, image, _entry(image), place)
    if as_json:
        _print_json({name: [asdict(one) for one in rows] for name, rows in found.items()})
    else:
        for one in (one for rows in found.values() for one in rows):
            print(f"{'ok' if one.ok else 'fail':4}  {one.what:8}  {one.sentence}")
        if place is None:
            print("note: no registry is named, so none was asked")
    good = all(one.ok for rows in found.values() for one in rows)
    return ExitCode.OK if good else ExitCode.ENVIRONMENT


def _chosen(
    names: Sequence[str], flavour: str | None, lane: str | None
) -> tuple[list[ImageRef], Daemon]:
    from ae.commands.session import choose_images

    return choose_images(names, flavour=flavour, lane=lane), connect(endpoint_of())


def _entry(image: ImageRef) -> Any:
    from ae.images import lockfile

    entry = lockfile.load(image.source.parent.parent).entry(image.name, image.flavour)
    fix = f"ae build {image.name} --flavour {image.flavour}, then ae push, where it is published"
    if entry is None:
        raise EnvironmentFault(f"images/lock.yaml has no {image.reference}", fix=fix)
    if entry.content != image.content:
        raise EnvironmentFault(
            f"the published {image.reference} is of other sources than this tree",
            fix=f"check out the revision it is of, or: {fix}",
        )
    return entry


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))

"""What `ae bundle` and `ae load` do, step by step, and what they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ae.errors import UsageError, nearest
from ae.model import Flavour
from ae.recipe.load import find_root, load_recipe

if TYPE_CHECKING:
    from ae.daemon.connection import Daemon


def bundle_recipe(
    name: str,
    output: Path,
    *,
    lane: str | None,
    flavours: Sequence[str],
    engine_name: str | None,
    wheels: Path | None,
    as_json: bool,
) -> None:
    """`ae bundle`: one archive with all that a recipe needs on a machine without a network."""
    from ae.host import signals
    from ae.images import bundle
    from ae.units import format_size

    root = find_root()
    recipe = load_recipe(root, name)
    kinds = [_flavour(flavour) for flavour in flavours]
    daemon = _daemon(engine_name)
    with signals.handled():
        made = bundle.write_bundle(
            root, recipe, output, daemon, lane=lane, flavours=kinds, wheels=wheels, say=_tell
        )
    if as_json:
        facts = made.facts.model_dump(by_alias=True)
        _print_json(
            {"file": str(made.path), "size": made.size, "sha256": made.sha256, "bundle": facts}
        )
        return
    print(f"bundle {made.path}: {made.members} files, {format_size(made.size)}")
    print(f"sha256 {made.sha256}")


def load_file(
    file: Path, into: Path | None, *, engine_name: str | None, dry_run: bool, as_json: bool
) -> None:
    """`ae load`: check a bundle, load its images into the engine and restore its tree."""
    from ae.host import signals
    from ae.images import unpack
    from ae.images.bundle_checks import verify

    try:
        checkout = find_root()
    except UsageError:
        checkout = None  # that is what the bundle brings
    if dry_run:
        verified = verify(file)
        folder, write = unpack.choose_folder(verified, into, checkout)
        states = dict.fromkeys((i.reference for i in verified.facts.images), "would be loaded")
    else:
        daemon = _daemon(engine_name)
        with signals.handled():
            done = unpack.load_bundle(file, into, checkout, daemon, _tell)
        verified, folder, write = done.verified, done.folder, done.wrote_tree
        states = dict(done.states)
    name = verified.facts.recipe
    if as_json:
        _print_json(
            {"recipe": name, "verified": len(verified.sums), "dry_run": dry_run, "images": states,
             "folder": str(folder), "wrote_tree": write}
        )  # fmt: skip
        return
    print(f"{file}: {len(verified.sums)} files are as their checksums say")
    for reference, state in states.items():
        print(f"{reference}: {state}")
    would = "would be written" if dry_run else "written"
    print(f"checkout: {folder} ({would if write else 'holds the same already'})")
    print(f"next: cd {folder} && ae run {name} --quick")


def _daemon(engine_name: str | None) -> Daemon:
    """The daemon that images come from and go to; only Docker writes the layout of a bundle."""
    from ae.daemon.connection import connect, endpoint_of

    if engine_name not in (None, "docker"):
        raise UsageError(
            f"bundles are made and loaded with the engine docker, not with {engine_name}",
            fix="leave --engine out; docs/bundles.md says how to load an image by hand",
        )
    return connect(endpoint_of())


def _flavour(word: str) -> Flavour:
    if word not in set(Flavour):
        raise UsageError(
            f"there is no flavour '{word}'; {nearest(word, Flavour)}", fix="--flavour cpu"
        )
    return Flavour(word)


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))

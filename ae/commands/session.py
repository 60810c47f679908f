"""What the commands do: each function is one command's steps, in order, over the other modules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from ae.errors import ExitCode, UsageError, nearest
from ae.model import Flavour, ImageRef

if TYPE_CHECKING:
    from ae.images.content import BuildOptions
    from ae.recipe.models import Recipe
    from ae.records.folder import RunStore


def build_images(
    names: Sequence[str],
    *,
    flavour: str | None,
    lane: str | None,
    options: BuildOptions,
    dry_run: bool,
) -> int:
    """`ae build`: build the image of each paper, with live output."""
    from shlex import join

    from ae.daemon.connection import connect, endpoint_of
    from ae.host import signals
    from ae.images.build import build, describe
    from ae.images.sbom import write_sbom
    from ae.run.display import Display

    root = _root()
    chosen = choose_images(names, flavour=flavour, lane=lane)
    with signals.handled():
        if dry_run:
            for image in chosen:
                for argv in describe(root, image, options):
                    print(join(argv))
            return ExitCode.OK
        daemon = connect(endpoint_of())
        for image in chosen:
            built = build(root, image, Display(()), options)
            print(built.sentence)
            path = built.log.with_suffix(".spdx.json")
            print(f"SBOM: {write_sbom(daemon, built.reference, path)} packages in {path}")
        daemon.close()
    return ExitCode.OK


def show_sbom(name: str, *, flavour: str | None, lane: str | None, output: Path | None) -> None:
    """`ae sbom`: what the image that the engine holds is made of."""
    from ae.daemon.connection import connect, endpoint_of
    from ae.host import signals
    from ae.images.sbom import as_text, describe_image

    (image,) = choose_images([name], flavour=flavour, lane=lane)
    with signals.handled():
        daemon = connect(endpoint_of())
        text = as_text(describe_image(daemon, image.reference))
        daemon.close()
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


def choose_images(names: Sequence[str], *, flavour: str | None, lane: str | None) -> list[ImageRef]:
    """The images that a person means by names of recipes or images. Raises UsageError."""
    from ae.images.content import image_ref

    root = _root()
    folders = [_image_folder(root, name, lane) for name in names]
    return [image_ref(root, one, _flavour_of(root, one, flavour)) for one in folders]


def _load(name: str) -> tuple[Path, Recipe]:
    from ae.recipe.load import load_recipe

    root = _root()
    return root, load_recipe(root, name)


def _root() -> Path:
    from ae.recipe.load import find_root

    return find_root()


def _store(root: Path) -> RunStore:
    from ae.records.folder import RunStore, results_dir

    return RunStore(results_dir(root))


def _flavour_of(root: Path, image: str, word: str | None) -> Flavour:
    """The flavour asked for; else what the machine has, where the image comes in several."""
    from ae.host.machine import detect
    from ae.images.bake import flavours

    known = flavours(root, image)
    if word is None:
        wanted = Flavour.CUDA if detect().gpus else Flavour.CPU
        return wanted if wanted in known else known[0]
    if word not in known:
        raise UsageError(
            f"the image {image} has no flavour '{word}'; {nearest(word, known)}",
            fix=f"--flavour {known[0]}",
        )
    return Flavour(word)


def _image_folder(root: Path, name: str, lane: str | None = None) -> str:
    """The image of a recipe's lane; a name that is no recipe is taken for an image's."""
    from ae.recipe.load import list_recipes, load_recipe

    known = list_recipes(root)
    if name not in known:
        images = {path.parent.name for path in (root / "images").glob("*/Dockerfile")}
        if name not in images:
            raise UsageError(
                f"there is no recipe or image '{name}'; {nearest(name, {*known, *images})}",
                fix="see `ae list`",
            )
        return name
    recipe = load_recipe(root, name)
    if lane is None:
        return recipe.image
    if lane not in recipe.lanes:
        raise UsageError(
            f"{name} has no lane '{lane}'; {nearest(lane, recipe.lanes)}", fix="see `ae list`"
        )
    return recipe.image_of(lane)


def _terminal_width() -> int:
    return max(80, min(120, get_terminal_size((100, 24)).columns))


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, default=str))

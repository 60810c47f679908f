"""`ae build`, `push`, `pull`, `bundle` and `load`, step by step, and what they print."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from shlex import join
from typing import Annotated

import typer

from ae.commands import options
from ae.commands.options import DryRun, FlavourOption, LaneOption, Words, option, pairs, repeatable
from ae.daemon.connection import connect, endpoint_of
from ae.errors import EnvironmentFault, UsageError, nearest
from ae.host import signals
from ae.host.files import sha256_of
from ae.host.machine import detect
from ae.images import bundle as unpack
from ae.images import lockfile, pack, registry
from ae.images.build import build as build_image
from ae.images.build import commands
from ae.images.content import BuildOptions, find_client, flavours, image_ref
from ae.model import Flavour, ImageRef
from ae.plan.selection import require
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.run.display import Display
from ae.units import format_size


def build(
    names: options.ImageNames,
    flavour: FlavourOption = None,
    base_image: Annotated[str | None, option("build on top of this image", value="REF")] = None,
    wheels: options.Wheels = None,
    ca_bundle: options.CaBundle = None,
    network: Annotated[str | None, option("network of the build, e.g. host")] = None,
    context: Annotated[Words, repeatable("a build context", value="NAME=DIR")] = None,
    build_arg: Annotated[Words, repeatable("an ARG of the Dockerfile", value="NAME=VALUE")] = None,
    lane: LaneOption = None,
    fresh: Annotated[bool, option("build every step anew", "--no-cache")] = False,
    dry_run: DryRun = False,
) -> None:
    """Build the images of papers, with live output."""
    how = BuildOptions(
        base_image=base_image,
        wheels=wheels,
        ca_bundle=ca_bundle,
        network=network,
        contexts={key: Path(path) for key, path in pairs(context, "--context").items()},
        arguments=pairs(build_arg, "--build-arg"),
        fresh=fresh,
    )
    chosen = choose_images(names, flavour=flavour, lane=lane)
    if dry_run:
        client = find_client(endpoint_of())
        for _, argv in (one for image in chosen for one in commands(client, image, how)):
            print(join(argv))
        return
    with signals.handled(), closing(connect(endpoint_of())) as daemon:
        for image in chosen:
            print(build_image(daemon, image, Display(()), how))


def push(names: options.ImageNames, flavour: FlavourOption = None, lane: LaneOption = None) -> None:
    """Publish images in the registry and lock their digests in images/lock.yaml."""
    place = registry.require_place(find_root())
    images = choose_images(names, flavour=flavour, lane=lane)
    with signals.handled(), closing(connect(endpoint_of())) as daemon:
        for image in images:
            entry = registry.push(daemon, image, place, Display(()))
            lockfile.store(image.root, image.name, image.flavour, entry)
            print(f"pushed {place}/{image.name}@{entry.digest}; locked in images/lock.yaml")


def pull(names: options.ImageNames, flavour: FlavourOption = None, lane: LaneOption = None) -> None:
    """Fetch the locked images from the registry, by digest."""
    place = registry.require_place(find_root())
    locked = [(one, _entry(one)) for one in choose_images(names, flavour=flavour, lane=lane)]
    with signals.handled(), closing(connect(endpoint_of())) as daemon:
        for image, entry in locked:
            registry.pull(daemon, image, entry, place, Display(()))
            print(f"{image.reference} pulled, {entry.digest}")


def bundle(
    name: options.RecipeName,
    output: Annotated[Path, option("NAME.tar", "-o", "--output", value="FILE")],
    flavour: Annotated[Words, repeatable("cpu or cuda; default: those that are built")] = None,
    lane: LaneOption = None,
) -> None:
    """Write one archive with a paper's images, sources, data and reference results."""
    root = find_root()
    recipe = load_recipe(root, name)
    folder = _image_folder(root, name, lane)
    with signals.handled(), closing(connect(endpoint_of())) as daemon:
        built = [kind for kind in flavours(root, folder) if daemon.image(f"ae/{folder}:{kind}")]
        chosen: Sequence[str | None] = flavour or built or [None]
        images = [image_ref(root, folder, _flavour(root, folder, word)) for word in chosen]
        pack.write(root, recipe, images, output, daemon, Display(()).say)
    print(f"bundle {output}: {format_size(output.stat().st_size)}")
    print(f"sha256 {sha256_of(output)}")


def load(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what `ae bundle` has written")],
    into: Annotated[
        Path | None, option("where the checkout goes; else RECIPE-bundle", value="DIR")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Check a bundle, then load its images and restore its checkout; or nothing at all."""
    checked = unpack.check(file)
    folder = unpack.choose_folder(checked, into)
    if not dry_run:
        with signals.handled(), closing(connect(endpoint_of())) as daemon:
            unpack.load(checked, folder, daemon, Display(()).say)
    verb = "would be " if dry_run else ""
    print(f"{file}: every byte is as its checksums say")
    print(f"{', '.join(image.reference for image in checked.facts.images)}: {verb}loaded")
    print(f"checkout: {folder} ({verb}written)")
    print(f"next: cd {folder} && ae run {checked.facts.recipe} --quick")


def choose_images(names: Sequence[str], *, flavour: str | None, lane: str | None) -> list[ImageRef]:
    """The images that a person means by names of recipes or images. Raises UsageError."""
    root = find_root()
    folders = [_image_folder(root, name, lane) for name in names]
    return [image_ref(root, one, _flavour(root, one, flavour)) for one in folders]


def _flavour(root: Path, image: str, word: str | None) -> Flavour:
    """The flavour asked for; else what the machine has, where the image comes in several."""
    known = flavours(root, image)
    if word is None:
        wanted = Flavour.CUDA if detect().gpus else Flavour.CPU
        return wanted if wanted in known else known[0]
    if word not in known:
        hint = nearest(word, known)
        raise UsageError(f"the image {image} has no flavour '{word}'; {hint}", fix="leave it out")
    return Flavour(word)


def _image_folder(root: Path, name: str, lane: str | None) -> str:
    """The image of a recipe's lane; a name that is no recipe is taken for an image's."""
    if (root / "images" / name / "Dockerfile").is_file() and name not in list_recipes(root):
        return name
    recipe = load_recipe(root, name)
    if lane is None:
        return recipe.image
    require("lane", [lane], recipe.lanes, recipe)
    return recipe.image_of(lane)


def _entry(image: ImageRef) -> lockfile.Entry:
    """What the lock says of an image. Raises EnvironmentFault when it is not of these sources."""
    if entry := lockfile.locked(image):
        return entry
    other = lockfile.load(image.root).entry(image.name, image.flavour)
    why = "is of other sources than this tree for" if other else "has no"
    raise EnvironmentFault(
        f"images/lock.yaml {why} {image.reference}",
        fix=f"ae build {image.name} --flavour {image.flavour}; where it is published: ae push",
    )

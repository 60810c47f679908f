"""A bundle, and how it is written: one tar archive with all that a recipe needs.

`bundle.json` (what is in it), `README.md`, `tree.tar` (the checkout of a commit),
`images/<name>-<flavour>.tar` (as `docker save` writes them), and last `SHA256SUMS`.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ae.daemon.connection import Daemon
from ae.daemon.faults import faults
from ae.errors import EnvironmentFault, UsageError
from ae.host.files import sha256_of
from ae.host.git import git
from ae.host.machine import require_disk
from ae.images.content import labels_of, source_files
from ae.images.registry import built
from ae.model import ImageRef, Part
from ae.recipe.models import Name, Recipe
from ae.units import format_size

FACTS, README, TREE, SUMS = "bundle.json", "README.md", "tree.tar", "SHA256SUMS"
Say = Callable[[str], None]


class ImageFacts(Part):
    """One image of a bundle."""

    name: Name
    flavour: Literal["cpu", "cuda"]
    content: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    image_id: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]

    @property
    def reference(self) -> str:
        """The tag that `ae run` looks for."""
        return f"ae/{self.name}:{self.flavour}"

    @property
    def member(self) -> str:
        """Its file in the bundle."""
        return f"images/{self.name}-{self.flavour}.tar"


class Facts(Part):
    """What bundle.json says."""

    kind: Literal["ae-bundle"] = "ae-bundle"
    schema_version: Literal[3] = Field(default=3, alias="schema")
    recipe: Name
    revision: str  # the commit
    date: str  # of the commit
    images: Annotated[list[ImageFacts], Field(min_length=1)]


def write(
    root: Path, recipe: Recipe, images: Sequence[ImageRef], output: Path, daemon: Daemon, say: Say
) -> Facts:
    """Write the bundle of a recipe to `output`: there when it is whole, else not at all.

    Raises UsageError, EnvironmentFault.
    """
    if output.suffix != ".tar" or not output.absolute().parent.is_dir():
        raise UsageError(f"{output} is no place for a bundle", fix="-o FOLDER/NAME.tar")
    found = [built(daemon, image) for image in images]
    _require_committed(root, images)
    sha, _, date = (git(root, "log", "-1", "--format=%H %cI") or "").strip().partition(" ")
    held = [
        ImageFacts(name=i.name, flavour=i.flavour.value, content=i.content, image_id=one["Id"])
        for i, one in zip(images, found, strict=True)
    ]
    facts = Facts(recipe=recipe.name, revision=sha, date=date, images=held)
    needed = 2 * sum(int(one["Size"]) for one in found) + 10**8  # saved, then put in
    require_disk(output.absolute().parent, needed, f"the bundle {output.name}")
    names = [FACTS, README, TREE, *(image.member for image in facts.images)]
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as place:
        folder = Path(place)
        (folder / "images").mkdir()
        (folder / FACTS).write_text(facts.model_dump_json(by_alias=True, indent=2) + "\n")
        (folder / README).write_text(_readme(recipe, facts, output.name))
        if git(root, "archive", "--output", str(folder / TREE), sha) is None:
            raise EnvironmentFault(f"git cannot archive {sha}", fix=f"git archive {sha}")
        for image, one in zip(facts.images, found, strict=True):
            say(f"{image.reference}: {format_size(int(one['Size']))}")
            if "ae.binds" in labels_of(one):
                say("note: it borrows folders of this host, so it runs on no other")
            with faults(daemon.endpoint), (folder / image.member).open("wb") as file:
                file.writelines(daemon.client.get_image(image.image_id))  # by id: no tag in it
        sums = "".join(f"{sha256_of(folder / name)}  {name}\n" for name in names)
        (folder / SUMS).write_text(sums)
        with tarfile.open(folder / "part", "w", format=tarfile.GNU_FORMAT) as tar:
            for name in (*names, SUMS):
                tar.add(folder / name, name, filter=_nobodys)
        (folder / "part").replace(output)
    return facts


def _nobodys(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _require_committed(root: Path, images: Sequence[ImageRef]) -> None:
    """Raise UsageError where what runs here, or what the images are built from, is not in it."""
    if not (held := git(root, "ls-files", "-z")):
        raise UsageError(f"{root} is no git checkout", fix="make the bundle in a clone")
    folders = ("ae", "images", "recipes", "results/reference")
    said = git(root, "status", "--porcelain", "--untracked-files=all", "--", *folders) or ""
    used = {path for image in images for path in source_files(root, image.name)}
    sources = {path.relative_to(root).as_posix() for path in used}  # an ignored one, too
    for name in sorted({line[3:] for line in said.splitlines()} | sources - set(held.split("\0"))):
        raise UsageError(
            f"{name} is not as in the commit, and a bundle holds what is committed",
            fix="commit it (git add --force if it is ignored), or remove it and build again",
        )


def _readme(recipe: Recipe, facts: Facts, file: str) -> str:
    by_hand = "".join(
        f"    docker load --input {one.member} && docker tag {one.image_id} {one.reference}\n"
        for one in facts.images
    )
    text = Path(__file__).with_name("bundle.md").read_text()
    return text.format(recipe=recipe, facts=facts, file=file, sums=SUMS, tree=TREE, by_hand=by_hand)

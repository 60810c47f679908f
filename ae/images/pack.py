"""A bundle, and how it is written: one tar archive with all that a recipe needs.

`bundle.json` (what is in it), `README.md`, `tree.tar` (a checkout, input data and wheels),
`images/<name>-<flavour>.tar` (as `docker save` writes them), and last `SHA256SUMS`.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ae.daemon.connection import Daemon, faults
from ae.errors import UsageError
from ae.host.git import git
from ae.host.machine import require_disk
from ae.images.content import labels_of, source_files
from ae.images.registry import built
from ae.model import ImageRef
from ae.recipe.models import Recipe
from ae.units import format_size

FACTS, README, TREE, SUMS = "bundle.json", "README.md", "tree.tar", "SHA256SUMS"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Say = Callable[[str], None]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ImageFacts(_Part):
    """One image of a bundle. `size` in bytes, as the engine says it."""

    name: Name
    flavour: Literal["cpu", "cuda"]
    content: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    image_id: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]

    @property
    def reference(self) -> str:
        """The tag that `ae run` looks for."""
        return f"ae/{self.name}:{self.flavour}"

    @property
    def member(self) -> str:
        """Its file in the bundle."""
        return f"images/{self.name}-{self.flavour}.tar"

    @property
    def labels(self) -> dict[str, str]:
        """What the image must say of itself."""
        return {"ae.image": self.name, "ae.flavour": self.flavour, "ae.content": self.content}


class Facts(_Part):
    """What bundle.json says. `tree`: git's name for all files, which differ (`dirty`) from those of
    the commit `revision`."""

    kind: Literal["ae-bundle"] = "ae-bundle"
    schema_version: Literal[2] = Field(default=2, alias="schema")
    recipe: Name
    revision: str
    tree: str
    date: str
    dirty: bool
    images: Annotated[list[ImageFacts], Field(min_length=1)]


def write(
    root: Path,
    recipe: Recipe,
    images: Sequence[ImageRef],
    output: Path,
    daemon: Daemon,
    *,
    wheels: Path | None = None,
    say: Say,
) -> Facts:
    """Write the bundle of a recipe to `output`: there when it is whole, else not at all.

    `wheels`: a folder of Python packages to put in. Raises UsageError, EnvironmentFault.
    """
    if not output.name.endswith((".tar", ".tar.gz")) or not output.absolute().parent.is_dir():
        raise UsageError(f"{output} is no place for a bundle", fix="-o FOLDER/NAME.tar or .tar.gz")
    found = [built(daemon, image) for image in images]
    _require_tracked(root, images)
    sha, _, date = (git(root, "log", "-1", "--format=%H %cI") or "").strip().partition(" ")
    who = ("-c", "user.name=ae", "-c", "user.email=ae@localhost")
    changed = (git(root, *who, "stash", "create") or "").strip()  # a commit of what differs
    facts = Facts(
        recipe=recipe.name,
        revision=sha,
        tree=(git(root, "rev-parse", f"{changed or sha}^{{tree}}") or "").strip(),
        date=date,
        dirty=bool(changed),
        images=[
            ImageFacts(name=ref.name, flavour=ref.flavour.value, content=ref.content,
                       image_id=one["Id"], size=int(one.get("Size") or 0))
            for ref, one in zip(images, found, strict=True)
        ],
    )  # fmt: skip
    if facts.dirty:
        say("note: files differ from the commit that the bundle names; it says so (dirty)")
    for image, one in zip(facts.images, found, strict=True):
        if "ae.binds" in labels_of(one):
            say(f"note: {image.reference} borrows folders of this host, so it runs on no other")
    needed = 2 * sum(image.size for image in facts.images) + 10**8  # saved, then put in
    require_disk(output.absolute().parent, needed, f"the bundle {output.name}")
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as place:
        folder = Path(place)
        text = facts.model_dump_json(by_alias=True, indent=2) + "\n"
        (folder / FACTS).write_text(text)
        (folder / README).write_text(_readme(recipe, facts, output.name))
        git(root, "archive", "--output", str(folder / TREE), changed or sha)
        with tarfile.open(folder / TREE, "a", dereference=True) as tree:
            for path, inside in _added(root, recipe, wheels):
                tree.add(path, inside)
            tree.add(folder / FACTS, FACTS)
        sums = []
        packed: dict[str, Any] = {"compresslevel": 6} if output.name.endswith(".gz") else {}
        with tarfile.open(folder / "part", "w:gz" if packed else "w", **packed) as tar:

            def add(name: str) -> None:
                sums.append(f"{sha256_of(folder / name)}  {name}\n")
                tar.add(folder / name, name, filter=_plain)
                (folder / name).unlink()

            for name in (FACTS, README, TREE):
                add(name)
            (folder / "images").mkdir()
            for image in facts.images:
                say(f"{image.reference}: {format_size(image.size)}")
                with faults(daemon.endpoint), (folder / image.member).open("wb") as file:
                    file.writelines(daemon.patient.get_image(image.image_id))  # by id: no tag in it
                add(image.member)
            (folder / SUMS).write_text("".join(sums))
            add(SUMS)
        (folder / "part").replace(output)
    return facts


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o644
    return info


def _require_tracked(root: Path, images: Sequence[ImageRef]) -> None:
    """Raise UsageError where git does not hold what the images are built from."""
    tracked = git(root, "ls-files", "-z")
    if not tracked:
        raise UsageError(f"{root} is no git checkout", fix="make the bundle in a clone")
    known = set(tracked.split("\0"))
    used = {path for image in images for path in source_files(root, image.name)}
    unknown = {path.relative_to(root).as_posix() for path in used} - known
    new = git(root, "ls-files", "-z", "--others", "--exclude-standard", "recipes", "images", "ae")
    for name in sorted(unknown | set((new or "").split("\0")) - {""}):
        raise UsageError(
            f"git does not know {name}, and a bundle holds what git tracks",
            fix="git add it (--force if it is ignored), or remove it and build again",
        )


def _added(root: Path, recipe: Recipe, wheels: Path | None) -> Iterator[tuple[Path, str]]:
    """What goes in beside what git tracks, and its name there: input data in the checkout, which
    the recipe names itself, and wheels."""
    for volume in (v for name in recipe.experiments for v in recipe.needs_of(name).volumes):
        path = Path(os.path.normpath(root / volume.source))
        if volume.read_only and path.is_relative_to(root) and volume.source != str(path):
            if not path.exists():
                raise UsageError(
                    f"the recipe {recipe.name} reads {volume.source}, which is not there",
                    fix="get the data first (see the recipe's docs)",
                )
            yield path, path.relative_to(root).as_posix()
    found = sorted(wheels.glob("*.whl")) if wheels else []
    if wheels and not found:
        raise UsageError(f"there is no wheel in {wheels}", fix=f"pip download --dest {wheels} .")
    yield from ((path, f"wheels/{path.name}") for path in found)


def _readme(recipe: Recipe, facts: Facts, file: str) -> str:
    by_hand = "".join(
        f"    docker load --input {one.member} && docker tag {one.image_id} {one.reference}\n"
        for one in facts.images
    )
    return f"""# {recipe.title}: a reproduction bundle

> {recipe.paper.title}. {recipe.paper.venue}. {recipe.paper.url}

Commit {facts.revision}{", with changes" if facts.dirty else ""}, {facts.date}. Not the authors' own
artifact. `tree.tar` is a checkout with recipes, sources, reference results and data.

With `ae` (from the checkout: `pip install --editable .`, with `--no-index --find-links wheels`
where there is a folder of wheels):

    ae load {file}
    cd {recipe.name}-bundle && ae run {recipe.name} --quick

By hand, in the folder that this archive was extracted to:

    sha256sum --check --quiet {SUMS}
    mkdir checkout && tar -xf {TREE} -C checkout
{by_hand}
Licences: `LICENSE` of the checkout; the images hold software of others under licences of their own.
Citing: the paper above for its results, `CITATION.cff` of the checkout for this reproduction.
"""

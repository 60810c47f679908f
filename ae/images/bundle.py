"""A bundle: one archive with all that a recipe needs on a machine without a network. Writing it."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from ae import __version__
from ae.claims.judge import load_claims
from ae.errors import EnvironmentFault, UsageError
from ae.host.machine import require_disk
from ae.images import bake, contents, layout, readme
from ae.images.archives import pack, pack_end
from ae.images.content import content_hash, image_ref
from ae.images.lockfile import locked
from ae.model import Flavour, ImageRef
from ae.recipe.models import Recipe
from ae.records.provenance import folder_hash
from ae.units import format_size

if TYPE_CHECKING:
    from ae.daemon.connection import Daemon

SCHEMA = 1
FACTS, README, LICENSE, CITATION = "bundle.json", "README.md", "LICENSE", "CITATION.cff"
SUMS = "SHA256SUMS"
_EPOCH = 315532800  # 1980-01-01, where nothing says when: some programs know no earlier date
_SLACK = 50 * 10**6  # headers, the list of checksums, what the layouts add

Say = Callable[[str], None]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ImageFacts(_Part):
    """One image of a bundle. `size` in bytes, as the engine says it; `digests` in registries."""

    name: Name
    flavour: Literal["cpu", "cuda"]
    content: Hex
    image_id: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    digests: list[str]
    size: int = Field(ge=0)
    platform: str
    created: str
    labels: dict[str, str]

    @property
    def reference(self) -> str:
        """The tag that `ae run` looks for."""
        return f"ae/{self.name}:{self.flavour}"

    @property
    def folder(self) -> str:
        """Where its layout is in the bundle."""
        return f"images/{self.name}-{self.flavour}"


class Source(_Part):
    """The commit that the tree comes from; `dirty`: files differ from it."""

    revision: str | None
    dirty: bool


class Facts(_Part):
    """What bundle.json says. `contents`: image folder -> hash of what it is built from."""

    kind: Literal["ae-bundle"] = "ae-bundle"
    schema_version: Literal[1] = Field(default=1, alias="schema")
    recipe: Name
    title: str
    lane: str
    ae: str
    date: str
    source: Source
    recipe_hash: Hex
    contents: dict[Name, Hex]
    images: list[ImageFacts]
    references: list[str]
    data: list[str]
    wheels: int = Field(ge=0)


@dataclass(frozen=True)
class Bundled:
    """A bundle that has been written. `size` in bytes, `sha256` of the whole file."""

    path: Path
    size: int
    sha256: str
    members: int
    facts: Facts = field(repr=False)


def write_bundle(
    root: Path,
    recipe: Recipe,
    output: Path,
    daemon: Daemon,
    *,
    lane: str | None = None,
    flavours: Sequence[Flavour] = (),
    wheels: Path | None = None,
    say: Say,
) -> Bundled:
    """Write the bundle of a recipe to `output`, under a temporary name until it is whole.

    `lane` None: native, or the only one there is. No flavours: those that the engine has an image
    of. Raises UsageError and EnvironmentFault before anything is written where it can.
    """
    _check_name(output)
    chosen = _lane(recipe, lane)
    files = contents.tree_files(root, recipe) + contents.data_files(root, recipe)
    if wheels is not None:
        files += contents.wheel_files(wheels)
    refs = _images(root, recipe, chosen, flavours, daemon)
    images = [_image_facts(daemon, image) for image in refs]
    sha, dirty, date = contents.revision(root)
    stamp = int(os.environ.get("SOURCE_DATE_EPOCH") or date or _newest(images))
    facts = Facts(
        recipe=recipe.name,
        title=recipe.title,
        lane=chosen,
        ae=__version__,
        date=datetime.fromtimestamp(stamp, UTC).isoformat(timespec="seconds"),
        source=Source(revision=sha, dirty=dirty),
        recipe_hash=folder_hash(root / "recipes" / recipe.name),
        contents={name: content_hash(root, name) for name in contents.image_names(root, recipe)},
        images=images,
        references=sorted({f.name.split("/")[2] for f in files if f.name.startswith("results/")}),
        data=[f.name.removeprefix("data/") for f in files if f.name.startswith("data/")],
        wheels=sum(f.name.startswith("wheels/") for f in files),
    )
    needed = sum(file.size for file in files) + sum(image.size for image in images) + _SLACK
    require_disk(output.absolute().parent, needed, f"the bundle {output.name}")
    if dirty:
        say("note: files differ from the commit that the bundle names; it says so (dirty)")
    for note in _notes(refs, images):
        say(f"note: {note}")
    with _writing(output, stamp) as writer:
        writer.add_text(FACTS, _json(facts))
        writer.add_text(
            README, readme.render(recipe, load_claims(root, recipe.name), facts, output.name)
        )
        by_name = {file.name: file for file in files}
        for name in (LICENSE, CITATION):
            writer.add_file(contents.File(name, by_name[f"tree/{name}"].path))
        for file in files:
            writer.add_file(file)
        for image in images:
            say(f"{image.reference}: {format_size(image.size)}")
            _add_image(writer, daemon, image)
        writer.add_sums()
    return Bundled(output, writer.size, writer.sha256, len(writer.sums) + 1, facts)


class _Writer:
    """The archive being written: members one after the other, their checksums kept."""

    def __init__(self, out: BinaryIO, stamp: int) -> None:
        self._out = out
        self._stamp = stamp
        self.sums: dict[str, str] = {}
        self.size = 0
        self.sha256 = ""

    def add(
        self, name: str, size: int, chunks: Iterable[bytes], *, executable: bool = False
    ) -> None:
        """Write one file."""
        digest = hashlib.sha256()

        def hashed() -> Iterator[bytes]:
            for chunk in chunks:
                digest.update(chunk)
                yield chunk

        for piece in pack(name, size, hashed(), executable=executable, mtime=self._stamp):
            self._out.write(piece)
        self.sums[name] = digest.hexdigest()

    def add_text(self, name: str, text: str) -> None:
        """Write a file of text."""
        data = text.encode()
        self.add(name, len(data), [data])

    def add_file(self, file: contents.File) -> None:
        """Write a file of the checkout."""
        self.add(file.name, file.size, file.chunks(), executable=file.executable)

    def add_sums(self) -> None:
        """Write the list of checksums, which ends the archive."""
        text = "".join(f"{digest}  {name}\n" for name, digest in self.sums.items())
        for piece in pack(SUMS, len(text.encode()), [text.encode()], mtime=self._stamp):
            self._out.write(piece)
        self._out.write(pack_end())


class _Hashing:
    """A file that hashes and counts what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


@contextmanager
def _writing(output: Path, stamp: int) -> Iterator[_Writer]:
    """A writer whose file gets its name when all is in it; on a fault nothing stays."""
    number, name = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.absolute().parent)
    part = Path(name)
    try:
        with open(number, "wb") as file:
            hashing = _Hashing(file)
            if output.name.endswith((".gz", ".tgz")):
                with gzip.GzipFile("", "wb", 6, cast("BinaryIO", hashing), mtime=stamp) as packed:
                    writer = _Writer(cast("BinaryIO", packed), stamp)
                    yield writer
            else:
                writer = _Writer(cast("BinaryIO", hashing), stamp)
                yield writer
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        part.replace(output)
        writer.size, writer.sha256 = hashing.size, hashing.digest.hexdigest()
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _add_image(writer: _Writer, daemon: Daemon, image: ImageFacts) -> None:
    def fault(why: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"what the engine gives for {image.reference} {why}",
            fix="try again; if it stays, build the image anew",
        )

    checked = layout.Layout(fault)
    for name, size, chunks in layout.save(daemon, image.reference):
        writer.add(f"{image.folder}/{name}", size, checked.passing(name, size, chunks))
    if image.image_id not in checked.ids():
        raise fault("is another image by now")


def _images(
    root: Path, recipe: Recipe, lane: str, flavours: Sequence[Flavour], daemon: Daemon
) -> list[ImageRef]:
    name = recipe.image_of(lane)
    if flavours:
        return [image_ref(root, name, flavour) for flavour in dict.fromkeys(flavours)]
    images = [image_ref(root, name, flavour) for flavour in bake.flavours(root, name)]
    there = [image for image in images if daemon.image(image.reference) is not None]
    return there or images[:1]


def _image_facts(daemon: Daemon, image: ImageRef) -> ImageFacts:
    """What the engine says of an image. Raises EnvironmentFault when it is not the tree's."""
    found = daemon.image(image.reference)
    fix = f"ae build {image.name} --flavour {image.flavour}"
    if found is None:
        raise EnvironmentFault(f"the image {image.reference} is not there", fix=fix)
    labels: Mapping[str, str] = (found.get("Config") or {}).get("Labels") or {}
    if labels.get("ae.content") != image.content:
        raise EnvironmentFault(
            f"the image {image.reference} is not built from this tree, but from another state",
            fix=fix,
        )
    return ImageFacts(
        name=image.name,
        flavour=image.flavour.value,
        content=image.content,
        image_id=str(found["Id"]),
        digests=sorted(found.get("RepoDigests") or []),
        size=int(found.get("Size") or 0),
        platform=f"{found.get('Os')}/{found.get('Architecture')}",
        created=str(found.get("Created") or ""),
        labels={
            k: v for k, v in sorted(labels.items()) if k.startswith(("ae.", "org.opencontainers."))
        },
    )


def _notes(refs: Sequence[ImageRef], images: Sequence[ImageFacts]) -> Iterator[str]:
    """What a person should know before publishing these images."""
    for ref, image in zip(refs, images, strict=True):
        if "ae.binds" in image.labels:
            yield f"{image.reference} borrows folders of this host, so it runs on no other"
        entry = locked(ref)
        if entry and not entry.names({"Id": image.image_id, "RepoDigests": image.digests}):
            yield f"{image.reference} is not the published image that images/lock.yaml names"


def _newest(images: Sequence[ImageFacts]) -> int:
    """When the newest image was made (s since 1970): a date where there is no commit."""
    try:
        dates = [datetime.fromisoformat(f"{image.created[:19]}+00:00") for image in images]
    except ValueError:
        return _EPOCH
    return max(_EPOCH, *(int(date.timestamp()) for date in dates))


def _lane(recipe: Recipe, lane: str | None) -> str:
    chosen = lane or ("native" if "native" in recipe.lanes else next(iter(recipe.lanes)))
    if chosen not in recipe.lanes:
        raise UsageError(
            f"the recipe {recipe.name} has no lane '{chosen}'",
            fix=f"--lane {' or --lane '.join(recipe.lanes)}",
        )
    return chosen


def _check_name(output: Path) -> None:
    if not output.name.endswith((".tar", ".tar.gz", ".tgz")):
        raise UsageError(
            f"{output.name} ends neither in .tar nor in .tar.gz",
            fix="-o NAME.tar; compress it afterwards with the program of your choice",
        )
    if not output.absolute().parent.is_dir() or output.is_dir():
        raise UsageError(f"{output} cannot be written there", fix="name a file in a folder that is")


def _json(facts: Facts) -> str:
    return json.dumps(facts.model_dump(by_alias=True), indent=2) + "\n"

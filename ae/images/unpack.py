"""Loading a bundle: everything is verified first, then installed, and taken back on any fault."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ae.errors import EnvironmentFault, UsageError
from ae.host import signals
from ae.host.machine import require_disk
from ae.images import layout
from ae.images.archives import ArchiveReader, Member, Place
from ae.images.bundle import FACTS, ImageFacts
from ae.images.bundle_checks import DAMAGED, RESTORED, Verified, opened, verify
from ae.images.content import content_hash
from ae.images.contents import same_files
from ae.units import format_size

if TYPE_CHECKING:
    from ae.daemon.connection import Daemon

Say = Callable[[str], None]
State = Literal["loaded", "already there"]
_LATE_S = 3.0


@dataclass(frozen=True)
class Loaded:
    """What loading did. `folder` is the checkout to run from."""

    verified: Verified
    folder: Path
    wrote_tree: bool
    states: Mapping[str, State]  # image reference -> what happened to it


def load_bundle(
    path: Path, into: Path | None, checkout: Path | None, daemon: Daemon, say: Say
) -> Loaded:
    """Verify a bundle, load its images into an engine and write its tree, or nothing at all.

    `into` None: the checkout, when it holds the same, else `./<recipe>-bundle`. `checkout`: the one
    that commands would use here, if any. Raises UsageError and EnvironmentFault.
    """
    if path.is_file():
        say(f"checking {path.name} ({format_size(path.stat().st_size)})")
    verified = verify(path)
    folder, write = choose_folder(verified, into, checkout)
    if write:
        require_disk(folder.absolute().parent, verified.restored, f"the tree of {path.name}")
    if (home := Path(str(daemon.info.get("DockerRootDir", "/")))).is_dir():
        # Twice: the engine unpacks the archive before it makes layers of it.
        require_disk(home, 2 * verified.layouts, f"loading the images of {path.name}")
    states: dict[str, State] = {}
    with ExitStack() as undo:
        for image in verified.facts.images:
            states[image.reference] = _load_image(verified, image, daemon, undo, say)
        part = _write_tree(verified, folder, undo) if write else None
        with signals.shielded():  # short steps, and the last: all of them, or all taken back
            for image in verified.facts.images:
                _tag(verified, image, daemon, undo)
            if part is not None:
                _put(part, folder)
            undo.pop_all()
    return Loaded(verified, folder, write, states)


def choose_folder(
    verified: Verified, into: Path | None, checkout: Path | None
) -> tuple[Path, bool]:
    """Where the tree is to be, and whether it must be written. Raises UsageError when a folder that
    is there already holds something else."""
    if into is None and checkout is not None and _is_same(verified, checkout):
        return checkout, False
    folder = into or Path(f"{verified.facts.recipe}-bundle")
    if folder.is_dir() and any(folder.iterdir()):
        if _is_same(verified, folder):
            return folder, False
        raise UsageError(
            f"{folder} is there already and does not hold what this bundle restores",
            fix="name another folder with --into, or remove that one",
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder", fix="name another with --into")
    if not folder.absolute().parent.is_dir():
        raise UsageError(
            f"there is no folder {folder.absolute().parent} to put {folder.name} in", fix="make it"
        )
    return folder, True


def _is_same(verified: Verified, checkout: Path) -> bool:
    """Whether a checkout holds this recipe, these sources of its images and these data."""
    facts = verified.facts
    prefixes = {f"tree/recipes/{facts.recipe}/": "tree/", "data/": "data/"}
    wanted = {
        name.removeprefix(strip): digest
        for name, digest in verified.sums.items()
        for prefix, strip in prefixes.items()
        if name.startswith(prefix)
    }
    return same_files(checkout, facts.recipe, wanted) and all(
        content_hash(checkout, name) == content for name, content in facts.contents.items()
    )


def _load_image(
    verified: Verified, image: ImageFacts, daemon: Daemon, undo: ExitStack, say: Say
) -> State:
    """Load one image under no name, and check that the engine now has what the bundle says."""
    ids = sorted(verified.ids[image.folder])
    before = _find(daemon, ids)
    if before is None:
        undo.push(_remover(daemon, ids))
        say(f"loading {image.reference} ({format_size(image.size)})")
        layout.load(daemon, _layout(verified, image))
    found = before or _find(daemon, ids)
    if found is None:
        raise EnvironmentFault(
            f"the engine took {image.reference} and has no image of its id",
            fix="see the daemon's log, and `docker images --all`",
        )
    labels = (found.get("Config") or {}).get("Labels") or {}
    wanted = {**image.labels, "ae.content": image.content}
    if any(labels.get(key) != value for key, value in wanted.items()):
        raise EnvironmentFault(
            f"the labels of {image.reference} are not those that {verified.path.name} names",
            fix=DAMAGED,
        )
    return "loaded" if before is None else "already there"


def _layout(verified: Verified, image: ImageFacts) -> Iterator[layout.Part]:
    """The files of an image out of the bundle, checked again: the file may have changed."""
    top = f"{image.folder}/"
    with opened(verified.path) as reader:
        for member in reader:
            if member.name.startswith(top):
                chunks = _same(verified, reader, member)
                yield member.name.removeprefix(top), member.size, chunks


def _same(verified: Verified, reader: ArchiveReader, member: Member) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for chunk in reader.chunks():
        digest.update(chunk)
        yield chunk
    if verified.sums.get(member.name) != digest.hexdigest():
        raise reader.fault("changed while it was loaded")


def _write_tree(verified: Verified, folder: Path, undo: ExitStack) -> Path:
    """Everything but the images, below a temporary name beside `folder`."""
    parent = folder.absolute().parent
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=parent))
    undo.callback(shutil.rmtree, part, ignore_errors=True)
    part.chmod(0o755)
    with opened(verified.path) as reader:
        place = Place(part, reader)
        for member in reader:
            if member.name.startswith(RESTORED):
                top = next(top for top in ("tree/", "data/", "") if member.name.startswith(top))
                name = member.name.removeprefix(top)
            elif member.name == FACTS:
                name = FACTS
            else:
                continue
            moved = Member(name, member.kind, member.size, member.mode, member.target)
            place.put(moved, _same(verified, reader, member))
    for name, content in verified.facts.contents.items():
        if content_hash(part, name) != content:
            raise EnvironmentFault(
                f"{verified.path.name} restores other sources of the image {name} than it says",
                fix="have it made anew",
            )
    return part


def _put(part: Path, folder: Path) -> None:
    if folder.is_dir():
        folder.rmdir()  # it is empty, or this fails
    part.rename(folder)


def _tag(verified: Verified, image: ImageFacts, daemon: Daemon, undo: ExitStack) -> None:
    """Give an image the name that `ae run` looks for; the image that has it now gets it back."""
    from ae.daemon.connection import faults

    found = _find(daemon, sorted(verified.ids[image.folder]))
    before = daemon.image(image.reference)
    if found is None or (before is not None and before["Id"] == found["Id"]):
        return
    repository, _, tag = image.reference.rpartition(":")
    undo.callback(_retag, daemon, image.reference, None if before is None else str(before["Id"]))
    with faults(daemon.endpoint):
        daemon.control.tag(found["Id"], repository, tag)


def _retag(daemon: Daemon, reference: str, before: str | None) -> None:
    """Take a tag back. The error that brings us here is told; one of cleaning up is not."""
    from docker.errors import NotFound

    from ae.daemon.connection import faults

    repository, _, tag = reference.rpartition(":")
    with suppress(EnvironmentFault), faults(daemon.endpoint), suppress(NotFound):
        if before is None:
            daemon.control.remove_image(reference, noprune=True)
        else:
            daemon.control.tag(before, repository, tag)


def _remover(daemon: Daemon, ids: list[str]) -> Callable[..., None]:
    """What removes an image that we loaded, under whichever of its ids the engine has it.

    An engine that we left in the middle of loading may still finish: then it is waited for.
    """
    from docker.errors import NotFound

    from ae.daemon.connection import faults

    def remove(kind: type[BaseException] | None, *_: object) -> None:
        end = time.monotonic() + (_LATE_S if kind is KeyboardInterrupt else 0)
        while True:
            for name in ids:
                with suppress(EnvironmentFault), faults(daemon.endpoint), suppress(NotFound):
                    daemon.control.remove_image(name)
                    return
            if time.monotonic() >= end:
                return
            time.sleep(0.2)

    return remove


def _find(daemon: Daemon, ids: list[str]) -> dict[str, Any] | None:
    return next((found for name in ids if (found := daemon.image(name))), None)

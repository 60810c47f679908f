"""Checks a bundle and restores it, see ae/images/pack.py for what it is: all is checked first."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ae.daemon.connection import Daemon
from ae.daemon.faults import faults, refused
from ae.errors import EnvironmentFault, UsageError
from ae.host import signals
from ae.host.machine import require_disk
from ae.images.content import content_hash, labels_of
from ae.images.pack import FACTS, README, SUMS, TREE, Facts, ImageFacts, Say
from ae.units import format_size

_PIECE = 2**20  # bytes read at once; no honest header or configuration is longer
_MOST_FILES = 100_000  # in an archive; a bundle itself has fewer than 200
_LATE_S = 3.0  # an engine that was left in the middle of loading may still finish
_NAMES = re.compile(r"bundle\.json|README\.md|tree\.tar|images/[\w.-]+\.tar|SHA256SUMS", re.ASCII)
# What tarfile makes of bytes that are not what they should be.
_DAMAGE = (tarfile.TarError, EOFError, ValueError, LookupError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Checked:
    """A bundle all of whose bytes are as its checksums say."""

    path: Path
    facts: Facts
    sizes: Mapping[str, int]  # bytes


def check(path: Path) -> Checked:
    """Read a bundle and check every byte of it. Writes nothing.

    Raises UsageError when it is no bundle, EnvironmentFault when it is damaged.
    """
    sums: dict[str, str] = {}
    sizes: dict[str, int] = {}
    texts: dict[str, bytes] = {}
    with _opened(path) as (file, tar):
        for member in _members(tar, 200):
            name = member.name
            if not _NAMES.fullmatch(name) or not member.isreg() or name in sums:
                raise _fault(path, f"holds '{name}', which is no part of a bundle")
            data: Any = tar.extractfile(member)
            texts[name] = data.read(_PIECE)  # the whole of a short one
            data.seek(0)
            sums[name] = hashlib.file_digest(data, "sha256").hexdigest()
            sizes[name] = member.size
        rest = iter(lambda: file.read(_PIECE), b"")
        if any(piece.strip(b"\0") for piece in rest) or file.tell() % tarfile.RECORDSIZE:
            raise _fault(path, "is cut off or damaged at its end")
        listed = "".join(f"{sums[name]}  {name}\n" for name in sums if name != SUMS)
        if texts.get(SUMS) != listed.encode():
            raise _fault(path, f"is damaged: its files are not those of its {SUMS}")
        try:
            facts = Facts.model_validate_json(texts[FACTS])
        except ValidationError as error:
            why = f"has a {FACTS} that this ae does not read; is it of another version?"
            raise _fault(path, why) from error
        if set(sums) != {FACTS, README, TREE, SUMS, *(image.member for image in facts.images)}:
            raise _fault(path, f"does not hold the images that its {FACTS} names")
    return Checked(path, facts, sizes)


def load(checked: Checked, folder: Path, daemon: Daemon, say: Say) -> None:
    """Load a bundle's images into an engine and write its tree, or nothing at all."""
    name = checked.path.name
    require_disk(folder.absolute().parent, checked.sizes[TREE], f"the tree of {name}")
    home = Path(str(daemon.info.get("DockerRootDir", "/")))
    if home.is_dir():  # twice: the engine unpacks before it makes layers
        needed = 2 * sum(checked.sizes[image.member] for image in checked.facts.images)
        require_disk(home, needed, f"loading the images of {name}")
    with ExitStack() as undo:
        part = _write_tree(checked, folder, undo)
        images = checked.facts.images
        ids = [(image, _load_image(checked, image, daemon, undo, say)) for image in images]
        with signals.shielded(), faults(daemon.endpoint):  # short steps; the tags move last
            part.rename(folder)  # which is empty or not there, or this fails
            undo.callback(shutil.rmtree, folder)
            for image, image_id in ids:
                daemon.client.tag(image_id, f"ae/{image.name}", image.flavour)
            undo.pop_all()


def choose_folder(checked: Checked, into: Path | None) -> Path:
    """Where the tree is to be: `into`, else `./<recipe>-bundle`. Raises UsageError."""
    folder = into or Path(f"{checked.facts.recipe}-bundle")
    empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if folder.is_symlink() or not empty or not folder.absolute().parent.is_dir():
        raise UsageError(
            f"{folder} cannot be written: it is there already, or its parent is missing",
            fix="name another folder with --into",
        )
    return folder


def _load_image(
    checked: Checked, image: ImageFacts, daemon: Daemon, undo: ExitStack, say: Say
) -> str:
    """Give an engine an image without a tag; returns the id that it has there."""
    with faults(daemon.endpoint):
        before = set(daemon.client.images(quiet=True))
    if image.image_id in before:
        return image.image_id
    undo.callback(_remove, daemon, f"ae.content={image.content}", before)
    say(f"loading {image.reference} ({format_size(checked.sizes[image.member])})")
    said = ""
    with _opened(checked.path) as (_, tar), faults(daemon.endpoint):
        data = tar.extractfile(image.member)
        for event in daemon.client.load_image(data, quiet=True):  # type: ignore[no-untyped-call]
            if "error" in event:
                raise refused("docker", str(event["error"]))
            said += event.get("stream", "")
    found = re.search(r"^Loaded image ID: (\S+)", said, re.MULTILINE)
    says = {"ae.image": image.name, "ae.flavour": image.flavour, "ae.content": image.content}
    if not found or says.items() - labels_of(daemon.image(found[1])).items():
        if found and found[1] not in before:
            daemon.client.remove_image(found[1])
        why = f"holds another image as {image.reference} than it says, or one with a name"
        raise _fault(checked.path, why)
    return found[1]


def _remove(daemon: Daemon, label: str, before: set[str]) -> None:
    """Remove an image that we loaded, also one that comes late."""
    end, client = time.monotonic() + _LATE_S, daemon.client
    with suppress(EnvironmentFault), faults(daemon.endpoint):  # what brings us here is told
        while not (new := set(client.images(quiet=True, filters={"label": label})) - before):
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        for one in new:
            client.remove_image(one)


def _write_tree(checked: Checked, folder: Path, undo: ExitStack) -> Path:
    """Write the checkout below a temporary name beside `folder`."""
    if not hasattr(tarfile, "data_filter"):
        raise EnvironmentFault("this Python cannot extract safely", fix="use 3.11.4 or later")
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    undo.callback(shutil.rmtree, part, ignore_errors=True)
    part.chmod(0o755)
    with _opened(checked.path) as (_, tar):
        data: Any = tar.extractfile(TREE)
        tree = tarfile.TarFile(fileobj=_Bounded(data))
        for member in _members(tree):
            try:
                tree.extract(member, part, filter="data")
            except tarfile.FilterError as error:
                why = f"holds '{member.name}', which would be written elsewhere"
                raise _fault(checked.path, why) from error
    for image in checked.facts.images:
        if content_hash(part, image.name) != image.content:
            raise _fault(checked.path, f"holds {image.reference} and other sources than it is of")
    return part


class _Bounded(io.BufferedReader):
    """A file that is read in small pieces only: tarfile takes a header whole, however long."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _PIECE:
            raise ValueError("a header of a megabyte and more")
        return super().read(size)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[_Bounded, tarfile.TarFile]]:
    """A bundle's bytes, and as an archive. What is wrong with it is one sentence."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}", fix="check the spelling")
    with _Bounded(io.FileIO(path)) as file:
        if file.read(len(FACTS)) != FACTS.encode():
            raise UsageError(
                f"{path.name} is not a bundle of ae",
                fix="unpack it first if it is compressed; ae bundle RECIPE -o FILE makes one",
            )
        file.seek(0)
        try:
            yield file, tarfile.TarFile(fileobj=file)
        except _DAMAGE as error:
            raise _fault(path, f"is cut off, or damaged ({str(error)[:100]})") from error


def _members(tar: tarfile.TarFile, most: int = _MOST_FILES) -> Iterator[tarfile.TarInfo]:
    for count, member in enumerate(iter(tar.next, None)):
        if count == most or member.size < 0 or member.issparse():
            raise tarfile.ReadError(f"more than {most} files, or a size that cannot be")
        tar.members = []  # type: ignore[attr-defined]  # it would keep every header
        yield member


def _fault(path: Path, why: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"{path.name} {why}",
        fix="download or copy it again, and compare its sha256 with the published one",
    )

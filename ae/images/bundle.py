"""Checks a bundle and restores it, see ae/images/pack.py for what it is: all is checked first."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from pydantic import ValidationError

from ae.daemon.connection import Daemon, api_fault, faults
from ae.errors import EnvironmentFault, UsageError
from ae.host import signals
from ae.host.machine import require_disk
from ae.images.content import content_hash, labels_of
from ae.images.pack import FACTS, README, SUMS, TREE, Facts, ImageFacts, Say
from ae.units import format_size

_PIECE = 2**20  # bytes read at once; no honest header or configuration is longer
_MOST_FILES = 100_000  # in an archive; a bundle itself has fewer than 200
_NAMES = re.compile(r"bundle\.json|README\.md|tree\.tar|images/[\w.-]+\.tar|SHA256SUMS", re.ASCII)
# What tarfile, gzip and json make of bytes that are not what they should be.
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, LookupError,
           ArithmeticError, RecursionError)  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """A bundle all of whose bytes are as its checksums say."""

    path: Path
    facts: Facts
    text: bytes  # of bundle.json
    sizes: Mapping[str, int]  # bytes
    ids: Mapping[ImageFacts, frozenset[str]]  # what engines may call each image


def check(path: Path) -> Checked:
    """Read a bundle and check every byte of it. Writes nothing.

    Raises UsageError when it is no bundle, EnvironmentFault when it is damaged.
    """
    sums: dict[str, str] = {}
    found: dict[str, tarfile.TarInfo] = {}
    texts: dict[str, bytes] = {}
    with _opened(path) as (file, tar):
        for member in _members(tar, 200):
            name = member.name
            if not found and name != FACTS:
                raise _none(path)
            if not _NAMES.fullmatch(name) or not member.isreg() or name in found:
                raise _fault(path, f"holds '{name}', which is no part of a bundle")
            digest = hashlib.sha256()
            for piece in _pieces(tar.extractfile(member)):
                digest.update(piece)
                texts.setdefault(name, piece)  # the whole of a short one
            sums[name], found[name] = digest.hexdigest(), member
        if not found:
            raise _none(path)
        if any(piece.strip(b"\0") for piece in _pieces(file)):
            raise _fault(path, "is damaged, or holds something behind its end")
        if file.tell() % tarfile.RECORDSIZE:
            raise _fault(path, "is cut off, or damaged")
        listed = "".join(f"{sums[name]}  {name}\n" for name in sums if name != SUMS)
        if texts.get(SUMS) != listed.encode():
            raise _fault(path, f"is damaged: its files are not those of its {SUMS}")
        try:
            facts = Facts.model_validate_json(texts[FACTS])
        except ValidationError as error:
            why = f"has a {FACTS} that this ae does not read; is it of another version?"
            raise _fault(path, why) from error
        if set(found) != {FACTS, README, TREE, SUMS, *(image.member for image in facts.images)}:
            raise _fault(path, f"does not hold the images that its {FACTS} names")
        ids = {image: _image_ids(path, tar, found, image) for image in facts.images}
    sizes = {name: member.size for name, member in found.items()}
    return Checked(path, facts, texts[FACTS], sizes, ids)


def _image_ids(
    path: Path, tar: tarfile.TarFile, found: Mapping[str, tarfile.TarInfo], image: ImageFacts
) -> frozenset[str]:
    """Look into a saved image before an engine does; returns what engines may call it."""
    texts: dict[str, bytes] = {}
    with _inner(tar, found[image.member]) as saved:
        for member in _members(saved):
            data = saved.extractfile(member) if member.size <= _PIECE else None
            if data and len(texts) < 200:
                texts[member.name] = data.read(_PIECE)
    try:
        (row,) = json.loads(texts["manifest.json"])
        index = json.loads(texts["index.json"])["manifests"]
        names = row["RepoTags"] or [one["annotations"] for one in index if "annotations" in one]
        config = texts[row["Config"]]
        labels = json.loads(config)["config"]["Labels"].items()
        ids = {
            "sha256:" + hashlib.sha256(config).hexdigest(),
            *(str(one["digest"]) for one in index),
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _fault(
            path, f"has an {image.member} that is no image of Docker 25 or later"
        ) from error
    if (
        names
        or "repositories" in texts
        or image.image_id not in ids
        or image.labels.items() - labels
    ):
        raise _fault(path, f"holds another image as {image.reference} than it says")
    return frozenset(ids)


def load(path: Path, into: Path | None, daemon: Daemon, say: Say) -> tuple[Checked, Path, bool]:
    """Check a bundle, load its images into an engine and write its tree, or nothing at all.

    Returns what was checked, the folder to run from, and whether that was written now.
    """
    checked = check(path)
    folder, absent = choose_folder(checked, into)
    if absent:
        require_disk(folder.absolute().parent, checked.sizes[TREE], f"the tree of {path.name}")
    home = Path(str(daemon.info.get("DockerRootDir", "/")))
    if home.is_dir():  # twice: the engine unpacks before it makes layers
        needed = 2 * sum(checked.sizes[image.member] for image in checked.ids)
        require_disk(home, needed, f"loading the images of {path.name}")
    with ExitStack() as undo:
        ids = {image: _load_image(checked, image, daemon, undo, say) for image in checked.ids}
        part = _write_tree(checked, folder, undo) if absent else None
        with signals.shielded():  # short steps, and the last: all of them, or all taken back
            for image, image_id in ids.items():
                _tag(image, image_id, daemon, undo)
            if part is not None:
                part.rename(folder)  # which is empty or not there, or this fails
            undo.pop_all()
    return checked, folder, absent


def choose_folder(checked: Checked, into: Path | None) -> tuple[Path, bool]:
    """Where the tree is to be, and whether it must be written. Raises UsageError.

    `into`; else the folder at or above this one that was restored from the same bundle; else
    `./<recipe>-bundle`.
    """
    folder, here = into or Path(f"{checked.facts.recipe}-bundle"), Path.cwd()
    for place in (folder, *(() if into else (here, *here.parents))):
        facts = place / FACTS
        if facts.is_file() and facts.read_bytes() == checked.text:
            return place, False
    empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if folder.is_symlink() or not empty or not folder.absolute().parent.is_dir():
        raise UsageError(
            f"{folder} cannot be written: it holds something else, or its parent is missing",
            fix="name another folder with --into",
        )
    return folder, True


def _find(daemon: Daemon, ids: frozenset[str]) -> str | None:
    return next((name for name in sorted(ids) if daemon.image(name)), None)


def _load_image(
    checked: Checked, image: ImageFacts, daemon: Daemon, undo: ExitStack, say: Say
) -> str:
    """Give an engine an image without a tag; returns the id that it has there."""
    ids = checked.ids[image]
    if found := _find(daemon, ids):
        return found
    undo.push(_remover(daemon, ids))
    say(f"loading {image.reference} ({format_size(image.size)})")
    with _opened(checked.path) as (_, tar), faults(daemon.endpoint):
        data = tar.extractfile(next(one for one in _members(tar) if one.name == image.member))
        for event in daemon.patient.load_image(data, quiet=True):  # type: ignore[no-untyped-call]
            if "error" in event:
                raise api_fault(RuntimeError(str(event["error"])))
    found = _find(daemon, ids)
    if found is None or image.labels.items() - labels_of(daemon.image(found)).items():
        raise EnvironmentFault(
            f"the engine took {image.reference} and does not have it now",
            fix="see the daemon's log, and `docker images --all`",
        )
    return found


def _remover(daemon: Daemon, ids: frozenset[str]) -> Callable[..., None]:
    """What removes an image that we loaded. An engine that we left in the middle of loading may
    still finish: then it is waited for."""

    def remove(kind: type[BaseException] | None, *_: object) -> None:
        end = time.monotonic() + (3.0 if kind is KeyboardInterrupt else 0)
        with suppress(EnvironmentFault):  # the error that brings us here is told
            while (found := _find(daemon, ids)) is None and time.monotonic() < end:
                time.sleep(0.2)
            if found:
                with faults(daemon.endpoint):
                    daemon.control.remove_image(found)

    return remove


def _write_tree(checked: Checked, folder: Path, undo: ExitStack) -> Path:
    """Write the checkout below a temporary name beside `folder`."""
    if not hasattr(tarfile, "data_filter"):
        raise EnvironmentFault("this Python cannot extract safely", fix="use 3.11.4 or later")
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    undo.callback(shutil.rmtree, part, ignore_errors=True)
    part.chmod(0o755)
    with _opened(checked.path) as (_, tar):
        tree = _inner(tar, next(one for one in _members(tar) if one.name == TREE))
        for member in _members(tree):
            try:
                tree.extract(member, part, filter="data")
            except tarfile.FilterError as error:
                why = f"holds '{member.name}', which would be written elsewhere"
                raise _fault(checked.path, why) from error
    for image in checked.ids:
        if content_hash(part, image.name) != image.content:
            raise _fault(checked.path, f"holds {image.reference} and other sources than it is of")
    return part


def _tag(image: ImageFacts, image_id: str, daemon: Daemon, undo: ExitStack) -> None:
    """Give an image the name that `ae run` looks for; what has it now gets it back on a fault."""
    repository, _, tag = image.reference.rpartition(":")
    before = daemon.image(image.reference)

    def back() -> None:
        with suppress(EnvironmentFault), faults(daemon.endpoint):
            if before is None:
                daemon.control.remove_image(image.reference, noprune=True)
            else:
                daemon.control.tag(before["Id"], repository, tag)

    with faults(daemon.endpoint):
        daemon.control.tag(image_id, repository, tag)
    undo.callback(back)


class _Bounded:
    """A file that is read in small pieces only: tarfile takes a header whole, however long."""

    def __init__(self, file: Any) -> None:
        self.tell, self.seek, self.seekable = file.tell, file.seek, file.seekable
        self._read = file.read

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _PIECE:
            raise ValueError("a header of a megabyte and more")
        return cast("bytes", self._read(size))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[_Bounded, tarfile.TarFile]]:
    """A bundle's bytes, decompressed, and as an archive. What is wrong with it is one sentence."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}", fix="check the spelling")
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file = _Bounded(gzip.GzipFile(fileobj=raw) if packed else raw)
        try:
            try:
                tar = tarfile.TarFile(fileobj=cast("IO[bytes]", file))
            except _DAMAGE as error:
                raise _none(path) from error
            yield file, tar
        except _DAMAGE as error:
            raise _fault(path, f"is cut off, or damaged ({str(error)[:100]})") from error


def _inner(tar: tarfile.TarFile, member: tarfile.TarInfo) -> tarfile.TarFile:
    """An archive in the bundle."""
    return tarfile.TarFile(fileobj=cast("IO[bytes]", _Bounded(tar.extractfile(member))))


def _members(tar: tarfile.TarFile, most: int = _MOST_FILES) -> Iterator[tarfile.TarInfo]:
    for count in range(most + 1):
        member = tar.next()
        if member is None:
            return
        if count == most or member.size < 0 or member.issparse():
            raise tarfile.ReadError(f"more than {most} files, or a size that cannot be")
        cast("Any", tar).members.clear()  # it would keep every header
        yield member


def _pieces(file: Any) -> Iterator[bytes]:
    return iter(lambda: file.read(_PIECE), b"")


def _fault(path: Path, why: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"{path.name} {why}",
        fix="download or copy it again, and compare its sha256 with the published one",
    )


def _none(path: Path) -> UsageError:
    return UsageError(
        f"{path.name} is not a bundle of ae", fix="ae bundle RECIPE -o FILE makes one"
    )

"""Checking a bundle: every byte against its checksums, every image against its digests."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from pydantic import ValidationError

from ae.errors import EnvironmentFault, UsageError
from ae.images import layout
from ae.images.archives import ArchiveFault, ArchiveReader, Member
from ae.images.bundle import CITATION, FACTS, LICENSE, README, SCHEMA, SUMS, Facts, ImageFacts

RESTORED = ("tree/", "data/", "results/reference/", "wheels/")  # what becomes files again
DAMAGED = "download or copy it again; compare its sha256 with the published one"
_MAX_BYTES = 2 * 10**12  # no bundle is larger; verifying writes nothing
_MAX_FILES = 1_000_000
_MAX_TEXT = 100 * 10**6  # bundle.json and the list of checksums are read whole
_TOP = (FACTS, README, CITATION, LICENSE, SUMS)


@dataclass(frozen=True)
class Verified:
    """A bundle all of whose bytes are as its checksums say. Sizes in bytes.

    `ids`: image folder -> what an engine may call the image. `restored`: bytes outside of images.
    """

    path: Path
    facts: Facts
    sums: Mapping[str, str] = field(repr=False)
    ids: Mapping[str, frozenset[str]] = field(repr=False)
    restored: int
    layouts: int


def verify(path: Path) -> Verified:
    """Read a bundle once and check every byte of it. Raises UsageError when it is no bundle,
    EnvironmentFault when it is damaged or was made by a newer ae. Writes nothing."""
    sums: dict[str, str] = {}
    restored = layouts = 0
    listed: bytes | None = None
    with opened(path) as reader:
        members = iter(reader)
        facts = _facts(path, reader, members, sums)
        folders = {
            f"{image.folder}/": layout.Layout(_fault_of(reader, image)) for image in facts.images
        }
        for member in members:
            if listed is not None:
                raise reader.fault(f"holds '{member.name}' behind its checksums")
            if member.kind != "file":
                raise reader.fault(f"holds '{member.name}', which is no ordinary file")
            if member.name == SUMS:
                listed = _text(reader, member)
                continue
            chunks: Iterator[bytes] = reader.chunks()
            top = next((top for top in folders if member.name.startswith(top)), None)
            if top is not None:
                chunks = folders[top].passing(member.name.removeprefix(top), member.size, chunks)
                layouts += member.size
            elif member.name.startswith(RESTORED):
                restored += member.size
            elif member.name not in _TOP:
                raise reader.fault(f"holds '{member.name}', which is no part of a bundle")
            digest = hashlib.sha256()
            for chunk in chunks:
                digest.update(chunk)
            sums[member.name] = digest.hexdigest()
        if listed is None:
            raise reader.fault(f"is not whole: its last file, {SUMS}, is missing")
        _compare(reader, sums, _parse(reader, listed))
        ids = {}
        for image in facts.images:
            found = folders[f"{image.folder}/"].ids()
            if image.image_id not in found:
                raise reader.fault(f"holds another image as {image.reference} than it says")
            ids[image.folder] = frozenset(found)
    return Verified(path, facts, sums, ids, restored, layouts)


@contextmanager
def opened(path: Path) -> Iterator[ArchiveReader]:
    """The bundle as an archive, compressed or not by its first bytes."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}", fix="check the spelling")
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start == b"\x28\xb5\x2f\xfd":
            raise UsageError(
                f"{path.name} is compressed by zstd", fix=f"zstd -d {path}, then load that"
            )
        packed = gzip.GzipFile(fileobj=file) if start[:2] == b"\x1f\x8b" else file
        yield ArchiveReader(
            cast("BinaryIO", packed),
            max_bytes=_MAX_BYTES,
            max_files=_MAX_FILES,
            what=path.name,
            fix=DAMAGED,
        )


def _facts(
    path: Path, reader: ArchiveReader, members: Iterator[Member], sums: dict[str, str]
) -> Facts:
    """The bundle.json that comes first."""
    none = UsageError(
        f"{path.name} is not a bundle of ae", fix="make one: ae bundle RECIPE -o FILE"
    )
    try:
        first = next(members, None)
    except ArchiveFault as fault:
        if "is not a tar archive" in fault.message:
            raise none from fault
        raise
    if first is None or first.name != FACTS:
        raise none
    text = _text(reader, first)
    sums[FACTS] = hashlib.sha256(text).hexdigest()
    try:
        data = json.loads(text)
    except ValueError as error:
        raise reader.fault(f"has a {FACTS} that cannot be read") from error
    if not isinstance(data, dict) or data.get("kind") != "ae-bundle":
        raise none
    version = data.get("schema")
    if isinstance(version, int) and version > SCHEMA:
        raise EnvironmentFault(
            f"{path.name} was made by a newer ae ({data.get('ae')}): its format is {version}, and "
            f"this ae reads up to {SCHEMA}",
            fix="use the ae in it: extract its tree/ with tar, see its README.md",
        )
    try:
        return Facts.model_validate(data)
    except ValidationError as error:
        raise reader.fault(f"has a {FACTS} that does not say what it should") from error


def _text(reader: ArchiveReader, member: Member) -> bytes:
    if member.size > _MAX_TEXT or member.kind != "file":
        raise reader.fault(f"has a {member.name} that cannot be read")
    return b"".join(reader.chunks())


def _parse(reader: ArchiveReader, listed: bytes) -> dict[str, str]:
    """Name -> sha256, as `sha256sum` writes them."""
    named: dict[str, str] = {}
    for line in listed.decode("utf-8", "surrogateescape").splitlines():
        digest, gap, name = line.partition("  ")
        if not gap or re.fullmatch("[0-9a-f]{64}", digest) is None or name in named:
            raise reader.fault(f"has a {SUMS} that cannot be read")
        named[name] = digest
    return named


def _compare(reader: ArchiveReader, found: Mapping[str, str], named: Mapping[str, str]) -> None:
    wrong = [name for name in named if name in found and found[name] != named[name]]
    if wrong:
        raise reader.fault(f"is damaged: '{wrong[0]}' is not what its checksum says{_more(wrong)}")
    missing = [name for name in named if name not in found]
    if missing:
        raise reader.fault(f"lacks '{missing[0]}', which its checksums name{_more(missing)}")
    extra = [name for name in found if name not in named]
    if extra:
        raise reader.fault(f"holds '{extra[0]}', which its checksums do not name{_more(extra)}")


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _fault_of(reader: ArchiveReader, image: ImageFacts) -> Callable[[str], EnvironmentFault]:
    return lambda why: reader.fault(f"is damaged: its {image.folder} {why}")

"""An image as an OCI layout, as `docker save` writes it: read from an engine, checked, loaded.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md. Docker adds manifest.json,
by which engines before 25 and those without the containerd store load an image.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ae.daemon.connection import api_fault, faults
from ae.errors import EnvironmentFault
from ae.images.archives import ArchiveReader, pack, pack_end

if TYPE_CHECKING:
    from ae.daemon.connection import Daemon

INDEX, MANIFEST, VERSION = "index.json", "manifest.json", "oci-layout"
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
_DROPPED = ("repositories",)  # says for old engines what manifest.json says too
_JSON_LIMIT = 2**20  # an index, a manifest or a configuration is smaller
_NO_LIMIT = 2**50  # of what our own engine says; the disk has been looked at

Fault = Callable[[str], EnvironmentFault]
Part = tuple[str, int, Iterable[bytes]]  # name in the layout, bytes, data


@dataclass
class Layout:
    """The files of a layout as they go past: every blob is held against the digest in its name.

    `fault` makes the error of a sentence that says what is wrong with the layout.
    """

    fault: Fault
    names: set[str] = field(default_factory=set)
    _texts: dict[str, bytes] = field(default_factory=dict, repr=False)

    def passing(self, name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Hand on the data of one file; raises at its end when it is not what its name says."""
        blob = _BLOB.fullmatch(name)
        if blob is None and name not in (INDEX, MANIFEST, VERSION):
            raise self.fault(f"has a file that no OCI layout has ('{name}')")
        digest = hashlib.sha256()
        kept = []
        for chunk in chunks:
            digest.update(chunk)
            if size <= _JSON_LIMIT:
                kept.append(chunk)
            yield chunk
        if blob and digest.hexdigest() != blob[1]:
            raise self.fault(f"has a blob whose bytes are not those of its digest ('{name}')")
        self.names.add(name)
        text = b"".join(kept)
        if text[:1] in (b"{", b"["):  # layers are not kept, however small
            self._texts[name] = text

    def ids(self) -> set[str]:
        """What an engine may call the image: digests of its configuration, manifest and index.

        Raises when something is missing that the index names.
        """
        found: set[str] = set()
        if VERSION not in self.names:
            raise self.fault("is no OCI layout (engines before Docker 25 write none)")
        whole = [self._follow(one, found, 0) for one in self._json(INDEX).get("manifests", [])]
        if not any(whole):
            raise self.fault("lacks a blob that its index names")
        return found

    def _follow(self, descriptor: dict[str, Any], found: set[str], depth: int) -> bool:
        """Whether a manifest is there with all its blobs; of an index, whether one of them is.

        An engine that has one platform of several saves the index of all.
        """
        name = _blob_name(descriptor)
        if name not in self.names or depth > 3:
            return False
        manifest = self._json(name)
        found.add(str(descriptor["digest"]))
        if "manifests" in manifest:
            whole = [self._follow(one, found, depth + 1) for one in manifest["manifests"]]
            return any(whole)
        config = manifest.get("config", {})
        found.add(str(config.get("digest")))
        return all(_blob_name(one) in self.names for one in (config, *manifest.get("layers", [])))

    def _json(self, name: str) -> dict[str, Any]:
        try:
            data = json.loads(self._texts[name])
        except (KeyError, ValueError) as error:
            raise self.fault(f"has no readable {name}") from error
        if not isinstance(data, dict):
            raise self.fault(f"has no readable {name}")
        return data


def save(daemon: Daemon, reference: str) -> Iterator[Part]:
    """The files of an image's layout, streamed from the engine; read each before the next."""
    with faults(daemon.endpoint):
        stream = daemon.patient.get_image(reference)
        reader = ArchiveReader(
            stream,
            max_bytes=_NO_LIMIT,
            max_files=100_000,
            what=f"what the engine at {daemon.endpoint} gives for {reference}",
            fix="see the daemon's log, and try again",
        )
        for member in reader:
            if member.kind == "file" and member.name not in _DROPPED:
                yield member.name, member.size, reader.chunks()


def load(daemon: Daemon, parts: Iterable[Part]) -> None:
    """Give an engine the files of a layout, without the names that it says for its image.

    The image is there afterwards under its id alone: a tag is moved only when all is known to be
    well. Raises EnvironmentFault.
    """
    with faults(daemon.endpoint):
        events = daemon.patient.load_image(_tar(parts), quiet=True)  # type: ignore[no-untyped-call]
        for event in events:
            if "error" in event:
                raise api_fault(RuntimeError(str(event["error"])))


def _tar(parts: Iterable[Part]) -> Iterator[bytes]:
    for name, size, chunks in parts:
        if name in (INDEX, MANIFEST):
            text = _nameless(name, b"".join(chunks))
            yield from pack(name, len(text), [text])
        else:
            yield from pack(name, size, chunks)
    yield pack_end()


def _nameless(name: str, text: bytes) -> bytes:
    data = json.loads(text)
    if name == INDEX:
        for manifest in data.get("manifests", []):
            manifest.pop("annotations", None)
    else:
        data = [{**one, "RepoTags": None} for one in data]
    return json.dumps(data).encode()


def _blob_name(descriptor: dict[str, Any]) -> str:
    return "blobs/" + str(descriptor.get("digest", "")).replace(":", "/", 1)

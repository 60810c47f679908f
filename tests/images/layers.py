"""Looks into the layers of an image, as `docker save` gives them: one pass, nothing unpacked."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from ae.images.content import find_client

_CHUNK = 1 << 20


@dataclass(frozen=True)
class File:
    """One entry of a layer. `found` holds those of the words looked for that are in its content."""

    path: str  # without a leading slash
    mode: int
    kind: str  # file | folder | link | other
    size: int
    modified: int  # seconds since 1970
    found: tuple[bytes, ...]
    content: bytes = field(default=b"", repr=False)  # of the files that were asked for


@dataclass(frozen=True)
class Saved:
    """An image: its configuration, and the entries of its layers from the lowest up."""

    config: dict[str, Any]
    layers: list[list[File]] = field(repr=False)

    @property
    def diff_ids(self) -> list[str]:
        return list(self.config["rootfs"]["diff_ids"])


def read_image(endpoint: str, reference: str, words: Sequence[bytes] = (), keep: str = "") -> Saved:
    """Return an image's layers. Every file is searched for `words`; `keep` is one to read whole."""
    argv = [find_client(endpoint), "--host", endpoint, "save", reference]
    layers: dict[str, list[File]] = {}
    texts: dict[str, bytes] = {}
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        with tarfile.open(fileobj=saving.stdout, mode="r|", bufsize=_CHUNK) as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isreg() else None
                if stream is None:
                    continue
                start = stream.read(512)
                if start[257:262] == b"ustar":
                    layers[member.name] = list(_entries(_Again(start, stream), words, keep))
                elif member.size < 10 * _CHUNK:
                    texts[member.name] = start + stream.read()
    assert saving.returncode == 0, reference
    (manifest,) = json.loads(texts["manifest.json"])
    return Saved(
        config=json.loads(texts[manifest["Config"]]),
        layers=[layers.get(name, []) for name in manifest["Layers"]],  # none: an empty archive
    )


def _entries(stream: Any, words: Sequence[bytes], keep: str) -> Iterator[File]:
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as layer:
        for info in layer:
            path = info.name.removeprefix("./").strip("/")
            content = layer.extractfile(info) if info.isreg() and (words or path == keep) else None
            kind = "file" if info.isreg() else "folder" if info.isdir() else "link"
            if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
                kind = "other"
            kept = content.read() if content and path == keep else b""
            found = _search(content, words) if content and words and not kept else ()
            yield File(path, info.mode, kind, info.size, int(info.mtime), found, kept)
            layer.members = []


def _search(content: IO[bytes], words: Sequence[bytes]) -> tuple[bytes, ...]:
    longest = max(map(len, words))
    found: set[bytes] = set()
    rest = b""
    while chunk := content.read(_CHUNK):
        text = rest + chunk
        found.update(word for word in words if word in text)
        rest = text[-longest:]
    return tuple(sorted(found))


class _Again:
    """A stream whose start has been read already."""

    def __init__(self, start: bytes, stream: IO[bytes]) -> None:
        self._start, self._stream = start, stream

    def read(self, size: int = -1) -> bytes:
        given, self._start = self._start[:size], self._start[size:]
        return given + self._stream.read(size - len(given)) if len(given) < size else given

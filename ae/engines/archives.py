"""Tar archives that come from elsewhere: read member by member, extracted so that nothing gets out.

Refused: absolute paths, `..`, links that lead out, devices, pipes and sockets, sparse files, names
that occur twice, more bytes or members than the caller allows, an archive that is cut off or has
something behind its end. Owners, set-user-id, set-group-id and sticky bits are dropped.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from ae.errors import EnvironmentFault
from ae.units import format_size

Source = BinaryIO | Iterable[bytes]
Kind = Literal["file", "folder", "symlink", "hardlink"]

CHUNK = 2**20
_BLOCK = tarfile.BLOCKSIZE
_HEADER_LIMIT = 2**20  # tarfile reads an extended header whole; no honest one is that long


class ArchiveFault(EnvironmentFault):
    """The archive is damaged, or holds what may not be extracted."""


@dataclass(frozen=True)
class Member:
    """One member. `name` is relative and plain, "" for the top; `size` in bytes, 0 but for files.

    `mode` holds only permission bits, without writing for others. `target`: of a link, as written
    for a symbolic one, a plain name for a hard one.
    """

    name: str
    kind: Kind
    size: int
    mode: int
    target: str = ""


@dataclass(frozen=True)
class Extracted:
    """How much was extracted: members of every kind, and bytes of files."""

    members: int
    bytes: int


class ArchiveReader:
    """The members of a tar stream, in order and checked; read forwards once, a chunk at a time.

    Iterate it; while a member is the current one, `chunks()` gives its data (what is not read is
    passed over). Raises ArchiveFault, with `what` as the archive's name in the sentence.
    """

    def __init__(
        self,
        source: Source,
        *,
        max_bytes: int,
        max_files: int,
        what: str = "the archive",
        fix: str = "get it anew from where it came from; nothing of it was kept",
    ) -> None:
        self._what = what
        self._fix = fix
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._stream = _Forward(source, self.fault)
        self._left = 0

    def __iter__(self) -> Iterator[Member]:
        seen: dict[str, Kind] = {}
        total = 0
        for count, info in enumerate(self._headers(), start=1):
            member = self._check(info)
            total += member.size
            if count > self._max_files:
                raise self.fault(f"holds more than {self._max_files} members")
            if total > self._max_bytes:
                raise self.fault(f"holds more than {format_size(self._max_bytes)}")
            if member.name in seen and not seen[member.name] == member.kind == "folder":
                raise self.fault(f"holds '{member.name}' twice")
            seen[member.name] = member.kind
            self._left = member.size
            yield member
            for _ in self.chunks():
                pass

    def chunks(self) -> Iterator[bytes]:
        """The rest of the current member's data."""
        while self._left:
            chunk = self._stream.read(min(self._left, CHUNK))
            if not chunk:
                raise self.fault("is cut off")
            self._left -= len(chunk)
            yield chunk

    def fault(self, why: str) -> ArchiveFault:
        """The error that says what is wrong with this archive; `why` continues its name."""
        return ArchiveFault(f"{self._what} {why}", fix=self._fix)

    def _headers(self) -> Iterator[tarfile.TarInfo]:
        with self._damage():
            tar: Any = tarfile.TarFile(fileobj=cast("Any", self._stream), mode="r")
        while True:
            with self._damage():
                info = tar.next()
            if info is None:
                break
            tar.members.clear()  # it would keep every header
            yield info
        # tarfile takes a header that it cannot read for the end; the real end is a block of zeros.
        if self._stream.last != bytes(_BLOCK):
            raise self.fault("is cut off" if len(self._stream.last) < _BLOCK else "is damaged")
        while rest := self._stream.read(CHUNK):
            if rest.strip(b"\0"):
                raise self.fault("holds something behind its end")

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except ArchiveFault:
            raise
        except tarfile.ReadError as error:
            if self._stream.at_start:
                raise self.fault("is not a tar archive") from error
            cut = "end of data" in str(error) or len(self._stream.last) < _BLOCK
            raise self.fault("is cut off" if cut else "is damaged") from error
        except (tarfile.TarError, ValueError, LookupError, ArithmeticError) as error:
            raise self.fault("is damaged") from error
        except RecursionError as error:
            raise self.fault("is damaged (a header of headers of headers)") from error

    def _check(self, info: tarfile.TarInfo) -> Member:
        name = self._plain(info.name)
        mode = info.mode & 0o755
        if info.issparse():
            raise self.fault(f"holds a sparse file ('{info.name}')")
        if info.isdir():
            return Member(name, "folder", 0, mode | 0o700)
        if not name:
            raise self.fault("holds a member without a name")
        if info.isreg():
            if info.size < 0:
                raise self.fault("is damaged")
            return Member(name, "file", info.size, mode | 0o600)
        if info.issym():
            self._check_link(name, info.linkname)
            return Member(name, "symlink", 0, 0o777, info.linkname)
        if info.islnk():
            return Member(name, "hardlink", 0, mode, self._plain(info.linkname))
        kind = "a device" if info.isdev() else "something that is no file, folder or link"
        raise self.fault(f"holds {kind} ('{info.name}')")

    def _plain(self, name: str) -> str:
        """The name without `.` and doubled slashes."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts:
            raise self.fault(f"holds a path that leads out of the folder ('{name}')")
        if "\0" in name:
            raise self.fault("is damaged (a name with a zero byte)")
        return "/".join(parts)

    def _check_link(self, name: str, target: str) -> None:
        """A target may climb only at its start, and not above the top.

        Climbing later could pass through another link, and then it leads elsewhere than it reads.
        """
        parts = [part for part in target.split("/") if part not in ("", ".")]
        climbs = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
        wrong = ".." in parts[climbs:] or climbs > name.count("/") or "\0" in target
        if target.startswith("/") or not target or wrong:
            raise self.fault(f"holds a link that leads out of the folder ('{name}' -> '{target}')")


def extract(
    source: Source,
    folder: Path,
    *,
    max_bytes: int,
    max_files: int,
    what: str = "the archive",
) -> Extracted:
    """Extract a tar stream (a file, or chunks as docker-py gives them) below `folder`.

    `folder` is made when missing; nothing that is there is overwritten or written through. What
    was extracted before a fault stays: extract into a folder that you can throw away. Raises
    ArchiveFault, and OSError when the disk refuses.
    """
    reader = ArchiveReader(source, max_bytes=max_bytes, max_files=max_files, what=what)
    place = Place(folder, reader)
    members = total = 0
    for member in reader:
        place.put(member, reader.chunks())
        members += 1
        total += member.size
    return Extracted(members, total)


class Place:
    """A folder that members are written into, one after the other."""

    def __init__(self, folder: Path, reader: ArchiveReader) -> None:
        self.folder = folder
        self._reader = reader
        self._real: set[Path] = set()  # folders known to be folders, not links to some
        self._files: set[str] = set()  # files that we wrote
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, member: Member, data: Iterable[bytes]) -> None:
        """Write one member; its parents are made. A parent that is a link is refused."""
        path = self.folder / member.name
        if member.kind == "folder":
            self._make_folder(path)
            return
        self._make_folder(path.parent)
        try:
            if member.kind == "symlink":
                path.symlink_to(member.target)
            elif member.kind == "hardlink":
                if member.target not in self._files:
                    raise self._reader.fault(
                        f"holds a hard link to what is not in it ('{member.name}')"
                    )
                os.link(self.folder / member.target, path, follow_symlinks=False)
                self._files.add(member.name)
            else:
                self._write(path, member.mode, data)
                self._files.add(member.name)
        except FileExistsError as error:
            raise self._reader.fault(
                f"holds '{member.name}', and something of that name is there already"
            ) from error

    def _write(self, path: Path, mode: int, data: Iterable[bytes]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as file:
            for chunk in data:
                file.write(chunk)
            os.fchmod(file.fileno(), mode)

    def _make_folder(self, path: Path) -> None:
        if path == self.folder or path in self._real:
            return
        self._make_folder(path.parent)
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            name = path.relative_to(self.folder)
            raise self._reader.fault(f"writes below '{name}', which is no folder")
        path.mkdir(exist_ok=True)
        self._real.add(path)


class _Forward:
    """A stream as tarfile wants a file: `tell`, seeking forwards, and reads that are whole.

    tarfile reads headers through it; one longer than an honest header is refused before it is in
    memory. `last` is what the last read gave.
    """

    def __init__(self, source: Source, fault: Callable[[str], ArchiveFault]) -> None:
        # read1: a compressed file that is cut off gives what it has before it says so.
        self._read = getattr(source, "read1", None) or getattr(source, "read", None)
        self._chunks = iter(()) if self._read else iter(source)
        self._fault = fault
        self._buffer = memoryview(b"")
        self._position = 0
        self.last = b""

    @property
    def at_start(self) -> bool:
        """Whether not more than one block has been read yet."""
        return self._position <= _BLOCK

    def tell(self) -> int:
        """Bytes read so far."""
        return self._position

    def seek(self, position: int) -> None:
        """Read on to `position`; there is no way back."""
        if position < self._position:
            raise self._fault("is damaged")
        while self._position < position:
            if not self.read(min(CHUNK, position - self._position)):
                return

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end."""
        if not 0 <= size <= _HEADER_LIMIT:
            raise self._fault("is damaged, or made to harm (a header of a megabyte and more)")
        pieces = []
        missing = size
        while missing:
            if not self._buffer:
                self._buffer = memoryview(self._more())
                if not self._buffer:
                    break
            pieces.append(self._buffer[:missing])
            self._buffer = self._buffer[missing:]
            missing -= len(pieces[-1])
        self.last = b"".join(pieces)
        self._position += len(self.last)
        return self.last

    def _more(self) -> bytes:
        try:
            if self._read is None:
                return next((chunk for chunk in self._chunks if chunk), b"")
            return cast("bytes", self._read(CHUNK))
        except EOFError:  # a compressed file that is cut off
            return b""
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._fault("is damaged") from error


def pack(
    name: str, size: int, chunks: Iterable[bytes], *, executable: bool = False, mtime: int = 0
) -> Iterator[bytes]:
    """One file as a tar stream holds it: header, data, padding. The same inputs, the same bytes.

    `mtime` is in seconds since 1970. Raises EnvironmentFault when the data is not `size` bytes.
    """
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, mtime, 0o755 if executable else 0o644
    yield info.tobuf(tarfile.PAX_FORMAT)
    written = 0
    for chunk in chunks:
        written += len(chunk)
        yield chunk
    if written != size:
        raise EnvironmentFault(
            f"{name} changed while it was read", fix="try again when nothing writes to it"
        )
    yield bytes(-size % _BLOCK)


def pack_end() -> bytes:
    """What ends a tar stream."""
    return bytes(2 * _BLOCK)


def read_chunks(path: Path) -> Iterator[bytes]:
    """A file's bytes, a chunk at a time."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk

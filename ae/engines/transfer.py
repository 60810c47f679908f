"""Inputs and outputs of a point whose daemon does not see this machine's files.

Outputs lie in a labelled volume of the daemon and are fetched as an archive once the container has
ended; inputs are sent as an archive into volumes that containers see read-only. Single files go
into the container itself, and end with it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ae.engines.archives import CHUNK, ArchiveFault, extract
from ae.engines.base import OUT_DIR
from ae.errors import EnvironmentFault

if TYPE_CHECKING:
    from docker.api import APIClient

MAX_FILES = 100_000  # a point that writes more has lost its way
SMALL = 64 * 2**20  # bytes that records.jsonl and its kin may take when the rest is too large
_KEPT = ("records.jsonl", "skipped.jsonl", "environment.json")


@dataclass(frozen=True)
class SentFile:
    """A file of this machine put into a container. `mode` as chmod takes it."""

    source: Path
    target: str
    mode: int
    uid: int
    gid: int


def make_volume(control: APIClient, name: str, labels: Mapping[str, str]) -> None:
    """Make a volume of the daemon. Raises docker's errors."""
    control.create_volume(name, labels=dict(labels))


def open_to(control: APIClient, container: str, folder: str, uid: int, gid: int) -> None:
    """Give a volume's top folder, which is root's, to the container's user."""
    path = PurePosixPath(folder)
    info = tarfile.TarInfo(f"{path.name}/")
    info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, 0o777, uid, gid
    _put(control, container, str(path.parent), iter([info.tobuf(), _END]))


def send_folder(control: APIClient, container: str, source: Path, target: str) -> None:
    """Put what lies below `source` into the folder `target` of a container that is not started.

    Everybody in the container may read it. Raises EnvironmentFault for what cannot be sent.
    """
    _put(control, container, target, _packed(source))


def send_file(control: APIClient, container: str, file: SentFile) -> None:
    """Put one file into a container that is not started; its folders are made."""
    info = tarfile.TarInfo(file.target.lstrip("/"))
    data = _read(file.source)
    info.size, info.mode, info.uid, info.gid = len(data), file.mode, file.uid, file.gid
    _put(control, container, "/", iter([info.tobuf(), data, _padding(len(data)), _END]))


def fetch(control: APIClient, container: str, out: Path, max_bytes: int) -> None:
    """Fetch a point's outputs into `out`, all or none of them.

    `max_bytes` is what they may take. When they do not fit, or hold what may not be extracted, the
    measurements alone are fetched (as far as they can be) and ArchiveFault says what was wrong.
    What lies in `out` already (the logs) is never overwritten.
    """
    arriving = Path(tempfile.mkdtemp(prefix=".arriving-", dir=out))
    try:
        try:
            _fetch(control, container, f"{OUT_DIR}/.", arriving, max_bytes)
            _move_in(arriving, out)
        except ArchiveFault:
            for name in _KEPT:
                with suppress(ArchiveFault):
                    _fetch_one(control, container, name, out)
            raise
    finally:
        shutil.rmtree(arriving, ignore_errors=True)


def _fetch(control: APIClient, container: str, path: str, folder: Path, max_bytes: int) -> None:
    from docker.errors import create_api_error_from_http_exception
    from requests.exceptions import HTTPError

    # Not docker-py's get_archive: it cannot be ended early, and a daemon that is not done sending
    # keeps the container locked.
    url = f"{control.base_url}/v{control.api_version}/containers/{container}/archive"
    timeout = control.timeout
    with control.get(url, params={"path": path}, stream=True, timeout=timeout) as response:
        try:
            response.raise_for_status()
        except HTTPError as error:
            create_api_error_from_http_exception(error)  # raises docker's own
        chunks = response.iter_content(CHUNK)
        extract(
            chunks, folder, max_bytes=max_bytes, max_files=MAX_FILES, what="what the point wrote"
        )


def _fetch_one(control: APIClient, container: str, name: str, out: Path) -> None:
    from docker.errors import NotFound

    arriving = Path(tempfile.mkdtemp(prefix=".arriving-", dir=out))
    try:
        with suppress(NotFound):
            _fetch(control, container, f"{OUT_DIR}/{name}", arriving, SMALL)
        if (arriving / name).is_file() and not (arriving / name).is_symlink():
            _move_in(arriving, out)
    finally:
        shutil.rmtree(arriving, ignore_errors=True)


def _move_in(arriving: Path, out: Path) -> None:
    names = sorted(path.name for path in arriving.iterdir())
    for name in names:
        if os.path.lexists(out / name):
            raise ArchiveFault(
                f"what the point wrote holds '{name}', a file of the launcher's own",
                fix="let the workload write to another name",
            )
    for name in names:
        (arriving / name).rename(out / name)


# -- packing -------------------------------------------------------------------------------------

_END = bytes(2 * tarfile.BLOCKSIZE)


def _put(control: APIClient, container: str, folder: str, data: Iterator[bytes]) -> None:
    control.put_archive(container, folder, data)


def _packed(source: Path) -> Iterator[bytes]:
    """The folder as a tar stream, a chunk at a time, owned by root and readable by everybody."""
    for parent, folders, files in os.walk(source):
        folders.sort()
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        for name in sorted([*folders, *files]):
            path = Path(parent) / name
            inside = str(path.relative_to(source))
            found = path.lstat()
            info = tarfile.TarInfo(inside)
            info.mtime = int(found.st_mtime)
            if stat.S_ISLNK(found.st_mode):
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
                yield info.tobuf()
            elif stat.S_ISDIR(found.st_mode):
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                yield info.tobuf()
            elif stat.S_ISREG(found.st_mode):
                info.mode = 0o555 if found.st_mode & 0o100 else 0o444
                yield from _packed_file(path, info)
            else:
                raise EnvironmentFault(
                    f"{path} is no file, folder or link, so it cannot be sent to another machine",
                    fix="take it out of the folder, or use a daemon on this machine",
                )
        for name in links:
            folders.remove(name)
    yield _END


def _packed_file(path: Path, info: tarfile.TarInfo) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    with file:
        info.size = os.fstat(file.fileno()).st_size
        yield info.tobuf()
        left = info.size
        while left and (chunk := file.read(min(left, CHUNK))):
            left -= len(chunk)
            yield chunk
    if left:
        raise EnvironmentFault(
            f"{path} became shorter while it was sent", fix="try again when nothing writes to it"
        )
    yield _padding(info.size)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"{path} cannot be sent to the daemon's machine: {error.strerror}",
        fix="check its permissions, and the volumes of the recipe",
    )


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)

"""Secrets of a run, such as a licence: files that only the container may read.

A secret reaches a container as a read-only file and nothing else: a copy in memory (tmpfs) of mode
0400 in a private folder, bound into the container while one point runs. Its content is in no
argument, variable, label or log; a line that repeats it is masked, and what a workload copied into
its outputs is struck out.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ae.errors import EnvironmentFault, UsageError, nearest
from ae.host import signals
from ae.model import Mount, Secret

if TYPE_CHECKING:
    from ae.engines.base import Job, Leftover, Sink
    from ae.engines.transfer import SentFile
    from ae.host.watchdog import Reaper

LIMIT = 2**20  # bytes
SHORTEST = 6  # characters; shorter words of a secret occur anywhere
_PREFIX = "ae-secrets-"
_CHUNK = 2**22


@dataclass(frozen=True)
class Given:
    """The files that a person gave, by secret, and what the person should know about them."""

    files: Mapping[str, Path]
    notes: tuple[str, ...] = ()


def variable(name: str) -> str:
    """The variable that names a secret's file, AE_SECRET_LICENCE for `licence`."""
    return "AE_SECRET_" + "".join(c if c.isalnum() else "_" for c in name).upper()


def resolve(
    known: Sequence[str], asked: Mapping[str, str], environment: Mapping[str, str]
) -> Given:
    """Find the file of every secret that a person gave: `--secret`, else the variable.

    `known` are the recipe's secrets. Raises UsageError for a secret that the recipe does not have
    and for a file that cannot be one.
    """
    for name in asked:
        if name not in known:
            raise UsageError(
                f"the recipe has no secret '{name}'; {nearest(name, known)}",
                fix="drop it, or see the recipe's `secrets`",
            )
    files, notes = {}, []
    for name in known:
        word = asked.get(name) or environment.get(variable(name))
        if word:
            files[name] = path = Path(word).expanduser().absolute()
            _check(name, path)
            if path.stat().st_mode & 0o004:
                notes.append(f"everybody on this machine can read {path}: chmod 600 it")
    return Given(files, tuple(notes))


def lacking(secret: Secret, experiment: str, why: str) -> EnvironmentFault:
    """The error for a secret that an experiment needs and nobody gave."""
    return EnvironmentFault(
        f"{experiment} needs the secret '{secret.name}' ({why})",
        fix=f"give its file: --secret {secret.name}=FILE, or {variable(secret.name)}=FILE",
    )


@contextmanager
def held(job: Job, user: str, reaper: Reaper | None) -> Iterator[tuple[Mount, ...]]:
    """Yield the mounts of a job's secrets; the copies go when the block ends.

    `user` is the container's, as "uid:gid" of this machine: ours, but for root, who may give
    files away. The copies lie in memory where the machine has a tmpfs. Raises EnvironmentFault.
    """
    wanted = [(secret, _file(job, secret)) for secret in job.point.needs.secrets]
    if not wanted:
        yield ()
        return
    folder = _make_folder()
    if reaper:
        reaper.watch_folder(str(folder))
    try:
        mounts = []
        for secret, source in wanted:
            copy = folder / secret.name
            _copy(source, copy)
            if os.getuid() == 0:
                os.chown(copy, *(int(word) for word in user.split(":")))
            mounts.append(Mount(source=copy, target=secret.target))
        yield tuple(mounts)
    finally:
        with signals.shielded():
            shutil.rmtree(folder, ignore_errors=True)
        if reaper:
            reaper.done(str(folder))


def plain_mounts(job: Job) -> tuple[Mount, ...]:
    """The mounts of a job's secrets for a command that a person types: the files themselves."""
    return tuple(
        Mount(source=_file(job, secret), target=secret.target) for secret in job.point.needs.secrets
    )


def sent_files(job: Job, user: str) -> list[SentFile]:
    """A job's secrets as files to put into a container on another machine, for its user alone."""
    if not job.point.needs.secrets:
        return []
    from ae.engines.transfer import SentFile

    uid, gid = (int(word) for word in user.split(":"))
    return [
        SentFile(_file(job, secret), secret.target, 0o400, uid, gid)
        for secret in job.point.needs.secrets
    ]


def leftovers() -> list[Leftover]:
    """Folders with copies of secrets that a launcher made, of living launchers too."""
    from ae.engines.base import Leftover
    from ae.host import owner

    found = []
    for base in _bases():
        for folder in base.glob(f"{_PREFIX}*"):
            pid, _, rest = folder.name.removeprefix(_PREFIX).partition("-")
            started = rest.rpartition("-")[0]
            labels = {owner.HOST: socket.gethostname(), owner.PID: pid, owner.STARTED: started}
            if folder.is_dir() and folder.stat().st_uid == os.getuid():
                found.append(
                    Leftover(
                        engine="files",
                        kind="secret",
                        id=str(folder),
                        run=f"of process {pid}",
                        owner_alive=owner.alive(labels),
                    )
                )
    return found


def remove(leftover: Leftover) -> None:
    """Remove such a folder."""
    shutil.rmtree(leftover.id, ignore_errors=True)


class Mask:
    """Knows the contents of secrets and strikes them out."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._words: list[tuple[str, str]] = []  # what to look for, and what stands for it
        self._bytes: list[bytes] = []
        for name, path in files.items():
            content = _read(name, path)
            words = _words(content.decode("utf-8", "replace"))
            self._words += [(word, f"[secret {name}]") for word in words]
            self._bytes += [word.encode() for word in words]
        self._words.sort(key=lambda pair: -len(pair[0]))  # a whole line before its parts
        self._bytes.sort(key=lambda word: -len(word))

    def text(self, text: str) -> str:
        """Return `text` without the contents of secrets."""
        for word, stand_in in self._words:
            if word in text:
                text = text.replace(word, stand_in)
        return text

    def strike_out(self, folder: Path) -> list[Path]:
        """Overwrite contents of secrets in the files below `folder`; return those changed."""
        if not self._bytes:
            return []
        return [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink() and self._strike_out(path)
        ]

    def sink(self, forward: Sink) -> Sink:
        """A sink that passes every line on without them."""
        return _Masked(self, forward) if self._words else forward

    def _strike_out(self, path: Path) -> bool:
        overlap = max(len(word) for word in self._bytes) - 1
        changed = False
        with path.open("r+b") as file:
            start = 0
            while chunk := bytearray(_read_at(file.fileno(), _CHUNK + overlap, start)):
                for word in self._bytes:
                    at = chunk.find(word)
                    while at >= 0:
                        chunk[at : at + len(word)] = b"*" * len(word)
                        os.pwrite(file.fileno(), b"*" * len(word), start + at)
                        changed = True
                        at = chunk.find(word, at + len(word))
                start += _CHUNK
        return changed


class _Masked:
    def __init__(self, mask: Mask, forward: Sink) -> None:
        self._mask = mask
        self._forward = forward

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        self._forward.line(stream, self._mask.text(text))


def _words(content: str) -> list[str]:
    """The lines of a secret, and the values in lines of the form `KEY=value` or `key: value`."""
    found: set[str] = set()
    for line in content.splitlines():
        parts = [line, line.partition("=")[2], line.partition(":")[2]]
        found |= {part.strip().strip("\"'") for part in parts}
    return [word for word in found if len(word) >= SHORTEST]


def _check(name: str, path: Path) -> None:
    what = f"the file of the secret '{name}'"
    if path.is_dir():
        raise UsageError(f"{what} is a folder: {path}", fix="name the file in it")
    if not path.exists():
        raise UsageError(f"{what} is not there: {path}", fix="check the spelling")
    if not path.is_file():
        raise UsageError(f"{what} is no ordinary file: {path}", fix="save it to a file first")
    size = path.stat().st_size
    if size == 0:
        raise UsageError(f"{what} is empty: {path}", fix="fetch the licence again")
    if size > LIMIT:
        raise UsageError(
            f"{what} is larger than 1 MiB: {path}", fix="check that it is the right one"
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"you may not read {what}: {path}", fix=f"chmod u+r {path}")


def _file(job: Job, secret: Secret) -> Path:
    try:
        return job.secrets[secret.name]
    except KeyError:
        raise lacking(secret, job.point.experiment, "it is in the plan") from None


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnvironmentFault(
            f"the file of the secret '{name}' cannot be read: {error.strerror}",
            fix=f"check {path}",
        ) from error


def _copy(source: Path, copy: Path) -> None:
    content = _read(copy.name, source)
    descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with open(descriptor, "wb") as file:
        file.write(content)


def _read_at(descriptor: int, size: int, start: int) -> bytes:
    return os.pread(descriptor, size, start)


def _bases() -> list[Path]:
    """Where copies may lie: in memory if there is such a place."""
    import tempfile

    shared = Path("/dev/shm")
    usable = shared.is_dir() and os.access(shared, os.W_OK)
    return [shared] if usable else [Path(tempfile.gettempdir())]


def _make_folder() -> Path:
    """A folder of mode 0700 whose name says whose it is."""
    import tempfile

    from ae.host import owner

    prefix = f"{_PREFIX}{os.getpid()}-{owner.started(os.getpid())}-"
    for base in _bases():
        try:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        except OSError as error:
            fault = error
    raise EnvironmentFault(
        f"no private folder can be made for a secret: {fault.strerror}", fix="mend TMPDIR"
    ) from fault

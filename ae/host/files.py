"""Files that are whole or not there at all, their checksums and their locks."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import IO, Any


def write_atomic(path: Path, text: str | bytes) -> None:
    """Write `text` (as UTF-8) or bytes beside `path` and rename it: no reader ever sees half of it.

    Raises OSError; what `path` held before is then still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(text if isinstance(text, bytes) else text.encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lock(file: IO[Any] | int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file, at once or not; False: somebody else has. Some file systems have none."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True

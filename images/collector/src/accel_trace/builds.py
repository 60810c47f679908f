"""Where compiled parts lie, and that one process compiles while others wait."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LIBRARY = "libacceltrace.so"
PATCHES = "patches.fatbin"
COMPARE = "compare.fatbin"
SANITIZER = "libsanitizer-public.so"


class BuildError(RuntimeError):
    """Something cannot be compiled; one sentence that says why, and what helps."""


def cache_folder() -> Path:
    """Where results are kept: ACCEL_TRACE_CACHE, the user's cache, or a private folder."""
    named = os.environ.get("ACCEL_TRACE_CACHE")
    if named:
        return Path(named)
    with suppress(RuntimeError, OSError):
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "accel-trace"
        home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK):
            return home
    return Path(tempfile.gettempdir()) / f"accel-trace-{os.getuid()}"


def ready_folder() -> Path | None:
    """The folder ACCEL_TRACE_BUILT, in which an image has everything compiled; None without one."""
    named = os.environ.get("ACCEL_TRACE_BUILT")
    folder = Path(named) if named else None
    return folder if folder and (folder / LIBRARY).is_file() else None


def hook_folders() -> list[Path]:
    """Where compiled hooks may lie: in what the image brings, then in the cache."""
    ready = ready_folder()
    return [*([ready / "hooks"] if ready else []), cache_folder()]


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold the lock file; it is made where it is missing. Raises OSError where it cannot be."""
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

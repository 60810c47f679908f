"""Who measures on this machine: two runs at the same time disturb each other's timings."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from ae.host.machine import cache_dir


@contextmanager
def here(name: str) -> Iterator[str]:
    """Yield the name of a run that measures here already, empty when there is none."""
    path = cache_dir() / "measuring"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            yield file.read().strip() or "another run"
            return
        file.truncate(0)
        file.write(name + "\n")
        file.flush()
        yield ""

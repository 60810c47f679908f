"""A watchdog process: when the launcher dies, it removes what the run has left, as `ae clean` does.

The launcher holds the only writing end of a pipe. When it closes without a word, somebody has
killed the launcher. Every run starts one, so it is a shell, which is small and starts at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ae.host import processes

# The second time for a container that was still in creation.
_SCRIPT = 'trap "" INT TERM HUP; read -r over && exit; "$@"; sleep 3; exec "$@"'


@contextmanager
def watched(run: str) -> Iterator[int]:
    """Have what a run starts in this block removed should this process be killed.

    Yields the watchdog's process id. Should somebody kill that, the run goes on without.
    """
    clean = (sys.executable, "-m", "ae", "clean", "--run", run)
    helper = processes.start_helper(("sh", "-c", _SCRIPT, "sh", *clean))
    try:
        yield helper.pid
    finally:
        helper.communicate(b"over\n")

"""Keeps a job's whole output in its log files while passing it on to a display."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Literal

from ae.engines.base import Sink


class LogFiles:
    """A sink that writes `stdout.log` and `stderr.log` and forwards every line."""

    def __init__(self, folder: Path, forward: Sink) -> None:
        self._files = {
            "stdout": (folder / "stdout.log").open("w", encoding="utf-8", errors="replace"),
            "stderr": (folder / "stderr.log").open("w", encoding="utf-8", errors="replace"),
        }
        self._forward = forward
        self._lock = threading.Lock()

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Keep and forward one line."""
        with self._lock:
            self._files[stream].write(text + "\n")
            self._files[stream].flush()
        self._forward.line(stream, text)

    def __enter__(self) -> LogFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()

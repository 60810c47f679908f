"""Progress lines that the launcher turns into a bar and a person can read as they are."""

from __future__ import annotations

import sys
from typing import TextIO


class Progress:
    """Counts steps up to `total`, one line `::progress 3/60 words` each on standard output."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total = max(total, 1)
        self.done = 0
        self._stream = stream

    def step(self, words: str = "", count: int = 1) -> None:
        """Advance by `count` steps and say what was just done."""
        self.done = min(self.done + count, self.total)
        words = " ".join(words.split())
        line = f"::progress {self.done}/{self.total} {words}".rstrip()
        print(line, file=self._stream or sys.stdout, flush=True)

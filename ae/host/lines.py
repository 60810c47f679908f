"""Cuts streams of bytes into lines of text."""

from __future__ import annotations

import codecs
import io

MAX_LINE = 1 << 20  # characters; a stream without line ends must not fill the memory


class LineCutter:
    """Turns chunks of bytes into whole lines without their ends.

    A line ends with `\\n`, `\\r\\n` or `\\r` (so that progress bars stream), or after MAX_LINE
    characters. Bytes that are not UTF-8 become U+FFFD: workloads may print anything.
    """

    def __init__(self) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
        self._rest = ""

    def feed(self, chunk: bytes, *, last: bool = False) -> list[str]:
        """Return the lines that are complete now; with the last chunk also what is left."""
        text = self._rest + self._decoder.decode(chunk, last).replace("\0", "\ufffd")
        *whole, rest = text.split("\n")
        while len(rest) > MAX_LINE:
            whole.append(rest[:MAX_LINE])
            rest = rest[MAX_LINE:]
        self._rest = rest
        return [*whole, rest] if last and rest else whole

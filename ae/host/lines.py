"""Cuts streams of bytes into lines of text."""

from __future__ import annotations

MAX_LINE = 1 << 20  # bytes; a stream without line ends must not fill the memory


class LineCutter:
    """Turns chunks of bytes into whole lines without their ends.

    A line ends with `\\n`, `\\r\\n` or `\\r` (so that progress bars stream), or after MAX_LINE
    bytes. Those that are not UTF-8 become U+FFFD: workloads may print anything.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._after_return = False  # the last chunk ended in \r: a \n next belongs to it

    def feed(self, chunk: bytes) -> list[str]:
        """Return the lines that are complete now."""
        if self._after_return and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_return = False
        self._after_return = chunk.endswith(b"\r")
        *whole, rest = (
            (self._rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        )
        while len(rest) > MAX_LINE:
            whole.append(rest[:MAX_LINE])
            rest = rest[MAX_LINE:]
        self._rest = rest
        return [_text(line) for line in whole]

    def end(self) -> list[str]:
        """Return what is left when the stream has ended."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").replace("\0", "\ufffd")

"""What a person sees while points run: a bar with time left, or one line a point."""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from typing import Literal

from ae.engines.base import Outcome
from ae.model import Point, Status
from ae.units import format_seconds

_PROGRESS = re.compile(r"^::progress (\d+)/(\d+)(?: (.*))?$")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CLEAR = "\r\x1b[2K"
_BAR = 24  # characters, where the terminal has room
_LONGEST = 2000  # characters of a line that are shown


class Display:
    """Shows one run on standard error; thread-safe, keeps nothing.

    On a terminal the last line is a bar with the workload's current line, and points that end well
    are shown by it alone; elsewhere every point is one line. `verbose` shows all that workloads
    print; left out, it does so where there are no points, as in a build.
    """

    def __init__(self, points: Sequence[Point], *, verbose: bool | None = None) -> None:
        self._verbose = verbose if verbose is not None else not points
        self._stream = sys.stderr
        self._tty = self._stream.isatty()
        self._lock = threading.Lock()
        self._spent_expected = 0.0  # expected seconds of the points that have ended
        self._spent_real = 0.0
        self._current: Point | None = None
        self._index = 0
        self._started = 0.0
        self._fraction = 0.0
        self._words = ""
        self._drawn = 0.0  # when the bar was; 0: there is none
        self._reasons = {""}  # of points that skipped, said once on a terminal
        self.expect(points)

    def expect(self, points: Sequence[Point]) -> None:
        """From now on these are the points that are still to run."""
        with self._lock:
            self._total = self._spent_expected + sum(map(_expected, points))
            self._count = self._index + len(points)

    def say(self, text: str) -> None:
        """Print one line of our own."""
        with self._lock:
            self._print(text)

    def begin(self, point: Point) -> None:
        """Announce the next point."""
        with self._lock:
            self._current, self._started = point, time.monotonic()
            self._index += 1
            self._fraction, self._words = 0.0, ""
            if self._verbose:
                self._print(f"[{self._index}/{self._count}] {point.id}")
            self._draw(force=True)

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Show one line of the workload; progress lines move the bar instead."""
        match = _PROGRESS.match(text)
        with self._lock:
            if match:
                self._fraction = min(1.0, int(match[1]) / max(1, int(match[2])))
                self._words = match[3] or ""
            elif self._verbose:
                self._print("    " + _CONTROL.sub("?", text)[:_LONGEST])
            else:
                self._words = _CONTROL.sub("?", text[:_LONGEST])
            self._draw()

    def end(self, point: Point, outcome: Outcome) -> None:
        """Say how the point ended."""
        with self._lock:
            self._spent_expected += _expected(point)
            self._spent_real += outcome.seconds
            self._current, self._words = None, ""
            why = f": {outcome.reason}" if outcome.reason else ""
            well = outcome.status in (Status.DONE, Status.SKIPPED)
            quiet = well and outcome.reason in self._reasons
            if well:
                self._reasons.add(outcome.reason)
            if self._verbose or not self._tty or not quiet:
                self._print(
                    f"[{self._index}/{self._count}] {point.id} {outcome.status} "
                    f"in {format_seconds(outcome.seconds)}{why}"
                )
            self._draw(force=True)

    def close(self) -> None:
        """Take the bar away."""
        with self._lock:
            self._clear()
            self._tty = False

    def remaining_s(self) -> float:
        """Expected seconds until the last point ends, scaled by how the ended ones did."""
        pace = self._spent_real / self._spent_expected if self._spent_expected else 1.0
        return max(0.0, self._total - self._expected_so_far()) * pace

    def _expected_so_far(self) -> float:
        """Expected seconds of what is done, the running point's share included."""
        if self._current is None:
            return self._spent_expected
        mine = _expected(self._current)
        share = self._fraction or min(0.95, (time.monotonic() - self._started) / mine)
        return self._spent_expected + mine * share

    def _print(self, text: str) -> None:
        self._clear()
        print(text, file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write(_CLEAR)
            self._drawn = 0.0

    def _draw(self, *, force: bool = False) -> None:
        if not self._tty or not (force or time.monotonic() - self._drawn > 0.1):
            return
        share = self._expected_so_far() / self._total if self._total else 0.0
        width = min(_BAR, (columns := shutil.get_terminal_size().columns - 1) // 3)
        bar = ("#" * round(min(1.0, share) * width)).ljust(width, "-")
        left, name = format_seconds(self.remaining_s()), self._current.id if self._current else ""
        text = f"[{bar}] {self._index}/{self._count}  {left} left  {name} {self._words}"
        print(_CLEAR + text[:columns], end="", file=self._stream, flush=True)
        self._drawn = time.monotonic()


def _expected(point: Point) -> float:
    return max(point.expected_s, 0.001)

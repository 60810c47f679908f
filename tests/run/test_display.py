"""The display: plain lines off a terminal, a bar with time left on one, nothing lost."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from ae.model import ALL_SKIPPED, Flavour, ImageRef, Outcome, Point, RuntimeNeeds, Status
from ae.run.display import Display


class Stderr(io.StringIO):
    """Standard error, from now on; `terminal` says whether it is one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal
        monkeypatch.setattr("sys.stderr", self)

    def isatty(self) -> bool:
        return self._terminal


def make_point(name: str, expected_s: float = 10.0) -> Point:
    image = ImageRef(name="toy", flavour=Flavour.CPU, content="0", source=Path("images/toy"))
    return Point(
        id=name,
        recipe="toy",
        experiment="e",
        labels={},
        variants=(),
        argv=("true",),
        env={},
        image=image,
        needs=RuntimeNeeds(),
        timeout_s=60,
        expected_s=expected_s,
        disk_bytes=0,
    )


def done(seconds: float) -> Outcome:
    return Outcome(status=Status.DONE, exit_code=0, seconds=seconds)


def test_one_line_a_point_elsewhere_than_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Stderr(monkeypatch)
    point = make_point("a")
    display = Display([point])
    display.begin(point)
    display.line("stdout", "hello")
    display.line("stdout", "::progress 1/4 warming up")
    display.end(point, done(2.0))
    assert stderr.getvalue() == "[1/1] a done in 2 s\n"


def test_verbose_shows_what_workloads_print(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Stderr(monkeypatch)
    point = make_point("a")
    display = Display([point], verbose=True)
    display.begin(point)
    display.line("stdout", "hello")
    display.line("stdout", "::progress 1/4 warming up")
    display.end(point, done(2.0))
    assert stderr.getvalue().splitlines() == ["[1/1] a", "    hello", "[1/1] a done in 2 s"]


def test_a_bar_with_time_left_and_the_current_line_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = Stderr(monkeypatch, terminal=True)
    points = [make_point(name) for name in "abcd"]
    display = Display(points)
    display.begin(points[0])
    time.sleep(0.11)  # the bar moves ten times a second at most
    display.line("stdout", "fitting \x1b[31mthe model")
    assert "1/4" in stderr.getvalue()
    assert "left  a fitting ?[31mthe model" in stderr.getvalue()
    assert "\n" not in stderr.getvalue()
    display.end(points[0], done(1.0))
    assert "\n" not in stderr.getvalue()  # what ends well is shown by the bar alone
    for point in points[1:3]:
        display.begin(point)
        reason = "no such GPU"
        display.end(point, Outcome(status=Status.SKIPPED, exit_code=77, seconds=0, reason=reason))
    assert stderr.getvalue().count("no such GPU") == 1
    assert "all of it was skipped" not in stderr.getvalue()
    display.end(points[2], Outcome(status=Status.DONE, exit_code=0, seconds=0, reason=ALL_SKIPPED))
    assert "c done in 0 s: all of it was skipped\n" in stderr.getvalue()
    display.begin(points[3])
    display.end(points[3], Outcome(status=Status.FAILED, exit_code=1, seconds=0, reason="broke"))
    assert "d failed in 0 s: broke\n" in stderr.getvalue()


def test_a_narrow_terminal_has_room_for_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stderr = Stderr(monkeypatch, terminal=True)
    Display([make_point("a")]).begin(make_point("a"))
    assert stderr.getvalue() == f"\r\x1b[2K[{'-' * 13}] 1/1  10 s left  a "


def test_time_left_follows_the_pace_of_what_has_ended() -> None:
    points = [make_point("a"), make_point("b")]
    display = Display(points)
    assert display.remaining_s() == 20.0
    display.begin(points[0])
    display.end(points[0], done(5.0))  # twice as fast as expected
    assert display.remaining_s() == 5.0


def test_control_characters_of_a_workload_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = Stderr(monkeypatch)
    display = Display([make_point("a")], verbose=True)
    display.line("stderr", "\x1b[31mred\x00\x9bworld")
    assert "\x1b" not in stderr.getvalue()
    assert "red" in stderr.getvalue()
    assert "world" in stderr.getvalue()


def test_the_reason_of_a_bad_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Stderr(monkeypatch)
    point = make_point("a")
    display = Display([point])
    display.begin(point)
    outcome = Outcome(status=Status.FAILED, exit_code=1, seconds=1.0, reason="exit code 1")
    display.end(point, outcome)
    assert "failed" in stderr.getvalue()
    assert "exit code 1" in stderr.getvalue()

"""Cutting streams into lines, however the chunks fall."""

from __future__ import annotations

import pytest

from ae.host.processes import MAX_LINE, LineCutter


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_chunks_do_not_matter(size: int) -> None:
    data = "one\ntwo\r\nthree\rfünf\n\nlast".encode()
    cutter = LineCutter()
    lines = []
    for start in range(0, len(data), size):
        lines += cutter.feed(data[start : start + size])
    assert lines + cutter.feed(b"", last=True) == ["one", "two", "three", "fünf", "", "last"]


def test_noise_is_text() -> None:
    cutter = LineCutter()
    (line,) = cutter.feed(b"\xff\x00\x80ok\n")
    assert line.endswith("ok")
    assert "\0" not in line


def test_endless_line_is_cut() -> None:
    cutter = LineCutter()
    lines = cutter.feed(b"x" * (2 * MAX_LINE + 5))
    assert [len(line) for line in [*lines, *cutter.feed(b"", last=True)]] == [MAX_LINE, MAX_LINE, 5]


def test_end_of_nothing() -> None:
    assert LineCutter().feed(b"", last=True) == []

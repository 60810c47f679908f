"""Sizes and times."""

from __future__ import annotations

import pytest

from ae.units import folded, format_seconds, format_size, parse_seconds, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("200MB", 200_000_000),
        ("8GB", 8_000_000_000),
        ("1GiB", 2**30),
        ("1.5 MiB", 1_572_864),
        ("64kB", 64_000),
        ("512B", 512),
        ("64KB", 64_000),
        ("2TB", 2 * 10**12),
        ("3KiB", 3072),
        ("1TiB", 2**40),
        ("0", 0),
    ],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        "MB",
        "1 XB",
        "-1MB",
        "1,5GB",
        "1gb",
        "1MB 2MB",
        "１MB",
        "9000000TiB",
        "9" * 400 + "B",
    ],
)
def test_bad_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20), ("5m", 300), ("1h", 3600), ("1h30m", 5400), ("1h 30m 5s", 5405), ("250ms", 0.25)],
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "m", "5 minutes", "-5s", "5s later", "1:30", "9" * 400 + "h"]
)
def test_bad_seconds(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_999, "1 MB"), (3_072_000_000, "3.07 GB"),
     (2e15, "2e+03 TB")],
)  # fmt: skip
def test_format_size(size: float, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25 s"), (9.94, "9.9 s"), (9.96, "10 s"), (9.99, "10 s"), (59.7, "1 min"),
     (60, "1 min"), (320, "5 min 20 s"), (3600, "1 h"), (5400, "1 h 30 min"), (7199, "2 h"),
     (float("inf"), "?")],
)  # fmt: skip
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_folded_text_keeps_words_whole_and_hangs() -> None:
    assert folded("one two-three four", 10) == "one\n  two-three\n  four"
    assert folded("a_long_word and more", 9, 4, "ok  ") == "ok  a_long_word\n    and\n    more"

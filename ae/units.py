"""Sizes and times as people write them (`200MB`, `1h30m`), and lines of a width. No I/O."""

from __future__ import annotations

import math
import re
from textwrap import fill

TIMES = ("s", "ms", "us", "ns")  # units of records of which less is better
_MOST = 2.0**63  # bytes that the system can count
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"\s*(?:0|(\d+(?:\.\d+)?)\s*(k|[KMGT]i?)?B)\s*", re.ASCII)
_TIME_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*", re.ASCII)
_TIME = re.compile(rf"\s*(?:{_TIME_PART.pattern})+", re.ASCII)


def parse_size(text: str) -> int:
    """Return the bytes of `200MB` (10^6) or `1GiB` (2^30). Raises ValueError."""
    if match := _SIZE.fullmatch(text):
        number, prefix = match[1] or "0", match[2] or "B"
        step = 1024.0 if prefix.endswith("i") else 1000.0
        size = float(number) * step ** "BKMGT".index(prefix[0].upper())
        if size < _MOST:
            return round(size)
    raise ValueError(f"'{text}' is not a size; write it as 200MB, 8GB or 1GiB")


def parse_seconds(text: str) -> float:
    """Return the seconds of `20s`, `5m`, `1h30m` or `250ms`. Raises ValueError."""
    seconds = sum(float(count) * _SECONDS[unit] for count, unit in _TIME_PART.findall(text))
    if _TIME.fullmatch(text) and math.isfinite(seconds):
        return seconds
    raise ValueError(f"'{text}' is not a time; write it as 20s, 5m or 1h30m")


def counted(number: int, word: str) -> str:
    """`1 point`, `2 points`."""
    return f"{number} {word}{'s' * (number != 1)}"


def folded(text: str, width: int, hang: int = 2, head: str = "") -> str:
    """`head` and a text, broken between words; every line but the first is indented by `hang`."""
    return fill(text, width, initial_indent=head, subsequent_indent=" " * hang,
                break_long_words=False, break_on_hyphens=False)  # fmt: skip


def format_size(size: float) -> str:
    """Write bytes with a decimal unit and at most three digits: `200 MB`, `3.07 GB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def format_seconds(seconds: float) -> str:
    """Write a time as `0.25 s`, `20 s`, `5 min`, `5 min 20 s` or `1 h 30 min`."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h" + (f" {minutes} min" if minutes else "")

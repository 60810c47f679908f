"""Sizes and times as people write them: `200MB`, `1.5 GiB`, `5m`, `1h30m`. No I/O."""

from __future__ import annotations

import math
import re

_SIZES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_MOST = 2.0**63  # bytes that the system can count
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_TIME_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*", re.ASCII)


def parse_size(text: str) -> int:
    """Return the bytes of `200MB` (10^6) or `1GiB` (2^30). Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match and match[2] in _SIZES and (match[2] or match[1] == "0"):
        size = float(match[1]) * _SIZES[match[2]]
        if size < _MOST:
            return round(size)
    raise ValueError(f"'{text}' is not a size; write it as 200MB, 8GB or 1GiB")


def parse_seconds(text: str) -> float:
    """Return the seconds of `20s`, `5m`, `1h30m` or `250ms`. Raises ValueError."""
    stripped = text.strip()
    seconds, end = 0.0, 0
    while end < len(stripped) and (match := _TIME_PART.match(stripped, end)):
        seconds += float(match[1]) * _SECONDS[match[2]]
        end = match.end()
    if not stripped or end != len(stripped) or not math.isfinite(seconds):
        raise ValueError(f"'{text}' is not a time; write it as 20s, 5m or 1h30m")
    return seconds


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

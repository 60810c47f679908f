"""Lines of Markdown: at most 100 columns, or one sentence. Tables, code and headings stay.

`python -m tests.markdown FILE...` breaks the lines of each file again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
_CODE = re.compile(r"`[^`]*`")
_ITEM = re.compile(r"(\s*)([-*+]|\d+[.)])\s+")
_FIXED = re.compile(r"\s*(\||#|>|<|!\[|\[[^\]]+\]:|---|===)")
# Words that would mean something else at the start of a line.
_SYNTAX = re.compile(r"([-*+=>#|]+|\d+[.)])$|[#>|]|<!--")
_WHOLE = rf"{_CODE.pattern}|<!-- ae(?=\s)|<!-- / -->"  # stays together
_SENTENCE_ENDS = re.compile(r"[.!?][)*`\"]*\s+[A-Z`*\[]")


def long_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are too long, by number."""
    for number, line, is_prose in _lines(text):
        if is_prose and len(line) > WIDTH and _SENTENCE_ENDS.search(_CODE.sub("`code`", line)):
            yield number, line


def broken(text: str) -> str:
    """The text with every paragraph and item broken at 100 columns."""
    found: list[str] = []
    block: list[str] = []

    def flush() -> None:
        if block:
            found.extend(_wrapped(block))
            block.clear()

    for _, line, is_prose in _lines(text):
        if not is_prose or not line.strip():
            flush()
            found.append(line)
            continue
        if _ITEM.match(line):
            flush()
        block.append(line)
        if line.endswith(("  ", "\\")):  # a line break that is meant
            flush()
    flush()
    return "\n".join(found) + "\n"


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Number, line, and whether it is prose; a comment of several lines is none, nor is code that
    is indented, outside of lists."""
    fence, blank, listed, code = "", True, False, False
    for number, line in enumerate(text.rstrip("\n").split("\n"), 1):
        mark = re.match(r"\s*(```|~~~)", line)
        opens = line.startswith("<!--") and "-->" not in line
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
            yield number, line, False
        elif (opens and not fence) or (fence == "<!--" and line.endswith("-->")):
            fence = "" if fence else "<!--"
            yield number, line, False
        else:
            if not line.startswith(" ") and line:
                listed = bool(_ITEM.match(line)) or (listed and not blank)
            code = line.startswith("    ") and not listed and (blank or code)
            blank = not line.strip()
            yield number, line, not (fence or code or _FIXED.match(line))


def _wrapped(block: list[str]) -> Iterator[str]:
    item = _ITEM.match(block[0])
    first = item[0] if item else re.match(r"\s*", block[0])[0]  # type: ignore[index]
    rest = " " * len(first)
    words: list[str] = []
    text = " ".join([block[0][len(first) :], *(line.strip() for line in block[1:])])
    for word in re.findall(rf"(?:{_WHOLE}|\S)+", text):
        if words and _SYNTAX.match(word):
            words[-1] += " " + word
        else:
            words.append(word)
    line = first + words[0]
    for word in words[1:]:
        if len(line) + 1 + len(word) > WIDTH:
            yield line
            line = rest
        line += word if line == rest else " " + word
    yield line


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        path.write_text(broken(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Words and citations: what the sources cite exists, and lines of Markdown can be read."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.markdown import broken, long_lines

ROOT = Path(__file__).resolve().parents[1]
MARKDOWN = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
_PLACE = r"\d+(?:\.\d+)*|[A-Z]+\d*\.?-?\d+\w*"
_CITED = re.compile(rf"docs/papers/(\w+)\.md((?:(?:, | to )(?:{_PLACE})\b)*)")


def sources() -> Iterator[Path]:
    """The text files that git knows, apart from results and this file."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if name and not name.startswith("results/") and path.is_file() and path != Path(__file__):
            yield path


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:  # a compiled sample
        return ""


def places(text: str) -> set[str]:
    """What a page of a paper has under a number: its sections, and the ids of its tables' rows."""
    return {
        *re.findall(r"^#+ (\d+(?:\.\d+)*)\.? ", text, re.M),
        *re.findall(r"^\| ([A-Z][\w.-]*\d\w*) \|", text, re.M),
    }


def missing(text: str) -> list[str]:
    """The citations of a text that lead nowhere."""
    found = []
    for paper, cited in _CITED.findall(re.sub(r"\n[ \t]*(?:#|//)?[ \t]*", " ", text)):
        page = ROOT / "docs/papers" / f"{paper}.md"
        there = places(page.read_text()) if page.is_file() else set()
        numbers = re.findall(_PLACE, cited)
        found += [f"{page.name}, {number}" for number in numbers if number not in there]
        if not page.is_file():
            found.append(page.name)
    return found


def test_every_citation_of_a_paper_leads_somewhere() -> None:
    cited, lost = 0, {}
    for path in sources():
        text = text_of(path)
        cited += len(_CITED.findall(text))
        if why := missing(text):
            lost[str(path.relative_to(ROOT))] = why
    assert lost == {}
    assert cited


def test_a_citation_that_leads_nowhere_is_seen() -> None:
    text = "x (docs/papers/rap.md, 3.4,\n# 9.7), docs/papers/dlrm.md, D9"
    assert missing(text) == ["rap.md, 9.7"]
    assert missing("docs/papers/none.md, 1") == ["none.md, 1", "none.md"]


def test_no_text_cites_what_is_not_here() -> None:
    brief = re.compile(r"\b[Tt]he (?:team's )?brief\b|\bbrief,? (?:section )?\d")
    assert [str(path) for path in sources() if brief.search(text_of(path))] == []


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_can_be_read(path: Path) -> None:
    """`python -m tests.markdown FILE` breaks them again."""
    assert list(long_lines(path.read_text())) == []


def test_a_long_line_is_seen_and_broken() -> None:
    long = "A sentence ends here. The " + "word " * 30 + "end."
    one = "- " + "word " * 30 + "end."
    fixed = "| " + "a. B " * 40 + "|\n```\n" + "x. Y " * 40 + "\n```\n# " + "h. H " * 40 + "\n"
    assert [number for number, _ in long_lines(f"{fixed}\n{long}\n{one}\n")] == [7]
    again = broken(f"{fixed}\n{long}\n\n{one}\n")
    assert again.startswith(fixed)
    assert max(map(len, again.removeprefix(fixed).splitlines())) <= 100
    assert "\n  word" in again
    assert again.split() == f"{fixed}\n{long}\n\n{one}\n".split()
    assert broken(again) == again


def test_indented_commands_stay_lines_of_their_own() -> None:
    commands = "Run:\n\n    ae check dlrm h200\n    ae plot dlrm h200\n\nThen:\n"
    assert broken(commands) == commands
    item = "- one\n\n    " + "word " * 30 + "\n    more\n\nwords\n    that go on\n"
    assert max(map(len, broken(item).splitlines())) <= 100
    assert broken(item).endswith("\nwords that go on\n")


def test_a_number_that_is_filled_in_stays_in_its_line() -> None:
    """A line that begins with a comment would end the paragraph."""
    filled = "word " * 18 + "<!-- ae h200/dlrm " + "x " * 40 + "-->1<!-- / --> " + "word " * 30
    again = broken(filled)
    assert again.split() == filled.split()
    assert "<!-- / -->" in again
    assert not [line for line in again.splitlines() if line.startswith(("<!--", "/ -->"))]
    assert broken(again) == again

"""Results in the project's documents: filled from the reference sets, never written by hand.

A comment, which no reader sees, says where a number comes from; the next comment ends it:

    RPF takes <!-- ae h200/dlrm median(kernel_time, variant=rpf) -->102.6<!-- / --> us.

`ae SET CLAIM` is a claim's value, `ae SET EXPRESSION` that of an expression in the language of
claims, `ae scoreboard` how many claims came out how. A table is YAML in such a comment (`_Table`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ae import statistics
from ae.claims.expressions import NoAnswer, parse_expression
from ae.claims.judge import Judgement
from ae.errors import UsageError
from ae.recipe.load import load_recipe
from ae.records.files import EVIDENCE
from ae.records.reference import find_set, load_reference
from ae.records.results import Results
from ae.report.chapter import judge_results

_CODE = re.compile(r"(^ *(?:```|~~~).*?^ *(?:```|~~~) *$)", re.MULTILINE | re.DOTALL)
_FILLED = re.compile(r"(<!-- ae\s(.*?)-->)(.*?)(<!-- / -->)", re.DOTALL)
_CLAIM = re.compile(r"[\w.-]+")


class _Table(BaseModel):
    """A Markdown table: a cell is an expression that the column's label narrows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    set: str  # MACHINE/RECIPE, as below results/reference
    head: str = ""  # above the names of the rows
    label: str
    columns: Annotated[dict[str, str], Field(min_length=1)]  # value of the label: what it is called
    rows: Annotated[dict[str, str], Field(min_length=1)]  # name: expression


@dataclass(frozen=True)
class Change:
    """A place of a document that does not say what the reference sets say."""

    path: Path
    line: int
    stands: str
    should: str


def fill(root: Path, results: Path, *, write: bool) -> list[Change]:
    """Compare, and where `write` correct, README.md and every document below docs/.

    Raises UsageError for a comment that names what is not there.
    """
    filler = _Filler(root, results)
    changes: list[Change] = []
    for path in [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]:
        text = path.read_text(encoding="utf-8")
        filled, found = _fill_text(text, path, filler)
        changes += found
        if write and found:
            path.write_text(filled, encoding="utf-8")
    return changes


def rounded(value: statistics.Interval) -> str:
    """A number to the digit that its interval still moves; to two digits where it has none."""
    wide = max(value.high - value.value, value.value - value.low)
    if not math.isfinite(wide) or wide <= 0:
        wide = abs(value.value) / 10
    place = math.floor(math.log10(wide)) if wide else 0
    return f"{round(value.value, -place):,.{max(0, -place)}f}"


def _fill_text(text: str, path: Path, filler: _Filler) -> tuple[str, list[Change]]:
    changes: list[Change] = []
    parts = _CODE.split(text)

    def one(match: re.Match[str]) -> str:
        opening, words, stands, closing = match.groups()
        line = sum(part.count("\n") for part in parts[:index]) + part.count("\n", 0, match.start())
        try:
            should = filler.text(words)
        except (UsageError, NoAnswer, ValueError) as error:
            raise UsageError(f"{path.name}:{line + 1}: {error}", fix=_FIX) from error
        if should != stands:
            changes.append(Change(path, line + 1, stands.strip(), should.strip()))
        return f"{opening}{should}{closing}"

    for index, part in enumerate(parts):
        if index % 2 == 0:
            parts[index] = _FILLED.sub(one, part)
    return "".join(parts), changes


class _Filler:
    """What the comments ask for, over the reference sets; each is read and judged once."""

    def __init__(self, root: Path, results: Path) -> None:
        self._root, self._results = root, results
        self._opened: dict[str, Results] = {}

    def text(self, words: str) -> str:
        """What stands between a comment of these words and its end. Raises UsageError, NoAnswer."""
        words = words.strip()
        if words == "scoreboard":
            return self._scoreboard()
        if re.match(r"\w+:\s", words):
            return self._table(_Table.model_validate(yaml.safe_load(words)))
        name, _, what = " ".join(words.split()).partition(" ")
        if _CLAIM.fullmatch(what):
            return self._claim(name, what)
        return self._number(name, what)

    def _number(self, name: str, expression: str, **where: str) -> str:
        rows = [
            row for row in self._open(name).rows
            if all(row.labels.get(label, value) == value for label, value in where.items())
        ]
        answer = parse_expression(expression).answer(rows, EVIDENCE)
        return rounded(statistics.interval(answer.values))

    def _table(self, table: _Table) -> str:
        lines = [[table.head, *table.columns.values()], ["---"] * (1 + len(table.columns))]
        for name, expression in table.rows.items():
            cells = [
                self._number(table.set, expression, **{table.label: value})
                for value in table.columns
            ]
            lines.append([name, *cells])
        return "\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"

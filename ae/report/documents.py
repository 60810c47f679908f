"""Results in the project's documents: filled from the reference sets, never written by hand.

A comment, which no reader sees, says where a number comes from; the next comment ends it:

    RPF takes <!-- ae MACHINE/RECIPE median(kernel_time, variant=rpf) -->102.6<!-- / --> us.

`ae SET CLAIM` is a claim's value, `ae SET EXPRESSION` that of an expression in the language of
claims, `ae scoreboard` how many facts came out how. A table is YAML in such a comment (`_Table`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from ae.claims.evaluate import NoAnswer, Records, evaluate
from ae.claims.expressions import parse_expression
from ae.claims.judge import Judgement, Verdict, scoreboard
from ae.errors import UsageError
from ae.model import Part
from ae.recipe.load import list_recipes, load_recipe
from ae.records.files import EVIDENCE
from ae.records.results import Results, find_set, load_reference, reference_sets
from ae.report.chapter import judge_results
from ae.statistics import FEWEST, Interval, interval

_FILLED = re.compile(  # or a block of code, in which nothing is filled
    r"^ *(?:```|~~~).*?^ *(?:```|~~~) *$|(<!--\s+ae\s(.*?)-->)(.*?)(<!-- / -->)",
    re.MULTILINE | re.DOTALL,
)
_CLAIM = re.compile(r"[\w.-]+")
_FIX = "the comments of documents: docs/contracts.md"


class _Table(Part):
    """A Markdown table: a cell is a row's expression at the column's value of the label."""

    set: str  # MACHINE/RECIPE, as below results/reference
    head: str = ""  # above the names of the rows
    label: str
    columns: Annotated[dict[str, str], Field(min_length=1)]  # value of the label: what it is called
    rows: Annotated[dict[str, str], Field(min_length=1)]  # name: expression


@dataclass(frozen=True)
class Change:
    """A place of a document that does not say what the reference sets say."""

    place: str  # file:line
    stands: str
    should: str


def fill(root: Path, *, write: bool) -> list[Change]:
    """Compare, and where `write` correct, README.md and every document below docs/.

    Raises UsageError for a comment that names what is not there.
    """
    filler = _Filler(root)
    changes: list[Change] = []
    for path in [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]:
        text = path.read_text(encoding="utf-8")
        filled = filler.filled(text, str(path.relative_to(root)), changes)
        if write and filled != text:
            path.write_text(filled, encoding="utf-8")
    return changes


def rounded(value: Interval) -> str:
    """A number to the digit that its spread still moves; of a range at most three, of none two."""
    wide = max(value.high - value.value, value.value - value.low)
    if value.processes == 0 or (value.spread == "ci95" and not wide):  # exact, or always the same
        return f"{value.value:,.6g}"
    if not wide > 0:
        wide = abs(value.value) / 10
    elif value.processes < FEWEST:
        wide = max(wide, abs(value.value) / 100)
    place = math.floor(math.log10(wide)) if wide else 0
    return f"{round(value.value, -place) + 0:,.{max(0, -place)}f}"  # + 0: no -0.0


class _Filler:
    """What the comments ask for, over the reference sets; each is read and judged once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._results, self._judgements = cache(self._read), cache(self._judge)
        self._records = cache(lambda name: Records(self._results(name).rows))

    def filled(self, text: str, path: str, changes: list[Change]) -> str:
        """The text with what its comments ask for; what was different goes into `changes`."""

        def one(match: re.Match[str]) -> str:
            opening, words, stands, closing = match.groups()
            if opening is None:
                return match[0]
            place = f"{path}:{1 + text.count(chr(10), 0, match.start())}"
            try:
                should = self._words(words.strip())
            except (UsageError, NoAnswer, ValueError, yaml.YAMLError) as error:
                raise UsageError(f"{place}: {error}", fix=_FIX) from error
            if should != stands:
                changes.append(Change(place, stands.strip(), should.strip()))
            return f"{opening}{should}{closing}"

        return _FILLED.sub(one, text)

    def _words(self, words: str) -> str:
        if words == "scoreboard":
            return self._scoreboard()
        if re.match(r"\w+:\s", words):
            return self._table(_Table.model_validate(yaml.safe_load(words)))
        name, _, what = " ".join(words.split()).partition(" ")
        return self._claim(name, what) if _CLAIM.fullmatch(what) else self._number(name, what, {})

    def _number(self, name: str, expression: str, where: Mapping[str, str]) -> str:
        answer = evaluate(parse_expression(expression), self._records(name), EVIDENCE, where)
        return rounded(interval(answer.values, answer.basis))

    def _claim(self, name: str, claim: str) -> str:
        judged = self._judgements(name).get(claim)
        if judged is None or judged.value is None:
            raise UsageError(f"{name} has no number for a claim '{claim}'", fix=_FIX)
        low, high = (judged.value if end is None else end for end in (judged.low, judged.high))
        return rounded(Interval(judged.value, low, high, processes=judged.processes))

    def _table(self, table: _Table) -> str:
        lines = [[table.head, *table.columns.values()]]
        for name, expression in table.rows.items():
            wheres = [{table.label: value} for value in table.columns]
            lines.append([name, *(self._number(table.set, expression, one) for one in wheres)])
        return _markdown(lines)

    def _scoreboard(self) -> str:
        """A line for every paper and tag, over all its reference sets."""
        verdicts = list(Verdict)
        lines = [["paper", "claims", *verdicts]]
        for recipe in list_recipes(self._root):
            sets = reference_sets(self._root, recipe)
            judged = [one for name in sets for one in self._judgements(f"{name}/{recipe}").values()]
            for tag, counts in scoreboard(judged).items():
                if any(counts.values()):
                    lines.append([recipe, tag, *(str(counts[one] or "") for one in verdicts)])
        return _markdown(lines)

    def _read(self, name: str) -> Results:
        machine, _, recipe = name.partition("/")
        if path := find_set(self._root, recipe, machine):
            return load_reference(path)
        raise UsageError(f"there is no reference set '{name}'", fix=_FIX)

    def _judge(self, name: str) -> dict[str, Judgement]:
        results = self._results(name)
        judged = judge_results(self._root, load_recipe(self._root, results.recipe), results)
        return {one.id: one for one in judged}


def _markdown(lines: list[list[str]]) -> str:
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"

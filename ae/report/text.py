"""Tables of results and verdicts as text for a terminal, as CSV and as LaTeX. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from math import isfinite
from textwrap import wrap

from ae.claims.judge import Judgement, Verdict, scoreboard
from ae.report.tables import ResultTable, clean, without_ends
from ae.units import folded

_MISSING = re.compile(r"(?:(?<!\d)(\d+) of \1 cells: )*no records of (\S+) \(.*?experiment (\w+).*")


def result_cells(table: ResultTable) -> tuple[list[str], list[list[str]]]:
    """Header and cells of a result table as strings."""
    units = {row["unit"] for row in table.rows}
    unit = "" if len(units) > 1 or units <= {"", "1", table.metric} else f" [{min(units)}]"
    ranges = {row["spread"] for row in table.rows} == {"range"}
    header = [*table.keys, f"{table.metric}{unit}", "range" if ranges else "95 % interval", "n",
              "processes", "devices", "evidence", "speed-up"]  # fmt: skip
    cells = [
        [
            *(row[key] for key in table.keys),
            number(row["median"]) + (f" {row['unit']}" if len(units) > 1 else ""),
            span(row["low"], row["high"], "" if ranges else row["spread"]),
            *(str(row[name]) for name in ("n", "processes", "devices", "evidence")),
            "-" if row["speedup"] is None else f"{row['speedup']:.2f}x over {row['baseline']}",
        ]
        for row in table.rows
    ]  # fmt: skip
    return header, cells


def result_columns(
    table: ResultTable, all_keys: bool = True
) -> tuple[list[str], list[list[str]], list[str]]:
    """Header and cells of the columns that say something, and what all rows share, in words.

    What values rest on is a column where it differs; so are keys, unless `all_keys`.
    """
    header, cells = result_cells(table)
    keys = len(table.keys)
    may_go = [*range(0 if all_keys or len(cells) == 1 else keys), *range(keys + 2, keys + 6)]
    same = {i: cells[0][i] for i in may_go if len({row[i] for row in cells}) == 1}
    empty = {keys + 1} if not any(row[keys + 1] for row in cells) else set()
    keep = [i for i in range(len(header)) if i not in {*same, *empty}]
    facts = ["median" if empty else f"median and {header[keys + 1]} over processes"]
    facts += [f"{header[i]}: {value}" for i, value in same.items()]
    return [header[i] for i in keep], [[row[i] for i in keep] for row in cells], facts


def result_text(table: ResultTable, width: int = 100, most: int | None = None) -> str:
    """The result table as text of `width` columns (80 or more) and at most `most` rows."""
    header, cells, facts = result_columns(table)
    keys = len(table.keys)
    lines = [list(row) for row in cells[:most]]
    if keys > 1:  # a first key is not repeated below itself
        for line, above in zip(lines[1:], cells, strict=False):
            line[0] = "" if line[0] == above[0] else line[0]
    if len(lines) < len(cells):
        facts.append(f"{len(cells) - len(lines)} more rows")
    words = {"evidence", "speed-up"}
    right = [i for i, name in enumerate(header) if i >= keys and name not in words]
    shown = grid(header, lines, width=width, right=right)
    return f"{table.experiment}\n{shown}\n{folded(clean(', '.join(facts)), width)}"


def skip_text(groups: Sequence[tuple[str, str]], width: int = 100, most: int | None = None) -> str:
    """What was skipped, a paragraph a reason, at most `most` of them."""
    lines = [folded(clean(f"skipped {what}: {why}"), width) for what, why in groups[:most]]
    if len(lines) < len(groups):
        lines.append(f"skipped for {len(groups) - len(lines)} more reasons")
    return "\n".join(lines)


def result_csv(tables: Sequence[ResultTable]) -> str:
    """All result tables as one CSV, one row per value; no ends where there is no spread."""
    import pandas as pd

    keys = dict.fromkeys(key for table in tables for key in table.keys)
    columns = ["experiment", *keys, "metric", "unit", "median", "low", "high", "spread",
               "processes", "devices", "n", "evidence", "speedup", "baseline"]  # fmt: skip
    lines = []
    for table in tables:
        about = {"experiment": table.experiment, "metric": table.metric}
        lines += [{**about, **row} for row in table.rows]
    return without_ends(pd.DataFrame(lines, columns=columns)).to_csv(index=False)


def result_latex(tables: Iterable[ResultTable]) -> str:
    """Every result table as a LaTeX tabular (of booktabs), its experiment as a comment above."""
    import pandas as pd

    parts = []
    for table in tables:
        header, cells = result_cells(table)
        shape = "l" * len(table.keys) + "rrrrrll"
        shown = pd.DataFrame(cells, columns=header).map(clean)
        latex = shown.to_latex(index=False, escape=True, column_format=shape)
        parts.append(f"% {clean(table.experiment)}\n{latex}")
    return "\n".join(parts)


def judgement_cells(one: Judgement) -> list[str]:
    """Claim, the paper's value, ours with its interval, the verdict, and why."""
    claim = one.claim
    unit = f" {claim.unit}" if claim.unit else ""
    goal = " (our goal)" if claim.source == "ours" else ""
    paper = "" if claim.reference is None else f"{number(claim.reference)}{unit}{goal}"
    ours = one.closest if one.value is None else f"{number(one.value)}{unit}"
    if ends := span(one.low, one.high, one.spread):
        ours += f" ({ends})"
    elif one.value is not None and one.processes == 1:
        ours += " (1 process)"
    return [one.id, paper, ours, str(one.verdict), one.reason]


def verdict_text(judgements: Sequence[Judgement], width: int = 100) -> str:
    """The scoreboard by tag; what is not reproduced and what is undecided, each with its reason;
    then the rest, and why, a line a reason; then the counts. Of records that are missing the
    metric and the experiment are told: claims.json has all labels."""
    if not judgements:
        return "no claims"
    header = ["claim", "paper", "ours", "verdict", "why"]
    parts = [scoreboard_text(judgements, width)]
    rest = sorted(judgements, key=lambda one: list(Verdict).index(one.verdict))
    for word in (Verdict.NOT_REPRODUCED, Verdict.UNDECIDED):
        if cells := [judgement_cells(one) for one in rest if one.verdict is word]:
            parts.append(grid(header, cells, width=width))
        rest = [one for one in rest if one.verdict is not word]
    if cells := [judgement_cells(one)[:4] for one in rest if one.value is not None]:
        parts.append(grid(header[:4], cells, width=width))
    rest = [one for one in rest if one.value is None or one.verdict is not Verdict.REPRODUCED]
    for (verdict, why), those in by_reason(rest).items():
        names = ", ".join(one.id for one in those)
        parts.append(folded(clean(f"{names}: {verdict}, {why}"), width))
    return "\n\n".join([*parts, verdict_counts(judgements)])


def by_reason(judgements: Iterable[Judgement]) -> dict[tuple[Verdict, str], list[Judgement]]:
    """Judgements by verdict and why."""
    found: dict[tuple[Verdict, str], list[Judgement]] = {}
    for one in judgements:
        found.setdefault((one.verdict, short_reason(one)), []).append(one)
    return found


def short_reason(one: Judgement) -> str:
    """Why, and of records that are missing only the metric and the experiment."""
    return _MISSING.sub(r"no records of \2 in \3", one.reason)


def scoreboard_text(judgements: Iterable[Judgement], width: int = 100) -> str:
    """Facts by tag and verdict, those alone that occur."""
    board = {tag: row for tag, row in scoreboard(judgements).items() if any(row.values())}
    words = [str(word) for word in Verdict if any(row[word] for row in board.values())]
    cells = [[tag, *(str(row[word] or "-") for word in words)] for tag, row in board.items()]
    return grid(["facts", *words], cells, width=width, right=range(1, len(words) + 1))


def verdict_counts(judgements: Iterable[Judgement]) -> str:
    """How many claims got which verdict, in one line."""
    counts = Counter(one.verdict for one in judgements)
    each = (f"{counts[word]} {word}" for word in Verdict if counts[word])
    return f"{counts.total()} claims: {', '.join(each)}"


def grid(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, width: int = 100,
    right: Container[int] = (),
) -> str:  # fmt: skip
    """Columns of text, at most `width` wide; the last column is wrapped, others are never cut.

    Control characters are shown as '?'. Columns in `right` are set flush right.
    """
    table = [[clean(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    widths[-1] = max(12, min(widths[-1], width - sum(one + 2 for one in widths[:-1])))
    places = [str.rjust if at in right else str.ljust for at in range(len(widths))]
    lines = []
    for row in table:
        above = row[:-1]
        for piece in wrap(row[-1], widths[-1], break_on_hyphens=False) or [""]:
            cells = zip(places, [*above, piece], widths, strict=True)
            lines.append("  ".join(put(cell, width) for put, cell, width in cells))
            above = [""] * len(above)
        if row is table[0]:
            lines.append(" ".join("-" * (one + 1) for one in widths)[:-1])
    return "\n".join(line.rstrip() for line in lines)


def span(low: float | None, high: float | None, spread: str = "") -> str:
    """Both ends of a spread; nothing where there is none, or they are written alike."""
    if low is None or high is None:
        return ""
    ends = number(low), number(high)
    word = "range " if spread == "range" else ""
    return f"{word}{ends[0]} to {ends[1]}" if ends[0] != ends[1] else ""


def number(value: float) -> str:
    """A number with three or four significant digits and no exponent where it can be avoided."""
    if not isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-3:
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    digits = 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:.{0 if value == round(value) else digits}f}"

"""The sharing map: pages by time, coloured by who touched them; one page that needs no network."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from accel_trace.tools.base import bytes_text
from accel_trace.uvm.sharing import KINDS, Windows
from accel_trace.uvm.touches import Managed

COLOURS = {
    "cpu": "#a9c8e8", "gpu": "#b7d9b1", "read": "#c9b8dd", "shared": "#e8a33d",
    "false": "#e8a33d", "true": "#b2182b", "migrates": "#d8d2c4",
}  # fmt: skip
WORDS = {
    "cpu": "CPU only", "gpu": "GPU only", "read": "both read", "shared": "shared, bytes not known",
    "false": "falsely shared", "true": "truly shared", "migrates": "both, never in one window",
}  # fmt: skip
ROWS, COLUMNS = 1000, 240  # of a map; beyond, lone pages are left out, and windows stand together
WIDE, LEFT, TOP = 720, 250, 34


def owners(page: int, page_bytes: int, objects: Sequence[Managed]) -> list[str]:
    """Names of the objects on a page."""
    start, end = page * page_bytes, (page + 1) * page_bytes
    return [one.name for one in objects if one.address < end and start < one.address + one.size]


def page(maps: Sequence[Windows], objects: Sequence[Managed], title: str) -> str:
    """HTML with a map for each size of pages."""
    parts = [_map(windows, objects) for windows in maps]
    legend = "".join(
        f'<span><i style="background:{COLOURS[name]}"></i>{WORDS[name]}</span>'
        for name in ("cpu", "gpu", "read", "false", "true")
    )
    style = (
        "body{font:14px/1.4 system-ui,sans-serif;margin:16px;color:#1b2430}h1{font-size:17px}"
        "h2{font-size:14px;margin:18px 0 4px}.legend span{margin-right:16px}"
        "i{display:inline-block;width:14px;height:12px;margin-right:5px;vertical-align:-1px}"
        "text{font:11px system-ui,sans-serif;fill:#40566f}"
    )
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<style>{style}</style><h1>{html.escape(title)}</h1><p class="legend">{legend}</p>'
    )
    return head + "".join(parts) + "</html>\n"


def _map(windows: Windows, objects: Sequence[Managed]) -> str:
    size = bytes_text(windows.page_bytes).replace(".00", "")
    pages, kinds = windows.pages()
    left_out = 0
    if len(pages) > ROWS:
        kept = kinds > KINDS.index("gpu")
        left_out = int((~kept).sum())
        pages = pages[kept][:ROWS]
        left_out += int(kept.sum()) - len(pages)
    grid = cells(windows, pages)
    tall = max(2.0, min(18.0, 480 / max(len(pages), 1)))
    height = TOP + tall * len(pages) + 8
    wide = WIDE / max(grid.shape[1], 1)
    rows = []
    for at, (number, line) in enumerate(zip(pages, grid, strict=True)):
        y = TOP + at * tall
        names = ", ".join(owners(int(number), windows.page_bytes, objects))
        for first, last, kind in _runs(line):
            words = f"{names}, page {int(number) * windows.page_bytes:#x}: {WORDS[KINDS[kind]]}"
            rows.append(
                f'<rect x="{LEFT + first * wide:.2f}" y="{y:.2f}" '
                f'width="{(last - first) * wide:.2f}" height="{max(tall - 0.6, 1.4):.2f}" '
                f'fill="{COLOURS[KINDS[kind]]}"><title>{html.escape(words)}</title></rect>'
            )
    rows += _labels(pages, tall, windows.page_bytes, objects)
    last = int(windows.window.max(initial=0)) + 1
    note = f", {left_out} more pages that are not drawn" if left_out else ""
    return (
        f"<h2>Pages of {size}: {len(pages)}{note}</h2>"
        f'<svg width="{LEFT + WIDE + 10}" height="{height:.0f}" role="img" '
        f'aria-label="sharing map, pages of {size}">'
        f'<text x="{LEFT}" y="14">windows between synchronisations, 1 to {last}</text>'
        f'<line x1="{LEFT}" x2="{LEFT + WIDE}" y1="22" y2="22" stroke="#9aa7b5"/>'
        f"{''.join(rows)}</svg>"
    )


def cells(windows: Windows, pages: NDArray[np.int64]) -> NDArray[np.int64]:
    """Kinds by page and column, -1 where nobody touched the page; windows stand together."""
    last = int(windows.window.max(initial=-1)) + 1
    columns = min(last, COLUMNS)
    grid = np.full((len(pages), columns), -1, np.int64)
    inside = np.isin(windows.page, pages)
    row = np.searchsorted(pages, windows.page[inside])
    column = windows.window[inside] * columns // max(last, 1)
    np.maximum.at(grid, (row, column), windows.kinds()[inside])
    return grid


def _runs(line: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    ends = [*(np.flatnonzero(np.diff(line)) + 1).tolist(), len(line)]
    first = 0
    for end in ends:
        if end > first and line[first] >= 0:
            yield first, end, int(line[first])
        first = end


def _labels(
    pages: NDArray[np.int64], tall: float, page_bytes: int, objects: Sequence[Managed]
) -> list[str]:
    """A bracket for each run of pages that the same objects have, and their names where room is."""
    names = [", ".join(owners(int(number), page_bytes, objects)) for number in pages]
    found, first, free = [], 0, 0.0
    for at in range(1, len(names) + 1):
        if at < len(names) and names[at] == names[first]:
            continue
        top, bottom = TOP + first * tall, TOP + at * tall
        x = LEFT - 8
        found.append(
            f'<line x1="{x}" x2="{x}" y1="{top + 0.5:.1f}" y2="{bottom - 1:.1f}" stroke="#40566f"/>'
        )
        middle = max((top + bottom) / 2 + 4, free)
        if middle <= bottom + 8:
            text = names[first] if len(names[first]) <= 36 else names[first][:35] + "…"
            count = f" ({at - first})" if at - first > 1 else ""
            found.append(
                f'<text x="{x - 5}" y="{middle:.1f}" text-anchor="end">'
                f"{html.escape(text)}{count}<title>{html.escape(names[first])}</title></text>"
            )
            free = middle + 12
        first = at
    return found

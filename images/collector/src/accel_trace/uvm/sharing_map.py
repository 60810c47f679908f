"""The sharing map: pages by time, coloured by who touched them; one page that needs no network."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from accel_trace.tools.base import bytes_text
from accel_trace.uvm.sharing import KINDS, Touches, Windows, times_of
from accel_trace.uvm.touches import Managed

Times = Mapping[int, NDArray[np.int64]]  # by page, when it was touched

COLOURS = {
    "cpu": "#a9c8e8", "gpu": "#b7d9b1", "read": "#c9b8dd", "shared": "#f2d68c",
    "false": "#e8a33d", "true": "#b2182b",
}  # fmt: skip
WORDS = {
    "cpu": "CPU only", "gpu": "GPU only", "read": "both read", "shared": "shared, bytes not known",
    "false": "falsely shared", "true": "truly shared", "migrates": "both, never in one window",
}  # fmt: skip
ROWS, COLUMNS = 1000, 240  # of a map; beyond, lone pages are left out, and windows stand together
WIDE, LEFT, TOP = 720, 250, 34


def owners(
    page: int, page_bytes: int, objects: Sequence[Managed],
    times: NDArray[np.int64] | None = None,
) -> list[str]:  # fmt: skip
    """Names of the objects on a page; with `times`, in ns, of those that lived at one of them."""
    start, end = page * page_bytes, (page + 1) * page_bytes
    return [
        one.name for one in objects
        if one.address < end and start < one.address + one.size
        and (times is None or one.lived(times))
    ]  # fmt: skip


def page(
    maps: Sequence[Windows], objects: Sequence[Managed], title: str, touches: Touches | None = None
) -> str:
    """HTML with a map for each size of pages; with `touches` naming what was touched."""
    parts = [
        _map(windows, objects, times_of(touches, windows.page_bytes) if touches else {})
        for windows in maps
    ]
    there = {KINDS[kind] for windows in maps for kind in np.unique(windows.kinds())}
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{WORDS[name]}</span>'
        for name, colour in COLOURS.items() if name in there
    )  # fmt: skip
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


def _map(windows: Windows, objects: Sequence[Managed], times: Times) -> str:
    size = bytes_text(windows.page_bytes).replace(".00", "")
    pages, kinds = windows.pages()
    left_out = 0
    if len(pages) > ROWS:
        kept = kinds > KINDS.index("gpu")
        left_out = int((~kept).sum())
        pages = pages[kept][:ROWS]
        left_out += int(kept.sum()) - len(pages)
    grid = cells(windows, pages)
    bands = _bands(pages, grid, windows.page_bytes, objects, times)
    tall = max(3.0, min(16.0, 900 / max(len(bands), 1)))
    wide = WIDE / max(grid.shape[1], 1)
    whole = {name: 0 for name, *_ in bands}
    for name, _, count, _ in bands:
        whole[name] += count
    rows, y, free, told = [], float(TOP), 0.0, None
    for names, first, count, line in bands:
        high = tall * (1 + math.log2(count) / 2)
        place = f"{names}, {count} pages from {first * windows.page_bytes:#x}"
        for start, end, kind in _runs(line):
            rows.append(
                f'<rect x="{LEFT + start * wide:.2f}" y="{y:.2f}" '
                f'width="{(end - start) * wide:.2f}" height="{high - 1:.2f}" '
                f'fill="{COLOURS[KINDS[kind]]}">'
                f"<title>{html.escape(f'{place}: {WORDS[KINDS[kind]]}')}</title></rect>"
            )
        middle = y + high / 2 + 4
        if names != told and middle >= free:
            told, all_of_it = names, whole[names]
            text = html.escape(names if len(names) <= 36 else names[:35] + "…")
            text += f" ({all_of_it})" if all_of_it > 1 else ""
            rows.append(
                f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end">{text}'
                f"<title>{html.escape(names)}</title></text>"
            )
            free = middle + 12
        y += high
    last = int(windows.window.max(initial=0)) + 1
    note = f", {left_out} more pages that are not drawn" if left_out else ""
    return (
        f"<h2>Pages of {size}: {len(pages)}{note}</h2>"
        f'<svg width="{LEFT + WIDE + 10}" height="{y + 8:.0f}" role="img" '
        f'aria-label="sharing map, pages of {size}">'
        f'<text x="{LEFT}" y="14">windows between synchronisations, 1 to {last}</text>'
        f'<line x1="{LEFT}" x2="{LEFT + WIDE}" y1="22" y2="22" stroke="#9aa7b5"/>'
        f"{''.join(rows)}</svg>"
    )


def _bands(
    pages: NDArray[np.int64],
    grid: NDArray[np.int64],
    page_bytes: int,
    objects: Sequence[Managed],
    times: Times,
) -> list[tuple[str, int, int, NDArray[np.int64]]]:
    """Neighbours of the same objects and with the same history as one: names, first page, count."""
    found: list[tuple[str, int, int, NDArray[np.int64]]] = []
    for number, line in zip(pages.tolist(), grid, strict=True):
        there = owners(number, page_bytes, objects, times.get(number))
        names = ", ".join(there) or "no allocation"
        if found:
            before, first, count, old = found[-1]
            if before == names and first + count == number and (old == line).all():
                found[-1] = names, first, count + 1, old
                continue
        found.append((names, number, 1, line))
    return found


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

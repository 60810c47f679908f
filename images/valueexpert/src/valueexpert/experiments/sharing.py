"""Who shares the pages of managed memory in the recorded mini, and what they fault; no GPU is used.

Kinds and faults are held against those that follow from how the mini is written: arithmetic on the
trace of a bit-exact replay (evidence static); a fault is a model's (simulated).
"""

from __future__ import annotations

from collections import Counter

from accel_trace.uvm.sharing import (
    CPU,
    GPU,
    KINDS,
    SIZES,
    Windows,
    counts,
    faults_of,
    times_of,
    windows_of,
)
from accel_trace.uvm.sharing_map import cells, owners
from accel_trace.uvm.touches import Timeline, timeline
from reprokit.records import RecordWriter

from valueexpert import traces
from valueexpert.catalog import KIND_OF, ROUNDS, SHARING
from valueexpert.cli import Config


def run(config: Config, out: RecordWriter) -> None:
    """Both variants, at pages of all sizes."""
    with traces.opened(SHARING) as folders:
        for variant, folder in folders.items():
            found = timeline(traces.process(folder))
            small = windows_of(found.touches)
            for size in SIZES:
                _size(variant, found, small.at(size), out)
            _map(variant, found, small, out)


def expected_faults(variant: str, pages: Counter[str]) -> dict[int, int]:
    """By side, of pages by object: one a turn where both use them, else one for good."""
    found = {CPU: 0, GPU: 0}
    for name, kind in KIND_OF[variant].items():
        if kind != "gpu":
            found[CPU] += pages[name] * (1 if kind == "cpu" else ROUNDS + 1)
        if kind != "cpu":
            found[GPU] += pages[name] * (1 if kind == "gpu" else ROUNDS)
    return found


def _names(found: Timeline, windows: Windows) -> list[str]:
    """Of each page, the objects that lived when it was touched."""
    size = windows.page_bytes
    times = times_of(found.touches, size)
    pages, _ = windows.pages()
    return [" and ".join(owners(page, size, found.objects, times[page])) for page in pages.tolist()]


def _size(variant: str, found: Timeline, windows: Windows, out: RecordWriter) -> None:
    labels: dict[str, object] = {"variant": variant, "page": windows.page_bytes}
    _, kinds = windows.pages()
    names = _names(found, windows)
    told = [
        KINDS[kind] == KIND_OF[variant].get(name) for name, kind in zip(names, kinds, strict=True)
    ]
    out.write("kinds_right", "share", [sum(told) / len(told)], labels, evidence="static")
    for kind, count in counts(windows).items():
        out.write("pages", "pages", [count], labels | {"kind": kind}, evidence="static")
    faults = faults_of(found.touches, windows.page_bytes)
    wanted = expected_faults(variant, Counter(names))
    for side, word in ((CPU, "cpu"), (GPU, "gpu")):
        own = labels | {"side": word}
        out.write("faults", "faults", [faults.of(side)], own, evidence="simulated")
        right = float(faults.of(side) == wanted[side])
        out.write("faults_right", "1", [right], own, evidence="static")


def _map(variant: str, found: Timeline, windows: Windows, out: RecordWriter) -> None:
    pages, _ = windows.pages()
    lines = zip(_names(found, windows), cells(windows, pages), strict=True)
    for row, (name, line) in enumerate(lines):
        for window, kind in enumerate(line):
            if kind >= 0:
                own = {"variant": variant, "row": f"{row:03d}", "object": name,
                       "window": f"{window:03d}", "kind": KINDS[kind]}  # fmt: skip
                out.write("touched", "1", [1], own, evidence="static")

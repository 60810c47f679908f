"""Which 2 MiB blocks of addresses are accessed when. Source: PASTA, Figure 13."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accel_trace.events import Hot, Launch
from accel_trace.session import Process, Session
from accel_trace.tools.base import Needs, Option, Record, Report, Tool, ToolError, need, write_file

ALWAYS = 0.9
SELDOM = 0.1
BLOCK_SHIFT = 21


@dataclass(frozen=True)
class Heat:
    """Accesses per block (rows, by address) and window (columns, in order of time)."""

    blocks: NDArray[np.uint64]  # [rows]: address >> 21
    counts: NDArray[np.float64]  # [rows, columns]
    window: int  # accesses or launches in a window
    launches: int  # with accesses
    elsewhere: int = 0  # accesses to memory that nobody allocated, as far as known: in no row

    @property
    def active(self) -> NDArray[np.float64]:
        """[rows]: the share of windows in which a block was accessed."""
        return (self.counts > 0).mean(axis=1) if self.counts.size else np.zeros(len(self.blocks))


def heat_of(process: Process, by: str, window: int, most: int) -> Heat:
    """Return the heat of one process in windows `by` "accesses" or "launches".

    The order of a launch's accesses is not known, so they are spread evenly over the windows that
    the launch spans. When there would be more than `most` windows, each is made longer.
    """
    launches: defaultdict[int, dict[int, int]] = defaultdict(dict)
    order: list[int] = []
    elsewhere = 0
    for event in process.events((Launch, Hot)):
        if isinstance(event, Launch):
            if event.analysed in (1, 2):
                order.append(event.launch)
        elif isinstance(event, Hot) and event.block == 0:
            elsewhere += event.count
        elif isinstance(event, Hot) and event.count:
            counts = launches[event.launch]
            counts[event.block] = counts.get(event.block, 0) + event.count
    blocks = sorted({block for counts in launches.values() for block in counts})
    if not blocks:
        return Heat(np.zeros(0, np.uint64), np.zeros((0, 0)), window, 0, elsewhere)
    rows = {block: row for row, block in enumerate(blocks)}
    if by == "launches":
        order = order or sorted(launches)
        lengths = dict.fromkeys(order, 1)
    else:
        order = sorted(launches)
        lengths = {number: sum(launches[number].values()) for number in order}
    total = sum(lengths.values())
    window *= -(-total // (window * most))
    heat = np.zeros((len(blocks), -(-total // window)))
    start = 0
    for number in order:
        end = start + lengths[number]
        if launches.get(number):
            where = np.array([rows[block] for block in launches[number]])
            values = np.array(list(launches[number].values()), dtype=np.float64)
            first, last = start // window, -(-end // window)
            edges = np.clip(np.arange(first, last + 1) * window, start, end)
            heat[where, first:last] += np.outer(values, np.diff(edges) / (end - start))
        start = end
    return Heat(np.array(blocks, np.uint64), heat, window, len(launches), elsewhere)


class Hotness(Tool):
    """A matrix of accesses: 2 MiB blocks by windows of time."""

    name = "hotness"
    help = "accesses per 2 MiB block of addresses over time; which blocks are hot always or once"
    needs = Needs(mode="hot", handlers=("sanitizer", "torch"))
    options = (
        Option("by", "accesses", "what a window counts", ("accesses", "launches")),
        Option("window", 0, "its length; 0: 1000000 accesses, or 1 launch"),
        Option("most", 4096, "windows at most; with more, each is made longer"),
    )

    def run(self, session: Session) -> Report:
        by = self.word("by")
        window = int(self.number("window")) or (1_000_000 if by == "accesses" else 1)
        most = int(self.number("most"))
        if window < 1 or most < 1:
            raise ToolError("window and most have to be at least 1")
        records: list[Record] = []
        lines = [f"a launch's accesses are spread evenly over the windows (of {by}) that it spans"]
        files = []
        for process in session.processes:
            need(process, "hot")
            heat = heat_of(process, by, window, most)
            labels = {"process": process.label, "by": by}
            windows = heat.counts.shape[1]
            total = float(heat.counts.sum())
            if heat.elsewhere:
                lines.append(
                    f"process {process.label}: {heat.elsewhere} accesses to memory that belongs to "
                    "no known piece are left out"
                )
            if not windows:
                lines.append(f"process {process.label}: no access was counted")
                continue
            always = float((heat.active >= ALWAYS).mean())
            seldom = float((heat.active <= SELDOM).mean())
            note = f"windows of {heat.window} {by}"
            records += [
                Record("hot_blocks", "blocks", (len(heat.blocks),), labels),
                Record("windows", "windows", (windows,), labels, note=note),
                Record("accesses", "accesses", (total,), labels),
                Record("share_active_always", "1", (always,), labels, note=note),
                Record("share_active_seldom", "1", (seldom,), labels, note=note),
            ]
            lines.append(
                f"process {process.label}: {total:.0f} accesses to {len(heat.blocks)} blocks of "
                f"2 MiB in {windows} {note}; {always:.1%} of the blocks are active in at least "
                f"{ALWAYS:.0%} of the windows, {seldom:.1%} in at most {SELDOM:.0%}"
            )
            path = self.out / f"hotness-{process.pid}.npz"
            files.append(write_file(path, partial(_save, heat)))
        return Report(tuple(records), "\n".join(lines), tuple(files))


def _save(heat: Heat, path: Path) -> None:
    np.savez_compressed(
        path,
        blocks=heat.blocks, counts=heat.counts, window=heat.window, block_bytes=1 << BLOCK_SHIFT,
    )  # fmt: skip

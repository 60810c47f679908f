"""Pages of managed memory that CPU and GPU share, what they fault, and where in the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from reprokit.records import Evidence

from accel_trace.contexts.tree import Tree
from accel_trace.cpu.recorded import CpuError
from accel_trace.cpu.watch import MODES, VARIABLE
from accel_trace.events import ManagedCounter
from accel_trace.session import Process, Session
from accel_trace.tools.base import (
    Needs,
    Option,
    Record,
    Report,
    Tool,
    ToolError,
    bytes_text,
    write_table,
)
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
from accel_trace.uvm.sharing_map import WORDS, owners, page
from accel_trace.uvm.touches import Timeline, timeline
from accel_trace.values.accesses import ValuesError

FIXES = {  # the kind of sharing, and what helps
    "true": "keep it on one side, or move it by one prefetch a turn (cudaMemPrefetchAsync)",
    "false": "give what the CPU and what the GPU uses pages of their own",
    "shared": "see with cpu=bytes whether it is true sharing",
    "read": "advise cudaMemAdviseSetReadMostly, so that each side has a copy",
    "migrates": "prefetch it before the other side's turn (cudaMemPrefetchAsync)",
}
DRIVER = {  # CUPTI's counters
    "CPU_PAGE_FAULT_COUNT": "CPU page faults", "GPU_PAGE_FAULT": "GPU page faults",
    "BYTES_TRANSFER_HTOD": "bytes to the GPU", "BYTES_TRANSFER_DTOH": "bytes to the host",
    "THRASHING": "thrashing", "THROTTLING": "throttled faults", "REMOTE_MAP": "remote mappings",
}  # fmt: skip
UNSEEN = {"values_lost": "the GPU's accesses found no room; set ACCEL_TRACE_BUFFER higher"}


class PageSharing(Tool):
    """A pass that CUPTI watches for the driver's own counts, and one that records accesses."""

    name = "page_sharing"
    help = "pages of managed memory that CPU and GPU share, truly or falsely, and their faults"
    passes = 2
    options = (
        Option("cpu", "bytes", "bytes: every access of the CPU is stepped; pages: only the first "
               "to a page in each window; faults: the page faults that the kernel counts (perf)",
               tuple(MODES)),
        Option("open", False, "leave memory open while the GPU works, where a GPU cannot touch "
               "what is closed to the CPU; the CPU's accesses meanwhile are not seen"),
        Option("driver", True, "run once before under CUPTI, for the driver's own counts of faults "
               "(programs in Python only)"),
        Option("top", 10, "objects that are printed"),
    )  # fmt: skip

    def __init__(self, settings=None, out=None) -> None:  # type: ignore[no-untyped-def]
        super().__init__(settings, out)
        if not self.settings["driver"]:
            self.passes = 1  # type: ignore[misc]

    def needs_of(self, number: int, earlier: Sequence[Session]) -> Needs:
        if number + 1 < self.passes:
            return Needs(
                mode="events", handlers=("cupti",), environment={"ACCEL_TRACE_MANAGED": "1"}
            )
        return Needs(
            mode="values", handlers=("sanitizer", "stacks", "cpu"), classes=("global", "async",
            "bulk"), environment={VARIABLE: self.word("cpu"), "ACCEL_TRACE_STACK_LAUNCH": "all"} | (
            {f"{VARIABLE}_OPEN": "1"} if self.settings["open"] else {}),
        )  # fmt: skip

    def run(self, session: Session) -> Report:
        lines: list[str] = []
        records: list[Record] = []
        files: list[Path] = []
        command = session.run.get("command") or []
        programs = {Path(word).name: Path(word) for word in command[:1]}
        for process in session.processes:
            try:
                found = timeline(process, programs)
            except (ValuesError, CpuError) as error:
                raise ToolError(str(error)) from error
            if not found.objects:
                lines.append(f"process {process.label}: allocated no managed memory")
                continue
            words, rows, made = self._process(process, found)
            lines += words
            records += rows
            files += made
        driver, rows = self._driver(records)
        return Report((*records, *rows), "\n".join([*lines, *driver]), tuple(files))

    def _process(
        self, process: Process, found: Timeline
    ) -> tuple[list[str], list[Record], list[Path]]:
        own = {"process": process.label}
        how: Evidence = "static" if process.facts.get("source") == "replay" else "measured"
        touches = found.touches
        small = windows_of(touches, bytes_known=found.bytes_known)
        maps = [small.at(size) for size in SIZES]
        windows = int(touches.window.max(initial=-1)) + 1
        lines = [
            f"process {process.label}: {len(found.objects)} managed allocations, "
            f"{bytes_text(sum(one.size for one in found.objects))}, {windows} windows between "
            f"synchronisations; {int((touches.side == CPU).sum())} accesses of the CPU, "
            f"{int((touches.side == GPU).sum())} of the GPU"
        ]
        records = []
        for at in maps:
            kinds = counts(at)
            faults = faults_of(touches, at.page_bytes)
            sides = {"cpu": faults.of(CPU), "gpu": faults.of(GPU)}
            shown = ", ".join(f"{n} {WORDS[name]}" for name, n in kinds.items() if n)
            size = bytes_text(at.page_bytes).replace(".00", "")
            lines.append(
                f"  pages of {size}: {shown}; estimated faults: {sides['cpu']} of the CPU, "
                f"{sides['gpu']} of the GPU"
            )
            labels = own | {"page": at.page_bytes}
            records += [
                Record("pages", "pages", (n,), labels | {"kind": name}, evidence=how)
                for name, n in kinds.items()
            ]
            records += [
                Record("faults", "faults", (n,), labels | {"side": side}, evidence="simulated")
                for side, n in sides.items()
            ]
        lines += self._objects(found, maps[0])
        tree = tree_of(found)
        lines += ["  estimated faults of pages of 4 KiB, by calling context:"]
        lines += [f"  {line}" for line in tree.lines("faults")]
        lines += [f"  not seen: {gap}" for gap in found.gaps]
        lines += [
            f"  not seen: {process.facts[name]} of {words}" for name, words in UNSEEN.items()
            if process.facts.get(name, "0") != "0"
        ]  # fmt: skip
        return lines, records, self._files(process, found, maps, tree)

    def _objects(self, found: Timeline, small: Windows) -> list[str]:
        """The objects with the most estimated faults on pages that both sides use."""
        faults = faults_of(found.touches)
        pages, kinds = small.pages()
        kind_of = dict(zip(pages.tolist(), kinds.tolist(), strict=True))
        rows: Counter[tuple[tuple[str, ...], str]] = Counter()
        for place, number in enumerate(faults.page.tolist()):
            kind = KINDS[kind_of[number]]
            if kind in FIXES:
                now = faults.step[place : place + 1]
                rows[tuple(owners(number, small.page_bytes, found.objects, now)), kind] += 1
        lines = []
        for (names, kind), count in rows.most_common(int(self.number("top"))):
            what = " and ".join(names) or "pages between allocations"
            share = count / max(len(faults), 1)
            lines.append(
                f"  {what}: {WORDS[kind]}, {count} of {len(faults)} estimated faults "
                f"({share:.0%}); {FIXES[kind]}"
            )
        return lines

    def _files(
        self, process: Process, found: Timeline, maps: Sequence[Windows], tree: Tree
    ) -> list[Path]:
        self.out.mkdir(parents=True, exist_ok=True)
        rows = []
        for at in maps:
            faults = faults_of(found.touches, at.page_bytes)
            sides = [Counter(faults.page[faults.side == side].tolist()) for side in (CPU, GPU)]
            times = times_of(found.touches, at.page_bytes)
            for number, kind in zip(*at.pages(), strict=True):
                place = int(number)
                names = " and ".join(owners(place, at.page_bytes, found.objects, times.get(place)))
                rows.append((at.page_bytes, f"{place * at.page_bytes:#x}", names, KINDS[kind],
                             sides[CPU][place], sides[GPU][place]))  # fmt: skip
        header = ("page_bytes", "address", "objects", "kind", "cpu_faults", "gpu_faults")
        table = write_table(self.out / f"page-sharing-{process.label}.csv", header, rows)
        picture = self.out / f"page-sharing-{process.label}.html"
        title = f"Pages that CPU and GPU share, process {process.label}"
        picture.write_text(page(maps, found.objects, title, found.touches), encoding="utf-8")
        folded = self.out / f"page-faults-{process.label}.folded"
        folded.write_text(tree.folded("faults"), encoding="utf-8")
        return [table, picture, folded]

    def _driver(self, estimates: Sequence[Record]) -> tuple[list[str], list[Record]]:
        """What CUPTI told in the pass before, and the estimates over it."""
        if len(self.sessions) < 2:
            return [], []
        lines: list[str] = []
        records: list[Record] = []
        whole: Counter[str] = Counter()
        for process in self.sessions[0].processes:
            found = driver_counts(process)
            whole.update(found)
            if not found:
                continue
            shown = ", ".join(f"{found[name]} {words}" for name, words in DRIVER.items()
                              if found[name])  # fmt: skip
            lines.append(f"the driver's own counts (CUPTI, in a run of its own): {shown}")
            records += [
                Record("driver", "count", (found[name],),
                       {"process": process.label, "counter": name})
                for name in DRIVER
            ]  # fmt: skip
        for size in SIZES if whole else ():
            shares = []
            for side, name in (("cpu", "CPU_PAGE_FAULT_COUNT"), ("gpu", "GPU_PAGE_FAULT")):
                guess = sum(
                    one.samples[0] for one in estimates if one.metric == "faults"
                    and (one.labels["page"], one.labels["side"]) == (size, side)
                )  # fmt: skip
                if whole[name]:
                    labels = {"page": size, "side": side}
                    records.append(
                        Record(
                            "estimate", "x", (guess / whole[name],), labels, evidence="simulated"
                        )
                    )
                    shares.append(f"{guess / whole[name]:.2f} of the {side.upper()}'s")
            if shares:
                text = bytes_text(size).replace(".00", "")
                lines.append(f"  estimated over counted, pages of {text}: {', '.join(shares)}")
        return lines or [
            "the driver's own counts are not known: CUPTI told of none (it follows programs in "
            "Python)"
        ], records


def driver_counts(process: Process) -> Counter[str]:
    """Totals of CUPTI's counters of unified memory; empty where there were none."""
    found: Counter[str] = Counter()
    for event in process.events((ManagedCounter,)):
        if isinstance(event, ManagedCounter):
            known = event.what not in ("THRASHING", "THROTTLING", "REMOTE_MAP")
            found[event.what] += event.value if known else 1
    return found


def tree_of(found: Timeline) -> Tree:
    """Accesses, bytes and estimated faults of CPU and GPU, by calling context."""
    tree = Tree()
    touches, length = found.touches, len(found.paths)
    accesses = np.bincount(touches.context, minlength=length)
    moved = np.bincount(touches.context, weights=touches.size, minlength=length)
    faults = np.bincount(faults_of(touches).context, minlength=length)
    for number, path in enumerate(found.paths):
        costs = {"accesses": int(accesses[number]), "bytes": int(moved[number]),
                 "faults": int(faults[number])}  # fmt: skip
        if any(costs.values()):
            tree.add(path, costs)
    return tree

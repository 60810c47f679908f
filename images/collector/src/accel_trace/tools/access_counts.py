"""How many accesses each kernel makes, by kind of memory and direction."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import fields

from accel_trace.events import Counts, Launch
from accel_trace.session import Session
from accel_trace.tools.base import Needs, Option, Record, Report, Tool, need, write_table
from accel_trace.tools.kernel_frequency import short_name

COUNTERS = tuple(f.name for f in fields(Counts) if f.name not in ("clock", "ns", "launch"))


class AccessCounts(Tool):
    """Exact counts per thread: an instruction of a full warp counts 32."""

    name = "access_counts"
    help = "exact counts of global, shared, local and asynchronous accesses, per launch"
    needs = Needs(mode="count")
    options = (Option("top", 20, "kernels that are printed"),)

    def run(self, session: Session) -> Report:
        totals: Counter[str] = Counter()
        kernels: defaultdict[str, Counter[str]] = defaultdict(Counter)
        rows: list[tuple[object, ...]] = []
        for process in session.processes:
            need(process, "count")
            names: dict[int, str] = {}
            for event in process.events((Launch, Counts)):
                if isinstance(event, Launch):
                    # What the nodes of a graph did is told of the first, for all of them.
                    graph = "CUDA graph, the first kernel " if event.analysed == 2 else ""
                    names[event.launch] = graph + event.name
                elif isinstance(event, Counts):
                    name = names.get(event.launch, "?")
                    counts = {counter: getattr(event, counter) for counter in COUNTERS}
                    totals.update(counts)
                    kernels[short_name(name)].update(counts | {"launches": 1})
                    rows.append((process.label, event.launch, name, *counts.values()))
        records = [Record(counter, _unit(counter), (totals[counter],)) for counter in COUNTERS]
        for name, counts in sorted(kernels.items()):
            records += [
                Record(f"kernel_{counter}", _unit(counter), (counts[counter],), {"kernel": name})
                for counter in COUNTERS
                if counts[counter]
            ]
        lines = [f"{counter}: {totals[counter]}" for counter in COUNTERS]
        ranked = sorted(kernels.items(), key=lambda item: (-_bytes(item[1]), item[0]))
        lines.append("kernels by bytes of global memory (launches, bytes read, bytes written):")
        for name, counts in ranked[: int(self.number("top"))]:
            lines.append(
                f"  {counts['launches']:>7} {counts['global_bytes_read']:>15} "
                f"{counts['global_bytes_written']:>15}  {name}"
            )
        header = ("process", "launch", "kernel", *COUNTERS)
        table = write_table(self.out / "access-counts.csv", header, rows)
        return Report(tuple(records), "\n".join(lines), (table,))


def _unit(counter: str) -> str:
    return "B" if "bytes" in counter else "accesses"


def _bytes(counts: Counter[str]) -> int:
    return counts["global_bytes_read"] + counts["global_bytes_written"]

"""How often each kernel is launched. Source: PASTA, Figure 7."""

from __future__ import annotations

from collections import Counter

from accel_trace.session import Session
from accel_trace.tools.base import Needs, Option, Record, Report, Tool, write_table


def short_name(name: str) -> str:
    """Return a kernel's short name, as the paper's: cut at the first `<`, no `void ` ahead."""
    return name.split("<", 1)[0].removeprefix("void ").strip() or name


class KernelFrequency(Tool):
    """Counts launches by short name and by full name; patches nothing and synchronises nothing."""

    name = "kernel_frequency"
    help = "launches of each kernel, by short and by full name"
    needs = Needs(mode="events")
    options = (Option("top", 20, "kernels that are printed"),)

    def run(self, session: Session) -> Report:
        full = Counter(name for process in session.processes for _, name in process.launch_names())
        short: Counter[str] = Counter()
        for name, count in full.items():
            short[short_name(name)] += count
        total = short.total()
        ranked = sorted(short.items(), key=lambda item: (-item[1], item[0]))
        top = ranked[: int(self.number("top"))]
        share = sum(count for _, count in top) / total if total else 0.0
        records = [
            Record("launches", "launches", (count,), {"kernel": name, "rank": rank})
            for rank, (name, count) in enumerate(ranked, 1)
        ]
        records += [
            Record("launches_total", "launches", (total,)),
            Record("kernels", "kernels", (len(short),), {"name": "short"}),
            Record("kernels", "kernels", (len(full),), {"name": "full"}),
            Record("share_of_top", "1", (share,), {"top": len(top)}),
        ]
        lines = [
            f"{total} launches of {len(short)} kernels ({len(full)} full names); the first "
            f"{len(top)} have {share:.1%} of them"
        ]
        lines += [f"{count:>9} {count / total:>6.1%}  {name}" for name, count in top]
        rows = sorted(full.items(), key=lambda item: (-item[1], item[0]))
        table = write_table(
            self.out / "kernel-frequency.csv",
            ("launches", "kernel"),
            ((count, name) for name, count in rows),
        )
        return Report(tuple(records), "\n".join(lines), (table,))

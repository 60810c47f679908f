"""Which values a program moves for nothing: patterns, redundancy, and the value flow graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from reprokit.records import Evidence

from accel_trace.session import Process, Session
from accel_trace.tools.base import Needs, Option, Record, Report, Tool, ToolError, write_table
from accel_trace.values.accesses import RECORDED, Accesses, ValuesError
from accel_trace.values.compared import compared, was_compared
from accel_trace.values.findings import LEAST, Finding, coarse, ranked
from accel_trace.values.flow import build, prune
from accel_trace.values.picture import dot, page
from accel_trace.values.recorded import Replay, fine, has_values, replay, values_of
from accel_trace.values.redundancy import Spatial, Temporal, spatial, temporal
from accel_trace.values.shadow import ALLOC, MOST
from accel_trace.values.told import HINT, OPCODE, Site, hinted, tell

NODES = 500  # of a graph that is drawn whole
UNSEEN = {  # facts of the injection library
    "values_lost": "accesses that found no room; set ACCEL_TRACE_BUFFER higher",
    "values_async": "asynchronous copies (cp.async)",
    "values_bulk": "bulk copies",
    "values_tensor": "copies by tensor map (TMA)",
}


class ValuePatterns(Tool):
    """Findings with bounds, a graph of who overwrites whose values, redundancy per instruction."""

    name = "value_patterns"
    help = "values moved for nothing: patterns, redundant copies and fills, the value flow graph"
    options = (
        Option(
            "level",
            "fine",
            "fine: all accesses with their values; coarse: copies and fills, "
            "and no kernel is patched",
            ("fine", "coarse"),
        ),
        Option("blocks", 1, "of level fine: one block of each launch in so many"),
        Option(
            "contexts",
            1,
            "of level fine: of each calling context (kernel, operator, region) "
            "one launch in so many, the first of them",
        ),
        Option(
            "hint",
            "",
            "types of elements that no opcode tells, one for each size, as in f32,i64",
        ),
        Option("top", 20, "findings that are printed"),
        Option("least", LEAST, "bytes of an operation that is worth a finding"),
    )

    def needs_of(self, number: int, earlier: Sequence[Session]) -> Needs:
        for name in ("blocks", "contexts"):
            if self.number(name) < 1:
                raise ToolError(f"{name}={self.word(name)}: a number of at least 1 is needed")
        if self.word("level") == "coarse":
            return Needs(mode="copies")
        return Needs(
            mode="values", classes=("global", "async", "bulk"),
            environment={"ACCEL_TRACE_BLOCKS": self.word("blocks"),
                         "ACCEL_TRACE_CONTEXTS": self.word("contexts")},
        )  # fmt: skip

    def run(self, session: Session) -> Report:
        lines: list[str] = []
        records: list[Record] = []
        files: list[Path] = []
        for process in session.processes:
            sites: list[Site] = []
            problems: list[str] = []
            if was_compared(process):
                found, rates = compared(process), {}
            elif has_values(process):
                try:
                    accesses, contents = values_of(process)
                    accesses, sites, problems = tell(process, accesses, self._hints)
                    found, rates = replay(process, (accesses, contents)), _rates(accesses)
                except ValuesError as error:
                    raise ToolError(str(error)) from error
            else:
                lines.append(f"process {process.label}: no values were recorded")
                continue
            findings = ranked(
                [*coarse(found.shadow.effects, self._least), *fine(found, self._least)]
            )
            lines += [*self._text(process, found, findings, rates), *_told(sites, problems)]
            records += [*_records(process, found, findings, rates), *_types(process, sites)]
            files += [*self._files(process, found, findings), *self._sites(process, sites)]
        if not files:
            raise ToolError(f"{session.folder}: holds no values-*, so no value was recorded")
        return Report(tuple(records), "\n".join(lines), tuple(files))

    @property
    def _hints(self) -> dict[int, str]:
        try:
            return hinted(self.word("hint"))
        except ValueError as error:
            raise ToolError(f"hint={self.word('hint')}: {error}") from error

    @property
    def _least(self) -> int:
        return int(self.number("least"))

    def _text(
        self, process: Process, found: Replay, findings: Sequence[Finding], rates: _Rates
    ) -> list[str]:
        seen = f"{found.accesses} accesses with values"
        if was_compared(process):
            moves = sum(effect.kind != ALLOC for effect in found.shadow.effects)
            seen = f"{moves} copies and fills, and no look into a kernel"
        lines = [
            f"process {process.label}: {seen}; {len(findings)} findings (the largest stake first; "
            "a bound is of the place, not of the program):"
        ]
        top = int(self.number("top"))
        lines += [f"  {n:>3}. {one.sentence()}" for n, one in enumerate(findings[:top], 1)]
        if len(findings) > top:
            lines.append(f"  and {len(findings) - top} more: see the table")
        for kind, (in_time, in_space) in rates.items():
            lines.append(
                f"  {kind}s: {in_time.rate:.1%} repeat the thread's last value there, "
                f"{in_space.rate:.1%} move their instruction's most frequent value"
            )
        if found.atomics:
            lines.append(f"  not seen: the values of {found.atomics} atomics")
        for name, words in UNSEEN.items():
            if process.facts.get(name, "0") != "0":
                lines.append(f"  not seen: {process.facts[name]} {words}")
        if found.unseen:
            lines.append(f"  not seen: {found.unseen} launches that were not analysed")
        if found.blocks > 1:
            lines.append(f"  a sample: one block in {found.blocks}; bytes are the sample's")
        if found.partly or found.unseen:
            lines.append(
                f"  {found.partly} launches were recorded in part: what memory held after those, "
                "and after launches that were not analysed, is not known, and nothing is said of it"
            )
        if found.uncompared:
            lines.append(f"  not seen: {found.uncompared} copies and fills that were not compared")
        if found.shadow.unfollowed:
            lines.append(
                f"  not followed: {found.shadow.unfollowed} bytes of memory, beyond {MOST} that "
                "live at once"
            )
        if found.shadow.outside:
            lines.append(f"  not seen: {found.shadow.outside} bytes outside of all known memory")
        return lines

    def _files(self, process: Process, found: Replay, findings: Sequence[Finding]) -> list[Path]:
        graph = build(found.shadow.effects)
        drawn = graph if len(graph.nodes) <= NODES else prune(graph)
        self.out.mkdir(parents=True, exist_ok=True)
        html, words = (self.out / f"value-flow-{process.label}.{end}" for end in ("html", "dot"))
        html.write_text(page(drawn, findings, f"Value flow of process {process.label}"))
        words.write_text(dot(drawn))
        header = ("finding", "place", "object", "bytes_at_stake", "bytes", "times", "bound",
                  "text", "fix")  # fmt: skip
        rows = [
            (one.name, one.context, one.thing, one.at_stake, one.of, one.times,
             "" if one.bound is None else one.bound, one.text, one.fix)
            for one in findings
        ]  # fmt: skip
        table = write_table(self.out / f"findings-{process.label}.csv", header, rows)
        return [table, html, words]

    def _sites(self, process: Process, sites: Sequence[Site]) -> list[Path]:
        header = ("kernel", "instruction", "direction", "size", "type", "told_by", "accesses")
        rows = [(one.kernel, one.place, one.direction, one.size, one.type, one.source or "nobody",
                 one.accesses) for one in sites]  # fmt: skip
        path = self.out / f"types-{process.label}.csv"
        return [write_table(path, header, rows)] if rows else []


def _told(sites: Sequence[Site], problems: Sequence[str]) -> list[str]:
    """Who told the types, in instructions."""
    plain = [one for one in sites if one.direction != "atomic"]
    if not plain:
        return [f"  {problem}" for problem in problems]
    counts = Counter(one.source for one in plain)
    words = {OPCODE: "by their opcodes", HINT: "by the hint", RECORDED: "by the record"}
    parts = [f"{counts[source]} {text}" for source, text in words.items() if counts[source]]
    if counts[""]:
        parts.append(f"{counts['']} by nobody (taken as what says more, or as the object's others)")
    return [f"  types of {len(plain)} instructions: {', '.join(parts)}",
            *(f"  {problem}" for problem in problems)]  # fmt: skip


def _types(process: Process, sites: Sequence[Site]) -> list[Record]:
    how: Evidence = "static" if process.facts.get("source") == "replay" else "measured"
    counts = Counter(one.source or "nobody" for one in sites if one.direction != "atomic")
    return [
        Record("types", "instructions", (count,), {"process": process.label, "told_by": source},
               evidence=how)
        for source, count in sorted(counts.items())
    ]  # fmt: skip


_Rates = dict[str, tuple[Temporal, Spatial]]


def _rates(accesses: Accesses) -> _Rates:
    accesses = accesses.split()
    return {
        kind: (temporal(accesses.take(chosen)), spatial(accesses.take(chosen)))
        for kind, chosen in (("load", accesses.reads), ("store", accesses.writes))
    }


def _records(
    process: Process, found: Replay, findings: Sequence[Finding], rates: _Rates
) -> list[Record]:
    own: dict[str, object] = {"process": process.label}
    how: Evidence = "static" if process.facts.get("source") == "replay" else "measured"
    counts = Counter(one.name for one in findings)
    records = [Record("findings", "count", (n,), own | {"pattern": name}, evidence=how)
               for name, n in sorted(counts.items())]  # fmt: skip
    for rank, one in enumerate(findings, 1):
        labels = own | {
            "pattern": one.name, "place": one.context, "object": one.thing, "rank": rank,
        }  # fmt: skip
        records.append(
            Record("at_stake", "B", (one.at_stake,), labels, note=one.text, evidence=how)
        )
        if one.bound is not None:
            records.append(Record("bound", "x", (one.bound,), labels, evidence="simulated"))
    for kind, (in_time, in_space) in rates.items():
        labels = own | {"access": kind}
        records.append(Record("temporal", "share", (in_time.rate,), labels, evidence=how))
        records.append(Record("spatial", "share", (in_space.rate,), labels, evidence=how))
    records.append(Record("values", "accesses", (found.accesses,), own, evidence=how))
    records.append(Record("atomics", "accesses", (found.atomics,), own, evidence=how))
    return records

"""The events themselves, filtered and in order of time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from accel_trace.events import EVENTS, Event
from accel_trace.session import Session
from accel_trace.tools.base import Needs, Option, Record, Report, Tool, ToolError, write_file
from accel_trace.tools.lines import event_json, event_text


class EventTrace(Tool):
    """Every event of the chosen kinds, one line each; all of them in a file, the first printed."""

    name = "event_trace"
    help = "the events in order, of chosen kinds"
    needs = Needs(mode="events", handlers=("sanitizer", "torch", "operators"))
    options = (
        Option("kinds", "", "event kinds, comma separated (Launch,Alloc,...); empty: all"),
        Option("contains", "", "only events whose line holds this text"),
        Option("print", 100, "events that are printed; the file has all"),
    )

    def run(self, session: Session) -> Report:
        kinds = chosen(self.word("kinds"))
        wanted = self.word("contains")
        shown: list[str] = []
        count: Counter[str] = Counter()

        def write(path: Path) -> None:
            with path.open("w", encoding="utf-8") as file:
                for process, event in session.events(kinds):
                    line = event_text(event, process.label)
                    if wanted in line:
                        count[type(event).__name__] += 1
                        if len(shown) < self.number("print"):
                            shown.append(line)
                        file.write(event_json(event, process.pid) + "\n")

        path = write_file(self.out / "events.jsonl", write)
        total = count.total()
        records = [
            Record("events", "events", (n,), {"kind": name}) for name, n in sorted(count.items())
        ]
        if total > len(shown):
            shown.append(f"... and {total - len(shown)} more in {path.name}")
        return Report(tuple(records), "\n".join(shown), (path,))


def chosen(words: str) -> tuple[type[Event], ...]:
    """Return the event classes that a comma separated list names. Raises ToolError."""
    known = {cls.__name__.lower(): cls for cls in EVENTS}
    found = []
    for word in filter(None, (part.strip() for part in words.split(","))):
        if word.lower() not in known:
            names = ", ".join(cls.__name__ for cls in EVENTS)
            raise ToolError(f"there is no event '{word}'; choose of {names}")
        found.append(known[word.lower()])
    return tuple(found) or EVENTS

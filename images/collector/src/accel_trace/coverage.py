"""How much of a run its logs hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from accel_trace.events import Launch


@dataclass
class Coverage:
    """How much of a run the logs hold. Every report says it."""

    launches: int = 0  # without those that the driver refused
    refused: int = 0
    analysed: int = 0  # of them; nodes of CUDA graphs too
    graph_nodes: int = 0  # launches as nodes of a CUDA graph
    dropped_events: int = 0
    dropped_accesses: int = 0
    unknown_frames: int = 0
    damage: list[str] = field(default_factory=list)  # a line for each log that is not whole
    remarks: list[str] = field(default_factory=list)  # what handlers said, level 1
    warnings: list[str] = field(default_factory=list)  # and level 2 and 3
    unseen: list[str] = field(default_factory=list)  # what is not in the logs: a report's head

    @property
    def filtered(self) -> int:
        """Launches that were recorded and not analysed."""
        return self.launches - self.analysed

    def count(self, launch: Launch, *, refused: bool = False) -> None:
        """Add a launch; or take one back that turned out to be refused."""
        by = -1 if refused else 1
        self.launches += by
        self.analysed += by * (launch.analysed in (1, 2, 4))
        self.graph_nodes += by * (launch.analysed in (2, 3, 4))
        self.refused += refused

    def add(self, other: Coverage) -> None:
        """Add another process' coverage to this one."""
        for name in (
            "launches", "refused", "analysed", "graph_nodes", "dropped_events", "dropped_accesses",
            "unknown_frames", "damage", "remarks", "warnings", "unseen",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def text(self) -> str:
        """Return the lines that end every report."""
        lines = [
            f"launches: {self.launches} recorded, {self.analysed} analysed, {self.filtered} not "
            f"(filtered out, or the mode analyses none), {self.graph_nodes} in CUDA graphs",
            f"dropped: {self.dropped_events} events, {self.dropped_accesses} accesses",
        ]
        if self.unknown_frames:
            lines.append(f"skipped: {self.unknown_frames} frames of kinds that are not known here")
        lines += [f"not whole: {line}" for line in self.damage]
        for word, texts in (("note", self.remarks), ("warning", self.warnings)):
            lines += [f"{word}: {text} ({n} times)" if n > 1 else f"{word}: {text}"
                      for text, n in Counter(texts).items()]  # fmt: skip
        return "\n".join(lines)

"""One calling-context tree: equal paths of frames are one node, and costs add up along them.

Frames are words, outermost first: of Python and C++ on the host, then the kernel, then its
instruction, or the CPU's access. Source: HPCToolkit's calling-context tree, as GPUPUNK joins CPU
and GPU in it (docs/papers/valueexpert.md, 3.9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass
class Node:
    """A frame below its callers, and its own costs by name."""

    frame: str
    costs: Counter[str] = field(default_factory=Counter)
    children: dict[str, Node] = field(default_factory=dict)

    def total(self) -> Counter[str]:
        """Costs of this node and all below."""
        found = Counter(self.costs)
        for child in self.children.values():
            found.update(child.total())
        return found


class Tree:
    """Built by `add`, in any order."""

    def __init__(self) -> None:
        self.root = Node("")

    def add(self, path: Iterable[str], costs: Mapping[str, int]) -> None:
        """Add costs at the end of a path, outermost frame first."""
        node = self.root
        for frame in path:
            node = node.children.setdefault(frame, Node(frame))
        node.costs.update(costs)

    def walk(self) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Every node with its path, callers first."""
        waiting: list[tuple[tuple[str, ...], Node]] = [((), self.root)]
        while waiting:
            path, node = waiting.pop()
            if path:
                yield path, node
            waiting += [((*path, child.frame), child) for child in node.children.values()][::-1]

    def folded(self, cost: str) -> str:
        """A line for each node with such a cost: `a;b;c 12`, which flame graphs are drawn from."""
        rows = [
            f"{';'.join(frame.replace(';', ',') for frame in path)} {node.costs[cost]}"
            for path, node in self.walk()
            if node.costs[cost]
        ]
        return "".join(f"{row}\n" for row in sorted(rows))

    def lines(self, cost: str, *, least: float = 0.01, most: int = 60) -> list[str]:
        """The tree for a person: nodes with that share of the cost, the dearest first.

        Frames that have one child and no cost of their own stand with it in one line.
        """
        whole = self.root.total()[cost]
        found: list[str] = []

        def dear(node: Node) -> list[tuple[int, Node]]:
            pairs = ((child.total()[cost], child) for child in node.children.values())
            return sorted((p for p in pairs if p[0]), key=lambda pair: (-pair[0], pair[1].frame))

        def show(node: Node, depth: int) -> None:
            for total, child in dear(node):
                if total < least * whole:
                    continue
                frames, last = [child.frame], child
                while len(below := dear(last)) == 1 and not last.costs[cost]:
                    last = below[0][1]
                    frames.append(last.frame)
                own = f", {last.costs[cost]} here" if below and last.costs[cost] else ""
                indent = "  " * depth
                found.append(f"{total:>8} {total / whole:>4.0%}  {indent}{frames[0]}")
                found.extend(f"{'':15}{indent}{frame}" for frame in frames[1:])
                found[-1] += own
                show(last, depth + 1)

        show(self.root, 0)
        if len(found) > most:
            found[most:] = [f"and {len(found) - most} lines more: see the file of the tree"]
        return found

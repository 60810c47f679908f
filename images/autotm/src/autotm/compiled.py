"""`torch.compile` with our choice of what is saved, where recomputation alone suffices.

    torch._functorch.config.activation_memory_budget = 0.5
    torch._functorch.config.activation_memory_budget_solver = autotm.compiled.Solver()

PyTorch's partitioner asks which values are saved within the budget. Its own solvers take each value
for itself: a knapsack. Here a value that is not saved costs nothing where nothing needs it, and
where it is needed, so is what it is made of: an integer programme over the graph, solved by HiGHS.
What moves to the host needs `autotm.fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from autotm.planner.model import Model

try:
    from torch._inductor.custom_graph_pass import CustomKnapsackSolver as _Base
except ImportError:  # an older PyTorch takes any callable
    _Base = object

Cost = Callable[[fx.Node], float]


def roofline(flops: float = 5e13, bandwidth: float = 4e12) -> Cost:
    """Seconds of a node by its work and its bytes, for a device of these rates per second."""

    def seconds(node: fx.Node) -> float:
        moved = sum(map(_bytes, (node, *node.all_input_nodes)))
        packet = getattr(node.target, "overloadpacket", None)
        work = 0.0
        if packet in flop_registry:
            values = fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
            out = node.meta["val"]
            work = float(flop_registry[packet](*values[0], **values[1], out_val=out))
        return max(work / flops, moved / bandwidth)

    return seconds


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.itemsize if isinstance(value, Tensor) else 0


class Solver(_Base):
    """For `activation_memory_budget_solver`. cost: seconds to compute a node again.

    `last` has the seconds to be recomputed and the bound of the last call. Raises
    planner.model.NoPlan.
    """

    def __init__(self, cost: Cost | None = None, seconds: float = 20.0, gap: float = 0.001) -> None:
        self._cost = cost or roofline()
        self._limits = seconds, gap
        self.last: tuple[float, float] = (0.0, 0.0)

    def __call__(
        self, memory: Sequence[float], joint_graph: fx.Graph, max_memory: float, node_info: Any,
        all_recomputable_banned_nodes: Sequence[fx.Node],
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """Indices of values that are saved, and of those that may be made again."""
        items = {node: index for index, node in enumerate(all_recomputable_banned_nodes)}
        needed = _needed(joint_graph, node_info.is_required_fw)
        model = Model()
        saved = {node: model.binary() for node in items}
        again = {node: model.number(1e6 * self._cost(node), 0, 1) for node in needed}
        model.row({saved[node]: memory[index] for node, index in items.items()}, high=max_memory)
        for node in needed:
            for user in node.users:
                if user in again:  # made again, so it needs this one, saved or made again too
                    row = {again[node]: 1.0, again[user]: -1.0}
                elif user.op != "output" and not node_info.is_required_fw(
                    user
                ):  # backward reads it
                    row = {again[node]: 1.0}
                else:
                    continue
                if node in saved:
                    row[saved[node]] = 1.0
                model.row(row, low=0.0 if user in again else 1.0)
        found = model.solve(*self._limits)
        self.last = found.objective / 1e6, found.bound / 1e6
        chosen = [index for node, index in items.items() if found.on(saved[node])]
        return chosen, sorted(set(items.values()) - set(chosen))

    def uuid(self) -> None:
        """Nothing that PyTorch may keep compiled code by."""


def _needed(graph: fx.Graph, forward: Callable[[fx.Node], bool]) -> list[fx.Node]:
    """Nodes of the forward that could be made again: those that the backward may need."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function" or not forward(node):
            continue
        if any(user in found or not forward(user) for user in node.users if user.op != "output"):
            found.add(node)
    return [node for node in graph.nodes if node in found]

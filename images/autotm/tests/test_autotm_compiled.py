"""Our solver in `torch.compile`: within the budget, no worse than any other choice."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import autotm_networks
import pytest
import torch
import torch._functorch.config as functorch
from autotm.compiled import Solver, roofline
from torch import fx, nn

LOSS = nn.functional.cross_entropy


def chain() -> tuple[fx.Graph, list[fx.Node], set[str]]:
    """x -> a -> b -> c -> d, e of a and c; the backward reads b, d and e."""
    graph = fx.Graph()
    nodes = {"x": graph.placeholder("x")}
    for name, inputs in (("a", "x"), ("b", "a"), ("c", "b"), ("d", "c"), ("e", "ac")):
        args = tuple(nodes[each] for each in inputs)
        nodes[name] = graph.call_function(torch.add, args, name=name)
    back = [graph.call_function(torch.neg, (nodes[name],), name=f"g{name}") for name in "bde"]
    graph.output(tuple(back))
    return graph, [nodes[name] for name in "abcde"], {node.name for node in back} | {"output"}


COSTS = {"a": 5.0, "b": 1.0, "c": 4.0, "d": 2.0, "e": 1.0}
SIZES = {"a": 3.0, "b": 2.0, "c": 3.0, "d": 1.0, "e": 2.0}


def spent(nodes: list[fx.Node], saved: set[str], backward: set[str]) -> float:
    """Seconds to make again all that the backward needs and nobody saved."""
    made: set[str] = set()

    def make(node: fx.Node) -> None:
        if node.op == "placeholder" or node.name in saved or node.name in made:
            return
        made.add(node.name)
        for each in node.all_input_nodes:
            make(each)

    for node in nodes:
        if any(user.name in backward for user in node.users):
            make(node)
    return sum(COSTS[name] for name in made)


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 4, 5, 6, 8, 11])
def test_the_best_of_all_choices(budget: float) -> None:
    graph, nodes, backward = chain()
    info = SimpleNamespace(is_required_fw=lambda node: node.name not in backward)
    solver = Solver(lambda node: COSTS[node.name], gap=0.0)
    memory = [SIZES[node.name] for node in nodes]
    chosen, again = solver(memory, graph, budget, info, nodes)
    assert sorted(chosen + again) == list(range(5))
    assert sum(memory[index] for index in chosen) <= budget
    got = spent(nodes, {nodes[index].name for index in chosen}, backward)
    choices = (set(some) for count in range(6) for some in combinations("abcde", count))
    best = min(
        spent(nodes, some, backward)
        for some in choices
        if sum(SIZES[name] for name in some) <= budget
    )
    assert got == best == pytest.approx(solver.last[0])


def test_a_compiled_network_trains_with_it() -> None:
    module, sample = autotm_networks.network("residual")
    want = LOSS(module(sample[0]), sample[1])
    want.backward()
    grads = [each.grad.clone() for each in module.parameters()]
    module, sample = autotm_networks.network("residual")
    solver = Solver(roofline(1e11, 1e10))
    torch.compiler.reset()
    patch = {"activation_memory_budget": 0.3, "activation_memory_budget_solver": solver}
    with functorch.patch(patch):
        compiled = torch.compile(lambda x, y: LOSS(module(x), y), backend="aot_eager")
        loss = compiled(*sample)
        loss.backward()
    torch.compiler.reset()
    assert solver.last[0] > 0
    torch.testing.assert_close(loss, want)
    for mine, other in zip(module.parameters(), grads, strict=True):
        torch.testing.assert_close(mine.grad, other)

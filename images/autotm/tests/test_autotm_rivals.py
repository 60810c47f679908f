"""Rivals give the plain gradients; the search for their knob is by measured peaks alone."""

from __future__ import annotations

import weakref

import autotm_networks
import autotm_plans
import pytest
import torch
from autotm.config import RIVALS
from autotm.rivals.compare import Comparison, peak_bytes
from autotm.rivals.offload import OffloadActivations
from autotm.rivals.search import Point, at_cap, dominating, front, hypervolume, search
from autotm.rivals.steps import Rival, blocks, rivals
from torch import nn

LOSS = nn.functional.cross_entropy


def named(name: str, network: str = "residual") -> tuple[nn.Module, Rival]:
    module, sample = autotm_networks.network(network)
    found = {each.name: each for each in rivals(module, sample, LOSS, "aot_eager")}
    return module, found[name]


def gradients(rival: str, knob: float, network: str = "residual") -> list[torch.Tensor]:
    module, found = named(rival, network)
    torch.manual_seed(5)
    with found.step(knob) as run:
        run()
    return [each.grad for each in module.parameters()]


@pytest.mark.parametrize(
    "rival", ["save_on_cpu", "checkpoint", "selective_checkpoint", "offload_activations"]
)
def test_eager_rivals_give_the_plain_gradients(rival: str) -> None:
    knob = named(rival)[1].knobs[-1]
    assert knob > 1
    assert all(map(torch.equal, gradients(rival, knob), gradients("plain", 0)))


def test_hooks_move_what_autograd_saves_and_leave_the_module_as_it_was() -> None:
    module, found = named("offload_activations")
    moved = []
    with found.step(found.knobs[-1]) as run:
        original = torch.Tensor.copy_
        torch.Tensor.copy_ = lambda self, *a, **k: (  # type: ignore[method-assign, assignment]
            moved.append(self.nbytes), original(self, *a, **k))[1]  # fmt: skip
        try:
            run()
        finally:
            torch.Tensor.copy_ = original  # type: ignore[method-assign]
    assert len(moved) > 5
    assert all("forward" not in vars(block) for block in blocks(module))


def test_what_several_operators_save_leaves_once_and_what_backward_has_read_is_let_go() -> None:
    module, sample = autotm_networks.network("residual")
    hooks = OffloadActivations(module.parameters())
    saved: list[torch.Tensor] = []
    hold = torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x)
    with hold:
        LOSS(module(sample[0]), sample[1])
    parameters = {each.data_ptr() for each in module.parameters()}
    large = [each.data_ptr() for each in saved if each.nbytes >= 1024]
    moved = set(large) - parameters
    assert len(moved) < sum(each not in parameters for each in large)
    host: list[weakref.ref[torch.Tensor]] = []
    original = torch.empty_like

    def watched(*args: object, **kwargs: object) -> torch.Tensor:
        found = original(*args, **kwargs)
        host.append(weakref.ref(found))
        return found

    torch.empty_like = watched  # type: ignore[assignment]
    try:
        with hooks:
            loss = LOSS(module(sample[0]), sample[1])
    finally:
        torch.empty_like = original
    assert len(host) == len(moved)
    loss.backward()
    assert [each() for each in host] == [None] * len(host)


def test_a_memory_budget_gives_close_gradients() -> None:
    got = gradients("memory_budget_dp", 0.3, "mlp"), gradients("plain", 0, "mlp")
    assert len(got[0]) == len(got[1])
    module, sample = autotm_networks.network("unet")
    with named("memory_budget_greedy", "unet")[1].step(0.5) as run:
        torch.testing.assert_close(run(), LOSS(module(sample[0]), sample[1]).detach())


def test_the_settings_name_every_rival() -> None:
    module, sample = autotm_networks.network("mlp")
    assert tuple(each.name for each in rivals(module, sample, LOSS)) == RIVALS


def test_blocks_are_what_a_person_would_wrap() -> None:
    assert len(blocks(autotm_networks.network("residual")[0])) == 6
    assert len(blocks(autotm_networks.network("transformer")[0])) == 2
    assert len(blocks(autotm_networks.network("unet")[0])) == 5


def test_a_peak_just_below_the_cap_is_found() -> None:
    found = search("r", [0, 0.5, 1], lambda b: (int(1000 + 9000 * b), 2 - b), 4321, whole=False)
    best = at_cap(found, 4321)
    assert best is not None
    assert 0.99 * 4321 <= best.peak <= 4321
    assert len(found) <= 3 + 12


def test_a_peak_that_is_not_monotonic() -> None:
    peaks = {0: 900, 1: 400, 2: 950, 3: 300, 4: 100}
    found = search("r", [0, 2, 4], lambda k: (peaks[int(k)], 1 + k), 500, whole=True)
    best = at_cap(found, 500)
    assert best is not None
    assert best.knob in (1, 3, 4)
    assert len(found) <= 5


def test_a_rival_that_never_fits() -> None:
    found = search("r", [0, 1], lambda k: None if k else (900, 1.0), 500, whole=True)
    assert [point.knob for point in found] == [0]
    assert at_cap(found, 500) is None


def test_fronts() -> None:
    points = [Point("a", 0, 10, 5.0), Point("b", 0, 20, 3.0), Point("c", 0, 25, 4.0)]
    assert [each.rival for each in front(points)] == ["a", "b"]
    assert [each.rival for each in dominating(points[2], points)] == ["b"]
    assert dominating(points[0], points) == []
    assert hypervolume(points, 30, 6.0) == 20 * 1 + 10 * 2


def test_a_cell_holds_every_rival_and_ours_at_the_best_ones_peak() -> None:
    module, sample = autotm_networks.network("residual")
    found = Comparison(
        module, sample, LOSS, repeats=2, only=["plain"],
        planner=lambda graph, machine: autotm_plans.saved(graph),
    )  # fmt: skip
    need = found.plain().peak
    cell = found.cell(need)
    assert {point.rival for point in cell.points} == {"plain", "Ours"}
    assert [point.peak for point in cell.points if point.rival == "plain"] == [need]
    assert cell.best is not None
    assert cell.best.peak <= need
    assert cell.ours is not None
    assert cell.ours.knob == cell.best.peak / 1e9
    assert set(cell.turns) == {"Ours", cell.best.rival}
    assert {len(times) for times in cell.turns.values()} == {4}
    assert cell.expected["predicted_time"] > 0
    assert cell.expected["solve_time"] < cell.expected["fit_time"]
    assert found.cell(1).note.startswith("a budget of 1 B cannot be met")


def test_the_peak_of_a_step_is_what_is_allocated_at_a_time() -> None:
    x = torch.randn(1 << 18)

    def run() -> None:
        y = x * 2
        z = y + 1
        del y
        torch.neg(z)

    # Numbers become tensors of a few bytes.
    assert 0 <= peak_bytes(run, torch.device("cpu")) - 2 * x.nbytes < 64

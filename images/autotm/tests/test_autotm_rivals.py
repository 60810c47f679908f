"""Rivals give the plain gradients; the search for their knob is by measured peaks alone."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import autotm_networks
import autotm_plans
import pytest
import torch
from autotm.config import RIVALS
from autotm.executor import outside
from autotm.executor.arena import arena_graph
from autotm.executor.capture import capture
from autotm.executor.errors import AutotmError, BudgetError
from autotm.fitting import Timed, timed
from autotm.graph import Graph, Machine, Plan
from autotm.networks.modules import module as trained
from autotm.planner.apart import plan_apart
from autotm.planner.model import NoPlan
from autotm.planner.ours import plan
from autotm.rivals import compare, steps
from autotm.rivals.base import Rival, Run, blocks, wrapped
from autotm.rivals.cell import OURS, Cell
from autotm.rivals.compare import Comparison
from autotm.rivals.measuring import peak_bytes
from autotm.rivals.offload import Counted, OffloadActivations
from autotm.rivals.search import (
    Point,
    at_cap,
    search,
    thinned,
)
from autotm.rivals.selective import Result, chosen, observed
from autotm.rivals.steps import rivals
from torch import nn
from torch._functorch._activation_offloading import activation_offloading as passes

LOSS = nn.functional.cross_entropy
CPU = torch.device("cpu")
compiles = pytest.mark.filterwarnings("ignore:::torch[.]")  # what PyTorch says of its own code


def named(
    name: str, network: str = "residual", form: str | None = None, backend: str = "aot_eager"
) -> tuple[nn.Module, Rival]:
    module, sample = autotm_networks.network(network)
    found = [each for each in rivals(module, sample, LOSS, backend) if each.name == name]
    return module, next(each for each in found if form is None or each.form == form)


def gradients(
    rival: str, knob: float, network: str = "residual", form: str | None = None
) -> list[torch.Tensor]:
    module, found = named(rival, network, form)
    torch.manual_seed(5)
    with found.step(knob) as run:
        run()
    return [each.grad for each in module.parameters()]


@pytest.mark.parametrize(
    "rival", ["save_on_cpu", "checkpoint", "selective_checkpoint", "offload_activations"]
)
def test_eager_rivals_give_the_plain_gradients(rival: str) -> None:
    knob = named(rival)[1].knobs[-1]
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
    assert all("forward" not in vars(each) for block in blocks(module) for each in block)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_a_share_of_what_is_saved_leaves(share: float) -> None:
    module, sample = autotm_networks.network("residual")
    keep = [*module.parameters(), *module.buffers()]
    every = OffloadActivations(keep)
    with every:
        LOSS(module(sample[0]), sample[1])
    some = OffloadActivations(keep, share * every.left)
    for _ in range(2):
        some.begin()
        with some:
            LOSS(module(sample[0]), sample[1]).backward()
        # Within the largest tensor.
        assert share * every.left - 32768 < some.left <= share * every.left
    got = gradients("offload_activations", share)
    assert all(map(torch.equal, got, gradients("plain", 0)))


@pytest.mark.parametrize("network", sorted(autotm_networks.NETWORKS))
def test_a_look_counts_what_would_leave_and_moves_nothing(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, sample = autotm_networks.network(network)
    every = OffloadActivations([*module.parameters(), *module.buffers()])
    with every:
        LOSS(module(sample[0]), sample[1])
    moved: list[int] = []
    original = OffloadActivations._leave
    monkeypatch.setattr(
        OffloadActivations, "_leave",
        lambda self, tensor, source: moved.append(tensor.nbytes) or original(self, tensor, source),
    )  # fmt: skip
    looks: list[Counted] = []
    monkeypatch.setattr(steps, "Counted", lambda keep: looks.append(Counted(keep)) or looks[0])
    with named("offload_activations", network)[1].step(1.0) as run:
        assert moved == []
        run()
    assert moved == looks[0].sizes
    assert sum(moved) == looks[0].left == every.left


def test_views_with_gaps_leave_as_their_whole_storage_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host would gather and scatter their elements one by one."""
    moved: list[torch.Tensor] = []
    original = OffloadActivations._leave
    monkeypatch.setattr(
        OffloadActivations, "_leave",
        lambda self, tensor, source: moved.append(tensor) or original(self, tensor, source),
    )  # fmt: skip
    weight = torch.randn(64, 3, 64, requires_grad=True)

    def step() -> torch.Tensor:
        joint = weight * 2
        queries, keys, values = joint.unbind(1)
        loss = ((queries * keys).tanh() * values.t().t().expand(2, 64, 64)).sum()
        (found,) = torch.autograd.grad(loss, weight)
        return found

    want = step()
    with OffloadActivations([weight]):
        got = step()
    assert torch.equal(got, want)
    sizes = sorted(each.nbytes for each in moved)
    assert sizes == [64 * 64 * 4, 64 * 3 * 64 * 4]  # the result of tanh; all three, once
    assert all(each.is_contiguous() for each in moved)


def test_a_look_lets_go_of_what_it_has_counted() -> None:
    module, sample = autotm_networks.network("deep")

    def peak(hooks: AbstractContextManager[None]) -> int:
        with hooks:
            return peak_bytes(lambda: LOSS(module(sample[0]), sample[1]), CPU)

    assert peak(Counted(module.parameters())) < 0.5 * peak(nullcontext())


def test_what_the_host_has_no_room_for_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's pinned memory comes in powers of two."""
    module, sample = autotm_networks.network("residual")
    look = Counted([*module.parameters(), *module.buffers()])
    with look:
        LOSS(module(sample[0]), sample[1])
    needed = sum(2 ** (size - 1).bit_length() for size in look.sizes)
    assert look.left < needed == look.host_bytes(look.left)
    assert look.host_bytes(0) == 0
    found = Comparison(module, sample, LOSS, only=["offload_activations"])
    rival = found.rivals["offload_activations", ""]
    monkeypatch.setattr(outside, "_host_room", lambda: needed - 1)
    assert found.measured(rival, 1.0) is None
    assert found.failed == {}  # it is memory that is not there, and another knob may do
    assert found.measured(rival, 0.25) is not None
    monkeypatch.setattr(outside, "_host_room", lambda: needed)
    with rival.step(1.0) as run:
        run()


def test_what_the_host_has_no_room_for_is_not_saved_there(monkeypatch: pytest.MonkeyPatch) -> None:
    module, sample = autotm_networks.network("residual")
    count, sizes = len(blocks(module)), []  # bytes of each tensor that a block saves

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    seen = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with wrapped(blocks(module)[:count], steps._within(seen)):
        LOSS(module(sample[0]), sample[1])
    needed = sum(2 ** (size - 1).bit_length() for size in sizes)
    found = Comparison(module, sample, LOSS, only=["save_on_cpu"])
    rival = found.rivals["save_on_cpu", ""]
    monkeypatch.setattr(outside, "_host_room", lambda: needed - 1)
    assert found.measured(rival, count) is None
    assert found.failed == {}
    assert found.measured(rival, 0.0) is not None
    monkeypatch.setattr(outside, "_host_room", lambda: needed)
    with rival.step(count) as run:
        run()


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


def saved_bytes(rival: Rival, module: nn.Module, knob: float) -> int:
    """What the forward of a step hands over to its backward, but for parameters and buffers."""
    own = {each.untyped_storage()._cdata for each in (*module.parameters(), *module.buffers())}
    held: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with rival.step(knob) as run:
        run()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            run()
    return sum(each.untyped_storage().nbytes() for key, each in held.items() if key not in own)


@compiles
def test_a_memory_budget_bounds_what_passes_to_the_backward() -> None:
    module, found = named("memory_budget_dp", form="whole")
    least, most = (saved_bytes(found, module, knob) for knob in (0.0, 1.0))
    assert least < most
    assert saved_bytes(found, module, 0.5) <= least + 0.5 * (most - least)


@compiles
def test_a_memory_budget_lowers_the_peak_when_each_block_has_its_own() -> None:
    peaks = {}
    for name, form in (
        ("plain", ""),
        ("memory_budget_dp", "whole"),
        ("memory_budget_dp", "blocks"),
    ):
        module, found = named(name, "deep", form)
        with found.step(found.knobs[0]) as run:
            run()
            module.zero_grad()
            peaks[form] = peak_bytes(run, CPU)
    # Of one whole graph, the backward makes all of the forward again at once.
    assert peaks["blocks"] < 0.75 * peaks[""] < peaks["whole"]


@compiles
@pytest.mark.parametrize("form", ["whole", "blocks"])
def test_a_memory_budget_gives_close_gradients(form: str) -> None:
    pairs = zip(
        gradients("memory_budget_greedy", 0.3, form=form), gradients("plain", 0), strict=True
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs)


@compiles
def test_a_form_that_cannot_be_compiled_says_so_and_another_is_the_rival() -> None:
    module, sample = autotm_networks.network("mlp")
    found = Comparison(module, sample, LOSS, repeats=1, only=["activation_offloading"])
    assert [form for _, form in found.rivals] == ["streams", "one_stream", "streams_uncompiled"]
    got = {form: found.measured(each, 1.0) for (_, form), each in found.rivals.items()}
    assert got["one_stream"] is not None
    # Inductor's streams are CUDA's: on a CPU they fail for real.
    assert got["streams"] is None
    assert "CUDA" in found.failed["activation_offloading", "streams", 1.0]
    assert [point.form for point in found.points()][:1] == ["one_stream"]
    # One knob that fails is not the end of its form; two are.
    streams = found.rivals["activation_offloading", "streams"]
    assert found.measured(streams, 0.0) is not None
    assert [found.measured(streams, knob) for knob in (0.875, 0.75)] == [None, None]
    failed = [knob for _, form, knob in found.failed if form == "streams"]
    assert failed == [1.0, 0.875]  # the third was not tried


@compiles
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_what_is_tagged_leaves_the_graph(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    original = passes.offload_chosen_sets
    monkeypatch.setattr(
        passes, "offload_chosen_sets",
        lambda forward, *a, **k: moved.extend(
            node.name for node in forward.graph.nodes if node.meta.get("saved_for_offloading")
        ) or original(forward, *a, **k),
    )  # fmt: skip
    counts = {}
    for knob in (0.0, 1.0):
        moved.clear()
        with named("activation_offloading", "mlp", "one_stream", backend)[1].step(knob) as run:
            run()
        counts[knob] = len(moved)
    assert counts[0.0] == 0 < counts[1.0]


def test_a_knapsack_keeps_what_is_dearest_for_its_bytes() -> None:
    first = [Result(4, [3.0]), Result(0, [9.0]), Result(2, [2.0])]
    assert chosen([first, [Result(2, [2.5])]], 0.5) == [{2}, {0}]
    assert chosen([first, [Result(2, [2.5])]], 0.0) == [set(), set()]
    assert chosen([first, [Result(2, [2.5])]], 1.0) == [{0, 2}, {0}]


@pytest.mark.parametrize("network", ["residual", "transformer", "unet"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_selective_checkpoint_keeps_its_share_and_gives_the_plain_gradients(
    network: str, share: float
) -> None:
    got = gradients("selective_checkpoint_ilp", share, network)
    assert all(map(torch.equal, got, gradients("plain", 0, network)))
    module, sample = autotm_networks.network(network)
    before = [each.clone() for each in module.buffers()]
    results = observed(module, sample, LOSS)
    assert all(map(torch.equal, before, module.buffers()))
    kept = sum(
        own[each].bytes
        for own, those in zip(results, chosen(results, share), strict=True)
        for each in those
    )
    total = sum(each.bytes for own in results for each in own)
    assert kept <= share * total
    assert kept > 0 or not share


def test_the_settings_name_every_rival() -> None:
    module, sample = autotm_networks.network("mlp")
    found = rivals(module, sample, LOSS)
    assert tuple(dict.fromkeys(each.name for each in found)) == RIVALS
    assert len({(each.name, each.form) for each in found}) == len(found)


def test_blocks_are_what_a_person_would_wrap() -> None:
    residual = blocks(autotm_networks.network("residual")[0])
    assert [len(block) for block in residual] == [1, 1, 1, 2, 1]  # pool and flatten are one
    assert len(blocks(autotm_networks.network("transformer")[0])) == 2
    assert len(blocks(autotm_networks.network("unet")[0])) == 5
    layers = trained("vgg19_1", "meta")[0]
    assert [len(block) for block in blocks(layers)] == [7, 7, 7, 7, 7, 7, 1]
    assert [each for block in blocks(layers) for each in block] == list(layers)
    same = nn.ReLU()
    twice = nn.Sequential(nn.Linear(4, 4), same, nn.Linear(4, 4), same)  # no layer is left out
    assert [len(block) for block in blocks(twice)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "knob"), [("small-vgg", 1), ("small-vgg", 4), ("small-densenet", 99)]
)
def test_layers_that_are_wrapped_together_give_the_same_gradients_and_save_less(
    name: str, knob: int
) -> None:
    net, sample = trained(f"{name}_2", "cpu")

    def run(count: int) -> tuple[list[torch.Tensor], int]:
        saved = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor)
            return tensor

        net.zero_grad()
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            wrapped(blocks(net)[:count], steps._again),
        ):
            loss = LOSS(net(sample[0]), sample[1])
        kept = {each.data_ptr(): each.nbytes for each in saved}
        loss.backward()
        return [each.grad for each in net.parameters()], sum(kept.values())

    want, most = run(0)
    found, less = run(knob)
    assert all(map(torch.equal, found, want))
    assert less < most


def test_a_peak_just_below_the_cap_is_found() -> None:
    found = search("r", [0, 0.5, 1], lambda b: (int(1000 + 9000 * b), 2 - b), 4321, whole=False)
    best = at_cap(found, 4321)
    assert best is not None
    assert 0.99 * 4321 <= best.peak <= 4321
    assert len(found) <= 3 + 12


@pytest.mark.parametrize(("bend", "tries"), [(1.0, 1), (3.0, 3), (0.5, 5)])
def test_few_knobs_are_tried_on_the_way_to_a_peak(bend: float, tries: int) -> None:
    grid = tuple(share / 8 for share in range(9))
    for cap in range(150, 1000, 7):
        found = search("r", grid, lambda k: (int(1000 - 900 * k**bend), 1 + k), cap, whole=False)
        best = at_cap(found, cap)
        assert best is not None
        assert 0.98 * cap <= best.peak <= cap
        assert len(found) <= len(grid) + tries


def test_a_peak_that_is_not_monotonic() -> None:
    peaks = {0: 900, 1: 400, 2: 950, 3: 300, 4: 100}
    found = search("r", [0, 2, 4], lambda k: (peaks[int(k)], 1 + k), 500, whole=True)
    best = at_cap(found, 500)
    assert best is not None
    assert best.knob in (1, 3, 4)
    assert len(found) <= 5


def test_fewer_knobs_are_the_ends_and_some_between() -> None:
    assert thinned((0, 1, 2, 3, 4, 5, 6, 7, 8), 3) == (0, 4, 8)
    assert thinned((0, 1, 2), 5) == (0, 1, 2)
    assert thinned((0, 0.5, 1), 2) == (0, 1)


def test_a_rival_that_never_fits() -> None:
    found = search("r", [0, 1], lambda k: None if k else (900, 1.0), 500, whole=True)
    assert [point.knob for point in found] == [0]
    assert at_cap(found, 500) is None


def test_a_search_ends_at_a_point_that_is_enough() -> None:
    def enough(point: Point) -> bool:
        return point.peak <= 500

    grid = search("r", [0, 2, 4], lambda k: (900 - 100 * int(k), 1.0), 500, whole=True,
                  enough=enough)  # fmt: skip
    assert [point.knob for point in grid] == [4]  # the last one saves the most, and is first
    peaks = {0: 900, 8: 510, 4: 700, 6: 505, 7: 400}
    between = search("r", [0, 4, 8], lambda k: (peaks[int(k)], 1.0) if k != 8 else None, 800,
                     whole=True, enough=lambda point: point.peak == 505)  # fmt: skip
    assert [point.knob for point in between] == [0, 4, 6]  # 7 was not tried


def point(peak: int, seconds: float) -> Point:
    return Point("b", 0, peak, seconds)


def test_a_rivals_fastest_smaller_point_dominates_when_it_is_faster_in_turns() -> None:
    """What it took minutes before, alone, only says which point to time in turns."""
    ours, large = Point(OURS, 0, 25, 4.0), point(26, 1.0)
    fast, slow = point(20, 3.0), point(10, 5.0)
    cell = Cell(26, "checkpoint", points=[slow, ours, large, fast])
    assert cell.smaller == fast
    assert not cell.dominated  # not yet timed
    cell.against = {OURS: [4.0, 4.2, 4.1], "b": [4.0, 4.3, 9.0]}
    assert not cell.dominated
    cell.against = {OURS: [4.0, 4.2, 4.1], "b": [4.0, 3.3, 9.0]}
    assert cell.dominated
    near = point(25, 1.0)  # none is smaller
    assert Cell(26, "checkpoint", points=[ours, large, near]).smaller is None
    assert Cell(26, "checkpoint", points=[slow]).smaller is None  # ours is not there


def test_ours_runs_in_turns_with_the_rivals_fastest_smaller_point() -> None:
    module, sample = autotm_networks.network("residual")
    found = Comparison(module, sample, LOSS, only=["plain", "checkpoint"], repeats=2, most=2,
                       planner=lambda graph, machine: autotm_plans.mixed(graph))  # fmt: skip
    [cell] = found.cells([found.plain().peak], "checkpoint")
    print([(each.rival, each.knob, each.peak, each.seconds) for each in cell.points])
    assert cell.smaller is not None
    lengths = {name: len(times) for name, times in cell.against.items()}
    assert lengths == {OURS: 4, "checkpoint": 4}


def with_mixed_plan() -> Comparison:
    """The plain run alone as a rival, and a plan of ours that keeps, makes again and moves."""
    module, sample = autotm_networks.network("residual")
    return Comparison(
        module, sample, LOSS, repeats=2, only=["plain"],
        planner=lambda graph, machine: autotm_plans.mixed(graph),
    )  # fmt: skip


def test_a_cell_holds_a_rival_and_ours_at_its_best_peak() -> None:
    found = with_mixed_plan()
    need = found.plain().peak
    [cell] = found.cells([need], "plain")
    assert {point.rival for point in cell.points} == {"plain", "Ours"}
    assert [point.peak for point in cell.points if point.rival == "plain"] == [need]
    assert cell.best is not None
    assert cell.best.peak <= need
    assert cell.ours is not None
    assert cell.ours.knob == cell.best.peak / 1e9
    assert set(cell.turns) == {OURS, cell.best.rival}
    assert {len(times) for times in cell.turns.values()} == {4}  # A B B A, twice
    assert [each.rival for each in found.points()] == ["plain"]
    assert cell.expected["predicted_time"] > 0
    assert cell.expected["solve_time"] < cell.expected["fit_time"]
    # What one cap lacks is no loss of the next.
    small, large = found.cells([1, need], "plain")
    assert small.note.startswith("a budget of 0 B cannot be met")
    assert (small.ours, large.note) == (None, "")
    assert (small.empty, large.empty) == (True, False)


def test_beside_the_plain_step_ours_has_the_cap_itself() -> None:
    found = with_mixed_plan()
    need = found.plain().peak
    [cell] = found.cells([need - 1], "plain")
    assert cell.best is None
    assert cell.ours is not None
    assert cell.ours.knob == (need - 1) / 1e9
    assert set(cell.turns) == {OURS, "plain"}
    assert cell.closest == []


def test_a_rival_without_room_beside_our_arena_keeps_the_time_it_took_alone() -> None:
    """Some rivals run a forward before their step: that may be too much as well."""
    found = with_mixed_plan()
    need = found.plain().peak  # alone it has room, and is not run alone again

    @contextmanager
    def full(knob: float) -> Iterator[Run]:
        raise torch.OutOfMemoryError("there is no room")
        yield

    found.rivals["plain", ""] = replace(found.rivals["plain", ""], step=full)
    [cell] = found.cells([need], "plain")
    assert cell.note == ""
    assert cell.best is not None
    assert cell.turns["plain"] == [cell.best.seconds]
    assert len(cell.turns[OURS]) == 2


def test_a_cell_in_which_ours_has_no_room_says_so() -> None:
    module, sample = autotm_networks.network("residual")

    def full(graph: Graph, machine: Machine) -> Plan:
        raise torch.OutOfMemoryError("there is no room")

    found = Comparison(module, sample, LOSS, repeats=1, only=["plain"], planner=full)
    [cell] = found.cells([found.plain().peak], "plain")
    assert cell.note == "the device ran out of memory"
    assert [point.rival for point in cell.points] == ["plain"]
    assert not cell.dominated


def test_what_ours_has_no_plan_for_and_a_rival_trains_in_dominates_it() -> None:
    module, sample = autotm_networks.network("residual")

    def none(graph: Graph, machine: Machine) -> Plan:
        raise BudgetError("there is no plan", 0)

    found = Comparison(module, sample, LOSS, only=["plain", "checkpoint"], planner=none, most=2)
    need = found.plain().peak
    near, far = found.cells([need, 1], "checkpoint")
    assert (near.note, near.ours) == ("there is no plan", None)
    assert near.dominated
    assert far.note == "checkpoint does not reach this cap"
    assert not far.dominated  # nor does the rival train there
    assert (near.empty, far.empty) == (False, True)


def test_where_a_rival_does_not_reach_a_cap_ours_runs_beside_the_plain_step_alone() -> None:
    module, sample = autotm_networks.network("residual")
    budgets: list[int] = []

    def planner(graph: Graph, machine: Machine) -> Plan:
        budgets.append(machine.capacity)
        return autotm_plans.mixed(graph)

    found = Comparison(module, sample, LOSS, only=["plain", "checkpoint"], planner=planner, most=2)
    need = found.plain().peak
    least = min(point.peak for point in found.searched(found.rivals["checkpoint", ""], need))
    cells = list(found.cells([need, least - 1], "plain", "checkpoint"))
    print([(each.rival, each.cap, each.note, each.empty) for each in cells])
    assert [each.empty for each in cells] == [False, False, False, True]
    assert [each.ours is not None for each in cells] == [True, True, True, False]
    assert len(budgets) == 3


def test_where_a_rival_stays_far_below_a_cap_limits_suit_what_ours_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, sample = autotm_networks.network("residual")
    found = Comparison(module, sample, LOSS, only=["plain", "checkpoint"], most=2, repeats=1,
                       planner=lambda graph, machine: autotm_plans.mixed(graph))  # fmt: skip
    need, original, searched = found.plain().peak, Comparison._tune, []
    assert isinstance(found._timed, Timed)
    found._timed = replace(found._timed, widths=[*found._timed.widths] * 2)

    def tune(self: Comparison, cell: Cell) -> None:
        assert isinstance(self._timed, Timed)
        searched.append((self._timed.width, cell.cap))
        original(self, cell)

    # of two knobs that take the same time the first one counts, which needs what the plan has
    monkeypatch.setattr(compare, "seconds_of", lambda run, device: (run(), 1.0)[1])
    monkeypatch.setattr(
        Comparison, "_widths", lambda self, caps: [int(each <= need) for each in caps]
    )
    monkeypatch.setattr(Comparison, "_tune", tune)
    cells = list(found.cells([2 * need, need], "checkpoint"))
    assert searched == [(0, 2 * need), (1, need)]
    near, far = sorted(cells, key=lambda each: each.cap)
    assert (near.alone, far.alone) == (False, True)
    assert (near.note, far.note) == ("", "")
    assert far.best is not None
    assert far.turns["checkpoint"] == [far.best.seconds]  # with the limits that it had
    assert len(far.turns[OURS]) == 1
    assert len(near.turns["checkpoint"]) == 2


def test_a_rival_that_fails_keeps_its_points_and_is_not_taken_for_one_that_needs_more() -> None:
    module, sample = autotm_networks.network("residual")
    found = Comparison(module, sample, LOSS, only=["plain", "checkpoint"], most=2,
                       planner=lambda graph, machine: autotm_plans.mixed(graph))  # fmt: skip
    need, whole = found.plain().peak, found.rivals["checkpoint", ""]

    @contextmanager
    def weak(knob: float) -> Iterator[Run]:
        if knob == whole.knobs[-1]:
            raise ValueError("no such block")
        with whole.step(knob) as run:
            yield run

    found.rivals["checkpoint", ""] = replace(whole, step=weak)
    small, large = found.cells([1, need], "checkpoint")
    assert small.note == (
        "whether checkpoint reaches this cap is not known: ValueError: no such block"
    )
    assert (small.ours, small.empty) == (None, False)
    assert large.note == ""
    assert large.best is not None
    assert len(large.turns) == 2


def test_the_operators_are_timed_once_and_plans_are_made_before_any_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, sample = autotm_networks.network("residual")
    done: list[str] = []

    def planner(graph: Graph, machine: Machine) -> Plan:
        done.append("plan")
        return autotm_plans.mixed(graph)

    found = Comparison(module, sample, LOSS, only=["plain"], planner=planner, repeats=1)
    original = Comparison._turns
    monkeypatch.setattr(compare, "timed", lambda *a: done.append("timed") or timed(*a))
    monkeypatch.setattr(
        Comparison, "_turns", lambda self, *a: done.append("turns") or original(self, *a)
    )
    need = found.plain().peak
    assert [cell.note for cell in found.cells([need, need - 1, need - 2], "plain")] == [""] * 3
    assert done[:4] == ["timed", *["plan"] * 3]
    assert set(done[4:]) == {"turns"}
    assert len(done) >= 7  # again beside a smaller point


@pytest.mark.parametrize("capacity", [1 << 30, 1])
def test_a_plan_of_another_process_is_the_same(capacity: int) -> None:
    graph = arena_graph(capture(*autotm_networks.network("mlp"), LOSS).graph)
    machine = Machine(capacity, 1e9, 1e9)
    if capacity == 1:
        with pytest.raises(NoPlan, match="whatever is moved"):
            plan_apart(graph, machine, seconds=5.0, gap=0.01)
        return
    mine, other = (
        plan(graph, machine, seconds=5.0),
        plan_apart(graph, machine, seconds=5.0, gap=0.01),
    )
    assert (mine.steps, mine.stays) == (other.steps, other.stays)


def test_a_planner_that_dies_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = arena_graph(capture(*autotm_networks.network("mlp"), LOSS).graph)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(AutotmError, match="the planner's process failed: exit code 1"):
        plan_apart(graph, Machine(1 << 30, 1e9, 1e9), seconds=5.0, gap=0.01)


def test_the_peak_of_a_step_is_what_is_allocated_at_a_time() -> None:
    x = torch.randn(1 << 18)

    def run() -> None:
        y = x * 2
        z = y + 1
        del y
        torch.neg(z)

    # Numbers become tensors of a few bytes.
    assert 0 <= peak_bytes(run, CPU) - 2 * x.nbytes < 64

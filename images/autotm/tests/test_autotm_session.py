"""The executor: the bits of the plain run, for every plan, in an arena that is never left."""

from __future__ import annotations

import cProfile
import random
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import autotm
import autotm_networks
import autotm_plans
import pytest
import torch
from autotm.check import check
from autotm.executor import kernels, workspace
from autotm.executor.arena import arena_graph
from autotm.executor.calls import Call, Capture, views_of
from autotm.executor.capture import capture
from autotm.executor.handing import handing, joined, room
from autotm.executor.kernels import Kernel, kernel
from autotm.executor.lanes import CpuLanes
from autotm.executor.lossy import whole
from autotm.executor.outside import held_by, look, outside_of
from autotm.executor.profiling import Measured
from autotm.executor.program import Program, compile_plan
from autotm.executor.session import Session
from autotm.executor.trying import operands
from autotm.executor.workspace import placed
from autotm.graph import ENDS, OUTSIDE, Machine, Plan
from autotm.networks.modules import module
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

LOSS = nn.functional.cross_entropy
NAMES = sorted(autotm_networks.NETWORKS)
_CAPTURED: dict[str, Capture] = {}


def captured(name: str) -> Capture:
    if name not in _CAPTURED:
        module, sample = autotm_networks.network(name)
        _CAPTURED[name] = handing(capture(module, sample, LOSS))
    return _CAPTURED[name]


def by_hand(name: str, iterations: int = 2) -> tuple[list[torch.Tensor], nn.Module]:
    """Losses and the module after plain iterations; the gradients of the last are in it."""
    module, sample = autotm_networks.network(name)
    losses = []
    torch.manual_seed(7)
    for _ in range(iterations):
        module.zero_grad()
        loss = whole(module, LOSS, sample)
        loss.backward()
        losses.append(loss.detach())
    return losses, module


def planned(name: str, plan: Plan, delay: object = None) -> tuple[list[torch.Tensor], nn.Module]:
    """The same iterations by a session; nothing but the arena may hold activations."""
    found, program = captured(name), compiled(name, plan)
    module, sample = autotm_networks.network(name)
    lanes = CpuLanes(program.arena_bytes, program.host_bytes, delay)  # type: ignore[arg-type]
    lanes.arena.fill_(0xFF)  # NaN, wherever something is read before it is written
    lanes.host.fill_(0xFF)
    session = Session(found, program, lanes)
    losses = []
    torch.manual_seed(7)
    tangent = next(t for t, (role, _) in found.roles.items() if role == "tangent")
    for _ in range(2):
        found_now = session.forward(outside_of(found, held_by(module), sample))
        losses.append(look(found_now[found.loss.tensor], found.loss).clone())
        for buffer, view in found.updates.items():
            module.get_buffer(buffer).copy_(look(found_now[view.tensor], view))
        found_now = session.backward({tangent: torch.ones(())})
        for parameter, view in found.gradients.items():
            module.get_parameter(parameter).grad = look(found_now[view.tensor], view).clone()
    session.close()
    return losses, module


def compiled(name: str, plan: Plan) -> Program:
    found = captured(name)
    graph = arena_graph(found.graph)
    assert check(graph, Machine(plan.peak_bytes, 1e9, 1e9), plan).peak_bytes == plan.peak_bytes
    return compile_plan(found, graph, plan)


def assert_same(
    got: tuple[list[torch.Tensor], nn.Module], want: tuple[list[torch.Tensor], nn.Module]
) -> None:
    assert all(map(torch.equal, got[0], want[0]))
    for (name, mine), theirs in zip(got[1].named_parameters(), want[1].parameters(), strict=True):
        assert mine.grad is not None, name
        assert torch.equal(mine.grad, theirs.grad), name
    for (name, mine), theirs in zip(got[1].named_buffers(), want[1].buffers(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("kind", autotm_plans.KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_losses_and_buffers_are_those_of_the_plain_run(name: str, kind: str) -> None:
    plan = autotm_plans.KINDS[kind](arena_graph(captured(name).graph))
    moved = sum(stay.saved is not None for stay in plan.stays)
    again = len(plan.steps) - len(captured(name).graph.ops)
    assert (moved > 0) == (kind in ("offload", "both"))
    assert again > 0 or kind not in ("recompute", "both")
    assert_same(planned(name, plan), by_hand(name))


class _Spoiled:
    """In place of a region: what lies in its bytes is gone when an operator begins and ends."""

    def __init__(self, lanes: CpuLanes, address: int, size: int) -> None:
        self._bytes, self.count = lanes.arena[address : address + size], 0

    def __enter__(self) -> None:
        self._bytes.fill_(0xFF)
        self.count += 1

    def __exit__(self, *error: object) -> None:
        self._bytes.fill_(0xFF)

    def over(self) -> None:
        self._bytes.fill_(0xFF)


@pytest.mark.parametrize("kind", autotm_plans.KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_lies_where_an_operator_has_its_workspace(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "LEAST", 0)
    regions: list[_Spoiled] = []

    def region(lanes: CpuLanes, address: int, size: int) -> _Spoiled:
        regions.append(_Spoiled(lanes, address, size))
        return regions[-1]

    monkeypatch.setattr(CpuLanes, "region", region)
    before = captured(name)
    most = before.graph.peak_bytes
    times = [Measured(0.0, 0, room=(n % 3) * most // 4) for n in range(len(before.calls))]
    monkeypatch.setitem(_CAPTURED, name, found := placed(before, times))
    plan = autotm_plans.KINDS[kind](arena_graph(found.graph))
    assert_same(planned(name, plan), by_hand(name))
    assert len(regions) == sum(op in found.rooms for op in plan.steps) > 0
    assert all(each.count == 2 for each in regions)  # iterations


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(NAMES))
def test_random_plans_with_copies_late_by_chance(seed: int, name: str) -> None:
    draw = random.Random(seed)
    rates = [draw.random() for _ in range(3)]
    plan = autotm_plans.Planner(
        arena_graph(captured(name).graph),
        lambda tensor, step: draw.choices(("keep", "drop", "save"), rates)[0],
        lambda tensor, most: draw.randint(0, most),
    ).plan()
    assert_same(planned(name, plan, lambda lane: draw.choice((0, 0, 0.002))), by_hand(name))


@pytest.mark.parametrize(
    ("net", "operator"), [("small-resnet", "_native_batch_norm"), ("small-gpt2", "stack")]
)
def test_what_can_be_written_in_place_is(net: str, operator: str) -> None:
    """A result that first lies elsewhere costs a copy of it, and room."""
    found = capture(*module(f"{net}_2", "cpu"), LOSS)
    inside = {each.id for each in found.graph.tensors if each.kind not in ENDS}
    every = [kernel(call, lambda view: view.tensor in inside, "cpu") for call in found.calls]
    mine = [each for each in every if f"aten.{operator}" in str(each.call.target)]
    assert mine
    assert all(each.direct and not each.outside for each in mine)


@pytest.mark.parametrize("known", [None, True, False])
def test_a_convolutions_gradient_in_parts_of_the_batch_has_the_same_bits_or_is_copied(
    known: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = capture(*module("small-vgg_7", "cpu"), LOSS)
    calls = [each for each in found.calls if "convolution_backward" in str(each.target)]
    assert calls[-1].outputs[0] is None  # the first layer's input has no gradient
    assert kernels._convolution_backward(calls[-1]) is None
    assert kernels._convolution_backward(calls[0]) is None  # it is small
    monkeypatch.setattr(kernels, "PART", 5_000)
    same = {} if known is None else {kernels._trial(calls[0]): known}
    monkeypatch.setattr(kernels, "_SAME", same)
    monkeypatch.setattr(kernels, "_PARTS", {kernels._trial(calls[0]): 5_000})
    partly = kernels._convolution_backward(calls[0])
    assert partly is not None
    torch.manual_seed(0)
    args = operands(calls[0].args, torch.device("cpu"), {}, frozenset())
    out = torch.empty_like(args[1])
    assert out.nbytes > 2 * 5_000
    want = calls[0].target(*args)
    for _ in range(2):
        out.fill_(float("nan"))
        got = partly([out], args, {})
        assert len(got) == 3
        torch.testing.assert_close(out, want[0])  # whether the bits are the same is found out
        assert torch.equal(got[1], want[1])
        assert known or torch.equal(out, want[0])
    kernels._PARTS.clear()  # nothing says that memory is scarce
    kernels._SAME.clear()
    partly([out], args, {})
    assert torch.equal(out, want[0])
    assert not kernels._SAME
    monkeypatch.setenv("AUTOTM_CONVOLUTION", "copied")
    assert kernels._convolution_backward(calls[0]) is None


def test_a_convolution_that_cannot_be_written_in_place_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_SAME", {})  # a GPU's tests know others
    found = capture(*module("small-vgg_2", "cpu"), LOSS)
    call = next(each for each in found.calls if "aten.convolution.def" in str(each.target))
    into = kernels._convolution(call)
    assert into is not None
    made = operands(call.args, torch.device("cpu"), {}, frozenset())
    want = call.target(*made)
    for _ in range(2):  # without a GPU there is no cuDNN: tried once, then known
        out = torch.full_like(want, float("nan"))
        into([out], made, {})
        assert torch.equal(out, want)
    assert list(kernels._SAME.values()) == [False]


def test_what_was_copied_into_the_arena_is_gone_when_the_next_step_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan counts results that lie elsewhere first with their own operator alone."""
    net, sample = module("small-resnet_2", "cpu")
    step = autotm.fit(
        net, sample, LOSS, budget="1GB", planner=lambda g, _: autotm_plans.KINDS["both"](g)
    )
    true, copied, counts = Kernel.run, [], []

    def run(
        self: Kernel, outs: Sequence[torch.Tensor | None], args: Sequence[Any], kwargs: Any
    ) -> list[Any] | None:
        assert [each for each in copied if each() is not None] == []
        results = true(self, outs, args, kwargs)
        pairs = zip(outs, results or outs, strict=True)
        copied[:] = [weakref.ref(b) for a, b in pairs if a is not None and a is not b]
        counts.append(len(copied))
        return results

    monkeypatch.setattr(Kernel, "run", run)
    step(*sample).backward()
    step.close()
    assert sum(counts) > 0


HANDED = {
    "conv": "native_batch_norm_backward", "norms": "native_batch_norm_backward",
    "residual": "native_batch_norm_backward", "transformer": "native_layer_norm_backward",
    "unet": "_unsafe_index_put",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_is_handed_on_takes_no_more_room_than_the_copies_did(name: str) -> None:
    """Beside the next operator, and beside one that is made again before that; that may be two that
    are joined, with what lies between them."""
    before = capture(*autotm_networks.network(name), LOSS)
    after = handing(before)
    handed = [each for each in after.graph.tensors if each.kind == "handed"]
    assert any(HANDED[name] in each.name for each in handed) if name in HANDED else not handed
    rooms = []
    for found in (before, after):
        inside = {each.id for each in found.graph.tensors if each.kind not in OUTSIDE}
        every = [kernel(call, lambda v, i=inside: v.tensor in i, "cpu") for call in found.calls]
        rooms.append(room(found, [Measured(0.0, each.outside) for each in every]))
    between = max((each.outside for each in every if joined(each)), default=0)
    assert rooms[1] <= rooms[0] + between + 512 * len(handed)  # of a block
    for each in handed:
        assert arena_graph(after.graph).tensors[each.id].bytes == 0
        [reader] = after.graph.uses[each.id]
        assert reader == after.graph.producer[each.id] + 1
        assert not any(after.graph.ops[op].recomputable for op in (reader - 1, reader))


def test_of_the_bytes_that_would_be_copied_most_are_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GB of a step of ResNet-200, by the graph, with convolutions written in place as on a GPU."""

    def on_a_gpu(call: Call, inside: Any, device: str) -> Kernel:
        found = kernel(call, inside, device)
        forward = call.target == torch.ops.aten.convolution.default
        return replace(found, outside=0) if forward else found

    monkeypatch.setattr("autotm.executor.handing.kernel", on_a_gpu)
    before = capture(*module("resnet200_64", "cpu"), LOSS)
    outside = []
    for found in (before, handing(before)):
        inside = {each.id for each in found.graph.tensors if each.kind not in OUTSIDE}
        every = [on_a_gpu(call, lambda v, i=inside: v.tensor in i, "cpu") for call in found.calls]
        copied = sum(each.outside for each in every if not joined(each))
        outside.append(round(copied / 1e9, 1))
    assert outside == [16.4, 0.4]


def test_what_was_handed_on_is_gone_when_its_reader_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, sample = autotm_networks.network("transformer")
    step = autotm.fit(net, sample, LOSS, budget="1GB", planner=lambda g, _: autotm_plans.kept(g))
    tensors = step.iteration.capture.graph.tensors
    handed = {each.id for each in tensors if each.kind == "handed"}
    true, given = Kernel.run, {}

    def run(self: Kernel, outs: Sequence[Any], args: Sequence[Any], kwargs: Any) -> Any:
        read = {view.tensor for view in views_of((self.call.args, self.call.kwargs))}
        assert {each for each, ref in given.items() if ref() is not None} == read & handed
        results = true(self, outs, args, kwargs)
        views = self.call.outputs
        for view, result in zip(views, results or views, strict=True):
            if view is not None and view.tensor in handed:
                given[view.tensor] = weakref.ref(result.untyped_storage())
        return results

    monkeypatch.setattr(Kernel, "run", run)
    step(*sample).backward()
    step.close()
    assert given.keys() == handed != set()
    assert not any(ref() for ref in given.values())


def test_parts_of_a_tensor_are_no_copies() -> None:
    found = capture(*module("small-gpt2_2", "cpu"), LOSS)
    assert not [call for call in found.calls if "unbind" in str(call.target)]


def test_the_work_around_the_operators_grows_with_their_number_alone() -> None:
    counts = []
    for depth in (4, 8):
        net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)), nn.Linear(4, 3))
        sample = torch.randn(2, 4), torch.randint(0, 3, (2,))
        step = autotm.fit(
            net, sample, LOSS, budget="1MB", planner=lambda graph, _: autotm_plans.kept(graph)
        )
        step(*sample).backward()
        seen = cProfile.Profile()
        seen.runcall(lambda step=step, sample=sample: step(*sample).backward())
        step.close()
        counts.append(sum(each.callcount for each in seen.getstats()) / len(step.fit.graph.ops))
    assert counts[1] <= 1.05 * counts[0]

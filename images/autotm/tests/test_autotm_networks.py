"""The paper's networks: kernels, footprints, and simulated losses that others found as well."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
from autotm.check import check
from autotm.cli import main
from autotm.graph import Graph, Kind, Machine, Op, Tensor
from autotm.networks.catalogue import build, footprint
from autotm.planner import ours, paper
from autotm.planner.formulations import TwoTiers
from autotm.planner.paper import REFINEMENTS, TOLERANCE, allocated, at_ratio, lowered
from autotm.sim.baselines import Pool, cached, first_touch
from autotm.sim.paging import BLOCK, managed
from autotm.sim.tiers import Gpu, Host, all_slow, timed_on_gpu, timed_on_host


@pytest.mark.parametrize(
    ("name", "kernels", "gigabytes", "share"),
    [
        ("vgg416_320", 2504, 658, 0.02),  # the artifact's large.jl
        ("inception_6144", 1096, 659, 0.02),
        ("resnet200_2560", 1752, 651, 0.02),
        ("densenet264_3072", 2644, 688, 0.02),
        ("vgg19_2048", 122, 136.5, 0.005),  # our own count
        ("resnet200_512", 1752, 130.1, 0.005),
    ],
)
def test_footprints(name: str, kernels: int, gigabytes: float, share: float) -> None:
    graph = build(name)
    assert len(graph.ops) == kernels
    assert footprint(graph).pool / 1e9 == pytest.approx(gigabytes, rel=share)


def test_vgg416_has_413_convolutions() -> None:
    assert sum(op.name == "conv" for op in build("vgg416_1").ops) == 413


def test_a_network_that_is_none() -> None:
    with pytest.raises(ValueError, match="no network 'alexnet_1'; fix:"):
        build("alexnet_1")


def test_a_convolution_has_the_work_of_its_shape() -> None:
    op = build("vgg19_2").ops[0]
    assert op.flops == 2.0 * 2 * 64 * 224 * 224 * 3 * 9


def test_simulated_tiers_are_ordered_as_the_paper_says() -> None:
    graph = timed_on_host(build("vgg19_2048"), Host())
    room = footprint(graph).pool // 5
    slow, numa = all_slow(graph), first_touch(graph, room)
    machine = Host().machine(room)
    static = TwoTiers(graph, machine, room, static=True).solve(60, 0.001).seconds
    moving = TwoTiers(graph, machine, room, static=False).solve(60, 0.001).seconds
    assert graph.seconds < moving < static < numa < slow
    # What an independent model of the same parameters gave: 1.8 for all PMM.
    assert slow / graph.seconds == pytest.approx(1.8, abs=0.06)
    less = TwoTiers(graph, machine, room // 2, static=False).solve(60, 0.001).seconds
    assert less > moving * 0.999


def test_first_touch_with_all_of_the_room_is_all_dram() -> None:
    graph = timed_on_host(build("vgg19_16"), Host())
    assert first_touch(graph, graph.peak_bytes * 2) == pytest.approx(graph.seconds)
    assert first_touch(graph, 0) == pytest.approx(all_slow(graph))


def test_a_cache_that_holds_everything_misses_nothing_the_second_time() -> None:
    graph = timed_on_host(build("vgg19_16"), Host())
    warm = cached(graph, Host(), 16 * 10**9)
    assert (warm.read, warm.written) == (0, 0)
    assert warm.seconds == pytest.approx(graph.seconds)
    assert cached(graph, Host(), 10**9).seconds > 1.1 * graph.seconds


def test_managed_memory_brings_the_pages_that_are_not_there_and_writes_back_what_was_written() -> (
    None
):
    kinds: tuple[Kind, ...] = ("input", "activation", "activation")
    tensors = tuple(Tensor(number, BLOCK, kind) for number, kind in enumerate(kinds))
    ops = (Op(0, "first", (0,), (1,), 1.0), Op(1, "second", (1,), (2,), 2.0))
    graph = Graph(tensors, ops)
    gpu = Gpu(link=float(BLOCK))  # a second for a page
    # Two pages of room: each iteration brings all three, and the two that were written go back.
    small = managed(graph, gpu, 2 * BLOCK, fault=0.25)
    assert (small.came, small.went) == (3 * BLOCK, 2 * BLOCK)
    assert small.seconds == pytest.approx(3.0 + 3 * 0.25 + 3 + 2)
    whole = managed(graph, gpu, 3 * BLOCK, fault=0.25)
    assert (whole.seconds, whole.came, whole.went) == (3.0, 0, 0)


def test_a_page_that_was_just_written_is_the_last_to_go() -> None:
    kinds: tuple[Kind, ...] = ("input", "input", "activation")
    tensors = tuple(Tensor(number, BLOCK, kind) for number, kind in enumerate(kinds))
    ops = (
        Op(0, "write", (0,), (2,), 0.0),
        Op(1, "read", (1, 2), (), 0.0),
        Op(2, "again", (2,), (), 0.0),
    )
    found = managed(Graph(tensors, ops), Gpu(link=float(BLOCK)), 2 * BLOCK, fault=0.0)
    assert (found.came, found.went) == (2 * BLOCK, 0)


def test_a_pool_gives_back_what_was_taken() -> None:
    pool = Pool(10)
    first, second, third = pool.take(4), pool.take(4), pool.take(4)
    assert (first, second, third) == (0, 4, None)
    pool.give(0, 4)
    assert pool.take(5) is None
    pool.give(4, 4)
    assert pool.take(10) == 0


@pytest.mark.parametrize("static", [True, False])
def test_a_ratio_is_met_by_the_pools(static: bool) -> None:
    graph, host = timed_on_host(build("vgg19_64"), Host()), Host()
    pool = footprint(graph).pool
    for ratio in (8.0, 4.0, 1.0):
        found = at_ratio(graph, host.machine(pool), pool, ratio, static=static, seconds=60)
        assert found.fits
        # What is asked for jumps from one placement to the next: one may end twice as far off.
        met = abs(found.ratio / ratio - 1) <= TOLERANCE
        assert met or found.refinements == REFINEMENTS
        assert found.ratio == pytest.approx(ratio, rel=2 * TOLERANCE)
        fast, slow = found.placement.lies(graph, host.machine(pool))
        live = [sum(b[2] for _, b in fast if b[0] <= n <= b[1]) for n in range(len(graph.ops))]
        assert max(live) <= found.fast <= found.room
        assert {t for t, _ in slow} | {t for t, _ in fast} == set(found.placement.fast)


def test_a_retry_lowers_the_limits_around_what_ends_too_high() -> None:
    graph = build("vgg19_2")
    rooms = [100] * len(graph.ops)
    tensor = next(each.id for each in graph.tensors if each.kind == "activation")
    users = {graph.producer[tensor], *graph.uses[tensor]}
    for over, left in ((0.02, 99), (0.5, 90)):  # half of the share, at most a tenth
        after = lowered(graph, rooms, {tensor}, over)
        near = {n for n in range(len(rooms)) if min(abs(n - user) for user in users) <= 5}
        assert [n for n, room in enumerate(after) if room == left] == sorted(near)
        assert set(after) == {left, 100}


def test_retries_end_with_addresses_that_fit() -> None:
    graph = timed_on_gpu(build("vgg19_64"), Gpu())
    machine = Machine(int(0.65 * graph.peak_bytes), 12e9, 12e9)
    plan = paper.plan(graph, machine, "asynchronous", seconds=60, window=5)
    assert plan.notes["retries"] > 0
    assert check(graph, machine, plan).peak_bytes <= machine.capacity
    assert plan.gap < 0.02


def test_outside_of_the_programme_addresses_cost_more() -> None:
    graph = timed_on_gpu(build("vgg19_64"), Gpu())
    machine = Machine(int(0.6 * graph.peak_bytes), 12e9, 12e9)
    apart = ours.outside(graph, machine, seconds=60)
    own = ours.plan(graph, machine, seconds=120)
    assert check(graph, machine, apart).peak_bytes <= machine.capacity
    assert own.seconds < apart.seconds
    assert own.bound <= own.seconds


def test_large_tensors_leave_in_the_order_that_a_plan_at_the_bound_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ours, "ORDER", 60.0)  # it takes 1 s, of a CPU that may be busy
    graph = timed_on_gpu(build("vgg19_64"), Gpu())
    machine = Machine(int(0.7 * graph.peak_bytes), 12e9, 12e9)
    own = ours.plan(graph, machine, seconds=120)
    assert check(graph, machine, own).seconds == pytest.approx(own.seconds)
    assert own.bound <= own.seconds <= own.bound / 0.99


@pytest.mark.torch
def test_emulated_slow_memory_takes_its_time() -> None:
    from autotm.sim.emulated import Emulated  # needs PyTorch
    from torch import nn, randint, randn

    host = Host(slow_read=50e6, slow_write=10e6, copy_out=30e6, copy_in=70e6)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    there = Emulated(net, (randn(256, 64), randint(0, 64, (256,))), host)
    away = allocated(there.graph, host.machine(0), 0, static=True).placement
    assert not any(map(any, away.fast.values()))
    assert away.seconds == pytest.approx(all_slow(there.graph), rel=1e-3)
    slow = sum(op.placed[away.slow(there.graph, op.index)] for op in there.graph.ops)
    assert slow == pytest.approx(away.seconds, rel=1e-3)
    idle = sum(  # what only memory takes, whatever the CPU does
        there.graph.tensors[t].bytes / (host.slow_write if t in op.outputs else host.slow_read)
        for op in there.graph.ops for bit, t in enumerate(op.operands)
        if away.slow(there.graph, op.index) >> bit & 1
    )  # fmt: skip
    assert there.iteration(away) >= idle > 0.1
    room = footprint(there.graph).pool // 2
    moved = allocated(there.graph, host.machine(room), room, static=False).placement
    out, back = moved.moved(there.graph)
    assert there.iteration(moved) >= out / host.copy_out + back / host.copy_in


@pytest.mark.slow
def test_a_deep_network_is_planned_within_one_percent_and_beats_the_paper() -> None:
    graph = timed_on_gpu(build("resnet200_32"), Gpu())
    machine = Machine(int(0.6 * graph.peak_bytes), 12e9, 12e9)
    own = ours.plan(graph, machine)
    assert own.gap <= 0.01
    assert check(graph, machine, own).peak_bytes == own.peak_bytes <= machine.capacity
    theirs = paper.plan(graph, machine, "synchronous", seconds=60)
    assert own.seconds < 0.7 * theirs.seconds


@pytest.mark.parametrize(
    ("words", "metrics"),
    [
        (["graphs"], {"footprint", "fixed_bytes", "kernels", "memory_cost"}),
        (["ratios", "--network", "vgg19_16", "--variants", "DRAM,PMM,NUMA,Static,Synchronous"],
         {"iteration_time", "gap", "solve_time", "moved_out", "moved_in", "inputs_in_dram",
          "outputs_in_dram"}),
        (["large", "--network", "vgg19_64", "--variants", "MemoryMode,Synchronous",
          "--fast-gb", "3"], {"iteration_time", "slow_read", "slow_written"}),
        (["planner", "--network", "vgg19_64", "--variants", "Synchronous,Ours,Managed",
          "--caps", "0.8"], {"iteration_time", "bound", "gap", "solve_time", "peak"}),
        (["ratios", "--network", "vgg19_64", "--variants", "Synchronous", "--ratios", "p4d1"],
         {"retries", "refinements", "pool_dram", "pool_pmm", "pool_over"}),
    ],
)  # fmt: skip
def test_every_experiment_writes_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], metrics: set[str]
) -> None:
    monkeypatch.delenv("AE_OUT", raising=False)
    assert main([*words, "--out", str(tmp_path)]) == 0
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert metrics <= {record["metric"] for record in records}
    assert prod(record["samples"][0] >= 0 for record in records)


def test_wrong_words_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ratios", "--slow-read", "1,2"]) == 2
    assert "differ in length" in capsys.readouterr().err
    for cap in ("0", "x", "-1GB", "nan", "inf", "GB"):
        assert main(["planner", f"--caps={cap}"]) == 2
        assert f"--caps has '{cap}'" in capsys.readouterr().err
    assert main(["ratios", "--network", "x"]) == 2

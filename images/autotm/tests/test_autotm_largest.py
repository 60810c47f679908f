"""The largest batch: bisection, and trials that are whole checked steps; plain runs that spill."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import autotm
import autotm_networks
import autotm_plans
import pytest
import torch
from autotm import fitting
from autotm.cli import main
from autotm.executor import iteration, outside
from autotm.executor.arena import arena_graph
from autotm.executor.capture import capture
from autotm.executor.errors import BudgetError
from autotm.executor.outside import held_by, outside_of, plain
from autotm.fitting import Timed
from autotm.graph import Graph, Kind, Machine, Op, Plan, Tensor
from autotm.networks.modules import module
from autotm.planner import ours
from autotm.planner.apart import once_planned
from autotm.planner.model import Aim, NoPlan
from autotm.rivals.cell import OURS
from autotm.rivals.compare import Comparison
from autotm.rivals.largest import Task, Trial, largest
from autotm_random import MIB
from torch import nn

LOSS = nn.functional.cross_entropy


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """An experiment asks for deterministic kernels, for good."""
    before = torch.backends.cudnn.deterministic, torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
    (torch.backends.cudnn.deterministic,
     torch.utils.deterministic.fill_uninitialized_memory) = before  # fmt: skip


@pytest.mark.parametrize("most", [0, 1, 2, 7, 8, 9, 63, 64, 100, 1000])
@pytest.mark.parametrize("first", [1, 8, 64])
def test_the_last_batch_that_succeeds_is_found(most: int, first: int) -> None:
    best, tried = largest(lambda batch: Trial(batch, why="" if batch <= most else "no"), first, 0.0)
    assert (best.batch if best is not None else 0) == most
    batches = [trial.batch for trial in tried]
    assert len(set(batches)) == len(batches) <= 20


def test_a_resolution_ends_it_within_its_share() -> None:
    best, tried = largest(lambda batch: Trial(batch, why="" if batch <= 777 else "no"), 8, 0.1)
    assert best is not None
    assert 777 / 1.1 <= best.batch <= 777
    assert len(tried) < 14


@pytest.mark.parametrize("fixed", [0, 300])
@pytest.mark.parametrize("cap", [901, 5003, 40_000])
@pytest.mark.parametrize("first", [1, 64, 4096])
def test_peaks_on_a_line_lead_to_the_largest_batch(fixed: int, cap: int, first: int) -> None:
    def attempt(batch: int) -> Trial:
        peak = fixed + 10 * batch
        return Trial(batch, peak, why="no" if peak > cap else "")

    best, tried = largest(attempt, first, 0.05, cap)
    assert best is not None
    assert best.peak <= cap < fixed + 10 * 1.06 * best.batch + 10
    assert len(tried) <= 6
    none, _ = largest(lambda batch: Trial(batch, why="full"), first, 0.05, cap)
    assert none is None  # what has no room has no peak


def test_a_trial_is_a_whole_step_within_the_cap_and_the_time() -> None:
    plenty = Task("small-vgg", "cpu", "fp32", 10**8, LOSS)
    found = plenty.ours(4)
    assert found.why == ""
    assert 0 < found.peak < 10**8
    tiny = Task("small-vgg", "cpu", "fp32", 1000, LOSS)
    assert tiny.attempt(OURS)(4).why.startswith("a budget of 998 B")  # 0.2 % spared
    slow = Task("small-vgg", "cpu", "fp32", 10**8, LOSS, limit=1e-12)
    assert slow.rival("plain", 4).seconds > 1e-12
    assert tiny.rival("plain", 4).why.startswith("it takes")


def hopeful(graph: Graph, machine: Machine, aim: Aim = ours.BEST) -> Plan:
    """Plans whatever time is asked for."""
    return ours.plan(graph, machine, seconds=20.0)


def test_what_is_proven_to_be_too_slow_is_not_run_and_what_is_run_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Task("small-vgg", "cpu", "fp32", 10**8, LOSS, limit=1e-12)
    ran = replace(slow, planner=hopeful).ours(4)
    assert ran.why.startswith("a sample takes")
    assert ran.seconds > 1e-12
    monkeypatch.delattr(Timed, "fitted")
    trial = slow.attempt(OURS)(4)
    assert "every plan takes at least" in trial.why
    assert trial.peak == 0


def test_a_step_slower_than_its_plan_says_is_tried_with_the_best_plan_too() -> None:
    asked = []

    def wrong(graph: Graph, machine: Machine, aim: Aim = ours.BEST) -> Plan:
        asked.append(aim.enough)
        return replace(hopeful(graph, machine), seconds=0.0)

    slow = Task("small-vgg", "cpu", "fp32", 10**8, LOSS, limit=1e-12, planner=wrong)
    assert slow.ours(4).why.startswith("a sample takes")
    assert asked == [4e-12, 0.0]
    asked.clear()
    assert replace(slow, limit=1e3).ours(4).why == ""
    assert asked == [4e3]


def test_what_cannot_fit_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fitting, "profile")
    assert "cannot be met" in Task("small-vgg", "cpu", "fp32", 1000, LOSS).attempt(OURS)(4).why


def layers(batch: int, count: int = 6) -> Graph:
    """Forward and backward of layers with 4 MiB a sample each, some three times as dear."""
    tensors, ops = [Tensor(0, MIB * 4 * batch, "input")], []
    for n in range(2 * count):
        kinds: tuple[Kind, ...] = ("activation", "gradient", "output")
        kind = kinds[(n >= count) + (n == 2 * count - 1)]
        tensors.append(Tensor(n + 1, MIB * 4 * batch, kind))
        reads = {n, 2 * count - 1 - n} if n >= count else {n}
        ops.append(Op(n, "layer", tuple(sorted(reads)), (n + 1,), batch * (1.0 + 2 * (n % 2))))
    return Graph(tuple(tensors), tuple(ops))


def test_the_same_batch_is_the_largest_where_only_what_is_asked_for_is_solved() -> None:
    limit, refused = 1.25 * layers(1).seconds, 0
    for rate in (0.5 * MIB, 2.0 * MIB):
        machine = Machine(3200 * MIB, rate, rate, align=1)
        plans: set[tuple[str, int]] = set()

        def attempt(name: str, batch: int) -> Trial:
            most = limit * batch
            aim = Aim(most, 1.05 * most) if name == "aimed" else ours.BEST
            try:
                found = ours.plan(layers(batch), machine, gap=1e-3, aim=aim)  # noqa: B023
            except NoPlan as error:
                return Trial(batch, why=str(error))
            plans.add((name, batch))  # noqa: B023
            return Trial(batch, why="slow" * (found.seconds > most))

        best, _ = largest(partial(attempt, "best"), 100, 0.05)
        aimed, _ = largest(partial(attempt, "aimed"), 200, 0.05)
        assert best is not None
        assert aimed == best
        assert best.batch > 110  # everything is kept up to here
        refused += sum(name == "best" and ("aimed", each) not in plans for name, each in plans)
    assert refused > 2  # what cannot be fast enough has no plan; two of `best` are not tried


def test_the_plain_run_of_a_trial_has_the_room_of_our_arenas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true, held = iteration.Iteration.plainly, []

    def watched(self: iteration.Iteration, *args: object) -> dict[str, torch.Tensor]:
        held.append(self.lanes.arena.numel() + self.lanes.host.numel())
        return true(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(iteration.Iteration, "plainly", watched)
    assert Task("small-vgg", "cpu", "fp32", 10**8, LOSS).ours(4).why == ""
    assert held == [0]
    # What fails anyway is not compared.
    slow = Task("small-vgg", "cpu", "fp32", 10**8, LOSS, limit=1e-12, planner=hopeful)
    assert slow.ours(4).why
    assert held == [0]


def test_a_trial_whose_gradients_are_others_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    net, sample = module("small-vgg_2", "cpu")
    step = autotm.fit(net, sample, LOSS, budget=10**8, planner=lambda g, m: autotm_plans.kept(g))
    true = iteration.Iteration.once

    def wrong(self: iteration.Iteration, *args: object) -> dict[str, torch.Tensor]:
        found = true(self, *args)  # type: ignore[arg-type]
        return {name: each + 1e-3 for name, each in found.items()}

    assert step.measure(0).void == ""
    monkeypatch.setattr(iteration.Iteration, "once", wrong)
    found = step.measure(0)
    assert found.unsteady == ()  # the plain run repeats its own bits here
    assert found.void.startswith(f"void: {len(found.differ or ())} gradients")
    step.close()
    trial = Task("small-vgg", "cpu", "fp32", 10**8, LOSS).ours(2)
    assert trial == Trial(2, why=found.void)  # its time counts for nothing


def test_a_trial_without_room_on_the_device_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("there is no room")

    monkeypatch.setattr(iteration.Iteration, "once", full)
    trial = Task("small-vgg", "cpu", "fp32", 10**8, LOSS).attempt(OURS)(2)
    assert trial == Trial(2, why="the device ran out of memory")


def test_what_the_plain_run_itself_does_not_repeat_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, sample = module("small-vgg_2", "cpu")
    step = autotm.fit(net, sample, LOSS, budget=10**8, planner=lambda g, m: autotm_plans.kept(g))
    true, noise = iteration.Iteration.plainly, iter(range(100))

    def unsteady(self: iteration.Iteration, *args: object) -> dict[str, torch.Tensor]:
        found = true(self, *args)  # type: ignore[arg-type]
        name = next(iter(self.capture.gradients))
        return {**found, name: found[name] * (1 + 1e-5 * next(noise))}

    monkeypatch.setattr(iteration.Iteration, "plainly", unsteady)
    step.measure(0)  # uses up the draw of no noise
    found = step.measure(1)
    assert found.differ == found.unsteady != ()
    assert next(noise) == 3  # the second plain run has told it, and there is no third
    assert found.void == ""
    step.measurement = found
    assert "that the plain run does not repeat" in step.report()
    once = iteration.Iteration.once

    def far(self: iteration.Iteration, *args: object) -> dict[str, torch.Tensor]:
        mine = once(self, *args)  # type: ignore[arg-type]
        return {**mine, found.unsteady[0]: mine[found.unsteady[0]] * 1.02}

    monkeypatch.setattr(iteration.Iteration, "once", far)
    assert step.measure(0).void == "void: 1 gradients are not the plain run's"
    step.close()


@pytest.mark.parametrize("name", sorted(autotm_networks.NETWORKS))
def test_a_plain_run_whose_tensors_wait_on_the_host_has_the_same_bits(name: str) -> None:
    found_module, sample = autotm_networks.network(name)
    found = capture(found_module, sample, LOSS)
    outside = outside_of(found, held_by(found_module), sample)
    for tensor, (role, _) in found.roles.items():
        if role == "tangent":
            outside[tensor] = torch.ones(())
    torch.manual_seed(3)
    want = plain(found, outside)
    for room in (0, found.graph.peak_bytes // 3):
        torch.manual_seed(3)
        got = plain(found, outside, room)
        assert got.keys() == want.keys()
        assert all(torch.equal(got[tensor], want[tensor]) for tensor in want)
    ends = {view.tensor for view in (found.loss, *found.gradients.values())}
    outputs = {each.id for each in found.graph.tensors if each.kind == "output"}
    assert ends <= want.keys() <= outputs | outside.keys()


def test_a_plain_run_that_the_host_has_no_room_for_is_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, sample = module("small-vgg_2", "cpu")
    step = autotm.fit(net, sample, LOSS, budget=10**8, planner=lambda g, m: autotm_plans.kept(g))
    monkeypatch.setattr(iteration, "_room", lambda device: 0)
    assert step.measure(0).void == ""
    monkeypatch.setattr(outside, "_host_room", lambda: 1000)
    assert step.measure(0).void.startswith("void: the gradients are not shown")
    step.close()


def test_a_budget_without_a_plan_is_said_at_once() -> None:
    net, sample = module("small-vgg_4", "cpu")
    graph = arena_graph(capture(net, sample, LOSS).graph)
    with pytest.raises(BudgetError, match=r"no plan was found for this budget: .* whatever"):
        once_planned(5.0, 0.01)(graph, Machine(512, 1e9, 1e9))


def records(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_largest_batch_writes_every_trial(tmp_path: Path) -> None:
    words = ["largest_batch", "--network", "small-vgg_4", "--budgets-gb", "0.002", "--systems",
             "Ours,checkpoint", "--slower", "1000", "--resolution", "0.5"]  # fmt: skip
    assert main([*words, "--out", str(tmp_path)]) == 0
    found = records(tmp_path)
    largest_of = {
        each["labels"]["variant"]: each["samples"][0]  # type: ignore[index]
        for each in found
        if each["metric"] == "largest_batch"
    }
    assert set(largest_of) == {"plain", "checkpoint", OURS}
    assert min(largest_of.values()) >= 4
    peaks = [each for each in found if each["metric"] == "trial_peak"]
    fitting = [each for each in peaks if "note" not in each]
    assert all(each["samples"][0] <= 0.002 for each in fitting)  # type: ignore[index]
    assert len(fitting) < len(peaks)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rivals_writes_every_point_of_each_rival_at_each_cap(
    tmp_path: Path, precision: str
) -> None:
    words = ["rivals", "--network", "small-resnet_4", "--caps", "1,0.8", "--rivals",
             "plain,checkpoint,torchtune_offload", "--precision", precision]  # fmt: skip
    began = time.perf_counter()
    assert main([*words, "--out", str(tmp_path)]) == 0
    took = time.perf_counter() - began
    found = records(tmp_path)
    spent = {
        each["labels"]["phase"]: each["samples"][0]  # type: ignore[index]
        for each in found
        if each["metric"] == "spent"
    }
    assert {"operators", "limits", "points", "plans", "gradients", "turns", "trace"} == set(spent)
    assert sum(spent.values()) <= took, "nothing counts twice"
    solved = [each["samples"][0] for each in found if each["metric"] == "solve_time"]
    assert 0 < max(solved) <= spent["plans"]  # type: ignore[type-var]
    metrics = {each["metric"] for each in found}
    assert {"need", "workspace", "peak", "point_time", "of_cap", "uncapped_time"} <= metrics
    lost = [each["labels"] for each in found if each["metric"] == "lost_time"]
    assert {each["part"] for each in lost} == {"beside", "alone", "waits", "gaps"}  # type: ignore[index]
    turns = {
        (each["labels"]["cap"], each["labels"]["rival"], each["labels"]["variant"])  # type: ignore[index]
        for each in found
        if each["metric"] == "iteration_time"
    }
    assert {("1", "plain", "plain"), ("1", "plain", OURS)} <= turns
    skipped = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    # Which of a rival's points is its best one, and so ours' budget, is for the clock to say: there
    # may be no plan for it.
    labels = ("cap", "rival", "variant")
    absent = {
        tuple(each["labels"].get(name) for name in labels): each["reason"] for each in skipped
    }
    compared = {
        (each["labels"]["cap"], each["labels"]["rival"]): each["samples"]  # type: ignore[index]
        for each in found
        if each["metric"] == "comparable"
    }
    for cell in product(("1", "0.8"), ("plain", "checkpoint"), (OURS,)):
        if cell in turns:
            assert compared[cell[:2]] == [1]
        elif "does not reach this cap" in absent[cell]:
            assert (cell[1], compared[cell[:2]]) == ("checkpoint", [0])
        else:
            assert "no plan" in absent[cell] or "cannot be met" in absent[cell]
    missing = "torchtune's OffloadActivations needs a GPU"
    assert torch.cuda.is_available() or any(missing in each for each in absent.values())


def test_a_rival_that_cannot_run_here_leaves_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["rivals", "--network", "small-vgg_2", "--rivals", "torchtune_offload",
              "--out", str(tmp_path)])  # fmt: skip
    assert left.value.code == 77
    assert "torchtune" in capsys.readouterr().err
    assert not (tmp_path / "records.jsonl").exists()


def skips(folder: Path) -> dict[str, str]:
    lines = (folder / "skipped.jsonl").read_text().splitlines()
    return {row["labels"]["variant"]: row["reason"] for row in map(json.loads, lines)}


def test_where_no_plain_step_fits_a_sample_may_take_what_the_user_says(tmp_path: Path) -> None:
    words = ["largest_batch", "--network", "small-vgg_1", "--systems", "checkpoint"]
    tiny = [*words, "--budgets-gb", "0.000001", "--out", str(tmp_path / "no")]
    assert main(tiny) == 0
    assert "--sample-seconds" in skips(tmp_path / "no")["checkpoint"]
    assert main([*tiny[:-1], str(tmp_path / "asked"), "--sample-seconds", "1e-9"]) == 0
    assert "not even 1 succeeds" in skips(tmp_path / "asked")["checkpoint"]


def test_a_rivals_knob_is_searched_beyond_its_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of the knob takes less memory and more time: no eighth keeps both cap and limit."""
    monkeypatch.setattr(
        Comparison, "measured", lambda self, rival, knob: (int(1000 - 600 * knob), 4 * (1 + knob))
    )
    task = Task("small-vgg", "cpu", "fp32", 580, LOSS, limit=1.72)
    found = task.rival("offload_activations", 4)
    assert found == Trial(4, 577, 1.7048)
    coarse = replace(task, knobs=2).rival("offload_activations", 4)  # the ends alone
    assert coarse.why.startswith("a sample takes")
    assert replace(task, cap=399).rival("offload_activations", 4).why.startswith("it takes")


def test_without_a_gpu_a_large_network_is_not_run(tmp_path: Path) -> None:
    for experiment in ("rivals", "largest_batch"):
        with pytest.raises(SystemExit) as left:
            main([experiment, "--network", "unet_2", "--out", str(tmp_path)])
        assert left.value.code == 77

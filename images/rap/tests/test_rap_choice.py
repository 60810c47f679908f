"""`rap` and `rap_plus` on a rank are the fastest of the ways that were tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rap_plans import every_operator
from rap_sessions import SMALL
from rap_training import throughput
from rap_training.experiments import ratio
from rap_training.gating import choose_way, estimates
from rap_training.measure import train
from rap_training.plan.files import dump
from rap_training.planner.capacity import STAGES
from rap_training.planner.choice import IN_ORDER, WAYS
from rap_training.planner.latency import LatencyModel
from rap_training.rank import Rank
from rap_training.sharing.preparation import InLine, Preparation, Side, all_calls
from rap_training.sharing.variants import VARIANTS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
RAP = VARIANTS["rap"]
TURNS = 3


class Told(list[tuple[str, dict[str, Any]]]):
    def __call__(self, kind: str, **what: Any) -> None:
        self.append((kind, what))

    def records(self, metric: str) -> list[dict[str, Any]]:
        return [what for kind, what in self if kind == "record" and what["metric"] == metric]


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rank]:
    folder = tmp_path_factory.mktemp("choice")
    (folder / "every.json").write_text(dump(every_operator()))
    config = replace(
        SMALL, gpus=1, batch=20, batches=3, plan_file=str(folder / "every.json"),
        variants=("stream", "rap", "ideal"), out=str(folder),
        repeats=TURNS,
    )  # fmt: skip
    there = Rank(config, 0, Told())
    yield there
    there.close()


def clock(
    rank: Rank, times: dict[str, float], asked: list[str], name: str, way: Preparation
) -> float:
    assert isinstance(way, Side)
    assert (way._stages is None) == (name != "gated")
    launches = len(way._steps.calls[0])
    operators = len(way.buffers.work.instances)
    assert (launches == operators) == (name == "stream")
    lanes = rank.lanes(rank.runs_as.get("rap", RAP).priority)
    assert (way._train, way._side) == lanes  # what trains in another lane waits for nothing
    asked.append(name)
    return times[name]


WORDS = {
    "gated": "gated by training stages; horizontal fusion",
    "ungated": "beside training; horizontal fusion",
    "stream": "as the variant stream; beside training; none fusion",
}


@pytest.mark.parametrize("fastest", WORDS)
def test_the_fastest_way_is_taken_and_said(rank: Rank, fastest: str) -> None:
    rank.tell = told = Told()
    asked: list[str] = []
    times = {way: 97.0 if way == fastest else 100.0 for way in WORDS}
    schedule = rank.preparation(RAP)
    way = choose_way(rank, RAP, schedule, partial(clock, rank, times, asked))
    assert sorted(asked) == sorted(TURNS * list(WORDS))
    turns = [asked[at : at + 3] for at in range(0, len(asked), 3)]
    assert turns[1] == turns[0][::-1]  # in turns, none always first
    assert (way is schedule) == (fastest == "gated")
    assert rank.runs_as["rap"].place == ("stages" if fastest == "gated" else "side")
    words = ", ".join(f"100.0 us {WAYS[way]}" for way in WORDS if way != fastest)
    told_words = [what["words"] for kind, what in told if kind == "progress"]
    sentence = f"{WAYS[fastest]}: 97.0 us an iteration against {words}, measured in 3 turns; "
    assert any(each.startswith(f"rap is {sentence}") for each in told_words)
    ways = {what["labels"]["way"]: what["samples"] for what in told.records("tried_iteration_time")}
    assert ways == {way: [us] * TURNS for way, us in times.items()}
    assert throughput.describe(rank, "rap").startswith(WORDS[fastest])


def fastest_of(ways: dict[str, Preparation], fastest: str) -> Callable[[str, Preparation], float]:
    """A clock that notes in `ways` what it is asked for."""

    def timed(name: str, way: Preparation) -> float:
        ways[name] = way
        return 97.0 if name == fastest else 100.0

    return timed


@pytest.mark.parametrize("name", ["rap_no_mapping", "rap_no_fusion"])
@pytest.mark.parametrize("fastest", WORDS)
def test_rap_without_a_part_is_the_fastest_of_the_same_ways(
    rank: Rank, name: str, fastest: str
) -> None:
    rank.tell = Told()
    variant = VARIANTS[name]
    ways: dict[str, Preparation] = {}
    way = choose_way(rank, variant, rank.preparation(variant), fastest_of(ways, fastest))
    assert list(ways) == list(WORDS)
    assert way is ways[fastest]
    fusion = "none" if name == "rap_no_fusion" else variant.fusion
    words = WORDS[fastest].replace("horizontal", fusion)
    assert throughput.describe(rank, name).startswith(words)


PLUS_WORDS = {
    "at_once": "beside training; vertical fusion",
    "in_line": "one lane, copies beside it; vertical fusion",
    **{stage: f"beside training, from {stage} on; vertical fusion" for stage in STAGES[1:]},
}


@pytest.mark.parametrize("fastest", PLUS_WORDS)
def test_rap_plus_begins_where_it_costs_least(rank: Rank, fastest: str) -> None:
    rank.tell = told = Told()
    plus = VARIANTS["rap_plus"]
    ways: dict[str, Preparation] = {}
    way = choose_way(rank, plus, rank.preparation(plus), fastest_of(ways, fastest))
    assert list(ways) == list(PLUS_WORDS)
    assert way is ways[fastest]
    assert isinstance(ways["in_line"], InLine)
    for stage in STAGES[1:]:
        begins = ways[stage]
        assert isinstance(begins, Side)
        assert begins._stages == {stage: all_calls}
    assert throughput.describe(rank, "rap_plus").startswith(PLUS_WORDS[fastest])
    (fact,) = [what["value"] for kind, what in told if what.get("name") == "rap_plus_is"]
    assert fact.startswith(f"{WAYS[fastest]}: 97.0 us an iteration against 100.0 us ")
    assert fact.endswith("measured in 3 turns")  # no model says which term decided


@pytest.mark.parametrize("name", ["ideal", "sequential", "stream", "rap", "rap_plus", "mlp_bwd"])
def test_a_step_is_whole_unless_launches_wait_for_its_stages(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    begins = replace(VARIANTS["rap_plus"], begins=name)
    preparation = rank.preparation(VARIANTS.get(name, begins))
    asked: list[bool] = []
    bind = rank.trainer.bind

    def binding(*given: Any, whole: bool) -> None:
        asked.append(whole)
        bind(*given, whole=whole)

    monkeypatch.setattr(rank.trainer, "bind", binding)
    lane = rank.lanes(VARIANTS.get(name, begins).priority)[0]
    train(rank.trainer, preparation, lane, rank.collectives, warmup=0, iterations=2)
    assert asked == [name not in ("rap", "mlp_bwd")]


GRAPHS = [each.name for each in VARIANTS.values() if each.graph and not each.green]


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_of_several_launches_is_tried_in_both_orders(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    variant, rank.tell = VARIANTS[name], Told()
    monkeypatch.setattr(rank, "may_branch", lambda _: True)
    slow = dict.fromkeys(IN_ORDER, 100.0)

    def timed(way: str, _: Preparation) -> float:
        tried[way] = rank.runs_as[name].branches
        return slow.get(way, 97.0)

    tried: dict[str, bool] = {}
    choose_way(rank, variant, rank.preparation(variant), timed)
    mine = (
        ["branches"] if variant.fusion != "vertical" else [w for w in IN_ORDER if w in PLUS_WORDS]
    )
    assert tried == {**dict.fromkeys(mine, True), **{IN_ORDER[way]: False for way in mine}}
    assert not rank.runs_as[name].branches
    assert "one launch after another" in throughput.describe(rank, name)


def test_launches_in_one_order_are_what_a_cpu_has(rank: Rank) -> None:
    rank.tell = told = Told()
    own = rank.preparation(VARIANTS["stream_graph"])
    way = choose_way(rank, VARIANTS["stream_graph"], own, lambda *_: pytest.fail("nothing to try"))
    assert way is own
    assert not told


def test_the_model_counts_launches_gates_and_what_is_not_hidden(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = rank.preparation(RAP)
    stream = rank.preparation(VARIANTS["stream"])
    assert isinstance(stream, Side)
    hidden = sum(stage.capacity_us for stage in rank.costs.stages[0])
    # What the fitted model says of a kernel is this machine's to decide: here all take 10 us more
    # than training hides.
    monkeypatch.setattr(LatencyModel, "predict", lambda model, shape: hidden + 10)
    gated, ungated, plain = estimates(rank, RAP, stream).values()
    operators = len(schedule.buffers.work.instances)
    assert plain.launches == operators
    assert 0 < ungated.launches <= gated.launches < operators
    assert (gated.gates, ungated.gates, plain.gates) == (len(rank.plans["rap"].stages), 1, 1)
    assert gated.training_us == plain.training_us > 0
    rank.preparation(VARIANTS["rap_no_fusion"])
    apart = estimates(rank, VARIANTS["rap_no_fusion"], stream)
    assert {way: each.launches for way, each in apart.items()} == dict.fromkeys(apart, operators)
    for way in (ungated, plain):
        assert way.overflow_us == pytest.approx(way.launches * (hidden + 10) - hidden)
    assert gated.overflow_us == rank.plans["rap"].schedule.overflow_us
    assert gated.gate_us > 0


def test_a_new_plan_forgets_the_choice(rank: Rank) -> None:
    rank.runs_as["rap"] = VARIANTS["stream"]
    rank.use(rank.plan)
    assert rank.runs_as == {}


def test_what_is_measured_as_rap_is_what_was_chosen(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.tell = told = Told()
    sampled: dict[str, list[bool]] = {}
    real = throughput.sample

    def spied(rank: Rank, name: str, way: Preparation, warmup: int, count: int) -> float:
        sampled.setdefault(name, []).append(getattr(way, "_stages", None) is None)
        return real(rank, name, way, warmup, count)

    monkeypatch.setattr(throughput, "sample", spied)
    found = throughput.measure(rank, ("stream", "rap", "ideal"))
    assert all(min(seconds) > 0 for seconds in found.values())
    tried = told.records("tried_iteration_time")
    took = {what["labels"]["way"]: median(what["samples"]) for what in tried}
    way = min(("stream", "ungated", "gated"), key=took.__getitem__)
    assert rank.runs_as.get("rap", RAP).place == ("stages" if way == "gated" else "side")
    after = sampled["rap"][len(took) * TURNS :]
    assert after == [way != "gated"] * len(after)


def test_why_training_alone_is_not_reached_is_told(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU all of it takes turns on the same cores."""
    rank.tell = told = Told()
    monkeypatch.setattr(throughput, "sample", lambda *_: 1.0)
    found = {"rap": [3.0, 3.0], "rap_plus": [2.0, 2.0], "ideal": [1.0, 1.0]}
    throughput.tell_shortfall(rank, found)
    told_of = {what["labels"]["variant"]: what for what in told.records("share_of_ideal")}
    assert set(told_of) == {"rap", "rap_plus"}
    assert told_of["rap_plus"]["samples"] == [0.5, 0.5]
    note = told_of["rap_plus"]["note"]
    assert note.startswith("0.500 of training alone, 1000000.0 us an iteration more: ")
    assert ("fact", {"name": "rap_plus_below_ideal", "value": note}) in told
    told.clear()
    throughput.tell_shortfall(rank, {"rap_plus": [1.01], "ideal": [1.0]})
    assert {kind for kind, _ in told} == {"record"}
    (work,), (idle,) = (told.records(metric) for metric in ("gpu_work", "idle_capacity"))
    assert work["labels"] == idle["labels"] == {**rank.config.labels, "variant": "rap_plus"}
    assert work["samples"][0] > 0
    assert idle["samples"] == [sum(probe.capacity_us for probe in rank.stage_probes)]
    assert not told.records("share_of_ideal")


def test_every_ratio_keeps_its_own_reasons(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.tell = told = Told()
    config = replace(rank.config, ratios=(0.5, 2.0))
    monkeypatch.setattr(rank, "config", config)
    monkeypatch.setattr(ratio, "plans", lambda rank: ((each, rank.plan) for each in config.ratios))
    monkeypatch.setattr(ratio, "measure", lambda *_: {"rap_plus": [2.0], "ideal": [1.0]})
    ratio.on_rank(rank, ("rap_plus", "ideal"))
    facts = {what["name"]: what["value"] for kind, what in told if kind == "fact"}
    assert set(facts) == {f"rap_plus_below_ideal_ratio_{each}" for each in ("0.50", "2.00")}
    for record in told.records("share_of_ideal"):
        assert record["note"] == facts[f"rap_plus_below_ideal_ratio_{record['labels']['ratio']}"]
    rank.labels = config.labels


@pytest.mark.gpu
@pytest.mark.timed
@pytest.mark.parametrize("batch", [64, 256, 4096])
def test_rap_is_never_slower_than_a_stream_on_a_gpu(tmp_path: Path, batch: int) -> None:
    """One GPU, plan 0: where gates do not pay, rap is the stream; noise of 2 % allowed."""
    told = Told()
    config = replace(
        SMALL, device="cuda", gpus=1, batch=batch, scale=0.01, iterations=200, warmup=30,
        repeats=7, batches=4, variants=("stream", "rap"), out=str(tmp_path), solver_seconds=5.0,
    )  # fmt: skip
    there = Rank(config, 0, told)
    found = throughput.measure(there, config.variants)
    there.close()
    assert median(found["rap"]) <= 1.02 * median(found["stream"])
    (reason,) = [what["value"] for kind, what in told if what.get("name") == "rap_is"]
    assert "decide" in reason

"""All variants share trainer, data, loop and barriers, and train on the batches they should."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Semaphore

import pytest
import rap_training
import rap_watch
import torch
from rap_plans import every_operator
from rap_sessions import SMALL, Told, living
from rap_training.config import EXPERIMENTS, Config
from rap_training.launcher import run_session
from rap_training.measure import train
from rap_training.plan.files import dump
from rap_training.planner.capacity import STAGES
from rap_training.rank import CannotRun, Rank
from rap_training.sharing.lanes import ThreadLane
from rap_training.sharing.preparation import Side
from rap_training.sharing.rap import Costs
from rap_training.sharing.variants import VARIANTS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SOURCE = Path(rap_training.__file__).parent
ON_CPU = tuple(
    name for name, variant in VARIANTS.items() if variant.place != "process" and not variant.green
)


def make_config(folder: Path) -> Config:
    """Three batches, so that a wrong one shows, of a plan with every operator."""
    (folder / "every.json").write_text(dump(every_operator()))
    return replace(
        SMALL, gpus=1, batch=20, batches=3, plan_file=str(folder / "every.json"),
        variants=ON_CPU, workers=(2,),
    )  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("AE_OUT", str(tmp_path))
    return make_config(tmp_path)


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Costs:
    """What a rank measures before it plans: seconds, and the same for every test on one rank."""
    folder = tmp_path_factory.mktemp("costs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AE_OUT", str(folder))
        there = Rank(make_config(folder), 0, lambda kind, **what: None)
        measured = there.costs
        there.close()
    return measured


@pytest.fixture
def rank(config: Config, costs: Costs) -> Iterator[Rank]:
    there = Rank(config, 0, lambda kind, **what: None)
    there.__dict__["costs"] = costs  # a cached property
    yield there
    there.close()


# By construction.


def tree_of(name: str) -> ast.Module:
    return ast.parse((SOURCE / name).read_text())


def called(tree: ast.AST) -> Counter[str]:
    """How often each function or method is called, by its last name."""
    names: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute):
                names[function.attr] += 1
            elif isinstance(function, ast.Name):
                names[function.id] += 1
    return names


def methods(name: str, of: str) -> dict[str, ast.FunctionDef]:
    for node in tree_of(name).body:
        if isinstance(node, ast.ClassDef) and node.name == of:
            return {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    raise LookupError(f"{of} is not in {name}")


def test_one_loop_trains_every_variant() -> None:
    assert called(tree_of("measure.py"))["step"] == 1
    trained = set(EXPERIMENTS) - {"fusion"}  # which solves graphs, and starts no rank
    others = ("throughput.py", "timeline.py", *(f"experiments/{name}.py" for name in trained))
    for module in others:
        # `rank.tell("step", ...)` is a message; the loop itself is not called by another name.
        assert called(tree_of(module))["step"] == 0
    assert called(tree_of("measure.py"))["train"] == 1
    assert called(tree_of("timeline.py"))["train"] == 1


def test_one_trainer_and_one_feed_for_all_variants() -> None:
    for kind, where in (("Trainer", "trainer"), ("Feed", "feed")):
        assert called(methods("rank.py", "Rank")[where])[kind] == 1
        assert called(ast.Module(list(methods("rank.py", "Rank").values()), []))[kind] == 1
    preparing = called(methods("rank.py", "Rank")["preparation"])
    assert not preparing.keys() & {"Trainer", "Feed", "Model", "Collectives"}


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("sharing/preparation.py", "Prepared"), ("sharing/preparation.py", "Serial"),
        ("sharing/preparation.py", "Side"), ("sharing/preparation.py", "InLine"),
        ("sharing/process.py", "Remote"), ("sharing/workers.py", "FromWorkers"),
    ],
)  # fmt: skip
def test_no_preparation_has_barriers_of_its_own(module: str, kind: str) -> None:
    verbs = methods(module, kind)
    assert verbs.keys() >= {"__init__", "take"} or kind == "Serial"
    for name, verb in verbs.items():
        calls = called(verb)
        assert not calls.keys() & {"barrier", "settle", "synchronize", "largest"}, name


def test_only_what_the_artifact_does_is_synchronised() -> None:
    assert {name for name, v in VARIANTS.items() if v.synchronise} == {"stream_sync"}
    assert {name for name, v in VARIANTS.items() if v.barrier} == {"ideal_barrier"}


def test_objects_are_shared(rank: Rank) -> None:
    trainer, feed = rank.trainer, rank.feed(rank.home)
    for name in ON_CPU:
        preparation = rank.preparation(VARIANTS[name])
        assert rank.trainer is trainer
        assert preparation.buffers is rank.buffers(rank.home)
        steps = getattr(preparation, "_steps", None)
        assert (steps is None) == (VARIANTS[name].place == "workers")
        assert steps is None or steps.feed is feed


@pytest.mark.parametrize("name", sorted(set(VARIANTS) - set(ON_CPU)))
def test_what_needs_a_gpu_says_so(rank: Rank, name: str) -> None:
    with pytest.raises(CannotRun, match=f"^{name} shares a GPU"):
        rank.preparation(VARIANTS[name])


# By behaviour.


@pytest.mark.parametrize("name", [*ON_CPU, *rap_watch.SOME])
def test_every_step_sees_its_batch(rank: Rank, name: str) -> None:
    checked = rap_watch.watch(rank, [name])
    assert checked == {name: rap_watch.WARMUP + rap_watch.ITERATIONS + 1}


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in ON_CPU if VARIANTS[name].place in ("side", "stages", "workers")),
        "rap_plus mlp_bwd",
    ],
)
def test_every_step_sees_its_batch_when_the_host_runs_ahead(rank: Rank, name: str) -> None:
    checked = rap_watch.watch(rank, [name], seed=2, ahead=True)
    assert checked == {name: rap_watch.WARMUP + rap_watch.ITERATIONS + 1}


@pytest.mark.parametrize("loader", ["resident", "staged"])
def test_every_loader_gives_the_same_batches(config: Config, costs: Costs, loader: str) -> None:
    there = Rank(replace(config, loader=loader), 0, lambda kind, **what: None)
    there.__dict__["costs"] = costs
    assert set(rap_watch.watch(there, ["sequential", "rap"])) == {"sequential", "rap"}
    there.close()


@pytest.mark.parametrize("job", ["all_variants", "mixed_mapping"])
def test_every_step_sees_its_batch_on_two_ranks(config: Config, job: str) -> None:
    told = Told()
    there = replace(config, gpus=2, workers=(1,))
    run_session(there, f"rap_watch:{job}", told, variants=ON_CPU)
    (fact,) = [fact for fact in told.of("fact") if fact["name"] == "checked"]
    steps = rap_watch.WARMUP + rap_watch.ITERATIONS + 1
    assert fact["value"] == dict.fromkeys([*ON_CPU, *rap_watch.SOME], steps)
    assert not living(told.pids)


# Gates.


def dealt_to_stages(rank: Rank, began: Callable[[str], object]) -> Side:
    """A gated Side whose launches are dealt to the stages in order; each part calls `began`."""
    side = rank.preparation(VARIANTS["stream"])
    assert isinstance(side, Side)
    launches = len(side._steps.calls[0])
    dealt: dict[str, list[int]] = {stage: [] for stage in STAGES}
    for at in range(launches):
        dealt[STAGES[at * len(STAGES) // launches]].append(at)
    assert all(dealt.values())

    def part(stage: str, calls: Sequence[Callable[[], object]]) -> None:
        began(stage)
        for at in dealt[stage]:
            calls[at]()

    train_lane, side_lane = rank.lanes(False)
    return Side(
        side._steps, train_lane, side_lane, {stage: partial(part, stage) for stage in STAGES}
    )


def test_launches_run_beside_their_stage(rank: Rank) -> None:
    """They wait for what is before it, although the host queues all at once; not for itself."""
    lane = rap_watch.DeviceLane(seed=3)
    rank._lanes[False] = (lane, ThreadLane())
    log: list[tuple[str, str]] = []
    begun = {stage: Semaphore(0) for stage in STAGES}

    def began(stage: str) -> None:
        log.append(("launch", stage))
        begun[stage].release()

    side = dealt_to_stages(rank, began)
    trainer = rank.trainer
    run = trainer.run

    def work(stage: str, slot: int) -> None:
        assert begun[stage].acquire(timeout=30), f"what runs beside {stage} waits for its end"
        run(stage, slot)
        log.append(("end", stage))

    def step(slot: int, on_stage: Callable[[str], object]) -> None:
        for stage in STAGES:
            on_stage(stage)
            lane.queue(lambda s=stage: work(s, slot))  # type: ignore[misc]

    trainer.step = step  # type: ignore[method-assign]
    train(trainer, side, lane, rank.collectives, warmup=0, iterations=3)
    lane.finish()
    assert log == 3 * [(what, stage) for stage in STAGES for what in ("launch", "end")]
    rap_watch.Watch(rank).check(3 % 2, 3, "made last")


@pytest.mark.gpu
def test_launches_wait_for_their_stage_on_the_device(config: Config) -> None:
    rank = Rank(replace(config, device="cuda", trainer="eager", variants=("stream",)), 0,
                lambda kind, **what: None)  # fmt: skip
    train_lane, _ = rank.lanes(False)
    stages: list[torch.cuda.Event] = []
    launches: list[torch.cuda.Event] = []

    def event() -> torch.cuda.Event:
        found = torch.cuda.Event(enable_timing=True)
        found.record()
        return found

    side = dealt_to_stages(rank, lambda _: launches.append(event()))
    on_stage = side.on_stage

    def reach(number: int, stage: str) -> None:
        torch.cuda._sleep(2_000_000)  # the device is a millisecond behind the host
        stages.append(event())
        on_stage(number, stage)

    side.on_stage = reach  # type: ignore[method-assign]
    train(rank.trainer, side, train_lane, rank.collectives, warmup=0, iterations=3)
    torch.cuda.synchronize()
    assert len(stages) == len(launches) == 3 * len(STAGES)
    assert all(s.elapsed_time(launch) >= 0 for s, launch in zip(stages, launches, strict=True))
    rank.close()

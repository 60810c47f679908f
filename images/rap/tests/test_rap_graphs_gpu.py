"""On a GPU a captured variant makes the batches, and trains the steps, of the uncaptured one."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from collections.abc import Callable, Sequence  # noqa: E402
from dataclasses import replace  # noqa: E402

from rap_plans import every_operator  # noqa: E402
from rap_sessions import SMALL  # noqa: E402
from rap_training.measure import train  # noqa: E402
from rap_training.plan.files import dump  # noqa: E402
from rap_training.planner.capacity import STAGES  # noqa: E402
from rap_training.rank import Rank  # noqa: E402
from rap_training.sharing.captured import BRANCHES, graph_of, together  # noqa: E402
from rap_training.sharing.preparation import SLOTS, InLine, InStep  # noqa: E402
from rap_training.sharing.variants import VARIANTS  # noqa: E402
from rap_watch import CHOSEN  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.gpu, pytest.mark.timeout(300)]

STEPS = 7
PAIRS = {
    "sequential_graph": "sequential", "sequential_fused_graph": "sequential_fused",
    "stream_graph": "stream", "stream_fused_graph": "sequential_fused",
    "rap_no_mapping_graph": "rap_no_mapping", "rap_graph": "rap",
}  # fmt: skip
PAIRS |= {name: PAIRS.get(name.split()[0], "rap_plus") for name in CHOSEN}
WAYS = {**VARIANTS, **CHOSEN}


def steps_of(rank: Rank, name: str) -> tuple[list[float], list[torch.Tensor]]:
    """Loss and batch of every step but the last, from the weights that the rank began with."""
    variant, trainer = WAYS[name], rank.trainer
    preparation = rank.preparation(variant)
    # Which captures, on whatever is there.
    trainer.bind(preparation.buffers, preparation.front, whole=not preparation.staged)
    for results in preparation.buffers.results:
        results.zero_()
    trainer.weights.copy_(rank.begun[0])  # type: ignore[attr-defined]
    trainer._flat.data.copy_(rank.begun[1])  # type: ignore[attr-defined]
    torch.cuda.synchronize()
    losses, batches = [], []

    def watch(number: int) -> None:
        if number:  # the slot of the step before is not written until this one is queued
            slot = (number - 1) % SLOTS
            losses.append(trainer.loss(slot))
            batches.append(preparation.buffers.results[slot].cpu().clone())

    train(trainer, preparation, rank.lanes(variant.priority)[0], rank.collectives,
          warmup=0, iterations=STEPS, watch=watch)  # fmt: skip
    return losses, batches


@pytest.fixture(scope="module", params=["graph", "eager"])
def rank(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rank:
    folder = tmp_path_factory.mktemp("graphs")
    path = folder / "every.json"
    path.write_text(dump(every_operator()))
    config = replace(
        SMALL, device="cuda", gpus=1, batch=512, batches=3, plan_file=str(path), out=str(folder),
        variants=tuple({*PAIRS, *PAIRS.values()} - set(CHOSEN)), trainer=request.param,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rap_training.kernels.vertical.BRANCHES", 2)  # several launches of chains
        there = Rank(config, 0, lambda kind, **what: None)
        there.begun = (there.trainer.weights.clone(), there.trainer._flat.data.clone())
        yield there
        there.close()


@pytest.mark.parametrize("name", PAIRS)
def test_a_captured_variant_trains_what_the_uncaptured_does(rank: Rank, name: str) -> None:
    losses, batches = steps_of(rank, name)
    wanted, expected = steps_of(rank, PAIRS[name])
    assert len(losses) == STEPS - 1
    assert len(set(losses)) > 2  # batches differ
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    for number, (found, right) in enumerate(zip(batches, expected, strict=True)):
        assert torch.equal(found, right), number


@pytest.mark.parametrize(
    ("name", "kind"), [("sequential_graph", InStep), ("rap_plus in_line", InLine)]
)
def test_preprocessing_and_training_step_are_one_graph(rank: Rank, name: str, kind: type) -> None:
    preparation = rank.preparation(WAYS[name])
    whole = rank.config.trainer == "graph"
    assert isinstance(preparation, kind) is (whole or kind is InLine)
    rank.trainer.bind(preparation.buffers, preparation.front, whole=True)
    if whole:
        assert set(rank.trainer._at.graphs) == {("step", 0), ("step", 1)}
    stages: list[str] = []
    rank.trainer.step(0, stages.append)
    torch.cuda.synchronize()
    assert bool(stages) is not whole


@pytest.mark.parametrize("name", ["ideal", "stream", "rap", "rap_plus", f"rap_plus {STAGES[1]}"])
def test_a_step_is_one_graph_unless_launches_wait_for_its_stages(rank: Rank, name: str) -> None:
    preparation = rank.preparation(WAYS[name])
    assert preparation.staged is (name in ("rap", f"rap_plus {STAGES[1]}"))
    train(rank.trainer, preparation, rank.lanes(WAYS[name].priority)[0], rank.collectives,
          warmup=0, iterations=2)  # fmt: skip
    found = {stage for stage, _ in rank.trainer._at.graphs}
    wanted = set(STAGES) if preparation.staged else {"step"}
    assert found == (wanted if rank.config.trainer == "graph" else set())


@pytest.mark.timed
def test_training_goes_first_where_it_has_priority(rank: Rank) -> None:
    """Beside kernels that fill the GPU for a tenth of a second."""
    preparation, trainer = rank.preparation(VARIANTS["ideal"]), rank.trainer
    trainer.bind(preparation.buffers, whole=True)
    preparation.start(1)
    flood = torch.zeros(1 << 29, device="cuda")  # about 1 ms to add to

    def milliseconds(priority: bool) -> float:
        lane, side = rank.lanes(priority)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def steps() -> None:
            start.record()
            for number in range(4):
                trainer.step(number % SLOTS)
            end.record()

        torch.cuda.synchronize()
        for _ in range(100):
            side.submit(lambda: flood.add_(1.0))
        lane.submit(steps)
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    milliseconds(True)
    assert milliseconds(True) < 0.5 * milliseconds(False)


CYCLES = 10_000_000  # some milliseconds


def sleeping(
    cells: torch.Tensor, needs: Sequence[Sequence[int]], cycles: Sequence[int]
) -> list[Callable[[], object]]:
    """A call for each cell but the first: it takes its time, then adds up what it needs and the
    first."""

    def call_of(at: int) -> Callable[[], object]:
        taken = torch.tensor([0, *(1 + other for other in needs[at])], device=cells.device)

        def call() -> None:
            torch.cuda._sleep(cycles[at])
            torch.sum(cells[taken], 0, out=cells[1 + at])

        return call

    return [call_of(at) for at in range(len(needs))]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_branch_waits_for_what_its_calls_need(graph: bool, seed: int) -> None:
    random, count = np.random.default_rng(seed), 3 * BRANCHES
    needs = [
        sorted({int(random.integers(at)) for _ in range(random.integers(3))} if at else ())
        for at in range(count)
    ]
    expected = [3]
    for needed in needs:
        expected.append(3 + sum(expected[1 + other] for other in needed))
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    cells = torch.zeros(1 + count, dtype=torch.int64, device="cuda")
    cycles = random.integers(CYCLES // 10, size=count).tolist()
    call = together(sleeping(cells, needs, cycles), needs, cells.device)

    def work() -> None:
        cells.zero_()
        torch.cuda._sleep(CYCLES)
        cells[:1] += 3
        call()
        torch.sum(cells, 0, out=total)

    whole = graph_of([work], cells.device) if graph else work
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream(cells.device)):
        whole()
    torch.cuda.synchronize()
    assert cells.tolist() == expected
    assert total == sum(expected)


@pytest.mark.timed
@pytest.mark.parametrize("graph", [False, True])
def test_branches_take_as_long_as_one(graph: bool) -> None:
    cells = torch.zeros(5, dtype=torch.int64, device="cuda")

    def seconds(count: int) -> float:
        needs: list[tuple[int, ...]] = [()] * count
        calls = sleeping(cells, needs, [CYCLES] * count)
        call = together(calls, needs, cells.device)
        call = graph_of([call], cells.device) if graph else call
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    assert seconds(4) < 2 * seconds(1)

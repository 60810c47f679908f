"""The trainer trains exactly what a plain model in one process trains on all ranks' rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from rap_loop import (  # noqa: E402
    ALONE,
    CPU,
    LR,
    MODEL,
    ONE,
    ROWS,
    STEPS,
    TABLES,
    TWO,
    Answer,
    Loop,
    global_batches,
    in_tensors,
    two_ranks,
    work_of,
)
from rap_model import train  # noqa: E402
from rap_ranks import run_ranks  # noqa: E402
from rap_training.memory import Buffers  # noqa: E402
from rap_training.sharing.preparation import SLOTS  # noqa: E402
from rap_training.train.torchrec import Weights  # noqa: E402
from rap_training.work import data_parallel  # noqa: E402

pytestmark = pytest.mark.torch


def assert_weights(found: Weights, expected: Weights) -> None:
    assert sorted(found.tables) == sorted(expected.tables)
    for table, rows in expected.tables.items():
        close(found.tables[table], rows, f"table {table}")
    layers = zip([*found.bottom, *found.over], [*expected.bottom, *expected.over], strict=True)
    for at, ((weight, bias), (right_weight, right_bias)) in enumerate(layers):
        close(weight, right_weight, f"weight {at}")
        close(bias, right_bias, f"bias {at}")


def close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(
        found, expected, rtol=1e-5, atol=1e-6, msg=lambda words: f"{what}: {words}"
    )


def test_the_batches_are_hard_enough() -> None:
    lists = [bag for each in global_batches() for bags in each.ids for bag in bags]
    assert any(len(bag) == 0 for bag in lists), "no empty list"
    assert len({len(bag) for bag in lists}) > 3, "lists of few lengths"
    assert any(len(set(bag.tolist())) < len(bag) for bag in lists), "no id twice in a list"
    for bags in global_batches()[0].ids:
        ids = torch.cat(bags)
        assert len(ids.unique()) < len(ids), "no id in two lists"


def test_one_rank_trains_what_a_plain_model_trains() -> None:
    loop = Loop(work_of(ONE), ALONE)
    losses, after = train(loop.start, global_batches(), LR)
    close(torch.tensor(loop.steps()), torch.tensor(losses), "losses")
    assert_weights(loop.weights(), after)
    changes = [(after.tables[t] - rows).abs().max() for t, rows in loop.start.tables.items()]
    assert min(changes) > 1e-3, "hardly anything is learnt: the comparison says nothing"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Answer]]:
    """What two ranks found in every case of TWO, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    both = run_ranks(two_ranks, 2, folder, list(TWO.values()), "cpu", False)
    return dict(zip(TWO, map(list, zip(*both, strict=True)), strict=True))


def assert_trained(both: list[Answer]) -> None:
    """Both ranks together equal the plain model on the global batch."""
    starts = [in_tensors(answer.start) for answer in both]
    afters = [in_tensors(answer.after) for answer in both]
    start = replace(starts[0], tables={**starts[0].tables, **starts[1].tables})
    losses, expected = train(start, global_batches(), LR)
    mean = np.mean([answer.losses for answer in both], axis=0, dtype=np.float64)
    np.testing.assert_allclose(mean, losses, rtol=1e-5)
    for after in afters:  # the MLPs are the same everywhere: gradients were averaged, and once
        tables = {**afters[0].tables, **afters[1].tables}
        assert_weights(replace(after, tables=tables), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TWO))
def test_two_ranks_train_what_a_plain_model_trains(
    name: str, answers: dict[str, list[Answer]]
) -> None:
    both = answers[name]
    assert {t for answer in both for t in answer.start.tables} == set(range(TABLES))
    assert_trained(both)


@pytest.mark.slow
def test_weights_start_alike_on_any_number_of_ranks(answers: dict[str, list[Answer]]) -> None:
    one = Loop(work_of(ONE), ALONE).start
    both = [in_tensors(answer.start) for answer in answers["mixed"]]
    tables = {**both[0].tables, **both[1].tables}
    assert all(torch.equal(tables[table], rows) for table, rows in one.tables.items())
    for start in both:
        for (weight, bias), (there, other) in zip(
            [*one.bottom, *one.over], [*start.bottom, *start.over], strict=True
        ):
            assert torch.equal(weight, there)
            assert torch.equal(bias, other)


@pytest.mark.slow
def test_buckets_do_not_matter(answers: dict[str, list[Answer]]) -> None:
    """Nothing but the cut differs, so not a bit does."""
    for one, other in zip(answers["own rows"], answers["own rows, small buckets"], strict=True):
        assert one.losses == other.losses
        for (weight, bias), (there, same) in zip(one.after.over, other.after.over, strict=True):
            np.testing.assert_array_equal(weight, there)
            np.testing.assert_array_equal(bias, same)


def test_without_learning_nothing_changes_and_afterwards_all_goes_on() -> None:
    work = work_of(ONE)
    loop, other = Loop(work, ALONE), Loop(work, ALONE)
    expected = other.steps()
    loop.trainer.learn(False)
    still = [loop.step(0) for _ in range(3)]
    assert len(set(still)) == 1
    after = loop.weights()
    for table, rows in loop.start.tables.items():
        assert torch.equal(after.tables[table], rows)
    for (weight, _), (before, _) in zip(after.over, loop.start.over, strict=True):
        assert torch.equal(weight, before)
    loop.trainer.learn(True)
    assert loop.steps() == expected


def test_an_id_outside_of_its_table_adds_nothing_and_is_reported() -> None:
    loop = Loop(work_of(ONE), ALONE)
    ragged = next(piece for piece in loop.buffers.work.needed_here if piece.type.ragged)
    batches = [replace(each, ids=[list(bags) for bags in each.ids]) for each in global_batches()]
    row = next(n for n, bag in enumerate(batches[1].ids[ragged.table]) if len(bag) >= 2)
    bag = batches[1].ids[ragged.table][row]
    batches[1].ids[ragged.table][row] = bag[2:]
    batches[1].ids[0][3] = bag[:0]
    losses = []
    for number in range(STEPS):
        loop.inputs.all(number)
        if number == 1:
            ids, lengths = loop.buffers.piece(1, ragged)
            ids[row, 0], ids[row, 1] = MODEL.rows[ragged.table], -1
            ids[row, int(lengths[row]) :] = 10**12  # behind the list: not an id
            loop.buffers.piece(1, loop.buffers.work.needed_here[0])[0][3] = MODEL.rows[0]
        loop.trainer.step(number % SLOTS)
        losses.append(loop.trainer.loss(number % SLOTS))
    expected, after = train(loop.start, batches, LR)
    close(torch.tensor(losses), torch.tensor(expected), "losses")
    assert_weights(loop.weights(), after)
    with pytest.raises(
        ValueError, match=r"^1 ids of table 0, node .* more tables, .*; fix: "
    ) as caught:
        loop.trainer.check()
    output = loop.buffers.work.plan.sparse[0]
    assert f"node {output.node}, were outside of its {output.rows} rows" in str(caught.value)


def test_a_trainer_takes_any_mapping_but_no_other_placement() -> None:
    loop = Loop(work_of(ONE), ALONE)
    expected = Loop(work_of(ONE), ALONE).steps()
    inputs = [loop.inputs, loop.another(work_of(replace(ONE, mapping=data_parallel(TABLES))))[1]]
    losses = []
    for number in range(STEPS):
        now = inputs[number % 2]
        loop.trainer.bind(now.buffers)
        now.all(number)
        loop.trainer.step(number % SLOTS)
        losses.append(loop.trainer.loss(number % SLOTS))
    assert losses == expected
    other = replace(work_of(ONE), batch=ROWS // 2)
    with pytest.raises(ValueError, match="other tables or rows than the trainer; fix:"):
        loop.trainer.bind(Buffers.allocate(other, CPU, SLOTS))

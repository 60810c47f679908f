"""In the loop of the measurements, TorchRec loses what our trainer loses."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from rap_loop import MODEL, ONE, TABLES, TURNS, Case, Loop, global_batches, work_of  # noqa: E402
from rap_plans import every_operator  # noqa: E402
from rap_ranks import run_ranks  # noqa: E402
from rap_training.cli import main  # noqa: E402
from rap_training.config import Config, ConfigError  # noqa: E402
from rap_training.launches import Call  # noqa: E402
from rap_training.measure import train  # noqa: E402
from rap_training.memory import Buffers  # noqa: E402
from rap_training.plan.files import dump  # noqa: E402
from rap_training.planner.capacity import STAGES  # noqa: E402
from rap_training.rank import CannotRun, Rank  # noqa: E402
from rap_training.sharing.preparation import Preparation, Side  # noqa: E402
from rap_training.sharing.variants import VARIANTS  # noqa: E402
from rap_training.train.adapter import Input, TorchRecAdapter, own_rows  # noqa: E402
from rap_training.train.collectives import Collectives  # noqa: E402
from rap_training.work import DATA_PARALLEL, data_parallel  # noqa: E402

pytestmark = pytest.mark.torch
needs_torchrec = pytest.mark.skipif(
    importlib.util.find_spec("torchrec") is None or importlib.util.find_spec("fbgemm_gpu") is None,
    reason="TorchRec is not installed: pip install --no-deps -r "
    "images/rap/requirements-torchrec-cpu.txt",
)
WAYS = ("sequential", "stream", "gated", "ideal")
WARMUP, ITERATIONS = 1, 4


def test_lists_lose_their_padding_and_keep_their_order() -> None:
    loop = Loop(work_of(ONE), Collectives(rank=0, world=1))
    bad = torch.zeros(TABLES, dtype=torch.int64)
    slots = [Input(loop.buffers, slot, MODEL.rows) for slot in range(2)]
    for number, batch in enumerate(global_batches()):
        loop.inputs.all(number)
        values, lengths = slots[number % 2].bags(bad)
        assert torch.equal(values, torch.cat([bag for bags in batch.ids for bag in bags]))
        assert lengths.tolist() == [len(bag) for bags in batch.ids for bag in bags]
        assert lengths.dtype == torch.int32
        assert torch.equal(slots[number % 2].dense(), batch.dense)
        assert torch.equal(slots[number % 2].labels, batch.labels)
    assert not bad.any()


def test_ids_outside_of_their_table_are_counted_but_not_behind_a_list() -> None:
    loop = Loop(work_of(ONE), Collectives(rank=0, world=1))
    loop.inputs.all(0)
    ragged = next(piece for piece in loop.buffers.work.needed_here if piece.type.ragged)
    ids, lengths = loop.buffers.piece(0, ragged)
    assert lengths is not None
    row = next(n for n, length in enumerate(lengths.tolist()) if 2 <= length < ids.shape[1])
    ids[row, 0], ids[row, 1], ids[row, -1] = -1, MODEL.rows[ragged.table], 10**12
    loop.buffers.piece(0, loop.buffers.work.needed_here[0])[0][3] = MODEL.rows[0]
    bad = torch.zeros(TABLES, dtype=torch.int64)
    values, lengths = Input(loop.buffers, 0, MODEL.rows).bags(bad)
    wanted = [0] * TABLES
    wanted[ragged.table] += 2
    wanted[loop.buffers.work.needed_here[0].table] += 1
    assert bad.tolist() == wanted
    assert len(values) == int(lengths.sum())
    assert int(values.min()) >= 0
    assert int(values.max()) < max(MODEL.rows)


def test_on_several_ranks_every_feature_must_be_made_where_it_is_trained_on() -> None:
    own = work_of(Case(TURNS, data_parallel(TABLES)), rank=1, world=2)
    assert [piece.table for piece in own_rows(own)] == list(range(TABLES))
    for mapping in (TURNS, (DATA_PARALLEL,) * (TABLES - 1) + (1,), (1,) * TABLES):
        with pytest.raises(ValueError, match="own rows of every feature; fix: "):
            own_rows(replace(own, mapping=mapping))


def test_nothing_is_exchanged_for_a_trainer_that_does_so_itself() -> None:
    buffers = Buffers.allocate(
        work_of(Case(TURNS, data_parallel(TABLES)), rank=0, world=2), torch.device("cpu"), 1
    )
    Collectives(rank=0, world=2, inputs=False).exchange_inputs(buffers, 0)
    with pytest.raises(ValueError, match="process group"):  # there are no ranks to send to
        Collectives(rank=0, world=2).exchange_inputs(buffers, 0)


def trained(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Losses of every step and the tables after, under both trainers, through the real loop."""
    found = {}
    for kind in ("eager", "torchrec"):
        os.environ["RAP_RENDEZVOUS"] = f"{folder}/{kind}"
        there = Rank(config(kind, world, f"{folder}/plan.json"), rank, lambda *_, **__: None)
        losses = {name: losses_of(there, preparation(there, name)) for name in WAYS}
        found[kind] = losses, tables_of(there)
        if kind == "torchrec":
            found["still"] = without_learning(there)
            found["skipped"] = skipped(there)
        there.close()
    return found


def config(kind: str, world: int, plan: str) -> Config:
    return Config(
        experiment="fig10", gpus=world, plan_file=plan, batch=16, batches=5, trainer=kind,
        variants=("sequential", "stream", "rap", "ideal"),
    )  # fmt: skip


def preparation(rank: Rank, name: str) -> Preparation:
    if name != "gated":
        return rank.preparation(VARIANTS[name])
    beside = rank.preparation(VARIANTS["stream"])
    assert isinstance(beside, Side)

    def everything(calls: Sequence[Call]) -> None:
        for call in calls:
            call()

    return Side(beside._steps, *rank.lanes(False), {STAGES[0]: everything})


def losses_of(rank: Rank, made: Preparation) -> list[float]:
    found = []

    def watch(number: int) -> None:
        if number:
            found.append(rank.trainer.loss((number - 1) % 2))

    train(
        rank.trainer, made, rank.lanes(False)[0], rank.collectives, warmup=WARMUP,
        iterations=ITERATIONS, watch=watch,
    )  # fmt: skip
    watch(WARMUP + ITERATIONS)
    return found


def tables_of(rank: Rank) -> dict[int, np.ndarray]:
    trainer = rank.trainer
    if isinstance(trainer, TorchRecAdapter):
        return {t: rows.numpy().copy() for t, rows in trainer.trainer.tables().items()}
    tables = trainer.buffers.work.tables
    rows = trainer.weights.split([trainer.model.rows[t] for t in tables])
    return {t: part.numpy().copy() for t, part in zip(tables, rows, strict=True)}


def without_learning(rank: Rank) -> tuple[bool, bool]:
    """Whether tables stay as they are without learning, and change again with it."""
    before = tables_of(rank)
    same = []
    for learns in (False, True):
        rank.trainer.learn(learns)
        for _ in range(2):
            rank.trainer.step(0)
        after = tables_of(rank)
        same.append(all(np.array_equal(after[t], before[t]) for t in before))
    return same[0], not same[1]


def skipped(rank: Rank) -> str:
    if rank.world == 1:
        return ""
    with pytest.raises(CannotRun) as caught:
        rank.preparation(VARIANTS["rap"])
    return str(caught.value)


@needs_torchrec
@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_it_loses_what_our_trainer_loses(world: int, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(dump(every_operator()), encoding="utf-8")
    ranks = run_ranks(trained, world, tmp_path, str(tmp_path), backend=None)
    for found in ranks:
        (ours, our_tables), (theirs, their_tables) = found["eager"], found["torchrec"]
        for way in WAYS:
            assert len(ours[way]) == WARMUP + ITERATIONS
            np.testing.assert_allclose(theirs[way], ours[way], rtol=1e-4, err_msg=way)
        assert ours["sequential"] != ours["stream"], "nothing is learnt: this says nothing"
        assert sorted(our_tables) == sorted(their_tables)
        for table, rows in our_tables.items():
            np.testing.assert_allclose(their_tables[table], rows, rtol=1e-3, atol=1e-5)
        assert found["still"] == (True, True)
    assert {t for found in ranks for t in found["eager"][1]} == set(range(TABLES))
    if world > 1:
        assert "TorchRec takes own rows only; fix: --trainer graph" in ranks[0]["skipped"]


@needs_torchrec
@pytest.mark.slow
def test_an_id_outside_of_its_table_is_reported(tmp_path: Path) -> None:
    output = work_of(ONE).plan.sparse[0]
    assert run_ranks(reported, 1, tmp_path, backend=None) == [
        f"1 ids of table 0, node {output.node}, were outside of its {output.rows} rows, "
        "and were taken for 0; "
        "fix: end the plan's chain with sigrid_hash modulo the table's rows"
    ]


def reported(rank: int, world: int) -> str:
    loop = Loop(work_of(ONE), Collectives(rank=rank, world=world))
    adapter = TorchRecAdapter(MODEL, loop.buffers, loop.collectives, seed=1)
    loop.inputs.all(0)
    adapter.step(0)
    adapter.check()
    loop.buffers.piece(0, loop.buffers.work.needed_here[0])[0][3] = MODEL.rows[0]
    adapter.step(0)
    with pytest.raises(ValueError, match="outside") as caught:
        adapter.check()
    assert np.isfinite(adapter.loss(0))
    return str(caught.value)


def test_without_torchrec_the_run_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package that cannot be imported stands in the place of TorchRec."""
    (tmp_path / "fbgemm_gpu").mkdir()
    (tmp_path / "fbgemm_gpu/__init__.py").write_text("raise OSError('libtorch.so is not there')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "fbgemm_gpu"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as left:
        main(
            ["fig10", "--trainer", "torchrec", "--variants", "ideal", "--scale", "0.0001",
             "--out", str(tmp_path)]
        )  # fmt: skip
    assert left.value.code == 77
    said = capsys.readouterr().err.strip()
    assert said == (
        "TorchRec cannot be imported (libtorch.so is not there); build the image with TORCHREC=1"
    )


@pytest.mark.parametrize("experiment", ["capacity", "timeline"])
def test_what_is_about_stages_needs_our_trainer(experiment: str) -> None:
    with pytest.raises(ConfigError, match=f"no stages, which {experiment} is about; fix: "):
        Config(experiment=experiment, trainer="torchrec")

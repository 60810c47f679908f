"""Every kernel equals the numpy reference: on the GPU, and in Triton's interpreter without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rap_plans import ROWS, batch, every_operator
from rap_training.backends import NumpyBackend
from rap_training.feed import Feed
from rap_training.launches import fused, unfused
from rap_training.memory import Buffers, final_keys
from rap_training.plan.builtin import builtin
from rap_training.plan.generator import heavier
from rap_training.plan.graph import Plan
from rap_training.work import Work, data_parallel, locality

pytest.importorskip("triton", reason="Triton is not installed: pip install --no-deps triton")

# A GPU makes infinity of a float64 beyond float32, as Triton's interpreter does with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
DEVICES = [
    pytest.param("cpu", id="interpreter"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
]


def work_of(plan: Plan, rank: int = 0, world: int = 1, rows: int = ROWS, mapping=None) -> Work:
    count = len(plan.sparse)
    home = tuple(table % world for table in range(count))
    return Work(
        plan=plan, rank=rank, world=world, batch=rows // world, home=home,
        mapping=locality(home) if mapping is None else mapping,
    )  # fmt: skip


def prepare(work: Work, device: torch.device, seed: int = 0) -> Buffers:
    buffers = Buffers.allocate(work, device, slots=1)
    Feed(work, [batch(ROWS, seed)], device, "resident").load(0, buffers, 0)
    for storage in (buffers.scratch, *buffers.results):
        storage[4 * work.batch :] = 0xAB  # what was there before must not matter
    return buffers


def expected(work: Work) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    buffers = prepare(work, torch.device("cpu"))
    for launch in unfused(work):
        NumpyBackend().bind(launch, buffers, 0)()
    return results(work, buffers)


def results(work: Work, buffers: Buffers) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    found = {}
    for key in final_keys(work):
        values, lengths = buffers.value(0, key)
        found[key] = values.cpu().numpy(), None if lengths is None else lengths.cpu().numpy()
    return found


def assert_equal(work: Work, buffers: Buffers) -> None:
    for key, (values, lengths) in results(work, buffers).items():
        wanted, wanted_lengths = expected(work)[key]
        if wanted_lengths is None:
            keep = np.ones(values.shape, bool)
        else:
            assert lengths is not None
            np.testing.assert_array_equal(lengths, wanted_lengths, err_msg=key)
            keep = np.arange(values.shape[1]) < wanted_lengths[:, None]
        if values.dtype == np.int64:
            np.testing.assert_array_equal(values[keep], wanted[keep], err_msg=key)
        else:
            np.testing.assert_allclose(
                values[keep], wanted[keep], rtol=1e-5, atol=1e-5, err_msg=key
            )


def run_on(device: torch.device, work: Work, how: str) -> Buffers:
    from rap_training.kernels.backend import TritonBackend

    buffers = prepare(work, device)
    backend = TritonBackend(device)
    if how == "vertical":
        calls = backend.bind_chains(final_keys(work), buffers, 0)
    else:
        launches = unfused(work) if how == "unfused" else fused(work)[0]
        calls = [backend.bind(launch, buffers, 0) for launch in launches]
    for call in calls:
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return buffers


@pytest.mark.parametrize("how", ["unfused", "horizontal", "vertical"])
@pytest.mark.parametrize("device", DEVICES)
def test_every_operator_equals_the_reference(device: str, how: str) -> None:
    work = work_of(every_operator())
    assert_equal(work, run_on(torch.device(device), work, how))


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_chain_repeats_equals_the_reference(device: str) -> None:
    work = work_of(heavier(every_operator(), 8.0))
    assert_equal(work, run_on(torch.device(device), work, "vertical"))


def test_the_code_of_a_chain_does_not_grow_with_what_it_repeats(tmp_path: Path) -> None:
    """The longest chains of plan 3 took Triton minutes, and a run was given up for its silence."""
    from rap_training.kernels.backend import TritonBackend

    def lines(factor: float) -> int:
        work, folder = work_of(heavier(every_operator(), factor)), tmp_path / str(factor)
        backend = TritonBackend(torch.device("cpu"), folder)
        backend.bind_chains(final_keys(work), prepare(work, torch.device("cpu")), 0)
        return sum(each.read_text().count("\n") for each in folder.glob("chains_*.py"))

    assert lines(32.0) < 1.1 * lines(8.0)


@pytest.mark.parametrize(("number", "factor"), [(0, 1.0), (2, 2.83), (3, 5.86)])
def test_a_built_in_plan_is_one_launch_of_floats_and_ids_in_turns_the_longest_first(
    number: int, factor: float
) -> None:
    from rap_training.kernels import tables, vertical

    work = work_of(heavier(builtin(number, scale=0.001), factor))
    buffers, keys = Buffers.allocate(work, torch.device("cpu"), slots=1), final_keys(work)
    (launch,) = vertical.kernels(buffers, 0, keys, tables.Constants(buffers.device))
    signatures = sorted({vertical.signature(vertical._chain(buffers, key)) for key in keys})
    lengths = [len(signatures[sort]) for sort in launch.arguments[1][:, -1]]
    assert len(lengths) == len(keys)
    assert lengths == sorted(lengths, reverse=True)
    assert launch.blocks.is_contiguous()
    programs = [tuple(each) for each in launch.blocks.tolist()]
    rows = launch.arguments[1]
    sizes = (rows[:, 5] * rows[:, 7]).tolist()
    wanted = tables.block_table(sizes, torch.device("cpu")).tolist()
    assert sorted(programs) == [tuple(each) for each in wanted]

    def of_floats(member: int) -> bool:
        types = [step.split(":")[1] for step in signatures[rows[member, -1]]]
        return types.count("float32") > types.count("int64")

    kinds = {kind: [p for p in programs if of_floats(p[0]) == kind] for kind in (True, False)}
    whole = {kind: sum(lengths[at] for at, _ in of) for kind, of in kinds.items()}
    assert all(of == sorted(of) and of for of in kinds.values())
    done = {True: 0.0, False: 0.0}
    for member, _ in programs:
        done[of_floats(member)] += lengths[member] / whole[of_floats(member)]
        assert abs(done[True] - done[False]) <= max(lengths) / min(whole.values())


@pytest.mark.parametrize("device", DEVICES)
def test_chains_of_many_sorts_are_several_launches(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = work_of(every_operator())
    monkeypatch.setattr("rap_training.kernels.vertical.BRANCHES", 2)
    assert_equal(work, run_on(torch.device(device), work, "vertical"))


@pytest.mark.parametrize("how", ["horizontal", "vertical"])
@pytest.mark.parametrize("device", DEVICES)
def test_own_rows_and_all_rows(device: str, how: str) -> None:
    plan = every_operator()
    mixed = (0, 1, -1, 0, 1, -1)
    for rank in range(2):
        for mapping in (data_parallel(6), mixed):
            work = work_of(plan, rank, 2, mapping=mapping)
            assert_equal(work, run_on(torch.device(device), work, how))

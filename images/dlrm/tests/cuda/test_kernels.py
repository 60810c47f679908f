"""Every variant equals the reference, on a real GPU: tails, dims, index types, element types."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, repeat
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from dlrm_inference.config import Config  # noqa: E402
from dlrm_inference.cuda import best as best_module  # noqa: E402
from dlrm_inference.cuda.bench import Bench, Stock, all_tables  # noqa: E402
from dlrm_inference.cuda.fbgemm import Fbgemm, join_offsets  # noqa: E402
from dlrm_inference.cuda.report import raise_if_out_of_range  # noqa: E402
from dlrm_inference.cuda.stock21 import Stock21  # noqa: E402
from dlrm_inference.cuda.tensors import UnsupportedError  # noqa: E402
from dlrm_inference.cuda.variants import VARIANTS  # noqa: E402
from reprokit.records import RecordWriter  # noqa: E402

pytestmark = pytest.mark.gpu

ROWS = 5000
LENGTHS = [0, 1, 2, 149, 150, 151, 0, 3, 64, 1000, 7]
DIMS = (32, 64, 100, 128, 256)
INDEX_TYPES = (torch.int32, torch.int64)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def make(dim: int, index: torch.dtype, dtype: torch.dtype = torch.float32, seed: int = 0):
    """weight (ROWS, dim), ragged indices, offsets (bags + 1,) on the GPU; fresh random values."""
    generator = torch.Generator().manual_seed(seed + dim)
    weight = torch.randn(ROWS, dim, generator=generator).to(dtype).cuda()
    lengths = torch.tensor(LENGTHS * 5)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).to(index).cuda()
    indices = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator).to(index).cuda()
    return weight, indices, offsets


def reference(weight, indices, offsets, mode="sum"):
    """Each bag's sum or mean in float64, bag by bag; an empty bag is zero."""
    bounds = offsets.tolist()
    bags = []
    for begin, end in pairwise(bounds):
        rows = weight[indices[begin:end].long()].double().sum(0)
        bags.append(rows / max(1, end - begin) if mode == "mean" else rows)
    return torch.stack(bags)


def error(got, want) -> float:
    assert torch.isfinite(got).all()
    return float((got.double() - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("index", INDEX_TYPES, ids=str)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", list(VARIANTS))
def test_ragged_bags_equal_the_reference(name: str, dim: int, index: torch.dtype) -> None:
    weight, indices, offsets = make(dim, index)
    for mode in ("sum", "mean"):
        out = torch.full((offsets.numel() - 1, dim), float("nan"), device="cuda")
        got = VARIANTS[name].forward(weight, indices, offsets, mode=mode, out=out, check=True)
        assert got.data_ptr() == out.data_ptr()
        assert error(got, reference(weight, indices, offsets, mode)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("name", [n for n in VARIANTS if n != "best"])
def test_the_papers_kernels_sum_in_order_bit_for_bit(name: str) -> None:
    weight, indices, offsets = make(128, torch.int64)
    want = VARIANTS["base"].forward(weight, indices, offsets)
    assert torch.equal(VARIANTS[name].forward(weight, indices, offsets), want)


@pytest.mark.parametrize("distance", [1, 2, 4, 6, 8, 10])
@pytest.mark.parametrize("name", ["rpf", "smpf", "smpf_async", "l1dpf", "lmpf"])
def test_every_prefetch_distance_gives_the_same_sums(name: str, distance: int) -> None:
    weight, indices, offsets = make(64, torch.int64)
    want = VARIANTS["base"].forward(weight, indices, offsets)
    got = VARIANTS[name].tuned(distance).forward(weight, indices, offsets)
    assert torch.equal(got, want)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_best_takes_16_bit_tables(dtype: torch.dtype, dim: int) -> None:
    weight, indices, offsets = make(dim, torch.int64, dtype)
    got = VARIANTS["best"].forward(weight, indices, offsets, check=True)
    assert got.dtype == dtype
    assert error(got, reference(weight, indices, offsets)) < TOLERANCE[dtype]


@pytest.mark.parametrize("index", INDEX_TYPES, ids=str)
@pytest.mark.parametrize("tables", [1, 2, 12, 48])
def test_best_serves_all_tables_in_one_launch(tables: int, index: torch.dtype) -> None:
    parts = [make(128, index, seed=t) for t in range(tables)]
    weights, indices, offsets = (list(column) for column in zip(*parts, strict=True))
    got = VARIANTS["best"].forward_tables(weights, indices, offsets, check=True)
    want = torch.cat([reference(*part) for part in parts], dim=1)
    assert error(got, want) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("index", INDEX_TYPES, ids=str)
@pytest.mark.parametrize("pooling", [1, 2, 10, 150])
@pytest.mark.parametrize("tables", [1, 2, 12])
def test_joined_ids_give_the_same_bits(tables: int, pooling: int, index: torch.dtype) -> None:
    best = VARIANTS["best"]
    weights = [torch.randn(ROWS, 128, device="cuda") for _ in range(tables)]
    for lengths in (torch.full((tables, 70), pooling), torch.randint(2 * pooling, (tables, 70))):
        ids = [torch.randint(ROWS, (int(n),)).to("cuda", index) for n in lengths.sum(1)]
        offsets = [
            torch.nn.functional.pad(one.cumsum(0), (1, 0)).to("cuda", index) for one in lengths
        ]
        want = best.forward_tables(weights, ids, offsets, mode="mean")
        joined = torch.cat(ids), join_offsets(offsets)
        got = best.prepare_joined(best.tables(weights), *joined, mode="mean").checked(True)
        if (lengths == pooling).all():  # else another form may be chosen, of another order
            assert torch.equal(got, want)
        assert torch.allclose(got, want, atol=1e-5)
    if tables > 1:
        with pytest.raises(UnsupportedError, match="tables \\* bags \\+ 1"):
            best.prepare_joined(best.tables(weights), joined[0], joined[1][:-1])


def test_joined_ids_of_any_kind_follow_one_another_on_the_same_tables() -> None:
    """Nothing that one call has decided is taken for another that differs in one thing."""
    best, wide = VARIANTS["best"], torch.empty(70, 3 * 128 + 4, device="cuda")
    weights = [torch.randn(ROWS, 128, device="cuda") for _ in range(3)]
    tables = best.tables(weights)
    tables.frame.plans.clear()
    usual = {
        "ours": best, "bags": 70, "lengths": [2], "index": torch.int64, "mode": "sum", "out": None
    }  # fmt: skip
    changes = [
        {},
        {"ours": replace(best, lean=False)},
        {"bags": 7},
        {"lengths": [2, 3, 3]},  # of the same average, and there may be a long bag
        {"lengths": [5]},
        {"lengths": [1, 900]},
        {"index": torch.int32},
        {"mode": "mean"},
        {"out": wide[:, :-4]},
        {"out": wide[:, 1:-3]},  # of rows that begin at 4 bytes
    ]
    for change in [one for pair in zip(changes, repeat({})) for one in pair]:
        case = SimpleNamespace(**usual | change)
        sizes = torch.tensor(case.lengths).repeat(3 * case.bags)[: 3 * case.bags]
        ends = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).to("cuda", case.index)
        ids = torch.randint(ROWS, (int(sizes.sum()),)).to("cuda", case.index)
        launch = case.ours.prepare_joined(tables, ids, ends, mode=case.mode, out=case.out)
        shares = not case.ours.lean or len(ids) > best_module._cut(len(ids) // (3 * case.bags))
        assert isinstance(launch, best_module._Launch) == shares
        got = launch.checked(True)
        assert case.out is None or got.data_ptr() == case.out.data_ptr()
        parts = [ends[t * case.bags : (t + 1) * case.bags + 1] for t in range(3)]
        want = [reference(w, ids, part, case.mode) for w, part in zip(weights, parts, strict=True)]
        assert error(got, torch.cat(want, dim=1)) < TOLERANCE[torch.float32], change
    assert len(tables.frame.plans) == len(changes) - 1  # the first `out` is aligned as our own
    ids[-1] = ROWS
    with pytest.raises(IndexError, match="bag 69 is outside its table, table 2 of its launch"):
        best.prepare_joined(tables, ids, ends).checked(True)


def test_a_launch_keeps_what_it_reads_alive() -> None:
    best, weight = VARIANTS["best"], torch.ones(ROWS, 128, device="cuda")
    ids, ends = (torch.arange(n, device="cuda") for n in (70, 71))
    launch = best.prepare_joined(best.tables([weight]), ids, ends)
    del weight, ids, ends
    taken = [torch.full(n, 7, device="cuda") for n in ((ROWS, 128), (70,), (71,), (70, 128))]
    assert len(taken) == 4
    assert (launch.checked(True) == 1).all()


@pytest.mark.parametrize("shape", ["few", "many"])
def test_both_shapes_of_best_serve_ragged_bags(shape: str) -> None:
    best = VARIANTS["best"]
    forced = replace(best, few=getattr(best, shape), many=getattr(best, shape))
    for dim in DIMS:
        weight, indices, offsets = make(dim, torch.int64)
        got = forced.forward(weight, indices, offsets, check=True)
        assert error(got, reference(weight, indices, offsets)) < TOLERANCE[torch.float32]


def test_best_repeats_itself_bit_for_bit() -> None:
    weight, indices, offsets = make(128, torch.int64)
    first = VARIANTS["best"].forward(weight, indices, offsets)
    assert torch.equal(VARIANTS["best"].forward(weight, indices, offsets), first)


@pytest.mark.parametrize("bad", [-1, ROWS, 2**31 - 1])
@pytest.mark.parametrize("name", list(VARIANTS))
def test_an_index_out_of_range_is_an_error_and_no_crash(name: str, bad: int) -> None:
    weight, indices, offsets = make(128, torch.int64)
    indices[200] = bad
    with pytest.raises(IndexError, match="outside its table"):
        VARIANTS[name].forward(weight, indices, offsets, check=True)
    indices[200] = 0
    got = VARIANTS[name].forward(weight, indices, offsets, check=True)  # the device still works
    assert error(got, reference(weight, indices, offsets)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("name", list(VARIANTS))
def test_no_bags_and_no_indices(name: str) -> None:
    weight = torch.randn(10, 128, device="cuda")
    nothing = torch.zeros(0, dtype=torch.long, device="cuda")
    empty = torch.zeros(4, dtype=torch.long, device="cuda")
    got = VARIANTS[name].forward(weight, nothing, empty, check=True)
    assert got.shape == (3, 128)
    assert not got.any()


def test_strided_tables_are_summed_by_the_papers_kernels_and_refused_by_best() -> None:
    weight, indices, offsets = make(128, torch.int64)
    strided = weight.t().contiguous().t()
    want = reference(weight, indices, offsets)
    assert error(VARIANTS["rpf"].forward(strided, indices, offsets), want) < 1e-5
    with pytest.raises(UnsupportedError, match="contiguous"):
        VARIANTS["best"].forward(strided, indices, offsets)
    wide = torch.cat([weight, weight], dim=1)[:, :128]  # rows further apart
    assert error(VARIANTS["best"].forward(wide, indices, offsets), want) < 1e-5


@pytest.mark.parametrize("name", list(VARIANTS))
def test_wrong_calls_get_a_sentence(name: str) -> None:
    weight, indices, offsets = make(128, torch.int64)
    with pytest.raises(UnsupportedError, match="mode"):
        VARIANTS[name].forward(weight, indices, offsets, mode="max")
    with pytest.raises(UnsupportedError, match="same type"):
        VARIANTS[name].forward(weight, indices.int(), offsets)


def test_the_baselines_equal_the_reference_too() -> None:
    weight, indices, offsets = make(128, torch.int64)
    want = reference(weight, indices, offsets)
    assert error(Stock().forward(weight, indices, offsets), want) < 1e-5
    for rival in (Stock21(), Fbgemm()):
        reason = (
            rival.why_unsupported(torch.cuda.get_device_capability())
            if isinstance(rival, Stock21)
            else rival.why_unsupported()
        )
        if not reason:
            assert error(rival.forward(weight, indices, offsets), want) < 1e-5, rival.name


def test_fbgemm_for_all_tables_equals_best(monkeypatch: pytest.MonkeyPatch) -> None:
    rival = Fbgemm()
    if rival.why_unsupported():
        pytest.skip(rival.why_unsupported())
    weights = torch.randn(3, ROWS, 128, device="cuda")
    ids = [make(128, torch.int64, seed=t)[1] for t in range(3)]
    offsets = make(128, torch.int64)[2]
    want = VARIANTS["best"].forward_tables(list(weights), ids, [offsets] * 3)
    got = rival.forward_tables(weights, torch.cat(ids), join_offsets([offsets] * 3))
    assert torch.allclose(got, want, atol=1e-3)


def test_fbgemm_serves_tables_of_different_shapes_in_one_launch(tmp_path) -> None:
    rival = Fbgemm()
    if rival.why_unsupported():
        pytest.skip(rival.why_unsupported())
    config = Config(
        device="cuda", tables=3, batch=64, pooling=20, batches=1, bags="ragged", mode="mean",
        shapes="300x32,5000x128",
    )  # fmt: skip
    bench = Bench(config, RecordWriter(tmp_path))
    (call,) = all_tables(bench, rival).calls
    want = torch.cat([bench.reference(table, 0) for table in range(3)], dim=1)
    assert want.shape == (64, 32 + 128 + 32)
    assert error(call(), want) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("name", list(VARIANTS))
def test_what_the_driver_reports_is_what_was_compiled(name: str) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    facts = VARIANTS[name].attributes(device)
    if name == "base":
        assert facts.registers == 74
        assert facts.warps_per_sm == 24
    if name == "lmpf":
        assert facts.local_bytes > 0
    assert facts.blocks_per_sm >= 1
    raise_if_out_of_range(device)

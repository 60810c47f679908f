"""`best` at every length of bags: the form it chooses, and long bags that warps share."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median

import pytest

torch = pytest.importorskip("torch")

from dlrm_inference.config import Config  # noqa: E402
from dlrm_inference.cuda import best, places  # noqa: E402
from dlrm_inference.cuda.bench import all_tables, one_table  # noqa: E402
from dlrm_inference.cuda.design import (  # noqa: E402
    BEST_FEW,
    BEST_MANY,
    BEST_SHORT,
    LONG,
    Case,
    Short,
)
from dlrm_inference.cuda.timing import interleave  # noqa: E402
from dlrm_inference.experiments import grid  # noqa: E402
from reprokit.progress import Progress  # noqa: E402
from reprokit.records import RecordWriter  # noqa: E402

pytestmark = pytest.mark.torch
SHAPES = [*dict.fromkeys(shape for _, *both in BEST_SHORT for shape in both), BEST_FEW, BEST_MANY]
CASES = [
    Case(),
    Case(share=0),
    Case(tables=48),
    Case(index="int", element=1),
    Case(element=2, dim=30, vector=4),
    Case(element=1, dim=33, vector=2),
    Case(dim=1000),
    Case(dim=4),
]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_form_compiles_for_every_case(case, arch):
    for shape in SHAPES if arch == "sm_90" else SHAPES[::4]:
        usage = shape.build(arch, case).usage["best"]
        assert usage.registers <= 168, shape  # blocks of 8 warps and more start everywhere


@pytest.mark.parametrize("tables", [1, 12])
def test_code_without_long_bags_is_shorter_and_keeps_all_in_registers(tables):
    for shape in SHAPES:
        lean, full = (shape.build("sm_90", Case(tables=tables, share=share)) for share in (0, 1))
        assert lean.usage["best"].stack_bytes == 0
        assert len(lean.cubin) < 0.6 * len(full.cubin)


def test_the_form_follows_the_average_bag_and_how_many_there_are(monkeypatch):
    monkeypatch.setattr(best, "_sms", lambda _: 132)
    ours, device = best.Best(), torch.device("cuda", 0)
    few, many = 132 * best.FEW_WARPS, 132 * best.FEW_WARPS + 1
    places = (0, 0), (2, 0), (3, 1), (4, 2), (8, 2), (9, 3), (24, 3), (25, 4), (64, 4)
    for average, place in places:
        assert ours.shape(few, average, device) == BEST_SHORT[place][1]
        assert ours.shape(many, average, device) == BEST_SHORT[place][2]
    assert ours.shape(few, 65, device) == BEST_FEW
    assert ours.shape(many, 65, device) == BEST_MANY
    assert {one.check for one in (s for _, *b in ours.reshaped(check=0).short for s in b)} == {0}


def test_a_block_of_short_bags_holds_what_its_lanes_can():
    assert Case().lanes == 32
    assert Case(element=1, dim=64).lanes == 8
    assert Case(dim=30, vector=8).lanes == 16
    assert Short(flight=1, per=4, warps=8).block_bags(Case(element=1, dim=64)) == 8 * 4 * 4
    assert Short(flight=8).block_bags(Case(dim=1000)) == 8


def on_gpu(lengths, rows, dim, dtype=torch.float32, tables=1, seed=3):
    """Tables, ids and offsets on the GPU, bags of these lengths."""
    generator = torch.Generator("cuda").manual_seed(seed)
    lengths = torch.as_tensor(lengths)
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).cuda()
    weights = [
        torch.randn(rows, dim, device="cuda", generator=generator).to(dtype) for _ in range(tables)
    ]
    ids = [
        torch.randint(rows, (int(lengths.sum()),), device="cuda", generator=generator)
        for _ in range(tables)
    ]
    return weights, ids, [ends] * tables


def reference(weight, ids, offsets, mode="sum"):
    lengths = offsets.diff()
    bag = torch.repeat_interleave(torch.arange(len(lengths), device="cuda"), lengths)
    sums = torch.zeros(len(lengths), weight.shape[1], dtype=torch.float64, device="cuda")
    sums.index_add_(0, bag, weight[ids].double())
    return sums / lengths.clamp(min=1)[:, None] if mode == "mean" else sums


def close(got, want, dtype=torch.float32, longest=0):
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    rounding = longest**0.5 * torch.finfo(torch.float32).eps  # as Bench.prove
    assert torch.isfinite(got).all()
    assert float((got.double() - want).abs().max() / want.abs().max()) < max(tolerance, rounding)


def patterns():
    ragged = torch.randint(0, 9, (3001,), generator=torch.Generator().manual_seed(1))
    return {
        **{f"all_{n}": torch.full((3001,), n) for n in (1, 2, 3, 4, 5, 8, 20, 24, 25)},
        "ragged": ragged,
        "few": ragged[:7],
        "long_among_short": ragged.clone().index_fill_(0, torch.tensor([0, 5, 3000]), 5000),
        "long_among_even": torch.full((2048,), 150).index_fill_(0, torch.arange(9, 19), 5000),
        "very_long": torch.full((2048,), 150).index_fill_(0, torch.tensor([77]), 300_000),
        "more_than_there_are_jobs": torch.full((900,), 3).index_fill_(
            0, torch.arange(0, 900, 10), 700
        ),
        "at_the_cut": torch.tensor([512, 513, 511, 640, 641, 0, 128, 129] + [1] * 600),
        "a_long_one_last": torch.tensor([2] * 5000 + [40_000]),
    }


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dim", "dtype"),
    [(128, torch.float32), (64, torch.float16), (30, torch.float32), (33, torch.bfloat16),
     (256, torch.float32), (1000, torch.float32)],
)  # fmt: skip
@pytest.mark.parametrize("pattern", list(patterns()))
def test_bags_of_any_lengths_equal_the_reference_and_repeat(pattern, dim, dtype):
    lengths = patterns()[pattern]
    for tables in (1, 3):
        weights, ids, offsets = on_gpu(lengths, 5000, dim, dtype, tables)
        for mode in ("sum", "mean"):
            want = torch.cat(
                [reference(*one, mode) for one in zip(weights, ids, offsets, strict=True)], 1
            )
            got = best.Best().forward_tables(weights, ids, offsets, mode=mode, check=True)
            close(got, want, dtype, int(lengths.max()))
            again = best.Best().forward_tables(weights, ids, offsets, mode=mode, check=True)
            assert torch.equal(got, again)


TRIED = [  # choices that no form has taken
    replace(BEST_FEW, min_blocks=5, piece=32, join=4, spread=0),
    replace(BEST_MANY, depth=4, min_blocks=12),
    Short(flight=2, min_blocks=4, ask=8, piece=32, ahead=8, join=16, spread=1),
    Short(flight=1, per=2, min_blocks=4, ask=8),
    Short(flight=1, warps=2, min_blocks=8, ask=2),
]


@pytest.mark.parametrize("case", [Case(tables=12), Case(dim=1000)], ids=str)
def test_what_no_form_has_taken_compiles(case):
    for shape in TRIED:
        assert shape.build("sm_90", case).usage["best"].registers <= 168, shape


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES + TRIED, ids=str)
def test_every_form_sums_every_length(shape):
    forced = best.Best(few=shape, many=shape, short=())
    for lengths in patterns().values():
        weights, ids, offsets = on_gpu(lengths, 5000, 128)
        got = forced.forward(weights[0], ids[0], offsets[0], check=True)
        close(got, reference(weights[0], ids[0], offsets[0]))


@pytest.mark.gpu
@pytest.mark.parametrize("tables", [1, 3, 12])
@pytest.mark.parametrize("lengths", [[1] * 64, [8] * 64, [9] * 64, [5, 0, 40, 1], [513]])
def test_code_without_long_bags_gives_the_same_bits(lengths, tables):
    lean, full = best.Best(), best.Best(lean=False)
    weights, ids, offsets = on_gpu(lengths, 5000, 128, tables=tables)
    for mode in ("sum", "mean"):
        want = full.forward_tables(weights, ids, offsets, mode=mode, check=True)
        got = lean.forward_tables(weights, ids, offsets, mode=mode, check=True)
        assert torch.equal(got, want)
    launch = lean.prepare_tables(weights, ids, offsets)
    longest = max(LONG, 4 * (sum(lengths) // len(lengths)))  # that a warp sums alone
    assert isinstance(launch, best._Launch) == (sum(lengths) > longest)
    ids[-1][-1] = 5000
    where = f"an id of bag {len(lengths) - 1} is outside its table"
    with pytest.raises(IndexError, match=where):
        lean.forward_tables(weights, ids, offsets, check=True)


@pytest.mark.gpu
@pytest.mark.parametrize("pattern", ["ragged", "long_among_short", "very_long"])
def test_an_id_out_of_range_names_its_bag_in_every_form(pattern):
    lengths = patterns()[pattern]
    weights, ids, offsets = on_gpu(lengths, 5000, 128)
    bag = int(lengths.argmax())
    ids[0][offsets[0][bag + 1] - 1] = 5000
    with pytest.raises(IndexError, match=rf"an id of bag {bag} is outside its table"):
        best.Best().forward(weights[0], ids[0], offsets[0], check=True)
    ids[0][offsets[0][bag + 1] - 1] = 0
    got = best.Best().forward(weights[0], ids[0], offsets[0], check=True)
    close(got, reference(weights[0], ids[0], offsets[0]))


@pytest.mark.gpu
def test_nothing_is_open_after_a_launch_and_graphs_have_places_of_their_own():
    lengths = patterns()["long_among_even"]
    weights, ids, offsets = on_gpu(lengths, 5000, 128)
    want = reference(weights[0], ids[0], offsets[0])
    call = lambda: best.Best().forward(weights[0], ids[0], offsets[0])  # noqa: E731
    close(call(), want)
    torch.cuda.synchronize()
    held = places._places(weights[0].device)
    for place in held._of_stream.values():
        assert int(place[:8].view(torch.int64)) == 0
    graphs, outs = [], []
    for _ in range(2):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            outs.append(call())
    addresses = {place.data_ptr() for place in (*held._captured, *held._of_stream.values())}
    assert len(addresses) == len(held._captured) + len(held._of_stream)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(20):  # both at once, beside launches on this stream
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        mine = call()
    torch.cuda.synchronize()
    for got in (*outs, mine):
        close(got, want)
        assert torch.equal(got, mine)


@pytest.mark.gpu
def test_the_grid_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "POOLINGS", (1, 30))
    monkeypatch.setattr(grid, "BATCHES", (64,))
    monkeypatch.setattr(grid, "ROWS", (5000,))
    config = Config(
        experiment="grid", device="cuda", variants=("best",), tables=3, batches=2, samples=5,
        warmup=1,
    )  # fmt: skip
    grid.run(config, RecordWriter(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    cells = [row for row in rows if row["metric"] == "cell_time"]
    assert len(cells) == 2 * len(grid.IDS) * 2
    assert all(len(row["samples"]) == 5 and min(row["samples"]) > 0 for row in cells)
    counted = {row["labels"]["launch"]: row["note"].partition(";")[0] for row in cells}
    assert counted == {
        "one_table": "a CUDA graph of 3 launches between two events, its time over the 3 tables "
        "that they served",
        "all_tables": "a CUDA graph of 2 launches between two events, its time over the 6 tables "
        "that they served",
    }
    bags = [row["labels"]["bags"] for row in rows if row["metric"] == "long_bags_time"]
    assert bags == list(grid.LONG)


@pytest.mark.gpu
@pytest.mark.timed
def test_a_cell_is_the_time_of_its_launches_over_their_tables():
    config = Config(experiment="grid", device="cuda", tables=6, batches=2, batch=16384, samples=9)
    tables, ours = grid.Tables(config), best.Best()
    cell = grid.Cell(tables, config, "uniform", torch.full((config.batch,), config.pooling))
    found = {
        launch: median(samples)
        for _, launch, samples, _ in grid._measure(cell, {"best": ours}, Progress(100))
    }
    alone = {"one_table": one_table(cell, ours), "all_tables": all_tables(cell, ours)}
    times = {name: median(one) for name, one in interleave(alone, 9, 2, cell.device).items()}
    assert found["one_table"] == pytest.approx(times["one_table"], rel=0.1)
    assert found["all_tables"] == pytest.approx(times["all_tables"] / config.tables, rel=0.1)


@pytest.mark.parametrize(
    ("tables", "batches", "launches"), [(12, 4, 12), (3, 2, 2), (2, 4, 4), (12, 1, 12)]
)
def test_the_graphs_of_both_modes_have_about_as_many_launches(tables, batches, launches):
    graphs = grid._graphs(Config(tables=tables, batches=batches))
    assert graphs["one_table"] == (tables, 1, tables)
    size, turns, served = graphs["all_tables"]
    assert (size, size * turns, served) == (batches, launches, launches * tables)


def test_ids_of_every_kind_are_what_they_are_called():
    generator = torch.Generator().manual_seed(1)
    drawn = {kind: grid._drawer(kind, 1000, generator)(50_000) for kind in grid.IDS}
    for ids in drawn.values():
        assert (int(ids.min()), int(ids.max()) < 1000) == (0, True)
    counts = {
        kind: ids.bincount(minlength=1000).sort().values.flip(0) for kind, ids in drawn.items()
    }
    assert torch.equal(drawn["sorted"], drawn["sorted"].sort().values)
    assert counts["uniform"][0] < 120
    assert counts["zipf"][0] / counts["zipf"][1] == pytest.approx(2**1.2, rel=0.1)

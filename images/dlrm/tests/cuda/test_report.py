"""Ids outside their tables: the error names table and bag, at the latest at the next wait."""

from __future__ import annotations

import ctypes
import json
import re
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from dlrm_inference.config import Config  # noqa: E402
from dlrm_inference.cuda import best, design, frames, override, report, scheme  # noqa: E402
from dlrm_inference.cuda.compile import read_source  # noqa: E402
from dlrm_inference.cuda.occupancy import occupancy  # noqa: E402
from dlrm_inference.experiments import check_cost  # noqa: E402
from reprokit.records import RecordWriter  # noqa: E402
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
GOOD, BAD = [0, 1, 2, 3, 4], [0, 1, 2, 9, 4]
OFFSETS = [0, 2, 5]


@pytest.fixture
def reports(monkeypatch):
    """No device has a report yet; what is wrapped here is given back."""
    monkeypatch.setattr(report, "_reports", {})
    for owner, name in report._WAITS:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    yield report._reports
    override.uninstall()


def gather(weight, indices, offsets, mode):
    """A bag sum that does with an id out of range what kernels/best.cu does."""
    told = report.report_of(CPU)
    told.look()
    number = told.number(weight)
    outside = (indices < 0) | (indices >= weight.shape[0])
    for place in outside.nonzero().flatten().tolist():
        bag = int((offsets <= place).sum()) - 1
        ctypes.c_uint64.from_address(told.address).value = number | bag
    rows = weight.detach()[torch.where(outside, 0, indices)]
    bags = torch.repeat_interleave(torch.arange(offsets.numel() - 1), offsets.diff())
    return torch.zeros(offsets.numel() - 1, weight.shape[1]).index_add_(0, bags, rows)


def bag(weight, ids):
    return F.embedding_bag(torch.tensor(ids), weight, torch.tensor(OFFSETS[:-1]), mode="sum")


def test_the_last_batch_of_a_block_is_no_exception(reports):
    first, second = torch.ones(7, 4), torch.ones(5, 4)

    def block(check):
        with override.embedding_bag_variant("ours", forward=gather, key="CPU", check=check):
            bag(first, GOOD)
            bag(second, BAD)

    words = r"an id of bag 1 is outside its table, table 1 \(5 rows of 4\); fix: ids"
    with pytest.raises(IndexError, match=words):
        block(check=True)
    assert override.active_variant() == ""
    report.raise_if_out_of_range()  # said once, and forgotten
    block(check=False)
    waits = []
    with pytest.raises(IndexError, match=words):
        report.looking(waits.append)("waited")
    assert waits == ["waited"]


def test_an_error_of_the_block_itself_is_the_one_that_is_seen(reports):
    def block():
        with override.embedding_bag_variant("ours", forward=gather, key="CPU"):
            bag(torch.ones(5, 4), BAD)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert override.active_variant() == ""
    with pytest.raises(IndexError, match="bag 1"):
        report.raise_if_out_of_range()


def test_pytorchs_own_waits_look(reports):
    before = torch.cuda.synchronize
    told = report.report_of(CPU)
    assert torch.cuda.synchronize is not before
    assert torch.cuda.synchronize.__wrapped__ is before
    for owner in (torch.cuda.Stream, torch.cuda.Event):
        assert hasattr(owner.synchronize, "__wrapped__")
    assert report.report_of(CPU) is told


def test_tables_are_named_by_order_and_by_place_in_a_launch(reports):
    told, tables = report.report_of(CPU), [torch.ones(3, 2), torch.ones(4, 2)]
    word = ctypes.c_uint64.from_address(told.address)
    for number, name in (
        (told.number(tables[0]), "table 0 (3 rows of 2)"),
        (told.number(tables[1]), "table 1 (4 rows of 2)"),
        (told.number(tables[1], 7), "table 7 of its launch (4 rows of 2)"),
        (told.number(tables[0]), "table 0 (3 rows of 2)"),
    ):
        word.value = number | 2**31 - 1
        with pytest.raises(IndexError) as error:
            told.look()
        assert f"an id of bag {2**31 - 1} is outside its table, {name};" in str(error.value)


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("best", {"Table": frames.Table, "Arguments": frames.arguments_type(48, 1)}),
        ("scheme", {"Arguments": scheme._SchemeArguments}),
    ],
)
def test_host_and_kernels_agree_on_every_field(monkeypatch, source, fields):
    text = read_source(source)
    for name, struct in fields.items():
        body = re.search(rf"struct {name} {{(.*?)\n}};", text, re.DOTALL)[1]
        written = re.findall(r"(\w+)(?:\[\w+\])?;", re.sub("//.*", "", body))
        assert written == [field for field, _ in struct._fields_]
        text += f'static_assert(sizeof({name}) == {ctypes.sizeof(struct)}, "{name}");\n'
    monkeypatch.setattr("dlrm_inference.cuda.compile.read_source", lambda _: text)
    if source == "best":
        design.BEST_MANY.build("sm_90", design.Case(tables=48, joined=1))
        text = re.sub(
            r"(sizeof\(Arguments\)) == \d+",
            rf"\1 == {ctypes.sizeof(frames.arguments_type(48, 0))}", text,
        )  # fmt: skip
        design.BEST_MANY.build("sm_90", design.Case(tables=48))
    else:
        design.POINTS["rpf"].build("sm_90")


def test_naming_the_bag_costs_no_warp() -> None:
    built = design.build("best", "sm_90")
    held = occupancy("sm_90", 32 * built.block_warps, built.usage.registers)
    assert held.warps >= best.FEW_WARPS
    assert built.usage.stack_bytes == 0


def on_gpu(ids):
    return torch.tensor(ids, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["base", "rpf", "best"])
def test_leaving_a_block_names_table_and_bag(name) -> None:
    good, other = torch.ones(7, 128, device="cuda"), torch.ones(5, 128, device="cuda")

    def block():
        with override.embedding_bag_variant(name):
            F.embedding_bag(on_gpu(GOOD), good, on_gpu([0, 2]), mode="sum")
            F.embedding_bag(on_gpu(BAD), other, on_gpu([0, 2]), mode="sum")

    with pytest.raises(IndexError, match=r"bag 1 is outside its table, table \d+ \(5 rows of 128"):
        block()
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_one_launch_of_several_tables_names_the_table() -> None:
    weights = [torch.ones(5, 128, device="cuda") for _ in range(3)]
    ids = [on_gpu(GOOD), on_gpu(GOOD), on_gpu(BAD)]
    with pytest.raises(IndexError, match="bag 1 is outside its table, table 2 of its launch"):
        best.Best().forward_tables(weights, ids, [on_gpu(OFFSETS)] * 3, check=True)


@pytest.mark.gpu
@pytest.mark.parametrize("wait", ["device", "stream", "event", "block"])
def test_a_replayed_graph_is_looked_at(wait) -> None:
    weight, ids, offsets = torch.ones(5, 128, device="cuda"), on_gpu(GOOD), on_gpu([0, 2])
    graph = torch.cuda.CUDAGraph()
    with override.embedding_bag_variant("best"):
        F.embedding_bag(ids, weight, offsets, mode="sum")  # compiled before the capture
        with torch.cuda.graph(graph):
            F.embedding_bag(ids, weight, offsets, mode="sum")
        graph.replay()
    ids.copy_(on_gpu(BAD))
    torch.cuda.synchronize()

    def replay():
        if wait == "block":
            with override.embedding_bag_variant("best"):
                graph.replay()
            return
        graph.replay()
        event = torch.cuda.Event()
        event.record()
        waits = {"device": torch.cuda, "stream": torch.cuda.current_stream(), "event": event}
        waits[wait].synchronize()

    with pytest.raises(IndexError, match="an id of bag 1 is outside its table"):
        replay()
    ids.copy_(on_gpu(GOOD))
    graph.replay()
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_the_cost_of_looking_is_a_measured_point(tmp_path) -> None:
    config = Config(
        experiment="check_cost", device="cuda", variants=("best",), tables=2, rows=2000, batch=64,
        pooling=20, batches=2, samples=4, warmup=2,
    )  # fmt: skip
    check_cost.run(config, RecordWriter(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    found = {
        (row["labels"]["part"], row["labels"]["look"]): row["samples"]
        for row in rows
        if row["metric"] == "check_time"
    }
    assert set(found) == set(product(("kernel", "block"), ("with", "without")))
    assert all(len(samples) == 4 and min(samples) > 0 for samples in found.values())

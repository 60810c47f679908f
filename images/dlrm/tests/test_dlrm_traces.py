import dataclasses
import gzip
import sys

import numpy as np
import pytest
from dlrm_inference import data, traces
from dlrm_inference.config import Config
from dlrm_inference.data import make_batches
from dlrm_inference.traces import TraceError

SMALL = Config(tables=2, rows=100, batch=4, pooling=5, batches=2)


def write_meta(path, lengths, ids=None):
    """Write a file as Meta's dlrm_datasets are: indices, offsets, lengths (tables, bags)."""
    torch = pytest.importorskip("torch")
    lengths = torch.tensor(lengths, dtype=torch.int32)
    total = int(lengths.sum())
    indices = torch.arange(total) if ids is None else torch.tensor(ids)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    torch.save((indices, offsets, lengths), path)
    return path


@pytest.mark.parametrize(
    "text", ["3\n1\n4\n1\n5\n", "3 1 4\n1 5", "3,1,4,1,5\n", " 3, 1,4\n\n1 ,5 "]
)
def test_plain_text_with_one_or_many_ids_a_line(tmp_path, text):
    (tmp_path / "table.txt").write_text(text)
    trace = traces.read(tmp_path / "table.txt", 100)
    assert [stream.tolist() for stream in trace.streams] == [[3, 1, 4, 1, 5]]
    assert trace.streams[0].dtype == np.int64


def test_rows_beyond_the_limit_are_dropped_and_counted(tmp_path):
    with gzip.open(tmp_path / "t.txt.gz", "wt") as file:
        file.write("3 100 4 -1 99")
    trace = traces.read(tmp_path / "t.txt.gz", 100)
    assert trace.streams[0].tolist() == [3, 4, 99]
    assert trace.dropped == 2
    assert "2 of 5 ids (40.0 %)" in trace.notes[0]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.txt", b"", "is empty"),
        ("t.txt", b" \n\n", "is empty"),
        ("t.txt", b"1 2 x3 4", "has 'x3' as entry 3, which is no row id"),
        ("t.txt", b"1 2.5", "'2.5' as entry 2"),
        ("t.txt", b"99999999999999999999", "as entry 1"),
        ("t.txt", b"500 600", "no id below 100 rows"),
        ("t.txt.gz", gzip.compress(b"1 2 3" * 99, mtime=0)[:-12], "is truncated"),
        ("t.txt.gz", b"1 2 3", "cannot be read"),
        ("t.txt.gz", gzip.compress(b"1 2 3" * 99, mtime=0)[:10] + b"\xff" * 20, "cannot be read"),
    ],
)
def test_an_unusable_text_trace_is_said_in_one_sentence(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError) as error:
        traces.read(tmp_path / name, 100)
    assert words in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_trace_is_said(tmp_path):
    with pytest.raises(TraceError, match="is not a file"):
        traces.read(tmp_path / "none.txt", 100)


@pytest.mark.torch
@pytest.mark.parametrize("packed", [False, True])
def test_metas_file_is_split_into_its_tables(tmp_path, packed):
    path = write_meta(tmp_path / "fbgemm.pt", [[2, 0, 1], [1, 1, 1]])
    if packed:
        packed_path = tmp_path / "fbgemm.pt.gz"
        packed_path.write_bytes(gzip.compress(path.read_bytes()))
        path = packed_path
    trace = traces.read(path, 100)
    assert [stream.tolist() for stream in trace.streams] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.torch
def test_an_unusable_meta_file_is_said_in_one_sentence(tmp_path):
    torch = pytest.importorskip("torch")
    whole = write_meta(tmp_path / "whole.pt", [[2, 1]]).read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "noise.pt").write_bytes(b"not a tensor")
    torch.save((torch.arange(3), torch.tensor([0, 3])), tmp_path / "two.pt")
    torch.save((torch.rand(3), torch.tensor([0, 3]), torch.tensor([[3]])), tmp_path / "float.pt")
    torch.save((torch.arange(3), torch.tensor([0, 2]), torch.tensor([[2]])), tmp_path / "short.pt")
    torch.save((torch.arange(3), torch.tensor([0, 2]), torch.tensor([[1, 2]])), tmp_path / "off.pt")
    torch.save((torch.arange(3), torch.tensor([0, 3]), torch.tensor([3])), tmp_path / "flat.pt")
    (tmp_path / "text.pt").write_bytes(b"hello world")
    none, no_ids = torch.zeros((0, 2), dtype=torch.long), torch.arange(0)
    torch.save((no_ids, no_ids, none), tmp_path / "none.pt")
    flags = torch.tensor([True, False, True])
    torch.save((flags, torch.tensor([0, 3]), torch.tensor([[3]])), tmp_path / "flags.pt")
    sparse = torch.arange(3).to_sparse()
    torch.save((sparse, torch.tensor([0, 3]), torch.tensor([[3]])), tmp_path / "sparse.pt")
    for name, words in {
        "text.pt": "malformed or truncated",
        "none.pt": "has no table",
        "flags.pt": "indices is not a tensor of integers",
        "sparse.pt": "indices is not a tensor of integers",
        "cut.pt": "malformed or truncated",
        "noise.pt": "malformed or truncated",
        "two.pt": "not a tuple of indices, offsets, lengths",
        "float.pt": "indices is not a tensor of integers",
        "short.pt": "lengths add up to 2 ids and there are 3",
        "off.pt": "offsets do not agree with lengths",
        "flat.pt": "lengths has 1 dimensions, not 2",
    }.items():
        with pytest.raises(TraceError) as error:
            traces.read(tmp_path / name, 100)
        assert words in str(error.value), name
        assert "\n" not in str(error.value)


def test_a_pytorch_file_without_pytorch_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "t.pt").write_bytes(b"x")
    with pytest.raises(TraceError, match="torch is not installed here"):
        traces.read(tmp_path / "t.pt", 100)


def test_a_trace_feeds_all_tables_and_replays_are_noted(tmp_path):
    (tmp_path / "t.txt").write_text(" ".join(map(str, range(40))))
    config = dataclasses.replace(SMALL, trace=str(tmp_path / "t.txt"))
    batches = make_batches(config)
    # A quarter is for hot lists, the rest is measured.
    assert batches.profile(0).tolist() == list(range(10))
    assert batches.indices[0].ravel().tolist() == [*range(10, 40), *range(10, 20)]
    assert len(np.unique(batches.indices[1])) == 30  # elsewhere, and rows of its own
    assert batches.indices[1].max() >= 40
    own = data._mapping(100, SMALL.seed, 1)  # the second of two begins half of the way in
    place = [*range(25, 40), *range(10, 25), *range(25, 35)]
    assert batches.indices[1].ravel().tolist() == own[place].tolist()
    assert not np.array_equal(np.sort(batches.profile(1)), np.arange(10))
    assert not np.array_equal(batches.indices[0], batches.indices[1])
    assert batches.source == "trace t.txt"
    assert any("replayed: 40 ids are needed, 30 are there" in note for note in batches.notes)
    assert batches.hot_rows(0, 3).tolist() == [0, 1, 2]


@pytest.mark.torch
def test_tuning_sees_no_place_of_a_trace_that_is_measured(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_text(" ".join(map(str, range(400))))
    config = Config(trace=str(path), tables=1, rows=400, batch=10, pooling=15, batches=2)
    batches = make_batches(config)
    held_out = batches.tuning().indices[0]
    assert held_out.shape == (1, 150)  # a quarter of the trace, replayed
    assert not np.isin(held_out, batches.indices[0]).any()


def test_a_file_with_several_tables_feeds_each_its_own(tmp_path):
    path = write_meta(tmp_path / "m.pt", [[40], [40]], ids=[*range(40), *range(50, 90)])
    batches = make_batches(dataclasses.replace(SMALL, trace=str(path)))
    assert batches.indices[0].max() < 40
    assert batches.indices[1].min() >= 50

"""FBGEMM's table-batched forward as a variant: how it is found, and that it gives our sums."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dlrm_inference.cuda import fbgemm  # noqa: E402
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_folder_without_the_libraries_is_named(tmp_path):
    (tmp_path / "asmjit.so").touch()
    with pytest.raises(fbgemm.FbgemmError, match=r"has no fbgemm\.so, .*; fix: pip install"):
        fbgemm.find_folder({"AE_FBGEMM_DIR": str(tmp_path)})
    for name in fbgemm.LIBRARIES:
        (tmp_path / name).touch()
    assert fbgemm.find_folder({"AE_FBGEMM_DIR": str(tmp_path)}) == tmp_path


def test_a_library_that_does_not_load_makes_the_variant_unsupported(tmp_path, monkeypatch):
    for name in fbgemm.LIBRARIES:
        (tmp_path / name).write_bytes(b"\x7fELF but not really")
    monkeypatch.setenv("AE_FBGEMM_DIR", str(tmp_path))
    reason = fbgemm.Fbgemm().why_unsupported()
    assert reason.startswith("FBGEMM's asmjit.so does not load: ")
    assert "fix:" in reason


def test_the_layout_of_several_tables():
    layout = fbgemm.make_layout([0, 128_000, 256_000], [128] * 3, torch.device("cpu"))
    assert layout.weight_starts.tolist() == [0, 128_000, 256_000]
    assert layout.weight_starts.dtype == torch.int64
    assert layout.column_starts.tolist() == [0, 128, 256, 384]
    assert layout.column_starts.dtype == torch.int32
    assert (layout.columns, layout.dim) == (384, 128)
    with pytest.raises(ValueError, match="4 columns at a time"):
        fbgemm.make_layout([0], [30], torch.device("cpu"))
    mixed = fbgemm.make_layout([0, 128_000], [128, 64], torch.device("cpu"))
    assert mixed.column_starts.tolist() == [0, 128, 192]
    assert (mixed.columns, mixed.dim) == (192, 128)


def test_dim_30_is_a_reason_and_no_crash():
    assert "dim 30 is no multiple" in fbgemm.Fbgemm().why_unsupported([128, 30])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_offsets_of_several_tables_are_joined(dtype):
    first, second = torch.tensor([0, 2, 2], dtype=dtype), torch.tensor([0, 0, 5], dtype=dtype)
    joined = fbgemm.join_offsets([first, second, first])
    assert joined.tolist() == [0, 2, 2, 2, 7, 9, 9]
    assert joined.dtype == dtype
    with pytest.raises(ValueError, match="same number of bags"):
        fbgemm.join_offsets([first, second[:2]])


def test_what_it_does_not_take_is_refused_before_anything_loads():
    table = torch.zeros(5, 8)
    rows, offsets = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 4])
    variant = fbgemm.Fbgemm()
    for bad in (
        lambda: variant.forward(table, rows, offsets, mode="max"),
        lambda: variant.forward(table.bfloat16(), rows, offsets),
        lambda: variant.forward(table, rows, offsets.int()),
        lambda: variant.forward(table, rows[::2], offsets),
        lambda: variant.forward(table.t(), rows, offsets),
        lambda: variant.forward_tables(table.view(5, 2, 4), rows, torch.tensor([0, 1, 4])),
    ):
        with pytest.raises(ValueError, match=r"fbgemm|offsets must"):
            bad()


def ragged(index, tables, device):
    """Row ids and offsets of every table, bag lengths around the odd ones."""
    generator = torch.Generator().manual_seed(9)
    lengths = torch.tensor([0, 1, 2, 149, 150, 151, 0, 37])
    offsets = F.pad(lengths.cumsum(0), (1, 0)).to(index).to(device)
    count = int(lengths.sum())
    rows = [
        torch.randint(0, 500, (count,), generator=generator).to(index).to(device)
        for _ in range(tables)
    ]
    return rows, offsets


@pytest.fixture
def variant():
    made = fbgemm.Fbgemm()
    reason = made.why_unsupported()
    if reason:
        pytest.skip(reason)
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dim", [32, 64, 100, 128, 256])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_one_table_equals_pytorch(variant, index, dim, mode, dtype):
    rows, offsets = ragged(index, 1, "cuda")
    weight = (torch.rand(500, dim, device="cuda") - 0.5).to(dtype)
    expected = F.embedding_bag(
        rows[0], weight.float(), offsets, mode=mode, include_last_offset=True
    )
    result = variant.forward(weight, rows[0], offsets, mode=mode)
    assert result.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(result.float(), expected, rtol=tolerance, atol=tolerance)
    out = torch.empty_like(result)
    assert variant.forward(weight, rows[0], offsets, mode=mode, out=out) is out
    torch.testing.assert_close(out, result)


@pytest.mark.gpu
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_all_tables_in_one_launch_equal_pytorch(variant, index):
    tables = 5
    rows, offsets = ragged(index, tables, "cuda")
    weights = torch.rand(tables, 500, 128, device="cuda") - 0.5
    joined = fbgemm.join_offsets([offsets] * tables)
    result = variant.forward_tables(weights, torch.cat(rows), joined)
    expected = torch.cat(
        [
            F.embedding_bag(ids, table, offsets, mode="sum", include_last_offset=True)
            for ids, table in zip(rows, weights, strict=True)
        ],
        dim=1,
    )
    assert result.shape == (8, tables * 128)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)

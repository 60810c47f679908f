"""The bound by arguments: distinct storages, whole, on CPU and meta tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from accel_trace.handlers import torch_native  # noqa: E402
from accel_trace.handlers.dispatch import ArgumentBytes, argument_bytes  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_native, "_hooks", None)  # other tests may have loaded them


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("device", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_matrix_product_holds_three_matrices(device: str, tmp_path: Path) -> None:
    a = torch.empty(64, 32, device=device)
    b = torch.empty(32, 16, device=device)
    with ArgumentBytes(tmp_path / "args.jsonl") as mode:
        a @ b
    (line,) = lines(tmp_path / "args.jsonl")
    assert line == {"operator": "aten::mm", "index": 0, "bytes": 4 * (64 * 32 + 32 * 16 + 64 * 16)}
    assert mode.bytes == [line["bytes"]]


def test_a_storage_counts_once_and_whole() -> None:
    x = torch.empty(1000)
    assert argument_bytes(x[:10], [x[5:], x.view(10, 100)]) == 4000
    assert argument_bytes(x, x.clone()) == 8000
    assert argument_bytes(3, "x", None) == 0


def test_in_place_operators_count_their_tensor_once(tmp_path: Path) -> None:
    x = torch.zeros(256)
    with ArgumentBytes(tmp_path / "args.jsonl") as mode:
        x.add_(1)
    assert mode.bytes == [1024]


def test_keyword_arguments_and_lists_count(tmp_path: Path) -> None:
    a, out = torch.ones(256), torch.empty(512)
    with ArgumentBytes(tmp_path / "args.jsonl") as mode:
        torch.cat([a, a.neg()], out=out)
    assert mode.bytes == [2048, 1024 + 1024 + 2048]


def test_entered_again_it_goes_on(tmp_path: Path) -> None:
    mode = ArgumentBytes(tmp_path / "args.jsonl")
    for _ in range(2):
        with mode:
            torch.ones(2)
    assert [line["index"] for line in lines(mode.path)] == list(range(len(mode.bytes)))
    assert len(mode.bytes) >= 2


def test_a_folder_that_is_gone_does_not_stop_the_program(tmp_path: Path) -> None:
    with ArgumentBytes(tmp_path / "gone" / "args.jsonl") as mode:
        assert torch.ones(2).sum().item() == 2
    assert mode.bytes

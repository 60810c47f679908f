"""Storages of any device, seen by a dispatch mode."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from torch_support import events_of, run_python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from accel_trace.events import Fact, OperatorEnd, OperatorStart, TensorAlloc, TensorFree  # noqa: E402
from accel_trace.handlers.storages import StorageTracker, tensors_in  # noqa: E402

pytestmark = pytest.mark.torch


@dataclass
class _Sink:
    told: list[tuple[object, ...]] = field(default_factory=list)

    def tensor(
        self, alloc: bool, address: int, size: int, *, allocated: int, reserved: int,
        device: int = 0, stream: int = 0,
    ) -> None:  # fmt: skip
        assert allocated == reserved
        self.told.append(("alloc" if alloc else "free", address, size, allocated))

    def operator(self, start: bool, name: str) -> None:
        self.told.append(("start" if start else "end", name))

    def fact(self, name: str, value: str) -> None:
        pass

    def of(self, *kinds: str) -> list[tuple[object, ...]]:
        return [item for item in self.told if item[0] in kinds]


def test_a_storage_is_followed_to_its_end_and_views_are_no_storages() -> None:
    sink = _Sink()
    with StorageTracker(sink) as tracker:  # type: ignore[arg-type]
        x = torch.ones(1000)
        address = x.data_ptr()
        y = x.view(10, 100)[2:]
        del x
        gc.collect()
        assert tracker.allocated() == 4096
        del y
        gc.collect()
        assert tracker.allocated() == 0
    assert sink.of("alloc", "free") == [("alloc", address, 4096, 4096), ("free", address, 4096, 0)]


def test_what_autograd_keeps_stays_allocated() -> None:
    sink = _Sink()
    with StorageTracker(sink) as tracker:  # type: ignore[arg-type]
        x = torch.ones(1024, requires_grad=True)
        loss = x.exp().sum()  # exp's result is kept for the backward pass
        gc.collect()
        assert tracker.allocated() == 4096 + 4096 + 512
        loss.backward()
        del loss
        gc.collect()
        assert tracker.allocated() == 2 * 4096  # x and its gradient


def test_arguments_are_seen_before_their_operator() -> None:
    x = torch.ones(64)
    sink = _Sink()
    with StorageTracker(sink):  # type: ignore[arg-type]
        x.add_(1)
    kinds = [item[0] for item in sink.told]
    assert kinds == ["alloc", "start", "end"]
    assert sink.of("start") == [("start", "aten::add_")]


def test_an_operator_that_fails_is_ended() -> None:
    sink = _Sink()
    with StorageTracker(sink), pytest.raises(RuntimeError):  # type: ignore[arg-type]
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert sink.of("end")[-1] == ("end", "aten::mm")


def test_a_storage_that_grows_in_place_is_told_anew() -> None:
    sink = _Sink()
    with StorageTracker(sink) as tracker:  # type: ignore[arg-type]
        x = torch.empty(10)
        x.resize_(1000)
        assert tracker.allocated() == 4096
    sizes = [(item[0], item[2]) for item in sink.of("alloc", "free")]
    assert sizes == [("alloc", 512), ("free", 512), ("alloc", 4096)]


def test_meta_tensors_have_no_memory() -> None:
    sink = _Sink()
    with StorageTracker(sink) as tracker:  # type: ignore[arg-type]
        y = torch.ones(1000, device="meta") * 2
        assert tracker.allocated() == 0
    assert y.shape == (1000,)
    assert not sink.of("alloc")


def test_operators_are_left_to_others_where_they_are_hooked() -> None:
    sink = _Sink()
    with StorageTracker(sink, operators=False):  # type: ignore[arg-type]
        torch.ones(3)
    assert not sink.of("start", "end")
    assert sink.of("alloc")


def test_results_do_not_change() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 8, requires_grad=True)
    plain = torch.autograd.grad(torch.nn.functional.gelu(x @ x).sum(), x)[0]
    with StorageTracker(_Sink()):  # type: ignore[arg-type]
        traced = torch.autograd.grad(torch.nn.functional.gelu(x @ x).sum(), x)[0]
    assert torch.equal(plain, traced)


def test_tensors_are_found_in_nested_arguments() -> None:
    a, b = torch.ones(1), torch.ones(2)
    assert [len(t) for t in tensors_in([a, (b, {"c": a}), "text", None, 3])] == [1, 2, 1]


def test_a_whole_program_is_recorded_in_a_log(tmp_path: Path) -> None:
    code = """
import torch
x = torch.ones(1024)
y = x + 1
del x, y
print("done")
"""
    result = run_python(code, tmp_path, environ={"ACCEL_TRACE_HANDLERS": "torch,operators"})
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")
    (events,) = events_of(tmp_path).values()
    assert any(isinstance(e, Fact) and "rounded up to 512" in e.value for e in events)
    memory = [e for e in events if isinstance(e, TensorAlloc | TensorFree) and e.size == 4096]
    assert [(type(e), e.allocated) for e in memory] == [
        (TensorAlloc, 4096), (TensorAlloc, 8192), (TensorFree, 4096), (TensorFree, 0),
    ]  # fmt: skip
    starts = [e for e in events if isinstance(e, OperatorStart)]
    ends = [e for e in events if isinstance(e, OperatorEnd)]
    assert [e.index for e in starts] == list(range(len(starts)))
    assert {(e.name, e.index, e.thread) for e in starts} == {
        (e.name, e.index, e.thread) for e in ends
    }
    assert "aten::add" in [e.name for e in starts]

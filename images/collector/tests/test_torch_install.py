"""Which handler is installed where, and what is said when it cannot be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accel_trace.builds import BuildError
from accel_trace.handlers import install, library, memory_history, sink, torch_native
from accel_trace.handlers.torch_native import Totals


class _Machine:
    """A machine and a PyTorch as the test wants them; what was done and said."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.notes: list[tuple[int, str]] = []
        self.at_exit: list[Any] = []
        self.stats = {"active_bytes.all.current": 512}
        cuda = SimpleNamespace(
            _lazy_call=lambda call: call(),
            device_count=lambda: 1,
            memory_stats=lambda device: self.stats,
        )
        self.torch = SimpleNamespace(version=SimpleNamespace(cuda="13.0"), cuda=cuda)


class _Hooks:
    def __init__(self, machine: _Machine) -> None:
        self.machine = machine
        self.error: Exception | None = None
        self.seen: Totals | None = None

    def allocator(self) -> bool:
        if self.error is not None:
            raise self.error
        self.machine.done.append("allocator")
        return True

    def operators(self) -> None:
        self.machine.done.append("operators")

    def totals(self, device: int) -> Totals | None:
        return self.seen


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Machine:
    found = _Machine()
    monkeypatch.setenv("ACCEL_TRACE_OUT", str(tmp_path))
    monkeypatch.setattr(sink, "_logs", {})
    monkeypatch.setattr(library, "find", lambda: None)
    monkeypatch.setattr(install, "_torch", lambda: found.torch)
    monkeypatch.setattr(install, "has_gpu", lambda: True)
    monkeypatch.setattr(install, "_on", set())
    monkeypatch.setattr(install, "note", lambda level, text: found.notes.append((level, text)))
    monkeypatch.setattr(install.atexit, "register", found.at_exit.append)
    monkeypatch.setattr(
        memory_history, "record", lambda torch, to: found.done.append("memory_history")
    )
    monkeypatch.setattr(install, "_storages", lambda wanted: found.done.append("storages"))
    return found


@pytest.fixture
def hooks(machine: _Machine, monkeypatch: pytest.MonkeyPatch) -> _Hooks:
    found = _Hooks(machine)
    monkeypatch.setattr(torch_native, "load", lambda torch: found)
    return found


def after_torch(monkeypatch: pytest.MonkeyPatch, handlers: str) -> None:
    monkeypatch.setenv("ACCEL_TRACE_HANDLERS", handlers)
    install.after_torch()


def test_with_the_sanitizer_the_hooks_are_used(
    machine: _Machine, hooks: _Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_torch(monkeypatch, "sanitizer, torch,operators")
    assert machine.done == ["allocator", "operators"]
    assert not machine.notes


def test_hooks_that_do_not_compile_are_replaced_by_the_history(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(torch: object) -> None:
        raise BuildError("no C++ compiler was found; install g++ or set CXX")

    monkeypatch.setattr(torch_native, "load", fail)
    after_torch(monkeypatch, "sanitizer,torch")
    assert machine.done == ["memory_history"]
    ((level, text),) = machine.notes
    assert level == 2
    assert "working sets are those of whole objects" in text
    assert "install g++" in text


def test_an_allocator_that_cannot_be_followed_is_told(
    machine: _Machine, hooks: _Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks.error = RuntimeError("cudaMallocAsync does not yet support it")
    after_torch(monkeypatch, "sanitizer,torch")
    assert machine.notes == [
        (2, "tensors cannot be followed with this allocator: cudaMallocAsync does not yet "
            "support it"),
    ]  # fmt: skip


def test_without_the_sanitizer_the_history_is_used(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_torch(monkeypatch, "torch")
    assert machine.done == ["memory_history"]


@pytest.mark.parametrize("lacks", ["gpu", "cuda"])
def test_without_a_gpu_storages_are_followed(
    lacks: str, machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacks == "gpu":
        monkeypatch.setattr(install, "has_gpu", lambda: False)
    else:
        machine.torch.version.cuda = None
    after_torch(monkeypatch, "torch")
    assert machine.done == ["storages"]


def test_operators_without_the_library_are_refused_with_a_note(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_torch(monkeypatch, "operators")
    ((level, text),) = machine.notes
    assert (level, machine.done) == (2, [])
    assert "only with the sanitizer" in text


def test_one_handler_that_fails_does_not_stop_the_next(
    machine: _Machine, hooks: _Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(wanted: frozenset[str]) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(install, "_tensors", fail)
    after_torch(monkeypatch, "sanitizer,torch,operators")
    assert machine.done == ["operators"]
    assert machine.notes == [(2, "handler torch is off: 'broken'")]


@pytest.mark.parametrize(
    ("allocated", "surprises", "said"),
    [(512, 0, False), (1024, 0, True), (512, 3, True)],
)
def test_sizes_are_checked_when_the_process_ends(
    allocated: int,
    surprises: int,
    said: bool,
    machine: _Machine,
    hooks: _Hooks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks.seen = Totals(1, 0, allocated, 2 << 20, surprises, 100)
    after_torch(monkeypatch, "sanitizer,torch")
    (check,) = machine.at_exit
    check()
    assert bool(machine.notes) == said
    if said:
        assert "sizes of tensors on GPU 0 are estimates" in machine.notes[0][1]


def test_a_check_that_fails_is_only_remarked(
    machine: _Machine, hooks: _Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_torch(monkeypatch, "sanitizer,torch")
    machine.torch.cuda.device_count = lambda: 1 // 0
    machine.at_exit[0]()
    assert machine.notes[0][0] == 1

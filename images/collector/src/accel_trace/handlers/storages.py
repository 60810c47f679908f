"""Tensors and operators of any device, by a dispatch mode: for a run without a GPU.

Every storage that an operator takes or gives is followed from first sight to its end. Sizes are
the storage's bytes rounded up to 512, as a caching allocator would; there is no pool, so `reserved`
equals `allocated`. Storages that Python code never passes to an operator stay unseen.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accel_trace.handlers.blocks import rounded
from accel_trace.handlers.sink import Sink


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results, nested lists, tuples and dicts looked into."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for part in value:
            yield from tensors_in(part)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """A tensor's storage, None for one that has none (sparse, or a wrapper of other tensors)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def operator_name(func: Any) -> str:
    """The operator's name as PyTorch's profiler says it, such as `aten::add`."""
    schema = getattr(func, "_schema", None)
    return str(schema.name if schema is not None else func)


class StorageTracker(TorchDispatchMode):
    """Reports TensorAlloc, TensorFree and operators to a sink while it is entered."""

    def __init__(self, sink: Sink, *, operators: bool = True) -> None:
        """With `operators` False only tensors are reported: something else reports the rest."""
        super().__init__()
        self._operators = operators
        self._sink = sink
        self._lock = threading.RLock()  # a finaliser may run on a thread that holds it
        self._alive: dict[int, tuple[int, int, int]] = {}  # number: address, bytes, device
        self._known: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = (
            weakref.WeakKeyDictionary()
        )
        self._allocated: dict[int, int] = {}  # bytes by device number
        self._next = 0
        sink.fact("tensors", "storages seen by operators, the host's as those of device 0; bytes "
                  "rounded up to 512, no pool")  # fmt: skip

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = operator_name(func)
        self._see(args)
        self._see(kwargs or {})
        if self._operators:
            self._sink.operator(True, name)
        try:
            result = func(*args, **(kwargs or {}))
            self._see(result)
            self._see(args)  # an argument may have been resized
        finally:
            if self._operators:
                self._sink.operator(False, name)
        return result

    def allocated(self, device: int = 0) -> int:
        """Bytes of the storages that are alive on a device."""
        return self._allocated.get(device, 0)

    def _see(self, value: Any) -> None:
        for tensor in tensors_in(value):
            storage = storage_of(tensor)
            if storage is not None and tensor.device.type != "meta" and storage.nbytes():
                with self._lock, suppress(RuntimeError):  # a fake storage has no address
                    self._follow(storage, tensor.device.index or 0)

    def _follow(self, storage: torch.UntypedStorage, device: int) -> None:
        piece = (storage.data_ptr(), rounded(storage.nbytes()), device)
        number = self._known.get(storage)
        if number is not None:
            if self._alive.get(number) == piece:
                return
            self._end(number)  # resized in place
        number = self._known[storage] = self._next
        self._next += 1
        self._alive[number] = piece
        weakref.finalize(storage, self._end, number).atexit = False
        self._tell(True, piece)

    def _end(self, number: int) -> None:
        with self._lock:
            piece = self._alive.pop(number, None)
            if piece is not None:
                self._tell(False, piece)

    def _tell(self, alloc: bool, piece: tuple[int, int, int]) -> None:
        address, size, device = piece
        total = self.allocated(device) + (size if alloc else -size)
        self._allocated[device] = total
        self._sink.tensor(alloc, address, size, allocated=total, reserved=total, device=device)

"""What tensors hold, on any device: a timeline of storages, and bytes per operator.

For the CPU, where no allocator can be hooked. A storage counts from the operator that made it until
nothing holds it any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class TensorTimeline(TorchDispatchMode):
    """`changes` (bytes, negative for a free) and `allocated` (bytes after each) while active.

    `known` are tensors that are there already; they come first, one event each.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.changes: list[int] = []  # by any thread that lets go of a storage
        self._live: set[int] = set()
        for tensor in known:
            self._see(tensor)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        for tensor in tensors_in([found]):
            self._see(tensor)
        return found

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        number, size = storage._cdata, storage.nbytes()
        if not size or number in self._live:
            return
        self._live.add(number)
        self.changes.append(size)
        # The wrapper lives as long as its storage: PyTorch keeps one for each.
        weakref.finalize(storage, self._gone, number, size).atexit = False

    def _gone(self, number: int, size: int) -> None:
        self._live.discard(number)
        self.changes.append(-size)

    @property
    def allocated(self) -> list[int]:
        return list(accumulate(self.changes))


class OperatorBytes(TorchDispatchMode):
    """`sizes`: for each operator, the bytes that its distinct arguments and results hold.

    An upper bound of the working set of what it launches: the argument-based estimate.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        if not function.is_view:
            touched = {
                tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
                for tensor in tensors_in([args, list(kwargs.values()), found])
            }
            if any(touched.values()):
                self.sizes.append(sum(touched.values()))
        return found


def tensors_in(things: Iterable[Any]) -> Iterable[Tensor]:
    """The tensors in nested lists and tuples."""
    for thing in things:
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, list | tuple):
            yield from tensors_in(thing)

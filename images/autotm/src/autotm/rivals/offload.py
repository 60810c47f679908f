"""Activations to the host by hooks on saved tensors, with streams: what torchtune and TRL ship.

Written anew after their description: tensors of at least a KiB that are no parameters go to pinned
memory on a stream of their own and are fetched ahead of their use; a few stay alive until their
copy has ended. One object serves a whole step, so that a few are a few of all its blocks, and what
several operators save is moved once. A view with gaps (the queries among keys and values) would be
gathered by the host: its whole storage moves instead, once for all views of it. Pinned memory comes
from PyTorch's cache. The knob, which is ours, is a share of the bytes: those that are saved first,
and needed last, leave.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.multiprocessing.reductions import StorageWeakRef

LEAST, STASH, AHEAD = 1024, 5, 2


Look = tuple[torch.dtype, int, torch.Size, tuple[int, ...]]  # of a storage, in elements


@dataclass(eq=False)
class _Away:
    """A tensor on the host, for as long as an operator's backward still wants it."""

    number: int
    host: torch.Tensor
    device: torch.device
    source: StorageWeakRef  # as long as it is held, no other storage gets its name
    ended: Any  # event of the copy out
    back: torch.Tensor | None = None
    arrived: Any = None


def pinned_bytes(size: int) -> int:
    """What PyTorch pins for a tensor of `size` bytes: the next power of two."""
    return 1 << (size - 1).bit_length() if size else 0


def _gaps(tensor: torch.Tensor) -> bool:
    """Whether a tensor has fewer elements than its storage between its first and last, or more."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return sum((size - 1) * step for size, step in steps) + 1 != tensor.numel()


class OffloadActivations(torch.autograd.graph.saved_tensors_hooks):
    """A context: what autograd saves within goes to the host. keep: parameters, which do not.

    It may be entered again and again; `begin` starts a step. room: bytes that may leave in a step,
    None for all. left: bytes that have. On a CPU the copies are plain ones.
    """

    def __init__(self, keep: Iterable[torch.Tensor], room: float | None = None) -> None:
        self.room, self.left = room, 0
        self._keep = {each.untyped_storage()._cdata for each in keep}
        self._away: WeakValueDictionary[int, _Away] = WeakValueDictionary()
        self._same: WeakValueDictionary[tuple[Any, ...], _Away] = WeakValueDictionary()
        self._stash: OrderedDict[int, tuple[torch.Tensor, Any]] = OrderedDict()
        self._next = 0
        self._streams: tuple[Any, Any] | None = None
        super().__init__(self._pack, self._unpack)

    def begin(self) -> None:
        """A step begins."""
        self.left = 0

    def _pack(self, tensor: torch.Tensor) -> Any:
        small = tensor.numel() * tensor.itemsize < LEAST
        if small or tensor.untyped_storage()._cdata in self._keep:
            return tensor
        source = StorageWeakRef(tensor.untyped_storage())
        look = tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride()
        name: tuple[Any, ...] = (source.cdata, tensor._version, look)
        moved, seen = tensor.detach(), None
        if _gaps(tensor):
            moved = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            moved.set_(tensor.untyped_storage())
            name, seen = name[:2], look
        if name not in self._same:
            if self.room is not None and self.left + moved.nbytes > self.room:
                return tensor
            self.left += moved.nbytes
            away = self._leave(moved, source)
            self._same[name] = self._away[away.number] = away
        return self._same[name], seen

    def _leave(self, tensor: torch.Tensor, source: StorageWeakRef) -> _Away:
        self._next += 1
        cuda = tensor.device.type == "cuda"
        host = torch.empty_like(tensor, device="cpu", pin_memory=cuda)
        ended = None
        if cuda:
            out, _ = self._lanes(tensor.device)
            out.wait_stream(torch.cuda.current_stream(tensor.device))
            with torch.cuda.stream(out):
                host.copy_(tensor, non_blocking=True)
                ended = out.record_event()
            self._hold(self._next, tensor, ended)
        else:
            host.copy_(tensor)
        return _Away(self._next, host, tensor.device, source, ended)

    def _hold(self, number: int, tensor: torch.Tensor, ended: Any) -> None:
        """Keep a tensor until its copy has ended, a few at a time."""
        self._stash[number] = (tensor, ended)
        while len(self._stash) > STASH:
            _, (old, event) = self._stash.popitem(last=False)
            torch.cuda.current_stream(old.device).wait_event(event)

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        away: _Away
        seen: Look | None
        away, seen = packed
        self._fetch(away)
        for number in range(away.number - 1, away.number - 1 - AHEAD, -1):
            if number in self._away:
                self._fetch(self._away[number])
        assert away.back is not None
        if away.arrived is not None:
            torch.cuda.current_stream(away.device).wait_event(away.arrived)
        if seen is None:
            return away.back
        dtype, *where = seen
        found = torch.empty(0, dtype=dtype, device=away.device)
        return found.set_(away.back.untyped_storage(), *where)

    def _fetch(self, away: _Away) -> None:
        if away.back is not None:
            return
        if away.device.type != "cuda":
            away.back = away.host.clone()
            return
        if away.number in self._stash:  # it has not left yet
            away.back, event = self._stash.pop(away.number)
            torch.cuda.current_stream(away.device).wait_event(event)
            return
        _, back = self._lanes(away.device)
        away.back = torch.empty_like(away.host, device=away.device)
        # Its memory may be that of a tensor that compute still reads.
        back.wait_stream(torch.cuda.current_stream(away.device))
        with torch.cuda.stream(back):
            back.wait_event(away.ended)
            away.back.copy_(away.host, non_blocking=True)
            away.arrived = back.record_event()

    def _lanes(self, device: torch.device) -> tuple[Any, Any]:
        if self._streams is None:
            self._streams = (torch.cuda.Stream(device), torch.cuda.Stream(device))
        return self._streams


class Counted(OffloadActivations):
    """The same for a look: nothing leaves, what would is let go. No backward can follow.

    sizes: bytes of each tensor that would leave.
    """

    def __init__(self, keep: Iterable[torch.Tensor]) -> None:
        super().__init__(keep)
        self.sizes: list[int] = []

    def _leave(self, tensor: torch.Tensor, source: StorageWeakRef) -> _Away:
        self.sizes.append(tensor.nbytes)
        return _Away(len(self.sizes), tensor.new_empty(0), tensor.device, source, None)

    def host_bytes(self, room: float) -> int:
        """Pinned memory for what leaves where `room` bytes may."""
        left = total = 0
        for size in self.sizes:
            if left + size <= room:
                left += size
                total += pinned_bytes(size)
        return total

"""Activations to the host by hooks on saved tensors, with streams: what torchtune and TRL ship.

Written anew after their description: tensors of at least a KiB that are no parameters go to pinned
memory on a stream of their own and are fetched ahead of their use; a few stay alive until their
copy has ended. Pinned memory comes from PyTorch's cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

LEAST, STASH, AHEAD = 1024, 5, 2


@dataclass
class _Away:
    host: torch.Tensor
    device: torch.device
    ended: Any  # event of the copy out
    back: torch.Tensor | None = None
    arrived: Any = None


class OffloadActivations(torch.autograd.graph.saved_tensors_hooks):
    """A context: what autograd saves within goes to the host. keep: parameters, which do not.

    On a CPU the copies are plain ones.
    """

    def __init__(self, keep: Iterable[torch.Tensor]) -> None:
        self._keep = {each.untyped_storage()._cdata for each in keep}
        self._away: OrderedDict[int, _Away] = OrderedDict()
        self._stash: OrderedDict[int, tuple[torch.Tensor, Any]] = OrderedDict()
        self._next = 0
        self._streams: tuple[Any, Any] | None = None
        super().__init__(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> Any:
        small = tensor.numel() * tensor.itemsize < LEAST
        if small or tensor.untyped_storage()._cdata in self._keep:
            return tensor
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
        self._away[self._next] = _Away(host, tensor.device, ended)
        return self._next

    def _hold(self, number: int, tensor: torch.Tensor, ended: Any) -> None:
        """Keep a tensor until its copy has ended, a few at a time."""
        self._stash[number] = (tensor, ended)
        while len(self._stash) > STASH:
            _, (old, event) = self._stash.popitem(last=False)
            torch.cuda.current_stream(old.device).wait_event(event)

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        away = self._away.pop(packed)
        self._stash.pop(packed, None)
        self._fetch(away)
        for number in list(reversed(self._away))[:AHEAD]:
            if number < packed:
                self._fetch(self._away[number])
        assert away.back is not None
        if away.arrived is not None:
            current = torch.cuda.current_stream(away.device)
            current.wait_event(away.arrived)
            away.back.record_stream(current)
        return away.back

    def _fetch(self, away: _Away) -> None:
        if away.back is not None:
            return
        if away.device.type != "cuda":
            away.back = away.host.clone()
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

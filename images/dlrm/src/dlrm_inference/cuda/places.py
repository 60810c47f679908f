"""Where warps share the long bags of a launch: what kernels/rows.cuh calls a place."""

from __future__ import annotations

from functools import cache

import torch

from dlrm_inference.cuda.design import PLACE_BYTES
from dlrm_inference.cuda.launch import stream_of

_SPARE = 16


class _Places:
    """Memory of one device in which long bags are shared: one for each stream, since a place is of
    one launch at a time, and one for each launch in a CUDA graph, which any stream may replay."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._of_stream: dict[int, torch.Tensor] = {}
        self._spare: list[torch.Tensor] = []
        self._captured: list[torch.Tensor] = []  # for good: a graph does not say when it goes

    def address(self) -> int:
        """Return the place for a launch on the current stream; it is 0 where nothing is open."""
        if torch.cuda.is_current_stream_capturing():
            place = self._spare.pop() if self._spare else self._make()
            self._captured.append(place)
            return place.data_ptr()
        stream = stream_of(self._device.index)
        found = self._of_stream.get(stream)
        if found is None:
            found = self._of_stream[stream] = self._make()
        if len(self._spare) < _SPARE:  # a graph would fill one anew in every replay
            self._spare += [self._make() for _ in range(_SPARE)]
            torch.cuda.synchronize(self._device)
        return found.data_ptr()

    def _make(self) -> torch.Tensor:
        return torch.zeros(PLACE_BYTES, dtype=torch.uint8, device=self._device)


@cache
def _places(device: torch.device) -> _Places:
    return _Places(device)


def place_of(device: torch.device) -> int:
    """Return the address of PLACE_BYTES for the next launch on `device`'s current stream."""
    return _places(device).address()

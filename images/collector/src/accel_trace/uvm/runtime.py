"""The few calls of the CUDA runtime that managed memory needs, for CUDA 12 and 13 bindings."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

HOST = -1  # instead of a device number
DRIVER_PREFETCH = Path("/sys/module/nvidia_uvm/parameters/uvm_perf_prefetch_enable")


class RuntimeMissing(RuntimeError):
    """cuda-bindings is not installed, or a call failed; one sentence."""


def driver_prefetch(path: Path = DRIVER_PREFETCH) -> int | None:
    """The driver's own prefetching on faults: 1 on, 0 off ("paper mode"), None not known."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


class Runtime:
    """Prefetch calls through NVIDIA's cuda-bindings. Raises RuntimeMissing."""

    def __init__(self, bindings: Any = None) -> None:
        """`bindings` is the module cuda.bindings.runtime, loaded when not given."""
        if bindings is None:
            try:
                bindings = importlib.import_module("cuda.bindings.runtime")
            except ImportError as error:
                raise RuntimeMissing(
                    "prefetching needs NVIDIA's bindings; pip install cuda-bindings"
                ) from error
        self._api = bindings
        # CUDA 13 dropped the call with a device number; CUDA 12's bindings have both.
        self._by_location = not hasattr(bindings, "cudaMemPrefetchAsync_v2")

    def stream(self) -> Any:
        """A new non-blocking stream."""
        return self._call("cudaStreamCreateWithFlags", self._api.cudaStreamNonBlocking)

    def destroy(self, stream: Any) -> None:
        """Give a stream back once its work is done."""
        self._call("cudaStreamSynchronize", stream)
        self._call("cudaStreamDestroy", stream)

    def prefetch(self, address: int, size: int, device: int, stream: Any) -> None:
        """Have `size` managed bytes moved to a device, or HOST, on a stream."""
        if self._by_location:
            place = self._location(device)
            self._call("cudaMemPrefetchAsync", address, size, place, 0, stream)
        else:
            number = int(self._api.cudaCpuDeviceId) if device == HOST else device
            self._call("cudaMemPrefetchAsync", address, size, number, stream)

    def last_prefetch(self, address: int, size: int) -> int:
        """Where the whole range was last prefetched to: a device, HOST, or -2 for nowhere."""
        attribute = self._api.cudaMemRangeAttribute.cudaMemRangeAttributeLastPrefetchLocation
        return int(self._call("cudaMemRangeGetAttribute", 4, attribute, address, size))

    def synchronize(self) -> None:
        """Wait for all work of the current device."""
        self._call("cudaDeviceSynchronize")

    def _location(self, device: int) -> Any:
        place = self._api.cudaMemLocation()
        kinds = self._api.cudaMemLocationType
        host = device == HOST
        place.type = kinds.cudaMemLocationTypeHost if host else kinds.cudaMemLocationTypeDevice
        place.id = 0 if host else device
        return place

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *result = getattr(self._api, name)(*arguments)
        if int(error):
            raise RuntimeMissing(f"{name} failed: {getattr(error, 'name', error)}")
        return result[0] if result else None

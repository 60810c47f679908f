"""Loading compiled kernels and launching them on PyTorch's current stream, by the driver API."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from dlrm_inference.cuda.compile import Compiled, CompileError, Usage


class LaunchError(RuntimeError):
    """The driver refused a kernel: which call, and why."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """An access-policy window of one launch (docs/papers/dlrm.md, 3.7): global memory reads inside
    [base, base + size) are kept in the L2 with probability `hit_ratio`, all others stream."""

    base: int  # device address
    size: int  # bytes
    hit_ratio: float


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """What one kernel takes on one device. `registers` and the byte counts as in `Usage`."""

    registers: int
    local_bytes: int
    shared_bytes: int
    spill_bytes: int
    blocks_per_sm: int
    warps_per_sm: int
    occupancy: float  # warps per SM over the most the device can hold


class Kernel:
    """One kernel loaded into the primary context of `device`."""

    def __init__(self, compiled: Compiled, name: str, device: torch.device) -> None:
        """Load `name` of `compiled`. Raises LaunchError, e.g. for code of another architecture."""
        self.name = name
        self.usage: Usage = compiled.usage[name]
        self.device = device
        self._driver = import_driver()
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # the primary context exists from here on
            torch.cuda.init()
            torch.empty(1, device=device)
            self._device_index = torch.cuda.current_device()
            module = self._checked(
                "cuModuleLoadData", self._driver.cuModuleLoadData(compiled.cubin)
            )
            self._module = module
            self._function = self._checked(
                "cuModuleGetFunction", self._driver.cuModuleGetFunction(module, name.encode())
            )

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Arguments | Values,
        window: Window | None = None,
        shared_bytes: int = 0,
    ) -> None:
        """Put one launch on the current stream. Does not wait, and does not look at errors that
        happen on the device. Raises LaunchError for a launch the driver refuses."""
        stream = stream_of(self._device_index)
        if window is None:
            answer = self._driver.cuLaunchKernel(
                self._function, *grid, *block, shared_bytes, stream, arguments.address, 0
            )
        else:
            config = self._configure(grid, block, shared_bytes, stream, window)
            answer = self._driver.cuLaunchKernelEx(config, self._function, arguments.address, 0)
        if answer[0] != 0:
            self._checked(f"launch of {self.name}", answer)

    def attributes(self, threads: int, shared_bytes: int = 0) -> Attributes:
        """Return what the driver says about this kernel in blocks of `threads`."""
        names = self._driver.CUfunction_attribute

        def ask(attribute: Any) -> int:
            call = self._driver.cuFuncGetAttribute(attribute, self._function)
            return int(self._checked("cuFuncGetAttribute", call))

        blocks = self._checked(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self._function, threads, shared_bytes
            ),
        )
        facts = torch.cuda.get_device_properties(self.device)
        warps = blocks * ((threads + 31) // 32)
        return Attributes(
            registers=ask(names.CU_FUNC_ATTRIBUTE_NUM_REGS),
            local_bytes=ask(names.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
            shared_bytes=ask(names.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            spill_bytes=self.usage.spill_store_bytes,
            blocks_per_sm=int(blocks),
            warps_per_sm=int(warps),
            occupancy=warps * 32 / facts.max_threads_per_multi_processor,
        )

    def prefer_shared(self, percent: int) -> None:
        """Ask for `percent` of the L1's memory as shared memory; the driver rounds up."""
        name = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        self._checked(
            "cuFuncSetAttribute", self._driver.cuFuncSetAttribute(self._function, name, percent)
        )

    def _configure(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: int,
        window: Window,
    ) -> Any:
        driver = self._driver
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        policy = driver.CUaccessPolicyWindow()
        policy.base_ptr = window.base
        policy.num_bytes = window.size
        policy.hitRatio = window.hit_ratio
        policy.hitProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_PERSISTING
        policy.missProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
        attribute.value.accessPolicyWindow = policy
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared_bytes
        config.hStream = stream
        config.attrs = [attribute]
        config.numAttrs = 1
        return config

    def _checked(self, call: str, answer: tuple[Any, ...]) -> Any:
        return check(self._driver, call, answer)


class Arguments:
    """One struct, passed to a kernel by value. Keeps it, and the tensors it points into, alive."""

    def __init__(self, struct: ctypes.Structure, owners: Sequence[object] = ()) -> None:
        self.struct = struct
        self._owners = tuple(owners)
        self._pointer = ctypes.c_void_p(ctypes.addressof(struct))
        self.address = ctypes.addressof(self._pointer)


class Values:
    """Several plain parameters, as `Arguments` is for one struct."""

    def __init__(self, values: Sequence[Any], owners: Sequence[object] = ()) -> None:
        self._values = tuple(values)
        self._owners = tuple(owners)
        pointers = [ctypes.addressof(value) for value in self._values]
        self._pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self.address = ctypes.addressof(self._pointers)


@cache
def import_driver() -> Any:
    """Return the driver bindings. Raises CompileError when they are not installed."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise CompileError(
            "the kernels need NVIDIA's driver bindings; fix: pip install cuda-bindings"
        ) from error
    return driver


def stream_of(device: int) -> int:
    """Return PyTorch's current stream of a device that is in use, by its number: the handle that
    `torch.cuda.current_stream` makes an object around."""
    return torch._C._cuda_getCurrentRawStream(device)


def check(driver: Any, call: str, answer: tuple[Any, ...]) -> Any:
    """Return the value a driver call gave beside its status. Raises LaunchError when it failed."""
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        text = driver.cuGetErrorString(status)[1]
        words = text.decode() if isinstance(text, bytes) else str(status)
        raise LaunchError(f"{call} failed: {words}")
    return values[0] if len(values) == 1 else (tuple(values) if values else None)


@cache
def arch_of(device: torch.device) -> str:
    """Return the architecture to compile for on `device`, as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"

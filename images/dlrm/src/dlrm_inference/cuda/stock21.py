"""`stock21`: the paper's own baseline, the 74-register kernel of torch 2.1.0, on today's GPU.

The kernel is read out of the official wheel when an image is built
(`python -m dlrm_inference.cuda.stock21 extract WHEEL OUTDIR`), never committed, and launched
through the driver API exactly as PyTorch 2.1 launches it: 1024 blocks of (32, 8) threads, no
shared memory (docs/papers/dlrm.md, 3.1). Newer compilers do not recreate this kernel (3.2), so this
is the only way to measure the paper's baseline beside a current PyTorch, in one process.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlrm_inference.cuda import cubin
from dlrm_inference.cuda.wheel21 import (
    BLOCK,
    GRID,
    HOW_TO_FIX,
    Stock21Error,
    StockKernel,
    choose,
    extract,
    find_folder,
    read_manifest,
)

if TYPE_CHECKING:
    import torch

MODES = {"sum": 0, "mean": 1}


class LoadedKernel:
    """The kernel loaded into the current CUDA context, with a reusable parameter block."""

    def __init__(self, folder: Path, kernel: StockKernel) -> None:
        from cuda.bindings import driver

        self.kernel = kernel
        self._driver = driver
        image = (folder / kernel.file).read_bytes()
        self._module = _checked(driver, driver.cuModuleLoadData(image))
        self._function = _checked(
            driver, driver.cuModuleGetFunction(self._module, kernel.name.encode())
        )
        self._block = (ctypes.c_byte * kernel.parameter_bytes)()
        start = ctypes.addressof(self._block)
        self._slots = [
            (ctypes.c_int64 if size == 8 else ctypes.c_int32).from_address(start + offset)
            for offset, size in kernel.parameters
        ]
        addresses = [start + offset for offset, _size in kernel.parameters]
        self._pointers = (ctypes.c_void_p * len(addresses))(*addresses)

    def launch(self, values: Sequence[int], stream: int) -> None:
        """Launch as PyTorch 2.1 does, on a raw stream handle; `values` in SIGNATURE's order."""
        for slot, value in zip(self._slots, values, strict=True):
            slot.value = value
        # The driver copies the parameters before it returns, so the block can be reused.
        grid, block, pointers = (GRID, 1, 1), (*BLOCK, 1), ctypes.addressof(self._pointers)
        _checked(
            self._driver,
            self._driver.cuLaunchKernel(self._function, *grid, *block, 0, stream, pointers, 0),
        )

    def read_attributes(self) -> dict[str, int]:
        """Return what the driver says: registers, local and shared bytes, blocks per SM."""
        names = self._driver.CUfunction_attribute

        def ask(attribute: object) -> int:
            return int(
                _checked(self._driver, self._driver.cuFuncGetAttribute(attribute, self._function))
            )

        return {
            "registers": ask(names.CU_FUNC_ATTRIBUTE_NUM_REGS),
            "local_bytes": ask(names.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
            "shared_bytes": ask(names.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            "blocks_per_sm": int(
                _checked(
                    self._driver,
                    self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                        self._function, BLOCK[0] * BLOCK[1], 0
                    ),
                )
            ),
        }


class Stock21:
    """The kernel as a variant: loads on first use, once per device and index type."""

    name = "stock21"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._loaded: dict[tuple[int, str], LoadedKernel] = {}

    def why_unsupported(self, capability: tuple[int, int], index: str = "int64") -> str:
        """Return why this variant cannot run on such a GPU, "" when it can."""
        try:
            choose(read_manifest(self._folder or find_folder()), capability, index)
        except Stock21Error as error:
            return str(error)
        return ""

    def load(self, device: torch.device, index: str) -> LoadedKernel:
        """Return the kernel for a CUDA device. Raises Stock21Error with the reason and a fix."""
        import torch

        number = torch.cuda.current_device() if device.index is None else device.index
        if (number, index) not in self._loaded:
            folder = self._folder or find_folder()
            capability = torch.cuda.get_device_capability(number)
            kernel = choose(read_manifest(folder), capability, index)
            with torch.cuda.device(number):
                torch.cuda.synchronize()  # makes PyTorch's context current for the driver calls
                self._loaded[number, index] = LoadedKernel(folder, kernel)
        return self._loaded[number, index]

    def forward(
        self,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the bags' sums or means (bags, dim) float32, on PyTorch's current stream.

        weight (rows, dim) float32, any strides; indices (accesses,) int32 or int64; offsets
        (bags + 1,) of the same type, the first 0 and the last the number of indices. An index out
        of range trips the kernel's own device-side assertion, as it does in PyTorch 2.1: check
        indices first. Raises ValueError for what the kernel does not take.
        """
        import torch

        bags = check_arguments(weight, indices, offsets, mode, out)
        kind = "int64" if indices.dtype == torch.int64 else "int32"
        loaded = self.load(weight.device, kind)
        if out is None:
            out = weight.new_empty((bags, weight.shape[1]))
        # PyTorch's operator allocates these two on every call and the kernel writes them.
        offset2bag = torch.empty_like(indices)
        bag_size = indices.new_empty(bags)
        loaded.launch(
            (
                indices.data_ptr(),
                offsets.data_ptr(),
                weight.data_ptr(),
                out.data_ptr(),
                offset2bag.data_ptr(),
                indices.numel(),
                bags,
                weight.shape[1],
                weight.stride(0),
                weight.stride(1),
                MODES[mode],
                bag_size.data_ptr(),
                0,  # no per-sample weights
                0,
                -1,  # no padding row
                weight.shape[0],
            ),
            torch.cuda.current_stream(weight.device).cuda_stream,
        )
        return out

    def attributes(self, device: torch.device, index: str = "int64") -> dict[str, int]:
        """Return registers, local and shared bytes and blocks per SM as the driver reports them."""
        return self.load(device, index).read_attributes()


def check_arguments(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    mode: str,
    out: torch.Tensor | None,
) -> int:
    """Return the number of bags. Raises ValueError for anything the kernel does not take."""
    import torch

    if mode not in MODES:
        raise ValueError(f"stock21 sums or averages; mode '{mode}' is another kernel")
    if weight.dim() != 2 or weight.dtype != torch.float32:
        raise ValueError("stock21 takes a two-dimensional float32 table")
    if indices.dtype not in (torch.int32, torch.int64) or offsets.dtype != indices.dtype:
        raise ValueError("stock21 takes int32 or int64 indices, and offsets of the same type")
    if not (indices.is_contiguous() and offsets.is_contiguous()):
        raise ValueError("stock21 takes contiguous indices and offsets")
    if not weight.device == indices.device == offsets.device:
        raise ValueError("table, indices and offsets must be on one device")
    bags = int(offsets.numel()) - 1
    if bags < 0:
        raise ValueError("offsets must hold bags + 1 entries, the first 0")
    if out is not None and (
        tuple(out.shape) != (bags, weight.shape[1])
        or out.dtype != weight.dtype
        or out.device != weight.device
        or not out.is_contiguous()
    ):
        raise ValueError(f"out must be a contiguous float32 tensor ({bags}, {weight.shape[1]})")
    return bags


def _checked(driver: Any, answer: tuple[Any, ...]) -> Any:
    code, *values = answer
    if int(code) != 0:
        _again, text = driver.cuGetErrorString(code)
        words = text.decode() if isinstance(text, bytes) else str(code)
        raise Stock21Error(f"the CUDA driver refused the torch 2.1.0 kernel: {words}")
    return values[0] if values else None


def main(argv: Sequence[str] | None = None) -> int:
    """`extract WHEEL OUTDIR`: returns 0, or 1 after one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m dlrm_inference.cuda.stock21")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("extract", help="read the kernel out of torch 2.1.0's wheel")
    command.add_argument("wheel", type=Path)
    command.add_argument("outdir", type=Path)
    options = parser.parse_args(argv)
    try:
        kernels = extract(options.wheel, options.outdir)
    except cubin.CubinError as error:
        print(f"stock21: {error}; {HOW_TO_FIX}", file=sys.stderr)
        return 1
    for kernel in kernels:
        print(f"sm_{kernel.arch} {kernel.index}: {kernel.registers} registers, {kernel.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

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
import hashlib
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlrm_inference.cuda import cubin

if TYPE_CHECKING:
    import torch

TORCH_VERSION = "2.1.0"
LIBRARY = "torch/lib/libtorch_cuda.so"
FUNCTION = "EmbeddingBag_updateOutputKernel_sum_mean"
# Index type -> the mangled template arguments <float, long> and <float, int> that follow FUNCTION.
TEMPLATES = {"int64": "IflE", "int32": "IfiE"}
ARCHS = (80, 86, 90)  # sm_8x and sm_90: the only machine code from sm_80 on in that wheel
REGISTERS = 74
BLOCK = (32, 8)
GRID = 1024
MODES = {"sum": 0, "mean": 1}
FOLDERS = ("/opt/ae/stock21",)  # after $AE_STOCK21_DIR
HOW_TO_FIX = (
    "fix: pip download --no-deps --python-version 3.11 --only-binary=:all: torch==2.1.0, then "
    "python -m dlrm_inference.cuda.stock21 extract WHEEL OUTDIR, and set AE_STOCK21_DIR to OUTDIR"
)

# The kernel's parameters in order, from PyTorch 2.1's source, with the size of each in bytes;
# `index` is the size of the index type. Checked against the cubin before anything is launched.
SIGNATURE: tuple[tuple[str, int | str], ...] = (
    ("input", 8),
    ("offsets", 8),
    ("weight", 8),
    ("output", 8),
    ("offset2bag", 8),
    ("numIndices", 8),
    ("numBags", 8),
    ("featureSize", 8),
    ("weight_stride0", 8),
    ("weight_stride1", 8),
    ("mode", 4),
    ("bag_size", 8),
    ("per_sample_weights", 8),
    ("per_sample_weights_stride", 8),
    ("padding_idx", "index"),
    ("numRows", 8),
)


class Stock21Error(RuntimeError):
    """The torch 2.1.0 kernel cannot be had or used here: one sentence with a fix."""


@dataclass(frozen=True, kw_only=True)
class StockKernel:
    """One kernel of the wheel, for one architecture and index type."""

    arch: int
    index: str
    file: str  # the cubin, beside the manifest
    name: str  # mangled
    registers: int
    local_bytes: int
    shared_bytes: int
    parameters: tuple[tuple[int, int], ...]  # (offset, size) in bytes, in order
    parameter_bytes: int


def expected_layout(index: str) -> tuple[tuple[int, int], ...]:
    """Return (offset, size) of every parameter by the C++ rules: each aligned to its own size."""
    layout, at = [], 0
    for _name, size in SIGNATURE:
        width = (8 if index == "int64" else 4) if isinstance(size, str) else size
        at = -(-at // width) * width
        layout.append((at, width))
        at += width
    return tuple(layout)


def extract(wheel: Path, folder: Path) -> tuple[StockKernel, ...]:
    """Write the cubins that hold the kernel, and `manifest.json`, into `folder`.

    Raises CubinError when the file is not torch 2.1.0's wheel, when an architecture is missing,
    or when a kernel is not what this program will launch (registers, parameters).
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as scratch:
        library = _take_library(wheel, Path(scratch))
        with cubin.map_file(library) as data:
            found = _find_cubins(data)
    missing = [f"sm_{arch}" for arch in ARCHS if arch not in found]
    if missing:
        raise cubin.CubinError(f"{wheel.name} has no {FUNCTION} for {', '.join(missing)}")
    kernels: list[StockKernel] = []
    hashes = {}
    for arch, image in sorted(found.items()):
        file = f"embedding_bag_sm_{arch}.cubin"
        (folder / file).write_bytes(image)
        hashes[file] = hashlib.sha256(image).hexdigest()
        kernels += _describe(arch, file, image)
    manifest = {
        "schema": 1,
        "torch": TORCH_VERSION,
        "wheel": wheel.name,
        "wheel_sha256": _sha256(wheel),
        "launch": {"grid": GRID, "block": list(BLOCK), "shared_bytes": 0},
        "cubins": hashes,
        "kernels": [asdict(kernel) for kernel in kernels],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return tuple(kernels)


def find_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with the extracted kernel. Raises Stock21Error when there is none."""
    named = environment.get("AE_STOCK21_DIR", "")
    for place in (named,) if named else FOLDERS:
        if (Path(place) / "manifest.json").is_file():
            return Path(place)
    place = f"AE_STOCK21_DIR={named}" if named else FOLDERS[0]
    where = f"{place} holds no manifest.json"
    raise Stock21Error(f"built without the torch 2.1.0 wheel ({where}); {HOW_TO_FIX}")


def read_manifest(folder: Path) -> tuple[StockKernel, ...]:
    """Return the kernels listed in `folder`, checked against what this program will launch."""
    try:
        raw: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        kernels = tuple(
            StockKernel(**{**item, "parameters": tuple(map(tuple, item["parameters"]))})
            for item in raw["kernels"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stock21Error(f"{folder}/manifest.json is unusable ({error}); {HOW_TO_FIX}") from error
    for kernel in kernels:
        if kernel.parameters != expected_layout(kernel.index):
            raise Stock21Error(f"{folder}: {kernel.name} takes other parameters; {HOW_TO_FIX}")
    return kernels


def choose(kernels: Sequence[StockKernel], capability: tuple[int, int], index: str) -> StockKernel:
    """Return the kernel that runs on `capability`: machine code is compatible upwards within a
    major version only. Raises Stock21Error when the wheel has none for this GPU."""
    major, minor = capability
    fitting = [
        k for k in kernels if k.index == index and k.arch // 10 == major and k.arch % 10 <= minor
    ]
    if not fitting:
        raise Stock21Error(
            f"torch 2.1.0 has no {index} machine code for compute capability {major}.{minor}; "
            "fix: use a GPU of compute capability 8.x or 9.0"
        )
    return max(fitting, key=lambda k: k.arch)


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


def _take_library(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            if not any(name.startswith(f"torch-{TORCH_VERSION}") for name in names):
                raise cubin.CubinError(f"{wheel.name} is not a wheel of torch {TORCH_VERSION}")
            if LIBRARY not in names:
                raise cubin.CubinError(f"{wheel.name} holds no {LIBRARY}: it is not a CUDA build")
            return Path(archive.extract(LIBRARY, folder))
    except (OSError, zipfile.BadZipFile) as error:
        raise cubin.CubinError(f"cannot read the wheel {wheel}: {error}") from error


def _find_cubins(data: cubin.Buffer) -> dict[int, bytes]:
    needle = FUNCTION.encode()
    found: dict[int, bytes] = {}
    for arch, image in cubin.cubins(data, frozenset(ARCHS)):
        if needle in image:
            found[arch] = image
            if len(found) == len(ARCHS):
                break
    return found


def _describe(arch: int, file: str, image: bytes) -> list[StockKernel]:
    kernels = cubin.read_kernels(image)
    described = []
    for index, template in TEMPLATES.items():
        kernel = cubin.find_kernel(kernels, FUNCTION, template)
        layout = tuple((p.offset, p.size) for p in kernel.parameters)
        if layout != expected_layout(index):
            raise cubin.CubinError(f"sm_{arch} {index}: these are other parameters: {layout}")
        if kernel.registers != REGISTERS:
            has = f"{kernel.registers} registers, where torch {TORCH_VERSION} has {REGISTERS}"
            raise cubin.CubinError(f"sm_{arch} {index}: {has}")
        described.append(
            StockKernel(
                arch=arch,
                index=index,
                file=file,
                name=kernel.name,
                registers=kernel.registers,
                local_bytes=kernel.local_bytes,
                shared_bytes=kernel.shared_bytes,
                parameters=layout,
                parameter_bytes=kernel.parameter_bytes,
            )
        )
    return described


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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

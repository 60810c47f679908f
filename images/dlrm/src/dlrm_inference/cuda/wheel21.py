"""The kernel of torch 2.1.0, read out of its official wheel into a folder, and found there again.

No GPU and no PyTorch is needed; an image's build runs it (see `stock21`, which launches it).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlrm_inference.cuda import cubin

TORCH_VERSION = "2.1.0"
LIBRARY = "torch/lib/libtorch_cuda.so"
FUNCTION = "EmbeddingBag_updateOutputKernel_sum_mean"
# Index type -> the mangled template arguments <float, long> and <float, int> that follow FUNCTION.
TEMPLATES = {"int64": "IflE", "int32": "IfiE"}
ARCHS = (80, 86, 90)  # sm_8x and sm_90: the only machine code from sm_80 on in that wheel
REGISTERS = 74
BLOCK = (32, 8)
GRID = 1024
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

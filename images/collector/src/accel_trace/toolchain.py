"""Finds NVIDIA's compiler, its headers and the Sanitizer, as a toolkit or as wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accel_trace.builds import SANITIZER, BuildError

FEATURES = {  # what of the interface changed between versions: macro -> pattern in its header
    "AT_BULK": r"\bSANITIZER_INSTRUCTION_BULK_COPY_GLOBAL_TO_SHARED\b",
    "AT_TENSOR": r"\bSANITIZER_INSTRUCTION_TMA_LOAD\b",
    "AT_ASYNC_ZERO_FILL": r"SanitizerCallbackMemcpyAsync\)\([^;]*\bzFillSize\b",
    "AT_BULK_BYTE_MASK": r"SanitizerCallbackBulkCopySharedToGlobal\)\([^;]*\bhasCpMask\b",
    "AT_ATOMIC_WRITE_ONLY": r"\bSANITIZER_MEMORY_DEVICE_FLAG_ATOMIC_WRITE_ONLY\b",
}
INSTALL = "pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-sanitizer-api"


@dataclass(frozen=True)
class Toolchain:
    """What a build takes from the machine."""

    nvcc: Path
    cxx: str
    cuda_include: Path  # has cuda.h
    sanitizer_include: Path  # has sanitizer.h
    sanitizer_library: Path  # libsanitizer-public.so of the same version
    nvcc_version: str

    def features(self) -> dict[str, bool]:
        """Which macros the Sanitizer's header asks for."""
        header = (self.sanitizer_include / "sanitizer_patching.h").read_text(errors="replace")
        return {name: bool(re.search(pattern, header)) for name, pattern in FEATURES.items()}

    def defines(self) -> list[str]:
        """The compilers' arguments for those that it has."""
        return [f"-D{name}" for name, there in self.features().items() if there]

    def includes(self) -> list[str]:
        """The compilers' arguments for NVIDIA's headers."""
        return ["-isystem", str(self.sanitizer_include), "-isystem", str(self.cuda_include)]

    def programs(self) -> list[str]:
        """nvcc with what it needs to link a program: in NVIDIA's wheels CUDA's runtime lies in lib,
        and nvcc looks for lib64."""
        return [str(self.nvcc), f"-ccbin={self.cxx}", f"-L{self.cuda_include.parent / 'lib'}"]


def toolkit_homes() -> list[Path]:
    """Folders that may hold a toolkit, or a part of one, the preferred first."""
    homes = [Path(p) for p in os.environ.get("ACCEL_TRACE_TOOLKIT", "").split(os.pathsep) if p]
    homes += [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    nvcc = shutil.which("nvcc")
    if nvcc:
        homes += _home_of(Path(nvcc))
    homes.append(Path("/usr/local/cuda"))
    for entry in dict.fromkeys(sys.path):
        nvidia = Path(entry or ".") / "nvidia"
        if nvidia.is_dir():
            homes += sorted(nvidia.glob("cu[0-9]*"), reverse=True)
            homes += sorted(nvidia.glob("cuda_*"))
    return list(dict.fromkeys(homes))


def _home_of(nvcc: Path) -> list[Path]:
    """The toolkit of an nvcc that may be a link or a script: as it says itself, or as it lies."""
    try:
        said = subprocess.run(
            [str(nvcc), "--dryrun", "-x", "cu", "/dev/null"],
            capture_output=True, text=True, timeout=60, check=False,
        ).stderr  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    homes = [Path(found) for found in re.findall(r"^#\$ TOP=(.+)$", said, re.M)]
    return [Path(os.path.normpath(home)) for home in homes] + [nvcc.resolve().parent.parent]


def _sanitizer_in(home: Path) -> tuple[Path, Path] | None:
    """Headers and library of one Sanitizer, in any of the places where NVIDIA puts them."""
    for include, libraries in (
        ("compute-sanitizer/include", ("compute-sanitizer",)),
        ("include", ("lib", "lib64", "bin")),
        ("extras/Sanitizer/include", ("extras/Sanitizer",)),
    ):
        if not (home / include / "sanitizer.h").is_file():
            continue
        for folder in libraries:
            library = home / folder / SANITIZER
            if library.is_file():
                return home / include, library
    return None


def _nvcc_in(homes: Sequence[Path]) -> Path:
    for home in homes:
        if (home / "bin" / "nvcc").is_file():
            return home / "bin" / "nvcc"
    on_path = shutil.which("nvcc")
    if on_path:
        return Path(on_path)
    raise BuildError(f"nvcc is missing: install the CUDA toolkit, or `{INSTALL}`, or set CUDA_HOME")


def find_toolchain() -> Toolchain:
    """Finds compilers, headers and libraries.

    Looked at in this order: the folders in ACCEL_TRACE_TOOLKIT, CUDA_HOME, CUDA_PATH, the toolkit
    of the nvcc on PATH, /usr/local/cuda, NVIDIA's wheels on Python's path. Raises BuildError.
    """
    homes = toolkit_homes()
    nvcc = _nvcc_in(homes)
    cxx = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not cxx:
        raise BuildError("a C++ compiler is missing: install g++, or set CXX")
    includes = [folder for home in homes for folder in (home / "include",)]
    cuda = next((folder for folder in includes if (folder / "cuda.h").is_file()), None)
    if cuda is None:
        raise BuildError(
            "cuda.h is missing: install the CUDA toolkit, or `pip install nvidia-cuda-runtime`"
        )
    sanitizer = next((found for found in map(_sanitizer_in, homes) if found), None)
    if sanitizer is None:
        raise BuildError(
            "the Compute Sanitizer's headers and library are missing: install the toolkit's "
            "compute-sanitizer, or `pip install nvidia-cuda-sanitizer-api`"
        )
    return Toolchain(nvcc, cxx, cuda, *sanitizer, _nvcc_version(nvcc))


def _nvcc_version(nvcc: Path) -> str:
    said = run([str(nvcc), "--version"], "nvcc does not run")
    found = re.search(r"V(\d+\.\d+\.\d+)", said)
    return found.group(1) if found else "unknown"


def supported_archs(nvcc: Path) -> list[int]:
    """Compute capabilities that this nvcc makes code for, as in 90 for 9.0."""
    said = run([str(nvcc), "--list-gpu-code"], "nvcc does not run")
    return sorted({int(found) for found in re.findall(r"^sm_(\d+)$", said, re.M)})


def run(command: Sequence[str], failure: str, timeout: float = 900) -> str:
    """Run a compiler and return what it printed. Raises BuildError, with `failure` before why."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{failure}: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"{failure}:\n{(done.stderr or done.stdout).strip()[-4000:]}")
    return done.stdout

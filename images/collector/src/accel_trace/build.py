"""Finds NVIDIA's compiler and Sanitizer, and builds the injection library and its patches.

`python -m accel_trace.build [--arch 80,90] [--out DIR]` writes `libacceltrace.so`, `patches.fatbin`
and `build.json` into a folder; without `--out` into the user's cache, in a folder named by what
went into the build, so that nothing is built twice. NVIDIA's headers are taken from the CUDA
toolkit or from its wheels when building, never from here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from accel_trace.builds import LIBRARY, PATCHES, BuildError, alone, cache_folder, ready_folder

DEFAULT_ARCHS = (75, 80, 86, 89, 90, 100, 120)
SOURCES = (
    "consumer", "exports", "inject", "launches", "log", "options", "page_table", "pattern",
    "pieces",
    "report", "sanitizer_api", "stack", "tool", "workspace", "workspace_memory",
)  # fmt: skip
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


def native_folder() -> Path:
    """The folder of the C++ and CUDA sources: beside the package, or inside it when installed."""
    here = Path(__file__).resolve()
    named = os.environ.get("ACCEL_TRACE_NATIVE")
    folders = [Path(named)] if named else [here.parent / "native", here.parents[2] / "native"]
    for folder in folders:
        if (folder / "inject.cc").is_file():
            return folder
    raise BuildError(
        f"the sources are not in {' or '.join(map(str, folders))}; "
        "name their folder in ACCEL_TRACE_NATIVE"
    )


def _homes() -> list[Path]:
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
            library = home / folder / "libsanitizer-public.so"
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
    homes = _homes()
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
    said = _run([str(nvcc), "--version"], "nvcc does not run")
    found = re.search(r"V(\d+\.\d+\.\d+)", said)
    return found.group(1) if found else "unknown"


def _run(command: Sequence[str], failure: str, timeout: float = 900) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{failure}: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"{failure}:\n{(done.stderr or done.stdout).strip()[-4000:]}")
    return done.stdout


def supported_archs(nvcc: Path) -> list[int]:
    """Compute capabilities that this nvcc makes code for, as in 90 for 9.0."""
    said = _run([str(nvcc), "--list-gpu-code"], "nvcc does not run")
    return sorted({int(found) for found in re.findall(r"^sm_(\d+)$", said, re.M)})


def choose_archs(asked: Sequence[int] | None, nvcc: Path) -> list[int]:
    """The architectures to build for: those asked for, or the usual ones that nvcc knows."""
    known = supported_archs(nvcc)
    if asked is None:
        return [arch for arch in DEFAULT_ARCHS if arch in known]
    unknown = sorted(set(asked) - set(known))
    if unknown or not asked:
        raise BuildError(
            f"nvcc makes no code for {', '.join(f'sm_{a}' for a in unknown) or 'nothing'}; "
            f"it knows {', '.join(f'sm_{a}' for a in known)}"
        )
    return sorted(set(asked))


def patch_command(tools: Toolchain, archs: Sequence[int], out: Path) -> list[str]:
    """The compilation of the patches: code for every architecture, and PTX of the highest."""
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    codes.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
    return [
        str(tools.nvcc), "--fatbin", "--compile-as-tools-patch", "-std=c++17", "-O3",
        f"-ccbin={tools.cxx}", "--threads=2", *tools.defines(), *tools.includes(), *codes,
        str(native_folder() / "patches.cu"), "-o", str(out),
    ]  # fmt: skip


def _host_flags(tools: Toolchain, sanitize: str) -> list[str]:
    flags = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
    flags += ["-g1", "-O0", f"-fsanitize={sanitize}"] if sanitize else ["-O2"]
    library = json.dumps(str(tools.sanitizer_library))
    return [*flags, *tools.defines(), f"-DACCEL_TRACE_SANITIZER_PATH={library}", *tools.includes()]


def build_library(tools: Toolchain, out: Path, sanitize: str = "", jobs: int = 2) -> None:
    """Compiles the injection library; `sanitize` is for tests (`address,undefined`, `thread`)."""
    flags = _host_flags(tools, sanitize)
    folder = native_folder()
    with tempfile.TemporaryDirectory(prefix="accel-trace-") as temporary:
        objects = [Path(temporary) / f"{name}.o" for name in SOURCES]

        def compile_one(pair: tuple[str, Path]) -> None:
            source, target = pair
            _run(
                [tools.cxx, *flags, "-c", str(folder / f"{source}.cc"), "-o", str(target)],
                f"{source}.cc does not compile",
            )

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(compile_one, zip(SOURCES, objects, strict=True)))
        # Its own C++ library, unseen from outside: the target may have brought another.
        static = [] if sanitize else ["-static-libstdc++", "-static-libgcc"]
        seen = f"-Wl,--version-script={folder / 'exports.map'}"
        _run(
            [
                tools.cxx, *flags, "-shared", *static, seen, "-Wl,-z,nodelete",
                *map(str, objects), "-ldl", "-o", str(out),
            ],
            "the library does not link",
        )  # fmt: skip


def build_patches(tools: Toolchain, archs: Sequence[int], out: Path) -> None:
    """Compiles the patches to a fatbin."""
    _run(patch_command(tools, archs, out), "the patches do not compile")


def _digest(tools: Toolchain, archs: Sequence[int]) -> str:
    """Of everything that goes into a build."""
    digest = hashlib.sha256()
    folder = native_folder()
    files = sorted(p for p in folder.iterdir() if p.suffix in {".h", ".cc", ".cu", ".map"})
    for path in [*files, tools.sanitizer_include / "sanitizer_patching.h"]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    for part in (tools.nvcc_version, str(tools.sanitizer_library), tools.cxx, *map(str, archs)):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def build(archs: Sequence[int] | None = None, out: Path | None = None) -> Path:
    """Builds library and patches, unless the folder holds this very build; returns the folder.

    `archs` are compute capabilities as in 90 for 9.0; None for the usual ones. Raises BuildError.
    """
    tools = find_toolchain()
    chosen = choose_archs(archs, tools.nvcc)
    digest = _digest(tools, chosen)
    folder = out or cache_folder() / digest
    try:
        with alone(folder.parent / f".{folder.name}.lock"):
            _fill(folder, tools, chosen, digest)
    except OSError as error:
        raise BuildError(f"cannot write {folder}: {error}; name another with --out") from error
    return folder


def _fill(folder: Path, tools: Toolchain, archs: Sequence[int], digest: str) -> None:
    facts = folder / "build.json"
    if facts.is_file() and json.loads(facts.read_text()).get("digest") == digest:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as temporary:
        made = Path(temporary)
        build_patches(tools, archs, made / PATCHES)
        build_library(tools, made / LIBRARY)
        for name in (LIBRARY, PATCHES):
            (made / name).replace(folder / name)
    said = {
        "digest": digest, "archs": list(archs), "nvcc": tools.nvcc_version,
        "sanitizer": str(tools.sanitizer_library), "features": tools.features(),
    }  # fmt: skip
    facts.write_text(json.dumps(said, indent=1) + "\n")


def ensure_built(archs: Sequence[int] | None = None) -> Path:
    """The folder with library and patches, built if it is not yet. Raises BuildError.

    What an image brings compiled (ACCEL_TRACE_BUILT) is taken as it is, unless `archs` are named.
    """
    ready = ready_folder() if archs is None else None
    return ready or build(archs)


def read_archs(text: str) -> list[int]:
    """Read compute capabilities such as "80,sm_90,10.0". Raises BuildError."""
    try:
        return [int(word.removeprefix("sm_").replace(".", "")) for word in text.split(",") if word]
    except ValueError:
        raise BuildError(f"--arch is '{text}'; it must be numbers such as 80,90") from None


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when built, 2 when not."""
    parser = argparse.ArgumentParser(
        prog="accel-trace build", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--arch", metavar="80,90", help="compute capabilities to build for")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to")
    arguments = parser.parse_args(argv)
    try:
        archs = read_archs(arguments.arch) if arguments.arch else None
        folder = build(archs, arguments.out)
    except BuildError as error:
        print(f"accel-trace build: {error}", file=sys.stderr)
        return 2
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

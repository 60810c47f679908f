"""Finds NVIDIA's compiler and Sanitizer, and builds the injection library and its kernels.

`python -m accel_trace.build [--arch 80,90] [--out DIR]` writes `libacceltrace.so`,
`patches.fatbin`, `compare.fatbin` and `build.json` into a folder; without `--out` into the user's
cache, in a folder named by what went into the build, so that nothing is built twice. NVIDIA's
headers are taken from the CUDA toolkit or from its wheels when building, never from here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accel_trace.builds import (
    COMPARE,
    LIBRARY,
    PATCHES,
    BuildError,
    alone,
    cache_folder,
    ready_folder,
)
from accel_trace.toolchain import Toolchain, find_toolchain, run, supported_archs

DEFAULT_ARCHS = (75, 80, 86, 89, 90, 100, 120)
SOURCES = (
    "code", "consumer", "copies", "cubin", "driver_calls", "equal", "exports", "gate", "inject",
    "launches", "log", "modules", "options", "own_driver", "page_table", "pattern", "pieces",
    "repeats", "report", "sampler", "sanitizer_api", "slots", "snapshots", "stack", "tensor_maps",
    "tool", "values", "values_files", "watching", "workspace", "workspace_memory",
)  # fmt: skip


class ArchError(BuildError):
    """Architectures that are none, or that nvcc does not know; one sentence."""


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


def choose_archs(asked: Sequence[int] | None, nvcc: Path) -> list[int]:
    """The architectures to build for: those asked for, or the usual ones that nvcc knows."""
    known = supported_archs(nvcc)
    if asked is None:
        return [arch for arch in DEFAULT_ARCHS if arch in known]
    unknown = sorted(set(asked) - set(known))
    if unknown or not asked:
        raise ArchError(
            f"nvcc makes no code for {', '.join(f'sm_{a}' for a in unknown) or 'nothing'}; "
            f"it knows {', '.join(f'sm_{a}' for a in known)}"
        )
    return sorted(set(asked))


def _device_command(
    tools: Toolchain, archs: Sequence[int], source: str, out: Path, *flags: str
) -> list[str]:
    """A compilation for GPUs: code for every architecture, and PTX of the highest."""
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    codes.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
    return [
        str(tools.nvcc), "--fatbin", *flags, "-std=c++17", "-O3", f"-ccbin={tools.cxx}",
        "--threads=2", *tools.defines(), *tools.includes(), *codes,
        str(native_folder() / source), "-o", str(out),
    ]  # fmt: skip


def patch_command(tools: Toolchain, archs: Sequence[int], out: Path) -> list[str]:
    """The compilation of the patches."""
    return _device_command(tools, archs, "patches.cu", out, "--compile-as-tools-patch")


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
            run(
                [tools.cxx, *flags, "-c", str(folder / f"{source}.cc"), "-o", str(target)],
                f"{source}.cc does not compile",
            )

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(compile_one, zip(SOURCES, objects, strict=True)))
        # Its own C++ library, unseen from outside: the target may have brought another.
        static = [] if sanitize else ["-static-libstdc++", "-static-libgcc"]
        seen = f"-Wl,--version-script={folder / 'exports.map'}"
        run(
            [
                tools.cxx, *flags, "-shared", *static, seen, "-Wl,-z,nodelete",
                *map(str, objects), "-ldl", "-o", str(out),
            ],
            "the library does not link",
        )  # fmt: skip


def build_patches(tools: Toolchain, archs: Sequence[int], out: Path) -> None:
    """Compiles the patches to a fatbin."""
    run(patch_command(tools, archs, out), "the patches do not compile")


def build_compare(tools: Toolchain, archs: Sequence[int], out: Path) -> None:
    """Compiles the kernel that compares memory with a copy of it."""
    run(
        _device_command(tools, archs, "compare.cu", out),
        "the kernel that compares does not compile",
    )


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
        build_compare(tools, archs, made / COMPARE)
        build_library(tools, made / LIBRARY)
        for name in (LIBRARY, PATCHES, COMPARE):
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
    """Read compute capabilities such as "80,sm_90,10.0". Raises ArchError."""
    try:
        return [int(word.removeprefix("sm_").replace(".", "")) for word in text.split(",") if word]
    except ValueError:
        raise ArchError(f"--arch is '{text}'; it must be numbers such as 80,90") from None


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

"""Compiles the mini-benchmarks: by g++ into replays for the CPU, by nvcc into CUDA programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accel_trace.builds import BuildError as ToolchainError
from accel_trace.toolchain import find_toolchain

from valueexpert.catalog import MINIS, SHARING

# In the repository beside src/, in an image beside the package.
_PLACES = (Path(__file__).parents[2] / "kernels", Path(__file__).parents[1] / "kernels")
# Contraction is off in both, so that a replay is the program bit by bit.
REPLAY = ("-std=c++17", "-O2", "-ffp-contract=off", "-x", "c++")
CUDA = ("-std=c++17", "-O3", "-lineinfo", "-fmad=false")


class BuildError(RuntimeError):
    """A program cannot be compiled here; one sentence, and what the compiler said."""


def kernels() -> Path:
    """The folder of the sources; VALUEEXPERT_KERNELS names another. Raises BuildError."""
    given = os.environ.get("VALUEEXPERT_KERNELS")
    for place in [Path(given)] if given else _PLACES:
        if (place / "mini.h").is_file():
            return place
    raise BuildError("the kernels' sources are not here; set VALUEEXPERT_KERNELS to their folder")


def replay_program(name: str, out: Path) -> Path:
    """Compile the CPU's replay of a program into the folder `out`. Raises BuildError."""
    return _compile(["g++", *REPLAY], name, out)


def cuda_program(name: str, out: Path, archs: tuple[str, ...] = ("80", "90")) -> Path:
    """Compile the CUDA program for these architectures. Raises BuildError."""
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    return _compile([*_nvcc(), *CUDA, *codes, "-ldl"], name, out)


def cubin(name: str, out: Path, arch: str) -> Path:
    """Compile the kernels alone, as the program has them, to machine code. Raises BuildError."""
    return _compile([*_nvcc(), *CUDA, "-cubin", f"-arch=sm_{arch}"], name, out)


def _nvcc() -> list[str]:
    try:
        return find_toolchain().programs()
    except ToolchainError as error:
        raise BuildError(str(error)) from error


def _compile(command: list[str], name: str, out: Path) -> Path:
    if shutil.which(command[0]) is None:
        raise BuildError(f"{command[0]} is not here; install it, or use what was built before")
    out.mkdir(parents=True, exist_ok=True)
    program = out / name
    source = kernels() / f"{name}.cu"
    done = subprocess.run(
        [*command, str(source), "-o", str(program)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"{source.name} does not compile: {done.stderr.strip()}")
    return program


def main() -> None:
    """Compile every CUDA program into the folder that is named: python -m valueexpert.build DIR."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        names = (*MINIS, SHARING.name)
        for program in pool.map(lambda name: cuda_program(name, Path(sys.argv[1])), names):
            print(program)


if __name__ == "__main__":
    main()

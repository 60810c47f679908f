"""Compiles one libtorch per design, one after another in one source tree.

`base` is the full build: hours. Each design after it replaces one source file, so ninja compiles
one object and links libtorch_cuda.so again: minutes. Only that library is kept for each.

Runs while the image is built, as `python -m dlrm_upstream.build base|designs ...`.
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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dlrm_upstream.designs import ARTIFACT, Design, chosen

TARGET = Path("aten/src/ATen/native/cuda/EmbeddingBag.cu")
LIBRARY = "libtorch_cuda.so"
_KERNEL = "EmbeddingBag_updateOutputKernel_sum_meanIflE"  # mangled: float rows, int64 ids
_USAGE = {
    "REG": "registers",
    "STACK": "stack_bytes",
    "SHARED": "shared_bytes",
    "LOCAL": "local_bytes",
}

# Parts of PyTorch that the artifact builds and never calls: tests, several processes, profiling,
# a fuser. They take a good part of the build, and no embedding bag touches them.
LEAN = dict.fromkeys(
    ("BUILD_TEST", "USE_DISTRIBUTED", "USE_NCCL", "USE_MPI", "USE_KINETO", "BUILD_NVFUSER"), "0"
)


class BuildError(Exception):
    """A build did not give what it should; the sentence says what."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the image's build arguments say, and where things lie."""

    torch: Path  # the source tree of PyTorch
    artifact: Path  # the checkout of the artifact
    out: Path
    arch: str  # e.g. "8.0;9.0"
    lean: bool
    cap_scope: (
        str  # kernel: the cap holds for EmbeddingBag.cu; all: for all of libtorch, as in the README
    )
    jobs: str  # compilers at a time; empty: as many as there are processors


def environment(settings: Settings) -> dict[str, str]:
    """The variables that the README sets before setup.py, and where they differ, why."""
    variables = {
        "TORCH_CUDA_ARCH_LIST": settings.arch,  # README: 8.0, which no H100 or H200 can run
        "REL_WITH_DEB_INFO": "0",  # README: 1. Host symbols only; ten times the disk
        "USE_NATIVE_ARCH": "0",  # README: 1. Ties host code to the build machine's processor
        "CXXFLAGS": "-D_GLIBCXX_USE_CXX11_ABI=0",
        "USE_CUDA": "1",
        "USE_CUDNN": "1",
        "USE_NUMPY": "1",
    }
    if settings.lean:
        variables |= LEAN
    if settings.jobs:
        variables["MAX_JOBS"] = settings.jobs
        variables["CMAKE_BUILD_PARALLEL_LEVEL"] = settings.jobs
    return variables


def build_base(settings: Settings) -> None:
    """Compile all of PyTorch with the artifact's baseline, and keep its wheel. Hours."""
    shutil.copyfile(
        settings.artifact / "env_files/CMakeLists.txt", settings.torch / "CMakeLists.txt"
    )
    put_source(settings, ARTIFACT[0])
    wheels = settings.out / "wheel"
    run([sys.executable, "setup.py", "bdist_wheel", "--dist-dir", str(wheels)],
        settings.torch, environment(settings))  # fmt: skip
    keep(settings, ARTIFACT[0])


def build_designs(settings: Settings, designs: Iterable[Design]) -> None:
    """Compile and link the designs that are not there yet. Minutes each with cap_scope kernel."""
    scoped: int | None = None  # the cap that all of the tree is configured with
    for one in sorted(designs, key=lambda item: item.cap or 0):
        if (settings.out / "designs" / one.name / "design.json").is_file():
            continue
        print(f"--- design {one.name}: {one.source}", flush=True)
        put_source(settings, one)
        variables = environment(settings)
        if settings.cap_scope == "all" and one.cap != scoped:
            flags = "" if one.cap is None else f"-maxrregcount {one.cap}"
            run(["cmake", f"-DCMAKE_CUDA_FLAGS={flags}", "build"], settings.torch, variables)
            scoped = one.cap
        elif settings.cap_scope == "kernel" and one.cap is not None:
            # nvcc reads this variable, and only EmbeddingBag.cu is compiled now. ccache need not
            # know the variable, so it must stay out of this.
            variables |= {"NVCC_APPEND_FLAGS": f"-maxrregcount={one.cap}"}
        variables |= {"CCACHE_DISABLE": "1"} if settings.cap_scope == "kernel" else {}
        run(["cmake", "--build", "build", "--target", "install"], settings.torch, variables)
        keep(settings, one)


def put_source(settings: Settings, one: Design) -> None:
    """Put a design's source in the place of PyTorch's. Raises BuildError when it is missing."""
    source = settings.artifact / "opt_designs" / one.source
    target = settings.torch / TARGET
    if not source.is_file() or not target.is_file():
        missing = target if source.is_file() else source
        raise BuildError(f"{missing} does not exist: another commit than the pinned one?")
    shutil.copyfile(source, target)  # with a new time, so that ninja sees it


def keep(settings: Settings, one: Design) -> None:
    """Copy the library that was just linked, with what its kernel takes. Raises BuildError."""
    objects = [*(settings.torch / "build").glob("**/EmbeddingBag.cu.o")]
    if len(objects) != 1:
        raise BuildError(
            f"the build has {len(objects)} objects EmbeddingBag.cu.o where one is expected"
        )
    dump = subprocess.run(
        ["cuobjdump", "-res-usage", str(objects[0])], check=True, capture_output=True, text=True
    )  # fmt: skip
    usage = read_usage(dump.stdout)
    check_cap(one, usage)
    folder = settings.out / "designs" / one.name
    folder.mkdir(parents=True, exist_ok=True)
    if one.variant != "base":  # base's library is the one in the wheel
        shutil.copy2(settings.torch / "torch/lib" / LIBRARY, folder / LIBRARY)
    source = settings.torch / TARGET
    facts = {
        "schema": 1,
        "variant": one.variant,
        "cap": one.cap,
        "cap_scope": settings.cap_scope,
        "source": one.source,
        "source_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "kernel": usage,
    }
    # Last, and in one step: this file says that the design is whole.
    temporary = folder / ".design.json"
    temporary.write_text(json.dumps(facts, indent=2) + "\n")
    temporary.replace(folder / "design.json")


def read_usage(dump: str) -> dict[str, dict[str, int]]:
    """What the sum kernel takes on each architecture, out of `cuobjdump -res-usage`.

    Raises BuildError when the kernel (float rows, int64 ids) is not in it.
    """
    found: dict[str, dict[str, int]] = {}
    arch = ""
    ours = False
    for line in map(str.strip, dump.splitlines()):
        if match := re.fullmatch(r"arch = (sm_\w+)", line):
            arch = match[1]
        elif line.startswith("Function "):
            ours = _KERNEL in line
        elif ours and line.startswith("REG:"):
            numbers = dict(re.findall(r"([A-Z]+):(\d+)", line))
            found[arch] = {name: int(numbers.get(key, 0)) for key, name in _USAGE.items()}
            ours = False
    if not found or "" in found:
        raise BuildError("cuobjdump does not show the sum kernel for float rows and int64 ids")
    return found


def check_cap(one: Design, usage: Mapping[str, Mapping[str, int]]) -> None:
    """Raise BuildError when a cap on registers did not reach the kernel."""
    for arch, numbers in usage.items():
        if one.cap is not None and numbers["registers"] > one.cap:
            raise BuildError(
                f"{one.name} takes {numbers['registers']} registers on {arch}: "
                f"the cap of {one.cap} did not reach the compiler"
            )


def run(argv: list[str], folder: Path, variables: Mapping[str, str]) -> None:
    """Run a step of the build with its output shown. Raises BuildError when it fails."""
    try:
        subprocess.run(argv, cwd=folder, env={**os.environ, **variables}, check=True)
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{' '.join(argv)} ended with exit code {error.returncode}") from error


def main() -> int:
    """Run one step. Exit codes: 0 done, 1 with one sentence."""
    parser = argparse.ArgumentParser(prog="dlrm_upstream.build")
    parser.add_argument("step", choices=["base", "designs"])
    for name in ("torch", "artifact", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--arch", default="8.0;9.0")
    parser.add_argument("--lean", choices=["0", "1"], default="1")
    parser.add_argument("--cap-scope", choices=["kernel", "all"], default="kernel")
    parser.add_argument("--jobs", default="")
    parser.add_argument("--designs", default="artifact")
    words = parser.parse_args()
    settings = Settings(
        torch=words.torch, artifact=words.artifact, out=words.out, arch=words.arch,
        lean=words.lean == "1", cap_scope=words.cap_scope, jobs=words.jobs,
    )  # fmt: skip
    try:
        if words.step == "base":
            build_base(settings)
        else:
            build_designs(settings, chosen(words.designs))
    except (BuildError, ValueError) as error:
        print(f"dlrm_upstream.build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

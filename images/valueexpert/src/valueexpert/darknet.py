"""Builds Darknet's own program from Debian's source package: as is, and without uploads of zeros.

    python -m valueexpert.darknet ORIG.tar.xz OUT

writes OUT/debian-darknet/before, after and yolov3-tiny.cfg. `after`: arrays that a layer has just
cleared (outputs, deltas, updates) are made by Darknet's own fill on the GPU, not uploaded.
"""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accel_trace.builds import BuildError
from accel_trace.toolchain import Toolchain, find_toolchain

FOLDER = "debian-darknet"
NETWORK = "yolov3-tiny.cfg"
# Of examples/, what its Makefile links; of src/ all but compare.c.
_EXAMPLES = (
    "captcha", "lsd", "super", "art", "tag", "cifar", "go", "rnn", "segmenter", "regressor",
    "classifier", "coco", "yolo", "detector", "nightmare", "instance-segmenter", "darknet",
)  # fmt: skip
_CLEARED = re.compile(r"(?<=cuda_make_array\()l(?:->|\.)(?:output|delta|\w+_updates)(?=,)")


def without_zeros(source: str) -> tuple[str, int]:
    """A layer's C source whose cleared arrays are not uploaded, and how many arrays those are."""
    return _CLEARED.subn("0", source)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{command[-1]} does not compile: {done.stderr.strip()[-2000:]}")


def _library(tools: Toolchain, name: str) -> tuple[Path, Path]:
    """A library's header folder and itself, of a toolkit or a wheel. Raises BuildError."""
    wheels = [Path(entry or ".") / "nvidia" / "cu13" for entry in sys.path]
    for home in (tools.cuda_include.parent, tools.sanitizer_include.parent, *wheels):
        header = home / "include" / ("curand.h" if name == "curand" else f"{name}_v2.h")
        for folder in (home / "lib64", home / "lib"):
            found = sorted(folder.glob(f"lib{name}.so*"))
            if header.is_file() and found:
                return header.parent, found[0]
    raise BuildError(f"{name} is not here; install nvidia-{name}")


def _unpacked(archive: Path, work: Path) -> Path:
    """The folder of the source. Raises BuildError for an archive that is damaged or another's."""
    try:
        with tarfile.open(archive, "r:xz") as packed:
            packed.extractall(work)  # pinned by its hash; Python 3.11.2 has no filter
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    else:
        for network in work.glob(f"*/cfg/{NETWORK}"):
            return network.parents[1]
        why = f"it holds no {NETWORK}"
    raise BuildError(
        f"{archive} cannot be unpacked as Darknet's source ({' '.join(why.split())}); fix: get "
        "Debian's darknet_*.orig.tar.xz again"
    )


def build(archive: Path, out: Path, archs: tuple[str, ...] = ("80", "90")) -> Path:
    """Compile both programs; returns their folder. Raises BuildError or OSError."""
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(os.cpu_count()) as pool:
        root = _unpacked(archive, Path(work))
        tools = find_toolchain()
        folder = out / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        found = [_library(tools, name) for name in ("cublas", "curand")]
        libraries = [path for _, path in found]
        includes = [f"-I{root / name}" for name in ("include", "src")]
        includes += [f"-I{path}" for path in (tools.cuda_include, *(path for path, _ in found))]
        # The only name it uses that CUDA 13 has no more.
        common = ["-DcudaThreadSynchronize=cudaDeviceSynchronize", "-O2", "-DGPU", "-w", "-c"]
        codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]

        def compiled(source: Path, to: Path) -> Path:
            target = to / f"{source.name}.o"
            device = [*tools.programs(), *codes]
            first = device if source.suffix == ".cu" else ["gcc"]
            _run([*first, *common, *includes, "-o", str(target), str(source)])
            return target

        def link(objects: list[Path], name: str) -> None:
            words = ["--allow-shlib-undefined", *map(str, libraries)]
            words += [f"-rpath={path.parent}" for path in libraries]
            flags = [flag for word in words for flag in ("-Xlinker", word)]
            _run([*tools.programs(), *map(str, objects), *flags, "-lm",
                  "-lpthread", "-o", str(folder / name)])  # fmt: skip

        plain = [path for path in sorted((root / "src").glob("*.c")) if path.name != "compare.c"]
        rest = [*sorted((root / "src").glob("*.cu")),
                *(root / "examples" / f"{name}.c" for name in _EXAMPLES)]  # fmt: skip
        shared = list(pool.map(lambda path: compiled(path, Path(work)), rest))
        link([*shared, *pool.map(lambda path: compiled(path, Path(work)), plain)], "before")
        changed = 0
        for path in plain:
            text, count = without_zeros(path.read_text())
            path.write_text(text)
            changed += count
        if not changed:
            raise BuildError("no layer uploads what it cleared: this is another Darknet")
        link([*shared, *pool.map(lambda path: compiled(path, Path(work)), plain)], "after")
        (folder / NETWORK).write_bytes((root / "cfg" / NETWORK).read_bytes())
    return folder


if __name__ == "__main__":
    try:
        print(build(Path(sys.argv[1]), Path(sys.argv[2])))
    except (BuildError, OSError) as error:
        sys.exit(f"WARNING: Darknet is not built: {error}")

"""The command line: `python -m dlrm_inference EXPERIMENT ...`; see `reprokit.command`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from reprokit.command import Program
from reprokit.skip import cannot_run

from dlrm_inference.config import GPU_ONLY, Config


def prepare(config: Config) -> None:
    """Refuse what a CPU has no counterpart for; set up this process."""
    if config.device == "cpu" and config.experiment in GPU_ONLY:
        cannot_run(f"{config.experiment} needs a GPU: {GPU_ONLY[config.experiment]}")
    prepare_process(config, os.environ)


def prepare_process(config: Config, environment: MutableMapping[str, str]) -> None:
    """Set what numeric libraries read when they are first imported: threads, a cache folder.

    The cache of compiled kernels is keyed by the kernels' own text, because numba looks only at
    the file a kernel stands in.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, str(config.threads))
    environment.setdefault("NUMBA_CACHE_DIR", str(kernel_cache(environment)))


def kernel_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder for compiled CPU kernels of this very source."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parent / "cpu").glob("*.py")):
        digest.update(path.read_bytes())
    root = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp"), ".cache")
    return Path(root) / "dlrm_inference" / digest.hexdigest()[:16]


_PROGRAM = Program(
    package="dlrm_inference",
    about="Embedding-bag inference, measured.",
    config=Config,
    packages=(
        "torch", "cuda-bindings", "nvidia-cuda-nvrtc", "numpy", "fbgemm-gpu", "numba", "llvmlite",
    ),
    prepare=prepare,
)  # fmt: skip
parse = _PROGRAM.parse
main = _PROGRAM.main

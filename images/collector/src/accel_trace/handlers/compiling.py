"""Compiles small C++ sources at first use, and keeps the results between runs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from accel_trace.builds import BuildError, alone, hook_folders

SHIM = Path(__file__).parent / "shim"
_BUILD_SECONDS = 600


def cuda_headers(cuda: str) -> list[str]:
    """Compiler flags for the headers of a CUDA version, such as 13.0.

    Wheels first: they come with PyTorch and have its version; a toolkit must have the same major
    number. Our stand-ins for the compiler's part (crt/) come last, so that the toolkit's own files
    are used where they are there. Raises BuildError where there is no cuda_runtime_api.h.
    """
    major = cuda.split(".", maxsplit=1)[0]
    found: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec is not None else ():
        found += [Path(root) / f"cu{major}" / "include", Path(root) / "cuda_runtime" / "include"]
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    homes += [f"/usr/local/cuda-{cuda}", f"/usr/local/cuda-{major}", "/usr/local/cuda"]
    found += [Path(home) / "include" for home in homes if home]
    for folder in found:
        if (folder / "cuda_runtime_api.h").is_file() and _major(folder) == major:
            return ["-isystem", str(folder), "-idirafter", str(SHIM)]
    wheel = "nvidia-cuda-runtime" + ("-cu12" if major == "12" else "")
    raise BuildError(
        f"the CUDA {cuda} headers are missing (cuda_runtime_api.h); "
        f"install the wheel {wheel} or set CUDA_HOME"
    )


def _major(folder: Path) -> str:
    """The CUDA major version of a folder of headers."""
    for line in (folder / "cuda_runtime_api.h").read_text(errors="replace").splitlines():
        words = line.split()
        if words[:2] == ["#define", "CUDART_VERSION"]:
            return str(int(words[2]) // 1000)
    return ""


def cached_build(
    name: str,
    sources: Sequence[Path],
    key: str,
    command: Callable[[Path, str], list[str]],
) -> Path:
    """The shared library `name`, compiled if no earlier run did; one process compiles, others wait.

    It is kept by the content of `sources` and by `key`, which names all else that it depends on.
    `command` gives the call for an output and a compiler. Raises BuildError.
    """
    digest = hashlib.sha256()
    for part in (*(source.read_bytes() for source in sources), key.encode()):
        digest.update(hashlib.sha256(part).digest())
    file = f"{name}-{digest.hexdigest()[:16]}.so"
    folders = hook_folders()
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    output = folders[-1] / file
    try:
        with alone(output.with_suffix(".lock")):
            if not output.is_file():
                _compile(name, output, command)
    except OSError as error:
        raise BuildError(
            f"{output.parent} cannot be written ({error.strerror}); "
            "set ACCEL_TRACE_CACHE to a folder"
        ) from error
    return output


def _compile(name: str, output: Path, command: Callable[[Path, str], list[str]]) -> None:
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise BuildError("no C++ compiler was found; install g++ or set CXX")
    partial = output.with_suffix(f".{os.getpid()}.part")
    # The compiler is no target: it must not be traced.
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "ACCEL_TRACE_OUT")}
    try:
        said = subprocess.run(
            command(partial, compiler),
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            env=clean,
            check=False,
        )
        if said.returncode:
            errors = [line for line in said.stderr.splitlines() if "error" in line]
            raise BuildError(f"{name} does not compile: {(errors or [said.stderr])[0][-300:]}")
        partial.replace(output)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler} took more than {_BUILD_SECONDS} s for {name}") from error
    finally:
        partial.unlink(missing_ok=True)

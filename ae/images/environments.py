"""Python environments of the local engine: one per image content, whole or not there at all."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
from pathlib import Path

from ae.errors import EnvironmentFault
from ae.host import processes
from ae.host.files import lock
from ae.host.machine import cache_dir, require_disk
from ae.images.content import BuildOptions
from ae.model import Flavour, ImageRef, Sink

_NEEDED = {Flavour.CPU: 2 * 10**9, Flavour.CUDA: 12 * 10**9}  # bytes, PyTorch included
_MARK = ".complete"


def interpreter(image: ImageRef) -> Path:
    """The Python that runs an image's workload: AE_LOCAL_PYTHON, else the environment's."""
    own = os.environ.get("AE_LOCAL_PYTHON")
    return Path(own) if own else folder(image) / "bin" / "python"


def folder(image: ImageRef) -> Path:
    """Where an image's environment is, or will be."""
    return cache_dir() / "envs" / f"{image.name}-{image.flavour}-{image.content[:12]}"


def is_ready(image: ImageRef) -> bool:
    """Whether the workload could be started now."""
    if os.environ.get("AE_LOCAL_PYTHON"):
        return os.access(interpreter(image), os.X_OK)
    return (folder(image) / _MARK).is_file()


def make(image: ImageRef, sink: Sink, options: BuildOptions) -> None:
    """Make the environment of an image; another `ae` that makes the same one is waited for.

    It is built in its final place, because its programs hold that path, and counts only once it is
    marked complete: what Ctrl-C or a crash leaves is never used and is replaced the next time.
    Raises EnvironmentFault.
    """
    if own := os.environ.get("AE_LOCAL_PYTHON"):
        raise EnvironmentFault(
            f"AE_LOCAL_PYTHON={own} cannot be run", fix="set it to a Python 3.11 or newer"
        )
    requirements = image.source / f"requirements-{image.flavour}.txt"
    if not requirements.is_file():
        raise EnvironmentFault(
            f"the image {image.name} cannot run without a container engine: it has no "
            f"{requirements.name}",
            fix="install Docker, see `ae doctor`",
        )
    wanted, place = requirements.read_text(), folder(image)
    place.parent.mkdir(parents=True, exist_ok=True)
    require_disk(place.parent, _NEEDED[image.flavour], f"the environment of {image.name}")
    with (place.parent / f".{place.name}.lock").open("w") as file:
        if not lock(file):
            sink.line("stdout", "another ae makes this environment; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        if (place / _MARK).is_file():
            return
        shutil.rmtree(place, ignore_errors=True)
        try:
            _step([sys.executable, "-m", "venv", str(place)], sink, "making an environment")
            pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--no-input"]
            pip += ["--disable-pip-version-check", "--progress-bar", "off"]
            if options.wheels is not None:
                pip += ["--find-links", str(options.wheels.resolve())]
            elif index := re.search(r"^# index: (\S+)$", wanted, re.M):  # beside PyPI
                pip += ["--extra-index-url", index[1], "--retries", "1"]  # it may be out of reach
            if options.ca_bundle is not None:
                pip += ["--cert", str(options.ca_bundle.resolve())]
            pip += ["--requirement", str(requirements)]
            count = len(re.findall(r"^[a-z].*==", wanted, re.M))
            _step(pip, sink, f"installing {requirements.name}", count)
            (place / _MARK).write_text(image.content + "\n")
        finally:
            if not (place / _MARK).is_file():
                shutil.rmtree(place, ignore_errors=True)


def _step(argv: list[str], sink: Sink, what: str, packages: int = 0) -> None:
    """One line a step, not pip's hundreds; a package that it has found moves the bar."""
    errors: list[str] = []
    found = 0
    sink.line("stdout", f"{what} (packages: {packages})" if packages else what)

    def on_line(stream: processes.Stream, text: str) -> None:
        nonlocal found
        if "ERROR" in text or (stream == "stderr" and text.strip()):
            errors.append(text.strip())
        package = re.match(r"(?:Collecting|Processing) (\S+)", text)
        if package and packages:
            found = min(found + 1, packages)
            sink.line("stdout", f"::progress {found}/{packages} {Path(package[1]).name}")

    ended = processes.stream(argv, on_line)
    if ended.returncode != 0:
        first = next((line for line in errors if "ERROR" in line), "".join(errors[-1:]))
        raise EnvironmentFault(
            f"{what} failed (exit code {ended.returncode}): {first[:300]}",
            fix="check the network and pip's configuration, or give --wheels DIR",
        )

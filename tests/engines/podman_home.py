"""A podman of the tests' own: storage, run folder and runtime; the person's own stays untouched."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from ae.daemon.connection import Daemon
from ae.engines.podman import limit_words
from ae.images.content import find_client

STORAGE = """[storage]
driver = "overlay"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
[storage.options]
additionalimagestores = [{images}]
"""
# Without systemd there is neither its control group manager nor its journal.
CONTAINERS = """[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
tmp_dir = "{folder}/tmp"
init_path = "{init}"
"""
INIT = shutil.which("catatonit") or shutil.which("tini-static") or "none"
# crun knows no hybrid control groups, which some machines have.
RUNTIMES = ("", 'runtime = "runc"\n')


def write(folder: Path, *, images: Path | None = None, runtime: str = "") -> dict[str, str]:
    """Write podman's two files and return the variables that point it at them. Keep it short:
    below the folder lie sockets."""
    folder.mkdir(parents=True, exist_ok=True)
    named = f'"{images}"' if images else ""
    (folder / "storage.conf").write_text(STORAGE.format(folder=folder, images=named))
    (folder / "containers.conf").write_text(CONTAINERS.format(folder=folder, init=INIT) + runtime)
    return {
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
    }


def find_runtime(folder: Path, patch: pytest.MonkeyPatch) -> str:
    """Return the line of containers.conf with which a container starts here.

    Raises RuntimeError with podman's reasons when none does.
    """
    faults = []
    for runtime in RUNTIMES:
        for key, value in write(folder, runtime=runtime).items():
            patch.setenv(key, value)
        if not (why := trial()):
            return runtime
        faults.append(f"{runtime.strip() or 'default runtime'}: {why}")
    raise RuntimeError("; ".join(faults))


def trial() -> str:
    """Why podman starts nothing here, not even an init alone in an empty root; empty: it does."""
    with tempfile.TemporaryDirectory(prefix="ae-podman-") as folder:
        Path(folder).chmod(0o755)
        for name in ("proc", "sys", "dev", "etc", "run", "tmp"):  # mount points
            (Path(folder) / name).mkdir()
        try:
            shutil.copy2(INIT, Path(folder) / "program")
            words = ["run", "--rm", "--network", "none", "--log-driver", "none", *limit_words(())]
            _call(["podman", *words, "--rootfs", folder, "/program", "--version"], os.environ)
        except (OSError, RuntimeError) as error:
            return str(error)
    return ""


def load_image(endpoint: str, reference: str, runtime: str) -> Path:
    """Copy an image from Docker into a store that all test sessions read, once; return the store.

    It lies in the temporary folder, named after the image's id.
    """
    client, environment = find_client(endpoint), Daemon(endpoint).environment
    said = _call([client, "image", "inspect", "--format", "{{.Id}}", reference], environment)
    top = Path(tempfile.gettempdir()) / f"ae-podman-{os.getuid()}"
    folder = top / said.strip().removeprefix("sha256:")[:12]
    top.mkdir(mode=0o700, exist_ok=True)
    with (top / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            own = os.environ | write(folder, runtime=runtime)
            _call([client, "save", "--output", str(folder / "image.tar"), reference], environment)
            _call(["podman", "load", "--input", str(folder / "image.tar")], own)
            (folder / "image.tar").unlink()
            (folder / "complete").touch()
    return folder


def _call(argv: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout

"""podman as an ordinary user: one is made for these tests, where this machine lets it have podman.

Its image holds nothing but links; it borrows the host's /usr (label `ae.binds`).
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.engines import podman_home

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]
IMAGE = "localhost/ae/links:cpu"
# What `ae` imports: the environment may lie where the user may not look.
PACKAGES = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions",
            "typing_inspection", "yaml")  # fmt: skip

# Runs as the user: `ae` is a copy of its own, because the checkout may lie where it may not look.
RUN = """
import json, sys
from pathlib import Path
from ae.engines.podman import PodmanEngine
from ae.errors import EnvironmentFault
from ae.model import Flavour, GpuId, GpuRequest, ImageRef, RuntimeNeeds
from tests.engines.acts import Lines, make_job
wanted = json.loads(sys.argv[1])
out = Path(sys.argv[2])
engine = PodmanEngine()
engine.grace_s = 1.0
image = ImageRef(name="links", flavour=Flavour.CPU, content="", source=out, override=sys.argv[3])
gpus = None
if wanted.get("gpu"):
    gpus = GpuRequest(devices=(GpuId(index=-1, uuid=wanted["gpu"]),))
needs = RuntimeNeeds(
    gpus=gpus, memory_bytes=wanted.get("memory"), cap_add=tuple(wanted.get("caps", ()))
)
lines = Lines()
try:
    ended = engine.run(make_job(out, *wanted["acts"], image=image, needs=needs), lines, 60)
    said = {"status": ended.status, "reason": ended.reason, "honoured": ended.honoured}
except EnvironmentFault as fault:
    said = {"fault": fault.message, "fix": fault.fix}
said |= {"lines": lines.got, "left": len(engine.leftovers())}
print(json.dumps(said))
"""


@dataclass(frozen=True)
class User:
    """An ordinary user with a podman of its own."""

    name: str
    folder: Path

    @cached_property
    def python(self) -> str:
        """A Python that this user may run: ours may lie in a home that is closed to others."""
        tried = (os.path.realpath(sys.executable), "/usr/bin/python3")
        version = tuple(sys.version_info[:2])  # some of PACKAGES are compiled for it
        code = f"import sys; sys.exit(sys.version_info[:2] != {version})"
        found = [one for one in tried if self.call(one, "-c", code).returncode == 0]
        if not found:
            missing(f"an ordinary user can run no Python like ours (tried {tried})", "podman")
        return found[0]

    @property
    def uid(self) -> int:
        return pwd.getpwnam(self.name).pw_uid

    def call(self, *argv: str) -> subprocess.CompletedProcess[str]:
        home = self.folder / "home"
        variables = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(self.folder / "xdg"),
            "PYTHONPATH": str(self.folder / "source"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CONTAINERS_STORAGE_CONF": str(self.folder / "own/storage.conf"),
            "CONTAINERS_CONF": str(self.folder / "own/containers.conf"),
        }
        words = [f"{key}={value}" for key, value in variables.items()]
        become = ["setpriv", f"--reuid={self.name}", f"--regid={self.name}", "--init-groups"]
        return subprocess.run(
            [*become, "env", "-i", *words, *argv],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *acts: str, **wanted: object) -> dict[str, Any]:
        out = tempfile.mkdtemp(dir=self.folder / "home")
        os.chown(out, self.uid, self.uid)
        words = json.dumps({"acts": acts, **wanted})
        done = self.call(self.python, "-c", RUN, words, f"{out}/out", IMAGE)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip()[-500:])
        said: dict[str, Any] = json.loads(done.stdout)
        return said | {"out": Path(out) / "out"}


@pytest.fixture(scope="module")
def user(podman_runtime: str) -> Iterator[User]:
    if os.geteuid() != 0 or not shutil.which("useradd") or not shutil.which("newuidmap"):
        missing("only root can make a user, with useradd and newuidmap", "podman")
    folder = Path(tempfile.mkdtemp(prefix="aer", dir="/tmp"))
    made = User(f"aetest{os.getpid()}", folder)
    command = ["useradd", "--no-create-home", "--home-dir", str(folder / "home"), made.name]
    subprocess.run(command, check=True, capture_output=True)
    try:
        prepare(made, podman_runtime)
        yield made
    finally:
        made.call("podman", "unshare", "rm", "-rf", str(folder / "own/graph"))
        made.call("podman", "system", "migrate")  # ends the process that keeps the user namespace
        subprocess.run(["userdel", made.name], check=True, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def prepare(user: User, runtime: str) -> None:
    user.folder.chmod(0o755)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ae", user.folder / "source/ae", ignore=ignored)
    for name in PACKAGES:
        file = Path(str(importlib.import_module(name).__file__))
        target = user.folder / "source" / name
        if file.name == "__init__.py":
            shutil.copytree(file.parent, target, ignore=ignored)
        else:
            shutil.copy(file, target.with_name(file.name))
    acts = user.folder / "source/tests/engines/acts.py"
    acts.parent.mkdir(parents=True)
    shutil.copy(ROOT / "tests/engines/acts.py", acts)
    podman_home.write(user.folder / "own", runtime=runtime)
    for name, mode in (("home", 0o755), ("xdg", 0o700), ("own", 0o755)):
        (user.folder / name).mkdir(exist_ok=True)
        (user.folder / name).chmod(mode)
        os.chown(user.folder / name, user.uid, user.uid)
    (user.folder / "image.tar").write_bytes(links())
    label = 'LABEL ae.binds=["/usr"]'
    imported = user.call(
        "podman", "import", "--change", label, str(user.folder / "image.tar"), IMAGE
    )
    why = imported.stderr if imported.returncode else user.run("print:x").get("fault")
    if why:
        kernel = user.call("unshare", "-rmpf", "--mount-proc", "true")  # what podman asks of it
        if kernel.returncode != 0:
            pytest.skip(f"this kernel gives an ordinary user no namespaces: {why}")
        missing(why, "podman for an ordinary user")


def links() -> bytes:
    """A root with nothing in it but the links of a Debian."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, f"usr/{name}", 0o777
            tar.addfile(entry)
        for name in ("usr", "tmp", "run", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return data.getvalue()


def test_a_point_has_what_it_needs_and_its_outputs_are_the_users(user: User, gpu: str) -> None:
    acts = ("env:AE_FAKE_GPU", "error:words", "home", "write:result:42")
    said = user.run(*acts, gpu=gpu, caps=["SYS_PTRACE"])
    assert (said.get("status"), said["left"]) == ("done", 0), said
    assert sorted(said["lines"]) == [["stderr", "words"], ["stdout", gpu], ["stdout", "home ok"]]
    found = (said["out"] / "result").stat()
    assert (found.st_uid, found.st_gid) == (user.uid, user.uid)
    honoured = said["honoured"]
    assert honoured["endpoint"] == "podman rootless"
    assert honoured["UsernsMode"] == "keep-id"
    assert honoured["CapAdd"] == ["CAP_SYS_PTRACE"]


def test_memory_is_limited_or_refused_before_anything_runs(user: User) -> None:
    said = user.run("print:up", f"eat:{10**9}", memory=300 * 10**6)
    if "fault" in said:
        assert "dropped what the point needs: Memory 300000000" in said["fault"]
        assert "cgroup" in said["fix"]
        assert said["lines"] == []
    else:
        assert said["status"] == "oom"
    assert said["left"] == 0

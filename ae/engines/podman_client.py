"""The podman program: calls to it, what it can do, and its errors in our words."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ae.daemon.connection import read_cdi_devices
from ae.engines.spec import CDI_KIND
from ae.errors import EnvironmentFault
from ae.host import processes

CONTROL_TIMEOUT_S = 60
# Rootless storage without id-mapped mounts copies an image once for each user: minutes.
CREATE_TIMEOUT_S = 1800
_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")  # podman's own where it has no option for them
# Where podman looks for its init program, and static ones that serve as well.
_HELPERS = ("/usr/libexec/podman", "/usr/local/libexec/podman", "/usr/local/lib/podman",
            "/usr/lib/podman", "/usr/libexec/catatonit")  # fmt: skip
_STATIC_INITS = ("tini-static", "docker-init")


@dataclass(frozen=True)
class Podman:
    """A podman that answers, on this machine."""

    path: str
    info: Mapping[str, Any] = field(repr=False)

    @property
    def version(self) -> str:
        """As it says; for the record, nothing is decided by it."""
        return str((self.info.get("version") or {}).get("Version", ""))

    @property
    def rootless(self) -> bool:
        """Whether it runs as an ordinary user, in a user namespace."""
        return bool(self._host.get("security", {}).get("rootless"))

    @property
    def selinux(self) -> bool:
        """Whether SELinux would keep a container from the folders that it is given."""
        return bool(self._host.get("security", {}).get("selinuxEnabled"))

    @property
    def storage(self) -> str:
        """Storage driver."""
        return str((self.info.get("store") or {}).get("graphDriverName", ""))

    @property
    def graph_root(self) -> Path:
        """Where images are kept."""
        return Path(str((self.info.get("store") or {}).get("graphRoot", "/")))

    @property
    def _host(self) -> Mapping[str, Any]:
        return self.info.get("host") or {}

    @cached_property
    def cdi_folders(self) -> tuple[Path, ...]:
        """Where CDI specs lie: as its option for them says, else the two that are built in."""
        usage = processes.run([self.path, "--help"], timeout_s=CONTROL_TIMEOUT_S).stdout
        line = next((line for line in usage.splitlines() if "--cdi-spec-dir" in line), "")
        named = re.search(r"\(default \[(.*)\]\)", line)
        folders = re.split(r"[,\s]+", named[1]) if named and named[1] else _CDI_DIRS
        return tuple(Path(folder) for folder in folders)

    @cached_property
    def cdi_devices(self) -> dict[str, frozenset[str]]:
        """GPUs by CDI name, each with the device nodes that a container sees of it."""
        found: dict[str, frozenset[str]] = {}
        for folder in self.cdi_folders:
            found |= read_cdi_devices(folder)
        return found

    def call(
        self, *words: str, timeout_s: float = CONTROL_TIMEOUT_S, cwd: Path | None = None
    ) -> processes.Completed:
        """Run a podman command to its end; any exit code is a result."""
        return processes.run([self.path, *words], timeout_s=timeout_s, cwd=cwd)

    def do(self, *words: str, timeout_s: float = CONTROL_TIMEOUT_S, cwd: Path | None = None) -> str:
        """Run a podman command and return what it printed. Raises EnvironmentFault."""
        done = self.call(*words, timeout_s=timeout_s, cwd=cwd)
        if done.returncode != 0:
            raise fault_of(done.stderr)
        return done.stdout

    def inspect(self, kind: str, name: str) -> dict[str, Any] | None:
        """What podman says of an image or a container; None: there is none of that name."""
        done = self.call(kind, "inspect", name)
        if done.returncode != 0:
            if self.call(kind, "exists", name).returncode == 1:
                return None
            raise fault_of(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found | {"Id": f"sha256:{found['Id'].removeprefix('sha256:')}"}  # as Docker says it

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """The rows of a list command."""
        return list(json.loads(self.do(*words, "--format", "json") or "[]") or [])


def connect() -> Podman:
    """Return the podman on PATH. Raises EnvironmentFault when there is none that can be used."""
    path = shutil.which("podman")
    if path is None:
        raise EnvironmentFault("there is no podman on PATH", fix="install the package podman")
    done = processes.run([path, "info", "--format", "json"], timeout_s=CONTROL_TIMEOUT_S)
    if done.returncode != 0:
        raise fault_of(done.stderr)
    try:
        info = json.loads(done.stdout)
    except ValueError as error:
        raise EnvironmentFault(
            f"`{path} info` does not print JSON ({error})", fix="look at what it prints"
        ) from error
    if (info.get("host") or {}).get("serviceIsRemote"):
        raise EnvironmentFault(
            "podman is set to talk to a service elsewhere, where folders cannot be mounted",
            fix="unset CONTAINER_HOST, or choose a local one: podman system connection",
        )
    return Podman(path, info)


def init_words() -> tuple[str, ...]:
    """The options that give a container an init: it reaps children and passes TERM on."""
    path = os.pathsep.join((*_HELPERS, os.environ.get("PATH", os.defpath)))
    if shutil.which("catatonit", path=path) is None:
        for name in _STATIC_INITS:
            if found := shutil.which(name):
                return ("--init", "--init-path", found)
    return ("--init",)


def init_program() -> str | None:
    """A static program that starts in an empty root; None: there is none."""
    path = os.pathsep.join((*_HELPERS, os.environ.get("PATH", os.defpath)))
    found = (shutil.which(name, path=path) for name in ("catatonit", *_STATIC_INITS))
    return next((one for one in found if one), None)


def limit_words(given: Sequence[str] = ()) -> list[str]:
    """Options for the limits that podman would else set above what the caller may have.

    `given`: limits that are asked for anyway.
    """
    words: list[str] = []
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if "nofile" not in given:
        words += ["--ulimit", f"nofile={files}:{files}"]
    if "nproc" not in given:
        # podman caps its own at the kernel's largest process id, and can then give no more.
        most = int(Path("/proc/sys/kernel/pid_max").read_text())
        own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        number = most if own == resource.RLIM_INFINITY else min(own, most)
        words += ["--ulimit", f"nproc={number}:{number}"]
    return words


def fault_of(text: str) -> EnvironmentFault:
    """What podman refused, with the fix where the cause is known."""
    lower = text.lower()
    said = _said(text)
    for words, sentence, fix in _KNOWN:
        if any(word in lower for word in words):
            return EnvironmentFault(f"{sentence} ({said})", fix=fix)
    return EnvironmentFault(f"podman refused: {said}", fix="try it by hand: podman info")


_KNOWN = (
    (
        ("unresolvable cdi device", "failed to inject devices"),
        "podman's CDI specs do not know that GPU",
        "make them anew: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    (
        (f"{CDI_KIND}=",),
        "this podman knows no CDI devices",
        "use a podman that is built with CDI, or --engine docker",
    ),
    (
        ("container-init binary not found", "could not find \"catatonit\""),
        "podman finds no init program for its containers",
        "install the package catatonit, or tini",
    ),
    (
        ("cgroups in hybrid mode",),
        "podman's runtime does not know this machine's control groups",
        'install runc and write runtime = "runc" below [engine] in containers.conf',
    ),
    (
        ("setting rlimit", "setrlimit"),
        "podman may not raise a limit (ulimit) that far",
        "raise the caller's own hard limit (ulimit -H), or use --engine docker",
    ),
    (
        ("newuidmap", "newgidmap", "insufficient uids", "subuid", "cannot set up namespace",
         "potentially insufficient"),
        "rootless podman has no user ids to give to containers",
        "install uidmap, then: sudo usermod --add-subuids 100000-165535 "
        "--add-subgids 100000-165535 $USER; podman system migrate",
    ),
    (
        ("no space left on device",),
        "the disk of podman's images is full",
        "free some: podman system df, podman image prune",
    ),
    (
        ("image not known", "no such image", "manifest unknown", "short-name"),
        "the image is not there",
        "build it with `ae build`, or name one in full with --image",
    ),
    (
        ("statfs",),
        "a folder that the container is to see is not on this machine",
        "check the volumes of the recipe",
    ),
    (
        ("unauthorized", "authentication required"),
        "the registry wants a login",
        "podman login REGISTRY",
    ),
    (
        ("http response to https client",),
        "the registry speaks no TLS",
        "name it in /etc/containers/registries.conf with insecure = true",
    ),
    (
        ("connection refused", "no such host", "i/o timeout", "pinging container registry"),
        "the registry cannot be reached",
        "check the name and the network",
    ),
)  # fmt: skip


def _said(text: str) -> str:
    """The line of an error, without the layers above it, which say nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error")] or lines or ["no reason given"]
    line = errors[-1].removeprefix("Error: ")
    if logged := re.search(r'msg="(.*)"', line):
        line = logged[1]
    for layer in ("runc create failed: ", "container process: "):
        line = line.rpartition(layer)[2]
    return line[:300]

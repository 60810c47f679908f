"""podman without podman: what its inspect means, the lines it gets, its errors in words."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ae.daemon.cdi import read_cdi_devices
from ae.daemon.faults import refused
from ae.engines import podman as podman_module
from ae.engines.podman import PodmanEngine, as_docker
from ae.engines.spec import ContainerSpec, GpuGrant, dropped, spec_of
from ae.model import GpuId, GpuRequest, Mount, RuntimeNeeds, Ulimit
from tests.engines.acts import make_job

GPU = "nvidia.com/gpu=0"
NODES = {GPU: frozenset({"/dev/nvidia0", "/dev/nvidiactl"})}
NEEDS = RuntimeNeeds(
    gpus=GpuRequest(count=1, devices=(GpuId(index=0, uuid="GPU-a"),)),
    cap_add=("SYS_ADMIN",),
    ipc="private",
    ulimits=(Ulimit(name="memlock", soft=-1, hard=-1),),
    memory_bytes=10**9,
    mounts=(Mount(source=Path("/data"), target="/data"),),
)


@pytest.fixture
def spec(tmp_path: Path) -> ContainerSpec:
    job = make_job(tmp_path, argv=("x",), needs=NEEDS)
    grant = GpuGrant(route="cdi", devices=(GPU,))
    made = spec_of(job, name="n", labels={}, user="7:8", gpus=grant)
    return replace(made, userns="keep-id")


@pytest.fixture
def inspected(spec: ContainerSpec) -> dict[str, Any]:
    """What podman 4.3 says of a container that has all of NEEDS."""
    mounts = [("/ae/out", True), ("/data", False)]
    return {
        "State": {"Status": "initialized", "StartedAt": "0001-01-01T00:00:00Z"},
        "EffectiveCaps": ["CAP_SYS_ADMIN"],
        "BoundingCaps": ["CAP_SYS_ADMIN"],
        "Mounts": [{"Destination": path, "RW": writable} for path, writable in mounts],
        "Config": {"User": "7:8"},
        "HostConfig": {
            "NetworkMode": "none",
            "CapAdd": ["CAP_SYS_ADMIN"],
            "CapDrop": ["CAP_CHOWN", "CAP_KILL"],
            "SecurityOpt": ["no-new-privileges"],
            "ReadonlyRootfs": True,
            "PidsLimit": spec.pids,
            "Tmpfs": {"/tmp": "rw", "/ae/home": "rw"},
            "IpcMode": "shareable",
            "UsernsMode": "keep-id",
            "Ulimits": [
                {"Name": "RLIMIT_MEMLOCK", "Soft": -1, "Hard": -1},
                {"Name": "RLIMIT_NOFILE", "Soft": 1024, "Hard": 1024},
            ],
            "Memory": 10**9,
            "MemorySwap": 10**9,
            "Init": True,
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path}
                for path in ("/dev/nvidia0", "/dev/nvidiactl")
            ],
        },
    }


def missing(spec: ContainerSpec, inspected: dict[str, Any]) -> list[str]:
    return dropped(spec, as_docker(inspected, spec, NODES))


def test_an_honest_podman_drops_nothing(spec: ContainerSpec, inspected: dict[str, Any]) -> None:
    assert missing(spec, inspected) == []


def test_a_gpu_is_there_when_all_its_nodes_are(
    spec: ContainerSpec, inspected: dict[str, Any]
) -> None:
    del inspected["HostConfig"]["Devices"][1]
    assert missing(spec, inspected) == [f"GPUs ({GPU})"]
    del inspected["HostConfig"]["Devices"]
    assert missing(spec, inspected) == [f"GPUs ({GPU})"]


@pytest.mark.parametrize(
    ("place", "key", "value", "said"),
    [
        ("", "EffectiveCaps", None, ["capability SYS_ADMIN"]),
        ("", "EffectiveCaps", ["CAP_SYS_ADMIN", "CAP_KILL"], ["no capability KILL"]),
        ("", "BoundingCaps", ["CAP_SYS_ADMIN", "CAP_KILL"], ["CapDrop ['ALL']"]),
        ("HostConfig", "IpcMode", "host", ["IpcMode private"]),
        ("HostConfig", "Memory", 0, ["Memory 1000000000"]),
        ("HostConfig", "SecurityOpt", [], ["no-new-privileges"]),
    ],
)
def test_what_podman_dropped_or_added(
    spec: ContainerSpec,
    inspected: dict[str, Any],
    place: str,
    key: str,
    value: object,
    said: list[str],
) -> None:
    (inspected[place] if place else inspected)[key] = value
    assert missing(spec, inspected) == said


def test_a_dry_run_asks_no_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    job = make_job(tmp_path / "out", argv=("x",), needs=NEEDS)
    argv = PodmanEngine().equivalent(job)
    assert argv[:4] == ("podman", "run", "--rm", "--init")
    assert argv[argv.index("--device") + 1] == GPU


def test_no_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = PodmanEngine().available()
    assert (found.ok, found.detail) == (False, "there is no podman on PATH")


def script(folder: Path, text: str) -> str:
    """A folder for PATH with a podman that is a script."""
    folder.mkdir(exist_ok=True)
    (folder / "podman").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "podman").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_a_podman_elsewhere_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(tmp_path / "bin", """echo '{"host": {"serviceIsRemote": true}}'""")
    monkeypatch.setenv("PATH", path)
    found = PodmanEngine().available()
    assert not found.ok
    assert "CONTAINER_HOST" in found.fix


def test_the_gpus_of_cdi_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {
        "kind": "nvidia.com/gpu",
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]},
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
            {"name": "bare"},
        ],
    }
    (tmp_path / "nvidia.json").write_text(json.dumps(spec))
    found = NODES | {"nvidia.com/gpu=bare": frozenset({"/dev/nvidiactl"})}
    assert read_cdi_devices(str(tmp_path)) == found
    monkeypatch.setattr(podman_module, "_CDI_DIRS", (str(tmp_path),))
    assert PodmanEngine().cdi_devices == found


def test_limits_stay_within_what_the_caller_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podman_module.resource, "getrlimit", lambda _: (10, 20))
    words = podman_module.limit_words(())
    assert list(pairwise(words))[::2] == [("--ulimit", "nofile=20:20"), ("--ulimit", "nproc=20:20")]
    assert podman_module.limit_words(["nofile", "nproc"]) == []


@pytest.mark.parametrize(
    ("said", "sentence", "fix"),
    [
        ("Error: setting up CDI devices: unresolvable CDI devices x=y", "x=y", "nvidia-ctk"),
        ("Error: stat nvidia.com/gpu=0: no such file or directory", "gpu=0", "engine docker"),
        ("Error: container-init binary not found on the host: stat x", "init", "catatonit"),
        ("Error: OCI runtime error: crun: cgroups in hybrid mode not supported", "crun", "runc"),
        ("Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted", "NOFILE", "ulimit"),
        ("Error: statfs /none: no such file or directory", "/none", "volumes"),
        ("Error: writing blob: no space left on device", "space", "prune"),
        ("Error: no subuid ranges found for user x in /etc/subuid", "subuid", "usermod"),
        ("Error: something new\nmore", "podman refused: something new", "podman info"),
        ('time="2026" level=error msg="stat /none: no such file"', "refused: stat /none", "info"),
        ("", "no reason given", "podman info"),
    ],
)
def test_what_podman_refused_has_a_fix(said: str, sentence: str, fix: str) -> None:
    fault = refused("podman", said)
    assert sentence in fault.message
    assert fix in fault.fix

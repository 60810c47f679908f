"""podman without podman: what its inspect means, what it is told to build, its errors in words."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ae.daemon.connection import read_cdi_devices
from ae.engines import podman_client
from ae.engines.podman import PodmanEngine
from ae.engines.podman_client import Podman, fault_of, init_words, limit_words
from ae.engines.podman_images import build_argv, names_of
from ae.engines.podman_inspect import as_docker, dropped_by_podman, has_started
from ae.engines.spec import ContainerSpec, GpuGrant, spec_of, to_argv
from ae.images.bake import Target
from ae.images.content import BuildOptions
from ae.model import Flavour, GpuRequest, ImageRef, Mount, RuntimeNeeds, Ulimit
from tests.engines.acts import base_image, make_job

GPU = "nvidia.com/gpu=0"
NODES = {GPU: frozenset({"/dev/nvidia0", "/dev/nvidiactl"})}
NEEDS = RuntimeNeeds(
    gpus=GpuRequest(count=1),
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
    return spec_of(job, name="n", labels={}, user="7:8", gpus=grant, userns="keep-id")


@pytest.fixture
def inspected() -> dict[str, Any]:
    """What podman 4.3 says of a container that has all of NEEDS."""
    mounts = [("/ae/out", True), ("/data", False)]
    return {
        "State": {"Status": "initialized", "StartedAt": "0001-01-01T00:00:00Z"},
        "EffectiveCaps": ["CAP_SYS_ADMIN"],
        "Mounts": [{"Destination": path, "RW": writable} for path, writable in mounts],
        "Config": {"User": "7:8"},
        "HostConfig": {
            "NetworkMode": "none",
            "CapAdd": ["CAP_SYS_ADMIN"],
            "IpcMode": "shareable",
            "Ulimits": [
                {"Name": "RLIMIT_MEMLOCK", "Soft": -1, "Hard": -1},
                {"Name": "RLIMIT_NOFILE", "Soft": 1024, "Hard": 1024},
            ],
            "Memory": 10**9,
            "Init": True,
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path}
                for path in ("/dev/nvidia0", "/dev/nvidiactl")
            ],
        },
    }


def missing(spec: ContainerSpec, inspected: dict[str, Any], *, rootless: bool = False) -> str:
    words, _ = dropped_by_podman(spec, as_docker(inspected, spec, NODES), rootless=rootless)
    return ", ".join(words)


def test_an_honest_podman_drops_nothing(spec: ContainerSpec, inspected: dict[str, Any]) -> None:
    assert missing(spec, inspected) == ""


def test_a_gpu_is_there_when_all_its_nodes_are(
    spec: ContainerSpec, inspected: dict[str, Any]
) -> None:
    del inspected["HostConfig"]["Devices"][1]
    assert missing(spec, inspected) == f"GPUs ({GPU})"
    del inspected["HostConfig"]["Devices"]
    assert missing(spec, inspected) == f"GPUs ({GPU})"


def test_a_capability_that_has_no_effect_is_missing(
    spec: ContainerSpec, inspected: dict[str, Any]
) -> None:
    inspected["EffectiveCaps"] = None
    assert missing(spec, inspected) == "capability SYS_ADMIN"


def test_the_hosts_ipc_is_not_private(spec: ContainerSpec, inspected: dict[str, Any]) -> None:
    inspected["HostConfig"]["IpcMode"] = "host"
    assert missing(spec, inspected) == "IpcMode private"


def test_memory_without_control_groups(spec: ContainerSpec, inspected: dict[str, Any]) -> None:
    inspected["HostConfig"]["Memory"] = 0
    said = as_docker(inspected, spec, NODES)
    words, fix = dropped_by_podman(spec, said, rootless=True)
    assert words == ["Memory 1000000000"]
    assert "Delegate" in fix
    assert "Delegate" not in dropped_by_podman(spec, said, rootless=False)[1]


def test_whether_it_has_started(inspected: dict[str, Any]) -> None:
    assert not has_started(inspected)
    inspected["State"]["StartedAt"] = "2026-11-21T04:34:44.960185481Z"
    assert has_started(inspected)


def test_the_line_has_the_user_namespace_and_what_podman_needs(spec: ContainerSpec) -> None:
    argv = to_argv(spec, ("podman", "run"), ("--pids-limit", "-1"))
    assert argv[:4] == ("podman", "run", "--pids-limit", "-1")
    assert argv[argv.index("--userns") + 1] == "keep-id"
    assert argv[argv.index("--device") + 1] == GPU


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
    assert not PodmanEngine().starts().ok


def script(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "podman").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "podman").chmod(0o755)


def test_a_podman_elsewhere_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "bin", """echo '{"host": {"serviceIsRemote": true}}'""")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    found = PodmanEngine().available()
    assert not found.ok
    assert "CONTAINER_HOST" in found.fix


def test_cdi_folders_as_podmans_help_names_them(tmp_path: Path) -> None:
    script(
        tmp_path / "new",
        "echo '  --cdi-spec-dir stringArray  CDI spec directory (default [/a/cdi,/b/cdi])'",
    )
    found = Podman(str(tmp_path / "new/podman"), {})
    assert found.cdi_folders == (Path("/a/cdi"), Path("/b/cdi"))
    script(tmp_path / "old", "echo '  --hooks-dir strings  (default [/h])'")
    found = Podman(str(tmp_path / "old/podman"), {})
    assert found.cdi_folders == (Path("/etc/cdi"), Path("/var/run/cdi"))


def test_the_nodes_of_a_cdi_device(tmp_path: Path) -> None:
    spec = {
        "kind": "nvidia.com/gpu",
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]},
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
            {"name": "bare"},
        ],
    }
    (tmp_path / "nvidia.json").write_text(json.dumps(spec))
    assert read_cdi_devices(tmp_path) == NODES | {
        "nvidia.com/gpu=bare": frozenset({"/dev/nvidiactl"})
    }


def test_limits_stay_within_what_the_caller_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podman_client.resource, "getrlimit", lambda _: (10, 20))
    assert limit_words() == ["--ulimit", "nofile=20:20", "--ulimit", "nproc=20:20"]
    assert limit_words(["nofile", "nproc"]) == []


def test_an_init_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podman_client, "_HELPERS", (str(tmp_path / "helpers"),))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert init_words() == ("--init",)
    (tmp_path / "tini-static").touch(0o755)
    assert init_words() == ("--init", "--init-path", str(tmp_path / "tini-static"))
    (tmp_path / "catatonit").touch(0o755)
    assert init_words() == ("--init",)


@pytest.mark.parametrize(
    ("said", "sentence", "fix"),
    [
        ("Error: setting up CDI devices: unresolvable CDI devices x=y", "CDI", "nvidia-ctk"),
        ("Error: stat nvidia.com/gpu=0: no such file or directory", "no CDI", "engine docker"),
        ("Error: container-init binary not found on the host: stat x", "init", "catatonit"),
        ("Error: OCI runtime error: crun: cgroups in hybrid mode not supported", "runtime", "runc"),
        ("Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted", "limit", "ulimit"),
        ("Error: statfs /none: no such file or directory", "folder", "volumes"),
        ("Error: writing blob: no space left on device", "disk", "prune"),
        ("Error: no subuid ranges found for user x in /etc/subuid", "user ids", "usermod"),
        ("Error: something new\nmore", "podman refused: something new", "podman info"),
        ('time="2026" level=error msg="stat /none: no such file"', "refused: stat /none", "info"),
        ("", "no reason given", "podman info"),
    ],
)
def test_what_podman_refused_has_a_fix(said: str, sentence: str, fix: str) -> None:
    fault = fault_of(said)
    assert sentence in fault.message
    assert fix in fault.fix


def test_what_podman_is_told_to_build(tmp_path: Path) -> None:
    image = ImageRef(name="toy", flavour=Flavour.CPU, content="c" * 64, source=tmp_path)
    target = Target(
        name="toy-cpu",
        context="images",
        dockerfile="toy/Dockerfile",
        stage="last",
        tags=("ae/toy:cpu",),
        args={"FLAVOUR": "cpu"},
        labels={"a": "b"},
        contexts={"ae-base": "target:base-cpu", "wheels": "/wheels"},
        secrets=("id=ca,src=/ca",),
        cache_from=("type=registry,ref=x",),
        cache_to=(),
    )
    options = BuildOptions(network="host", contexts={"own": Path("/own")}, fresh=True)
    argv = build_argv("podman", tmp_path, target, image, options, 7)
    pairs = list(pairwise(argv))
    for pair in (
        ("--file", str(tmp_path / "images/toy/Dockerfile")),
        ("--target", "last"),
        ("--tag", "localhost/ae/toy:cpu"),
        ("--build-arg", "FLAVOUR=cpu"),
        ("--build-arg", "SOURCE_DATE_EPOCH=7"),
        ("--label", f"ae.content={image.content}"),
        ("--build-context", "ae-base=docker-image://localhost/ae/base:cpu"),
        ("--build-context", "wheels=/wheels"),
        ("--build-context", "own=/own"),
        ("--secret", "id=ca,src=/ca"),
        ("--network", "host"),
    ):
        assert pair in pairs
    assert "--no-cache" in argv
    assert "--cache-from" not in argv  # of buildx's own kind
    assert argv[-1] == str(tmp_path / "images")


def test_ours_come_before_dockers_names(tmp_path: Path) -> None:
    image = ImageRef(name="toy", flavour=Flavour.CPU, content="c", source=tmp_path)
    assert names_of(image) == ("localhost/ae/toy:cpu", "ae/toy:cpu")
    assert names_of(base_image(tmp_path)) == ("ae/base:cpu",)

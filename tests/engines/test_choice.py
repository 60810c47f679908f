"""Which engine a run gets, who owns what, and where a daemon is looked for."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from ae.commands import machine
from ae.daemon.cdi import read_cdi_devices
from ae.daemon.connection import DEFAULT_SOCKET, connect, endpoint_of, probe
from ae.daemon.faults import refused
from ae.engines import choose as select
from ae.engines.base import Leftover
from ae.engines.local import LocalEngine
from ae.errors import EnvironmentFault, UsageError
from ae.host import owner
from ae.model import Gpu, GpuId, GpuRequest, RuntimeNeeds
from tests.engines.acts import RUN, Lines, base_image, make_job


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ae.host.machine.query_gpus", lambda: ())


def test_without_docker_it_is_local(tmp_path: Path) -> None:
    assert select.choose(None, gpus=False).name == "local"


def test_an_engine_asked_for_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="engine docker: no Docker daemon") as caught:
        select.choose("docker", gpus=False)
    assert caught.value.fix
    assert caught.value.exit_code == 3


def test_no_engine_for_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentFault,
        match="no engine can run this here",
    ):
        select.choose(None, gpus=True)
    with pytest.raises(EnvironmentFault, match="nvidia-smi lists no GPU"):
        select.choose("local", gpus=True)


def test_the_engine_comes_before_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a flavour, an engine must hand over GPUs where its machine has any."""
    assert select.choose("local").machine.gpus == ()
    gpu = Gpu(
        index=0,
        uuid="GPU-a",
        name="T4",
        memory_gib=15.0,
        memory_free_gib=15.0,
        compute_capability=(7, 5),
        driver="580",
    )
    monkeypatch.setattr("ae.host.machine.query_gpus", lambda: (gpu,))
    engine = select.choose(None)
    assert (engine.name, engine.machine.gpus) == ("local", (gpu,))
    monkeypatch.setattr("ae.host.machine.query_gpus", lambda: ())
    assert select.choose(None, gpus=False).name == "local"
    with pytest.raises(EnvironmentFault, match="lists no GPU"):
        select.choose("local", gpus=True)


@pytest.mark.parametrize(
    "endpoint",
    ["ssh://gpu", "tcp://10.0.0.1:2376", "tcp://localhost:2375", "/var/run/docker.sock"],
)
def test_a_daemon_without_a_socket_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", endpoint)
    for act in (
        lambda: connect(endpoint),
        lambda: select.choose(None),
        lambda: select.choose("docker", gpus=False),
    ):
        with pytest.raises(EnvironmentFault) as caught:
            act()
        assert f"'{endpoint}' is no socket of this machine" in caught.value.message
        assert "here: DOCKER_HOST=unix:///PATH" in caught.value.fix
        assert "ssh HOST ae run" in caught.value.fix
    assert select.choose("local", gpus=False).name == "local"


def test_an_unknown_engine(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'docker'"):
        select.choose("doker", gpus=False)


def test_an_interpreter_that_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AE_LOCAL_PYTHON", str(tmp_path / "none"))
    with pytest.raises(EnvironmentFault, match="AE_LOCAL_PYTHON"):
        LocalEngine().prepare(replace(base_image(tmp_path), override=None), Lines())


@pytest.mark.docker  # which knows its contexts
def test_where_a_daemon_is(tmp_path: Path) -> None:
    assert endpoint_of({"DOCKER_HOST": "tcp://h:1", "DOCKER_CONTEXT": "x"}) == "tcp://h:1"
    assert endpoint_of({"DOCKER_CONFIG": str(tmp_path)}) == DEFAULT_SOCKET
    (tmp_path / "config.json").write_text('{"currentContext": "lab"}')
    assert endpoint_of({"DOCKER_CONFIG": str(tmp_path)}) == DEFAULT_SOCKET
    meta = tmp_path / "contexts/meta" / sha256(b"lab").hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": "lab", "Endpoints": {"docker": {"Host": "ssh://lab"}}}))
    assert endpoint_of({"DOCKER_CONFIG": str(tmp_path)}) == "ssh://lab"
    (tmp_path / "config.json").write_text("{broken")
    assert endpoint_of({"DOCKER_CONFIG": str(tmp_path)}) == DEFAULT_SOCKET


def test_a_socket_nobody_listens_at(tmp_path: Path) -> None:
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with pytest.raises(EnvironmentFault, match="no Docker daemon runs at") as caught:
        probe(f"unix://{path}")
    assert "; or ae run --engine local" in caught.value.fix, "ae build has no --engine"


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.geteuid() != 0, reason="needs root to drop it")
def test_a_socket_that_may_not_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(EnvironmentFault, match="permission denied") as caught:
            probe(f"unix://{folder}/x.sock")
    finally:
        os.seteuid(0)
    assert "group docker" in caught.value.fix


def test_what_a_daemon_refused_has_a_fix() -> None:
    fault = refused("docker", 'could not select device driver "nvidia" with capabilities')
    assert "nvidia-ctk" in fault.fix
    assert refused("docker", "some new refusal\nmore").message.endswith("some new refusal")


def test_cdi_specs_in_either_format(tmp_path: Path) -> None:
    device = {"name": "0"}
    (tmp_path / "a.json").write_text(json.dumps({"kind": "nvidia.com/gpu", "devices": [device]}))
    (tmp_path / "b.yaml").write_text("kind: nvidia.com/gpu\ndevices:\n- name: GPU-x\n")
    (tmp_path / "c.yaml").write_text("kind: nvidia.com/gpu\ndevices: [\n")
    (tmp_path / "d.json").write_text('{"kind": "vendor.com/net", "devices": [{"name": "0"}]}')
    (tmp_path / "e.txt").write_text("nvidia.com/gpu")
    assert list(read_cdi_devices(str(tmp_path))) == ["nvidia.com/gpu=0", "nvidia.com/gpu=GPU-x"]
    assert read_cdi_devices(f"{tmp_path}/none") == {}


def test_who_is_alive() -> None:
    own = owner.stamp({owner.RUN: "r"})
    assert owner.alive(own)
    assert not owner.alive(own | {owner.STARTED: "other-boot-1"})
    assert not owner.alive(own | {owner.PID: str(2**22 - 1)})
    assert owner.alive(own | {owner.HOST: "elsewhere", owner.PID: "1"})
    assert owner.alive({owner.RUN: "from nobody"})
    assert owner.from_environment(owner.to_environment(own)) == own
    assert owner.from_environment("") == {}


def test_orphans_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(name: str, alive: bool, run: str = "r") -> Leftover:
        return Leftover(engine="e", kind="container", id=name, run=run, owner_alive=alive)

    engine = LocalEngine()
    found = [one("v", False), one("c", False, "s"), one("x", True)]
    monkeypatch.setattr(engine, "leftovers", lambda: found)
    for run, ids in (("", ["v", "c"]), ("s", ["c"]), ("q", [])):
        assert [x.id for x in machine.clean_engines([engine], run=run, dry_run=True)] == ids


@pytest.fixture
def orphan(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    import subprocess

    stamp = owner.to_environment(owner.stamp({owner.RUN: RUN}) | {owner.STARTED: "before"})
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
        env={owner.ENVIRONMENT: stamp},
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()  # from here on /proc shows its own environment, not its parent's
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def test_clean_stops_processes_of_dead_launchers(
    tmp_path: Path, orphan: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalEngine()
    engine.grace_s = 0.2
    every = engine.leftovers  # of other tests on this machine too: those are not ours to stop
    monkeypatch.setattr(engine, "leftovers", lambda: [one for one in every() if one.run == RUN])
    listed = machine.clean_engines([engine], dry_run=True)
    assert [one.id for one in listed] == [str(orphan)]
    removed = machine.clean_engines([engine], dry_run=False)
    assert str(orphan) in [one.id for one in removed]


@pytest.mark.parametrize(
    ("devices", "seen"),
    [
        ((GpuId(index=1, uuid="GPU-a100"),), "GPU-a100"),
        ((GpuId(index=3), GpuId(index=1)), "3,1"),
        ((), ""),
    ],
)
def test_a_local_process_sees_the_gpus_that_the_plan_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[GpuId, ...], seen: str
) -> None:
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    request = GpuRequest(count=len(devices), devices=devices) if devices else None
    acts = ("env:CUDA_VISIBLE_DEVICES", "env:CUDA_DEVICE_ORDER")
    job = make_job(tmp_path / "out", *acts, needs=RuntimeNeeds(gpus=request))
    lines = Lines()
    LocalEngine().run(job, lines, 60)
    assert lines.of("stdout") == [seen, "PCI_BUS_ID"]

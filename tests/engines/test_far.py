"""A daemon on another machine: its address, its certificates, its GPUs. The rest needs one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ae.daemon.connection import Daemon, endpoint_of, looks_far, tls_folder
from ae.engines.far import judged, machine_of
from ae.engines.tunnel import dial_argv, ssh_argv
from ae.errors import EnvironmentFault
from ae.model import Flavour, Outcome, Status
from ae.plan.gpus import choose_gpus
from ae.recipe.needs import GpuNeed
from ae.records.provenance import gpu_facts


@pytest.mark.parametrize(
    ("endpoint", "told", "far"),
    [
        ("unix:///var/run/docker.sock", "", False),
        ("unix:///var/run/docker.sock", "1", True),
        ("ssh://host", "", True),
        ("ssh://host", "0", False),
        ("tcp://127.0.0.1:2375", "", False),
        ("tcp://[::1]:2375", "", False),
        ("tcp://localhost:2375", "", False),
        ("tcp://10.0.0.7:2376", "", True),
        ("tcp://gpu.example.org:2376", "yes", True),
    ],
)
def test_which_addresses_are_another_machines(endpoint: str, told: str, far: bool) -> None:
    assert looks_far(endpoint, {"AE_DOCKER_REMOTE": told}) is far


def test_where_certificates_lie(tmp_path: Path) -> None:
    name = hashlib.sha256(b"gpu").hexdigest()
    meta, certs = tmp_path / "contexts/meta" / name, tmp_path / "contexts/tls" / name / "docker"
    meta.mkdir(parents=True)
    about = {"Name": "gpu", "Endpoints": {"docker": {"Host": "tcp://gpu:2376"}}}
    (meta / "meta.json").write_text(json.dumps(about))
    context = {"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "gpu"}
    assert endpoint_of(context) == "tcp://gpu:2376"
    assert tls_folder("tcp://gpu:2376", context) is None  # a context without TLS
    certs.mkdir(parents=True)
    assert tls_folder("tcp://gpu:2376", context) == certs
    assert tls_folder("tcp://another:2376", context) is None
    assert tls_folder("unix:///x", context) is None
    plain = {"DOCKER_HOST": "tcp://gpu:2376", "DOCKER_CONFIG": str(tmp_path)}
    assert tls_folder("tcp://gpu:2376", plain) is None
    assert tls_folder("tcp://gpu:2376", plain | {"DOCKER_TLS_VERIFY": "1"}) == tmp_path
    picked = plain | {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/certs"}
    assert tls_folder("tcp://gpu:2376", picked) == Path("/certs")


def test_the_ssh_command() -> None:
    plain = ssh_argv("ssh://gpu.example.org", "true")
    assert plain[0] == "ssh"
    assert plain[-3:] == ("--", "gpu.example.org", "true")
    assert "BatchMode=yes" in plain
    full = dial_argv("ssh://alice@gpu:2222/run/user/7/docker.sock")
    assert full[full.index("-l") :][:6] == ("-l", "alice", "-p", "2222", "--", "gpu")
    assert full[-5:] == (
        "docker", "--host", "unix:///run/user/7/docker.sock", "system", "dial-stdio",
    )  # fmt: skip


@pytest.mark.parametrize(
    "endpoint", ["ssh://", "ssh://-oProxyCommand=x", "ssh://-l@host", "ssh://host:notaport"]
)
def test_addresses_that_ssh_must_not_see(endpoint: str) -> None:
    with pytest.raises(EnvironmentFault, match="is not an address"):
        ssh_argv(endpoint, "true")


def daemon(*devices: str, **info: Any) -> Daemon:
    found = [{"Source": "cdi", "ID": f"nvidia.com/gpu={name}"} for name in devices]
    facts = {"NCPU": 64, "MemTotal": 2**40, "CDISpecDirs": ["/etc/cdi"], **info}
    if found:
        facts["DiscoveredDevices"] = found
    nobody: Any = None
    return Daemon("ssh://gpu", nobody, nobody, "28.3", facts)


@pytest.mark.parametrize(
    ("devices", "wanted", "indices"),
    [
        (("0", "1", "all"), None, [0, 1]),
        (("all",), None, [0]),
        ((), None, []),
        ((), 2, [0, 1]),
        (("0", "1"), 1, [0, 1]),
        ((), ("3",), [3]),
        (("0", "3"), ("3",), [3, 0]),
    ],
)
def test_the_gpus_of_another_machine(
    devices: tuple[str, ...], wanted: tuple[str, ...] | int | None, indices: list[int]
) -> None:
    found = machine_of(daemon(*devices), wanted)
    assert [gpu.index for gpu in found.gpus] == indices
    assert (found.cpus, found.memory_gib) == (64, 1024)
    assert not any(gpu.known for gpu in found.gpus)


def test_what_is_not_known_is_not_judged() -> None:
    """Memory, capability and driver are the point's to find out; the record claims none of them."""
    asked = {"min_memory": "80GB", "min_compute_capability": "9.0", "min_driver": "580"}
    need = GpuNeed.model_validate({"count": 1, "why": "x", **asked})
    found = machine_of(daemon("0"), None)
    choice = choose_gpus("e", "required", need, found)
    assert choice.flavour is Flavour.CUDA
    assert set(gpu_facts(found.gpus[0])) == {"index", "name"}
    picked = machine_of(daemon(), ("GPU-12ab",))
    chosen = choose_gpus("e", "required", need, picked, wanted=("GPU-12ab",))
    assert chosen.request is not None
    assert chosen.request.devices == ("GPU-12ab",)
    with pytest.raises(EnvironmentFault):
        choose_gpus("e", "required", need, machine_of(daemon(), None))


def test_outputs_that_did_not_come_change_the_outcome() -> None:
    done = Outcome(status=Status.DONE, exit_code=0, seconds=1)
    assert judged(done, "") is done
    assert (judged(done, "lost").status, judged(done, "lost").reason) == (Status.FAILED, "lost")
    failed = Outcome(status=Status.OOM, exit_code=137, seconds=1, reason="memory")
    assert judged(failed, "lost").status is Status.OOM
    assert judged(failed, "lost").reason == "memory; and lost"

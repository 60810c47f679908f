"""A container as data: what is asked, what was dropped, and the line that a person can type."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ae.daemon.cdi import choose_cdi
from ae.engines.spec import GpuGrant, dropped, spec_of, to_api, to_argv
from ae.engines.wording import borrowed, seconds_between, split_reference
from ae.errors import EnvironmentFault
from ae.model import GpuRequest, Mount, RuntimeNeeds, Ulimit
from tests.engines.acts import make_job

NEEDS = RuntimeNeeds(
    gpus=GpuRequest(count=1),
    cap_add=("SYS_ADMIN",),
    ipc="private",
    shm_bytes=2**30,
    ulimits=(Ulimit(name="memlock", soft=-1, hard=-1),),
    memory_bytes=10**9,
    mounts=(Mount(source=Path("/data"), target="/data", read_only=True),),
)


@pytest.fixture
def spec(tmp_path: Path) -> Any:
    job = make_job(tmp_path, argv=("python", "-m", "x"), needs=NEEDS, env={"A": "b c"})
    grant = GpuGrant(route="cdi", devices=("nvidia.com/gpu=0",))
    return spec_of(job, name="n", labels={"ae.run": "r"}, user="7:8", gpus=grant, binds=("/usr",))


def inspected(spec: Any) -> dict[str, Any]:
    """What an honest daemon says of the container."""
    body = to_api(spec)
    host = copy.deepcopy(body["HostConfig"])
    mounts = [
        {"Source": m["Source"], "Destination": m["Target"], "RW": not m["ReadOnly"]}
        for m in host["Mounts"]
    ]
    return {"HostConfig": host, "Config": {"User": body["User"]}, "Mounts": mounts}


def test_an_honest_daemon_drops_nothing(spec: Any) -> None:
    assert dropped(spec, inspected(spec)) == []


@pytest.mark.parametrize(
    ("key", "value", "missing"),
    [
        ("DeviceRequests", None, "GPUs (nvidia.com/gpu=0)"),
        ("DeviceRequests", [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=1"]}], "GPUs"),
        ("DeviceRequests", [{"Driver": "nvidia", "DeviceIDs": ["nvidia.com/gpu=0"]}], "GPUs"),
        ("CapAdd", [], "capability SYS_ADMIN"),
        ("Ulimits", [{"Name": "memlock", "Soft": 65536, "Hard": 65536}], "ulimit memlock"),
        ("ShmSize", 67108864, "ShmSize"),
        ("Memory", 0, "Memory"),
        ("NetworkMode", "bridge", "NetworkMode none"),
        ("IpcMode", "shareable", "IpcMode private"),
        ("Init", False, "Init True"),
    ],
)
def test_whatever_is_dropped_is_named(spec: Any, key: str, value: object, missing: str) -> None:
    said = inspected(spec)
    said["HostConfig"][key] = value
    (found,) = dropped(spec, said)
    assert found.startswith(missing)


def test_mounts_and_user_are_checked_too(spec: Any) -> None:
    said = inspected(spec)
    said["Config"]["User"] = ""
    said["Mounts"][0]["RW"] = not said["Mounts"][0]["RW"]
    del said["Mounts"][1]
    assert len(dropped(spec, said)) == 3


def test_capabilities_may_be_named_either_way(spec: Any) -> None:
    said = inspected(spec)
    said["HostConfig"]["CapAdd"] = ["CAP_SYS_ADMIN"]
    assert dropped(spec, said) == []


def test_the_hosts_shared_memory_has_the_hosts_size(tmp_path: Path) -> None:
    needs = RuntimeNeeds(ipc="host", shm_bytes=2**30)
    job = make_job(tmp_path, argv=("x",), needs=needs)
    made = spec_of(job, name="n", labels={}, user="0:0", gpus=None)
    assert "ShmSize" not in to_api(made)["HostConfig"]
    assert "--shm-size" not in to_argv(made)


def test_nothing_is_privileged(spec: Any) -> None:
    assert "Privileged" not in to_api(spec)["HostConfig"]
    assert "--privileged" not in to_argv(spec)


def test_no_privileges_no_swap_no_entry_point(spec: Any) -> None:
    body = to_api(spec)
    host = body["HostConfig"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["MemorySwap"] == host["Memory"] > 0  # no swap on top
    argv = to_argv(spec)
    assert argv[argv.index("--memory-swap") + 1] == argv[argv.index("--memory") + 1]
    assert body["Entrypoint"] == []  # or the image's would run


def test_outer_folders_are_mounted_before_those_in_them(spec: Any) -> None:
    deep = Mount(source=Path("/usr"), target="/a/b/c")
    made = replace(spec, mounts=(deep, replace(deep, target="/a"), replace(deep, target="/a/b")))
    targets = [mount["Target"] for mount in to_api(made)["HostConfig"]["Mounts"]]
    assert [target for target in targets if target.startswith("/a")] == ["/a", "/a/b", "/a/b/c"]


@pytest.mark.parametrize("count", [1, 3])
def test_neither_fewer_nor_more_gpus_than_asked(spec: Any, count: int) -> None:
    made = replace(spec, gpus=GpuGrant(route="nvidia", count=2))
    said = inspected(made)
    assert dropped(made, said) == []
    said["HostConfig"]["DeviceRequests"][0]["Count"] = count
    assert dropped(made, said) == ["GPUs (2)"]


def test_the_line_has_everything(spec: Any) -> None:
    argv = to_argv(spec)
    for word in ("--cap-add", "SYS_ADMIN", "memlock=-1:-1", "nvidia.com/gpu=0", "A=b c", "7:8"):
        assert word in argv
    assert argv[-4:] == (spec.image, "python", "-m", "x")
    assert "type=bind,source=/usr,target=/usr,readonly" in argv


def test_the_nvidia_runtime() -> None:
    some = GpuGrant(route="nvidia", count=2).request()
    assert (some["Count"], some["Driver"]) == (2, "nvidia")
    picked = GpuGrant(route="nvidia", devices=("GPU-a",), count=1).request()
    assert picked["DeviceIDs"] == ["GPU-a"]
    assert "Count" not in picked


@pytest.mark.parametrize(
    ("request_", "names", "chosen"),
    [
        (GpuRequest(count=2), ("gpu=10", "gpu=2", "gpu=1", "gpu=all"), ("gpu=1", "gpu=2")),
        (GpuRequest(count=1), ("gpu=all",), ("gpu=all",)),
        (GpuRequest(count=2), None, ("gpu=0", "gpu=1")),
        (GpuRequest(count=1, devices=("GPU-x",)), ("gpu=0", "gpu=GPU-x"), ("gpu=GPU-x",)),
        (GpuRequest(count=1, devices=("3",)), None, ("gpu=3",)),
    ],
)
def test_choosing_cdi_names(
    request_: GpuRequest, names: tuple[str, ...] | None, chosen: tuple[str, ...]
) -> None:
    full = None if names is None else tuple(f"nvidia.com/{name}" for name in names)
    assert choose_cdi(request_, full) == tuple(f"nvidia.com/{name}" for name in chosen)


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("ae/dlrm:cpu", ("ae/dlrm", "cpu")),
        ("dlrm", ("dlrm", "latest")),
        ("host:5000/a/b", ("host:5000/a/b", "latest")),
        ("host:5000/a/b:tag", ("host:5000/a/b", "tag")),
        ("host:5000/a@sha256:12", ("host:5000/a", "sha256:12")),
    ],
)
def test_references_with_ports_and_digests(reference: str, parts: tuple[str, str]) -> None:
    assert split_reference(reference) == parts


@pytest.mark.parametrize("label", ["no json", '"/usr"', '["usr"]', '["/"]', "[1]"])
def test_a_label_that_borrows_nonsense(label: str) -> None:
    with pytest.raises(EnvironmentFault, match=r"ae\.binds"):
        borrowed("x:y", {"ae.binds": label})


def test_time_stamps_with_nanoseconds() -> None:
    start, end = "2026-01-01T00:00:00.123456789Z", "2026-01-01T00:00:01.1Z"
    assert seconds_between(start, end) == pytest.approx(0.976544, abs=1e-6)
    assert seconds_between("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z") == 0

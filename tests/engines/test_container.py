"""A container as data: what is asked, what was dropped, and the line that a person can type."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ae.daemon.cdi import cdi_names
from ae.engines.spec import (
    WRITABLE,
    GpuGrant,
    borrowed,
    check_inside,
    dropped,
    seconds_between,
    spec_of,
    to_argv,
)
from ae.errors import EnvironmentFault
from ae.model import GpuId, GpuRequest, Mount, RuntimeNeeds, Ulimit
from tests.engines.acts import make_job

line_of = partial(to_argv, head=("docker", "run", "--rm", "--init"))
T4, A100 = GpuId(index=0, uuid="GPU-t4"), GpuId(index=1, uuid="GPU-a100")
NEEDS = RuntimeNeeds(
    gpus=GpuRequest(count=1, devices=(T4,)),
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
    needs = spec.needs
    host: dict[str, Any] = {
        "Init": True,
        "NetworkMode": needs.network,
        "CapDrop": ["ALL"],
        "CapAdd": list(needs.cap_add),
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "PidsLimit": spec.pids,
        "Ulimits": [{"Name": u.name, "Soft": u.soft, "Hard": u.hard} for u in needs.ulimits],
        "Tmpfs": dict(WRITABLE),
        "IpcMode": needs.ipc or "private",
        "ShmSize": needs.shm_bytes or 2**26,
        "Memory": needs.memory_bytes or 0,
        "MemorySwap": needs.memory_bytes or 0,
    }
    if spec.gpus:
        host["DeviceRequests"] = [{"Driver": spec.gpus.route, "DeviceIDs": list(spec.gpus.devices)}]
    mounts = [
        {"Source": str(m.source), "Destination": m.target, "RW": not m.read_only}
        for m in spec.all_mounts()
    ]
    return {"HostConfig": host, "Config": {"User": spec.user}, "Mounts": mounts}


def options(argv: tuple[str, ...], name: str) -> list[str]:
    """The values of an option in a command line."""
    return [value for word, value in pairwise(argv) if word == name]


def test_an_honest_daemon_drops_nothing(spec: Any) -> None:
    assert dropped(spec, inspected(spec)) == []


@pytest.mark.parametrize(
    ("key", "value", "missing"),
    [
        ("DeviceRequests", None, "GPUs (nvidia.com/gpu=0)"),
        ("DeviceRequests", [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=1"]}], "GPUs"),
        ("DeviceRequests", [{"Driver": "nvidia", "DeviceIDs": ["nvidia.com/gpu=0"]}], "GPUs"),
        ("DeviceRequests", [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}], "GPUs"),
        (
            "DeviceRequests",
            [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]}],
            "GPUs",
        ),
        (
            "DeviceRequests",
            [
                {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]},
                {"Driver": "nvidia", "Count": -1},
            ],
            "GPUs",
        ),
        ("CapAdd", [], "capability SYS_ADMIN"),
        ("CapAdd", ["SYS_ADMIN", "NET_ADMIN"], "no capability NET_ADMIN"),
        ("CapDrop", None, "CapDrop"),
        ("CapDrop", ["NET_RAW"], "CapDrop"),
        ("SecurityOpt", None, "no-new-privileges"),
        ("SecurityOpt", ["seccomp=unconfined"], "no-new-privileges"),
        ("ReadonlyRootfs", False, "ReadonlyRootfs"),
        ("PidsLimit", None, "PidsLimit"),
        ("PidsLimit", -1, "PidsLimit"),
        ("Privileged", True, "no Privileged"),
        ("MemorySwap", 2 * 10**9, "MemorySwap 1000000000"),
        ("Tmpfs", {"/ae/home": ""}, "tmpfs /tmp"),
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


def test_gpus_that_nobody_asked_for_are_named(tmp_path: Path) -> None:
    made = spec_of(make_job(tmp_path), name="n", labels={}, user="7:8", gpus=None)
    said = inspected(made)
    assert dropped(made, said) == []
    said["HostConfig"]["DeviceRequests"] = [{"Driver": "nvidia", "Count": -1}]
    assert dropped(made, said) == ["GPUs (none)"]


def test_it_gets_what_it_needs_and_no_more(tmp_path: Path) -> None:
    argv = line_of(spec_of(make_job(tmp_path), name="n", labels={}, user="7:8", gpus=None))
    assert options(argv, "--cap-drop") == ["ALL"]
    assert options(argv, "--security-opt") == ["no-new-privileges"]
    assert "--read-only" in argv
    assert "--privileged" not in argv
    assert 1000 < int(options(argv, "--pids-limit")[0]) < 2**20
    assert [one.partition(":")[0] for one in options(argv, "--tmpfs")] == ["/ae/home", "/tmp"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in options(argv, "--env")
    assert not {"--cap-add", "--device", "--gpus"} & set(argv)


def test_memory_has_no_swap_on_top(spec: Any) -> None:
    argv = line_of(spec)
    assert options(argv, "--memory") == options(argv, "--memory-swap") == [str(10**9)]


def mounted(spec: Any) -> list[str]:
    """The targets of a command line's mounts."""
    return [one.split(",")[2].removeprefix("target=") for one in options(line_of(spec), "--mount")]


def test_outer_mounts_come_first(tmp_path: Path) -> None:
    """A mount hides what was mounted below it before."""
    targets = ["/data/a/b", "/data", "/ae/out/deep/x", "/data/a"]
    needs = RuntimeNeeds(mounts=tuple(Mount(source=tmp_path, target=t) for t in targets))
    job = make_job(tmp_path, needs=needs)
    made = spec_of(job, name="n", labels={}, user="0:0", gpus=None, binds=("/usr/lib", "/usr"))
    order = [mount.target for mount in made.all_mounts()]
    assert sorted(order) == sorted([*targets, "/ae/out", "/usr/lib", "/usr"])
    for outer, inner in (
        ("/data", "/data/a"),
        ("/data/a", "/data/a/b"),
        ("/ae/out", "/ae/out/deep/x"),
        ("/usr", "/usr/lib"),
    ):
        assert order.index(outer) < order.index(inner)
    assert mounted(made) == order


def test_mounts_and_user_are_checked_too(spec: Any) -> None:
    said = inspected(spec)
    said["Config"]["User"] = "0:0"
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
    assert "--shm-size" not in line_of(made)


def test_the_point_is_the_whole_command(spec: Any) -> None:
    assert options(line_of(spec), "--entrypoint") == [""]  # or the image's would run


def test_outer_folders_are_mounted_before_those_in_them(spec: Any) -> None:
    deep = Mount(source=Path("/usr"), target="/a/b/c")
    made = replace(spec, mounts=(deep, replace(deep, target="/a"), replace(deep, target="/a/b")))
    inner = [target for target in mounted(made) if target.startswith("/a/b") or target == "/a"]
    assert inner == ["/a", "/a/b", "/a/b/c"]


@pytest.mark.parametrize("devices", [["GPU-a"], ["GPU-a", "GPU-b", "GPU-c"]])
def test_neither_fewer_nor_more_gpus_than_asked(spec: Any, devices: list[str]) -> None:
    made = replace(spec, gpus=GpuGrant(route="nvidia", devices=("GPU-b", "GPU-a")))
    said = inspected(made)
    assert dropped(made, said) == []
    said["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] = devices
    assert dropped(made, said) == ["GPUs (GPU-b, GPU-a)"]


def test_the_line_has_everything(spec: Any) -> None:
    argv = line_of(spec)
    for word in ("--cap-add", "SYS_ADMIN", "memlock=-1:-1", "nvidia.com/gpu=0", "A=b c", "7:8"):
        assert word in argv
    pairs = list(pairwise(argv))
    for pair in (
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
        ("--pids-limit", str(spec.pids)),
        ("--name", "n"),
        ("--label", "ae.run=r"),
    ):
        assert pair in pairs
    assert "--read-only" in argv
    assert [how for word, how in pairs if word == "--tmpfs"] == [
        f"{path}:{options}" for path, options in WRITABLE.items()
    ]
    assert argv[-4:] == (spec.image, "python", "-m", "x")
    assert "type=bind,source=/usr,target=/usr,readonly" in argv
    made = replace(spec, mounts=(Mount(source=Path('/a,b "1"'), target="/c"),))
    assert 'type=bind,"source=/a,b ""1""",target=/c,readonly' in line_of(made)


def test_the_nvidia_runtime_is_asked_for_the_chosen_ones(tmp_path: Path) -> None:
    grant = GpuGrant(route="nvidia", devices=("GPU-a100",))
    made = spec_of(make_job(tmp_path), name="n", labels={}, user="7:8", gpus=grant)
    argv = line_of(made)
    assert options(argv, "--gpus") == ['"device=GPU-a100","capabilities=compute,utility"']
    assert made.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "NVIDIA_VISIBLE_DEVICES" not in made.env
    said = inspected(made)
    assert dropped(made, said) == []
    said["HostConfig"]["DeviceRequests"][0] |= {"DeviceIDs": None, "Count": 1}  # any one
    assert dropped(made, said) == ["GPUs (GPU-a100)"]


@pytest.mark.parametrize(
    ("devices", "names", "chosen"),
    [
        ((A100,), ("0", "1", "all"), ("1",)),
        ((A100,), ("GPU-t4", "GPU-a100"), ("GPU-a100",)),
        ((A100,), ("0", "1", "GPU-t4", "GPU-a100"), ("GPU-a100",)),
        ((A100, T4), ("0", "1", "10", "all"), ("1", "0")),
        ((GpuId(index=10),), ("0", "1", "10"), ("10",)),
        ((T4,), ("all",), ("all",)),
        ((A100,), None, ("1",)),
        ((GpuId(index=-1, uuid="GPU-x"),), None, ("GPU-x",)),
    ],
)
def test_cdi_names_of_the_chosen_gpus(
    devices: tuple[GpuId, ...], names: tuple[str, ...] | None, chosen: tuple[str, ...]
) -> None:
    request = GpuRequest(count=len(devices), devices=devices)
    full = None if names is None else tuple(f"nvidia.com/gpu={name}" for name in names)
    assert cdi_names(request, full) == tuple(f"nvidia.com/gpu={name}" for name in chosen)


def test_a_chosen_gpu_without_a_cdi_name() -> None:
    with pytest.raises(EnvironmentFault, match=r"no CDI device nvidia\.com/gpu=1") as caught:
        cdi_names(GpuRequest(count=1, devices=(A100,)), ("nvidia.com/gpu=0", "nvidia.com/gpu=all"))
    assert "nvidia-ctk" in caught.value.fix


SMI = ["GPU 0: Tesla T4 (UUID: GPU-t4)", "GPU 1: NVIDIA A100 (UUID: GPU-a100)"]


@pytest.mark.parametrize(
    ("devices", "lines", "fits"),
    [
        ((A100,), [SMI[1]], True),
        ((GpuId(index=4),), [SMI[1]], True),  # the launcher knows no UUID
        ((T4, A100), SMI, True),
        ((A100,), [], False),
        ((A100,), ["sh: nvidia-smi: not found"], False),
        ((A100,), ["/dev/nvidia1", "sh: nvidia-smi: not found"], True),  # compute alone
        ((A100,), ["/dev/nvidia0", "/dev/nvidia1"], False),
        ((T4,), [SMI[1]], False),  # another one
        ((A100,), SMI, False),  # more than asked for
        ((GpuId(index=4),), SMI, False),
        ((T4, A100), [SMI[1]], False),
    ],
)
def test_the_gpus_inside_are_those_asked_for(
    devices: tuple[GpuId, ...], lines: list[str], fits: bool
) -> None:
    request = GpuRequest(count=len(devices), devices=devices)
    if fits:
        check_inside(request, lines)
        return
    with pytest.raises(EnvironmentFault, match="inside there are") as caught:
        check_inside(request, lines)
    assert caught.value.fix


@pytest.mark.parametrize("label", ["no json", '"/usr"', '["usr"]', '["/"]', "[1]"])
def test_a_label_that_borrows_nonsense(label: str) -> None:
    with pytest.raises(EnvironmentFault, match=r"ae\.binds"):
        borrowed("x:y", {"ae.binds": label})


def test_time_stamps_with_nanoseconds() -> None:
    start, end = "2026-01-01T00:00:00.123456789Z", "2026-01-01T00:00:01.1Z"
    assert seconds_between(start, end) == pytest.approx(0.976544, abs=1e-6)
    assert seconds_between("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z") == 0

"""A container as data: what is asked of the engine, and what of that an engine dropped. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ae.engines.base import OUT_DIR, Job
from ae.model import Mount, RuntimeNeeds

HOME = "/ae/home"
CDI_KIND = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class GpuGrant:
    """How GPUs are asked for. `route` is `cdi` or `nvidia`; devices are names the engine knows."""

    route: str
    devices: tuple[str, ...] = ()
    count: int = 0  # with route `nvidia` and no devices: how many, any

    def request(self) -> dict[str, Any]:
        """The device request of Docker's API."""
        if self.route == "cdi":
            return {"Driver": "cdi", "DeviceIDs": list(self.devices)}
        request: dict[str, Any] = {
            "Driver": "nvidia",
            "Capabilities": [["gpu", "compute", "utility"]],
        }
        if self.devices:
            return request | {"DeviceIDs": list(self.devices)}
        return request | {"Count": self.count}


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """Everything that a container is created from."""

    name: str
    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    labels: Mapping[str, str]
    user: str  # "uid:gid" of the caller, so that outputs belong to the caller
    mounts: tuple[Mount, ...]
    needs: RuntimeNeeds
    gpus: GpuGrant | None = None
    userns: str = ""
    binds: tuple[str, ...] = field(default=())  # host folders seen read-only at the same path
    volumes: Mapping[str, str] = field(default_factory=dict)  # target -> volume that stands for it

    def all_mounts(self) -> tuple[Mount, ...]:
        """Mounts and binds, outermost first."""
        binds = tuple(Mount(source=Path(path), target=path) for path in self.binds)
        return tuple(sorted((*binds, *self.mounts), key=lambda mount: mount.target.count("/")))


def spec_of(
    job: Job,
    *,
    name: str,
    labels: Mapping[str, str],
    user: str,
    gpus: GpuGrant | None,
    binds: Sequence[str] = (),
    userns: str = "",
    image: str = "",
) -> ContainerSpec:
    """Return the container for a job. `image`: what to run, if not what the point says."""
    point = job.point
    env = {
        "AE_OUT": OUT_DIR,
        "AE_POINT": point.id,
        "HOME": HOME,
        # A user id without an entry in /etc/passwd: libraries that ask for the name find it here.
        "USER": "ae",
        "LOGNAME": "ae",
    }
    return ContainerSpec(
        name=name,
        image=image or point.image.reference,
        argv=point.argv,
        env=env | dict(point.env),
        labels=labels,
        user=user,
        mounts=(Mount(source=job.out, target=OUT_DIR, read_only=False), *point.needs.mounts),
        needs=point.needs,
        gpus=gpus,
        binds=tuple(binds),
        userns=userns,
    )


def to_api(spec: ContainerSpec) -> dict[str, Any]:
    """The body of Docker's `POST /containers/create`."""
    needs = spec.needs
    host: dict[str, Any] = {
        "Init": True,  # reaps children, passes TERM on
        "NetworkMode": needs.network,
        "CapAdd": list(needs.cap_add),
        "SecurityOpt": ["no-new-privileges"],
        "Ulimits": [{"Name": u.name, "Soft": u.soft, "Hard": u.hard} for u in needs.ulimits],
        "Mounts": [_mount(spec, mount) for mount in spec.all_mounts()],
        "Tmpfs": {HOME: "rw,exec,nosuid,mode=1777"},  # exec: caches of compiled kernels live there
        "LogConfig": {"Type": "local"},
    }
    if needs.ipc is not None:
        host["IpcMode"] = needs.ipc
    if needs.shm_bytes is not None and needs.ipc != "host":
        host["ShmSize"] = needs.shm_bytes  # the host's own is what `ipc: host` gives
    if needs.memory_bytes is not None:
        host["Memory"] = needs.memory_bytes
        host["MemorySwap"] = needs.memory_bytes  # no swap on top: a point fails early and clearly
    if spec.gpus is not None:
        host["DeviceRequests"] = [spec.gpus.request()]
    if spec.userns:
        host["UsernsMode"] = spec.userns
    return {
        "Image": spec.image,
        "Cmd": list(spec.argv),
        "Entrypoint": [],  # a point's argv is the whole command, whatever the image says
        "Env": [f"{key}={value}" for key, value in spec.env.items()],
        "Labels": dict(spec.labels),
        "User": spec.user,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "HostConfig": host,
    }


def _mount(spec: ContainerSpec, mount: Mount) -> dict[str, Any]:
    where: dict[str, Any] = {"Target": mount.target, "ReadOnly": mount.read_only}
    volume = spec.volumes.get(mount.target)
    if volume is None:
        return where | {"Type": "bind", "Source": str(mount.source)}
    # NoCopy: what the image has at that place is not part of it, as with a bind.
    return where | {"Type": "volume", "Source": volume, "VolumeOptions": {"NoCopy": True}}


def to_argv(
    spec: ContainerSpec,
    head: Sequence[str] = ("docker", "run", "--rm", "--init"),
    extra: Sequence[str] = (),
) -> tuple[str, ...]:
    """The command line that does the same; `extra` are options that a client needs on top."""
    needs = spec.needs
    words = [*head, *extra, "--network", needs.network, "--user", spec.user]
    words += ["--security-opt", "no-new-privileges", "--entrypoint", ""]
    words += ["--tmpfs", f"{HOME}:rw,exec,nosuid,mode=1777"]
    for mount in spec.all_mounts():
        tail = ",readonly" if mount.read_only else ""
        words += ["--mount", f"type=bind,source={mount.source},target={mount.target}{tail}"]
    for cap in needs.cap_add:
        words += ["--cap-add", cap]
    for limit in needs.ulimits:
        words += ["--ulimit", f"{limit.name}={limit.soft}:{limit.hard}"]
    if needs.ipc is not None:
        words += ["--ipc", needs.ipc]
    if needs.shm_bytes is not None and needs.ipc != "host":
        words += ["--shm-size", str(needs.shm_bytes)]
    if spec.userns:
        words += ["--userns", spec.userns]
    if needs.memory_bytes is not None:
        words += ["--memory", str(needs.memory_bytes), "--memory-swap", str(needs.memory_bytes)]
    if spec.gpus is not None and spec.gpus.route == "cdi":
        for device in spec.gpus.devices:
            words += ["--device", device]
    elif spec.gpus is not None:
        which = f'"device={",".join(spec.gpus.devices)}"' if spec.gpus.devices else ""
        words += ["--gpus", which or str(spec.gpus.count)]
    for key, value in spec.env.items():
        words += ["--env", f"{key}={value}"]
    return (*words, spec.image, *spec.argv)


def dropped(spec: ContainerSpec, inspected: Mapping[str, Any]) -> list[str]:
    """Return what was asked for and is not in the created container; some engines drop silently."""
    host: Mapping[str, Any] = inspected.get("HostConfig") or {}
    needs = spec.needs
    missing: list[str] = []
    if spec.gpus is not None and not _granted(spec.gpus, host.get("DeviceRequests") or []):
        missing.append(f"GPUs ({', '.join(spec.gpus.devices) or spec.gpus.count})")
    granted_caps = {cap.removeprefix("CAP_") for cap in host.get("CapAdd") or []}
    missing += [f"capability {cap}" for cap in needs.cap_add if cap not in granted_caps]
    limits = {u["Name"]: (u["Soft"], u["Hard"]) for u in host.get("Ulimits") or []}
    missing += [f"ulimit {u.name}" for u in needs.ulimits if limits.get(u.name) != (u.soft, u.hard)]
    expected: dict[str, object] = {"NetworkMode": needs.network, "Init": True}
    if needs.ipc is not None:
        expected["IpcMode"] = needs.ipc
    if needs.shm_bytes is not None and needs.ipc != "host":
        expected["ShmSize"] = needs.shm_bytes
    if needs.memory_bytes is not None:
        expected["Memory"] = needs.memory_bytes
    missing += [f"{key} {value}" for key, value in expected.items() if host.get(key) != value]
    if (inspected.get("Config") or {}).get("User") != spec.user:
        missing.append(f"user {spec.user}")
    seen = {m["Destination"]: bool(m.get("RW")) for m in inspected.get("Mounts") or []}
    missing += [
        f"mount {mount.target}" + (" (read-only)" if mount.read_only else "")
        for mount in spec.all_mounts()
        if seen.get(mount.target) is not (not mount.read_only)
    ]
    return missing


def honoured(inspected: Mapping[str, Any]) -> dict[str, object]:
    """What the engine granted, for the record of the run."""
    host: Mapping[str, Any] = inspected.get("HostConfig") or {}
    keys = ("DeviceRequests", "CapAdd", "Ulimits", "ShmSize", "NetworkMode", "IpcMode", "Memory")
    facts: dict[str, object] = {key: host[key] for key in keys if host.get(key)}
    facts["User"] = (inspected.get("Config") or {}).get("User", "")
    facts["Mounts"] = [
        {"target": m["Destination"], "read_only": not m.get("RW")}  # sources: this host's affair
        for m in inspected.get("Mounts") or []
    ]
    return facts


def _granted(gpus: GpuGrant, requests: Sequence[Mapping[str, Any]]) -> bool:
    asked = gpus.request()
    for request in requests:
        ids = request.get("DeviceIDs") or []
        driver_fits = request.get("Driver") in (asked["Driver"], "")
        count_fits = asked.get("Count", 0) == (request.get("Count") or 0)
        if driver_fits and sorted(ids) == sorted(asked.get("DeviceIDs", [])) and count_fits:
            return True
    return False

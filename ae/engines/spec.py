"""A container as data: what is asked of the engine, and what of that an engine dropped. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ae.engines.base import OUT_DIR, Job
from ae.errors import EnvironmentFault
from ae.model import GpuRequest, Mount, Point, RuntimeNeeds

HOME = "/ae/home"
# Beside the out folder, what a container may write to; in memory. Compiled kernels are run there.
WRITABLE = dict.fromkeys((HOME, "/tmp"), "rw,exec,nosuid,nodev,mode=1777")
ORDINARY = "10001:10001"  # who runs inside when the launcher is root; as in our images
PIDS = 32768  # processes and threads: above every thread pool of a large host, below a fork bomb
PRIVILEGES = "no-new-privileges"


@dataclass(frozen=True, kw_only=True)
class GpuGrant:
    """How GPUs are asked for. `route` is `cdi` or `nvidia`; devices are names the engine knows."""

    route: str
    devices: tuple[str, ...]

    def request(self) -> dict[str, Any]:
        """The device request of Docker's API."""
        if self.route == "cdi":
            return {"Driver": "cdi", "DeviceIDs": list(self.devices)}
        kinds = [["gpu", "compute", "utility"]]
        return {"Driver": "nvidia", "Capabilities": kinds, "DeviceIDs": list(self.devices)}


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """Everything that a container is created from."""

    name: str
    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    labels: Mapping[str, str]
    user: str  # "uid:gid"
    mounts: tuple[Mount, ...]
    needs: RuntimeNeeds
    gpus: GpuGrant | None = None
    userns: str = ""
    binds: tuple[str, ...] = field(default=())  # host folders seen read-only at the same path
    pids: int | None = PIDS  # None: where nobody can limit them

    def all_mounts(self) -> tuple[Mount, ...]:
        """Mounts and binds, outermost first: a later one would hide those below it."""
        binds = tuple(Mount(source=Path(path), target=path) for path in self.binds)
        depth = {mount: len(Path(mount.target).parts) for mount in (*binds, *self.mounts)}
        return tuple(sorted(depth, key=lambda mount: depth[mount]))


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
    secrets: Sequence[Mount] = (),
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
    if gpus is not None:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as the driver numbers them
    if gpus is None or gpus.route == "cdi":
        # Images made from NVIDIA's say `all`, which a daemon's NVIDIA runtime would obey.
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    return ContainerSpec(
        name=name,
        image=image or point.image.reference,
        argv=point.argv,
        env=env | dict(point.env),
        labels=labels,
        user=user,
        mounts=(
            Mount(source=job.out, target=OUT_DIR, read_only=False),
            *point.needs.mounts,
            *secrets,
        ),
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
        "CapDrop": ["ALL"],
        "CapAdd": list(needs.cap_add),
        "SecurityOpt": [PRIVILEGES],
        "ReadonlyRootfs": True,
        "Ulimits": [{"Name": u.name, "Soft": u.soft, "Hard": u.hard} for u in needs.ulimits],
        "Mounts": [_mount(mount) for mount in spec.all_mounts()],
        "Tmpfs": dict(WRITABLE),
        "LogConfig": {"Type": "local"},
    }
    if spec.pids is not None:
        host["PidsLimit"] = spec.pids
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


def _mount(mount: Mount) -> dict[str, Any]:
    where = {"Source": str(mount.source), "Target": mount.target}
    return {"Type": "bind", **where, "ReadOnly": mount.read_only}


def to_argv(
    spec: ContainerSpec,
    head: Sequence[str] = ("docker", "run", "--rm", "--init"),
    extra: Sequence[str] = (),
) -> tuple[str, ...]:
    """The command line that does the same; `extra` are options that a client needs on top."""
    needs = spec.needs
    words = [*head, *(("--name", spec.name) if spec.name else ()), *extra]
    for key, value in spec.labels.items():
        words += ["--label", f"{key}={value}"]
    words += ["--network", needs.network, "--user", spec.user, "--entrypoint", ""]
    words += ["--cap-drop", "ALL", "--security-opt", PRIVILEGES, "--read-only"]
    memory, shm = needs.memory_bytes, needs.shm_bytes if needs.ipc != "host" else None
    given: tuple[tuple[str, int | str | None], ...] = (
        ("--pids-limit", spec.pids),
        ("--ipc", needs.ipc),
        ("--shm-size", shm),
        ("--userns", spec.userns or None),
        ("--memory", memory),
        ("--memory-swap", memory),
    )
    words += [word for key, value in given if value is not None for word in (key, str(value))]
    for path, how in WRITABLE.items():
        words += ["--tmpfs", f"{path}:{how}"]
    for mount in spec.all_mounts():
        tail = ",readonly" if mount.read_only else ""
        words += ["--mount", f"type=bind,source={mount.source},target={mount.target}{tail}"]
    for cap in needs.cap_add:
        words += ["--cap-add", cap]
    for limit in needs.ulimits:
        words += ["--ulimit", f"{limit.name}={limit.soft}:{limit.hard}"]
    if spec.gpus is not None and spec.gpus.route == "cdi":
        for device in spec.gpus.devices:
            words += ["--device", device]
    elif spec.gpus is not None:
        words += ["--gpus", f'"device={",".join(spec.gpus.devices)}"']
    for key, value in spec.env.items():
        words += ["--env", f"{key}={value}"]
    return (*words, spec.image, *spec.argv)


def dropped(spec: ContainerSpec, inspected: Mapping[str, Any]) -> list[str]:
    """Return what was asked for and is not so in the created container, and what it has that nobody
    asked for; some engines drop and add silently."""
    host: Mapping[str, Any] = inspected.get("HostConfig") or {}
    needs = spec.needs
    missing: list[str] = []
    asked = [_plain(spec.gpus.request())] if spec.gpus else []
    if [_plain(one) for one in host.get("DeviceRequests") or []] != asked:
        missing.append(f"GPUs ({', '.join(spec.gpus.devices) if spec.gpus else 'none'})")
    granted = {cap.removeprefix("CAP_") for cap in host.get("CapAdd") or []}
    missing += [f"capability {cap}" for cap in needs.cap_add if cap not in granted]
    missing += [f"no capability {cap}" for cap in sorted(granted - set(needs.cap_add))]
    limits = {u["Name"]: (u["Soft"], u["Hard"]) for u in host.get("Ulimits") or []}
    missing += [f"ulimit {u.name}" for u in needs.ulimits if limits.get(u.name) != (u.soft, u.hard)]
    if not any(str(word).startswith(PRIVILEGES) for word in host.get("SecurityOpt") or []):
        missing.append(PRIVILEGES)
    # The same words as in the request, but for what has a shape of its own (above and below).
    apart = {"DeviceRequests", "CapAdd", "Ulimits", "SecurityOpt", "Mounts", "Tmpfs", "LogConfig"}
    wanted = {key: value for key, value in to_api(spec)["HostConfig"].items() if key not in apart}
    missing += [f"{key} {value}" for key, value in wanted.items() if host.get(key) != value]
    missing += ["no Privileged"] if host.get("Privileged") else []
    missing += [f"tmpfs {path}" for path in WRITABLE if path not in (host.get("Tmpfs") or {})]
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
    keys = ("DeviceRequests", "CapAdd", "CapDrop", "Ulimits", "ShmSize", "NetworkMode", "IpcMode",
            "Memory", "PidsLimit", "ReadonlyRootfs", "SecurityOpt")  # fmt: skip
    facts: dict[str, object] = {key: host[key] for key in keys if host.get(key)}
    facts["User"] = (inspected.get("Config") or {}).get("User", "")
    facts["Mounts"] = [
        {"target": m["Destination"], "read_only": not m.get("RW")}  # sources: this host's affair
        for m in inspected.get("Mounts") or []
    ]
    return facts


def _plain(request: Mapping[str, Any]) -> tuple[str, int, tuple[str, ...]]:
    """Driver, number and names of a device request; a daemon may leave out the first."""
    ids = tuple(sorted(request.get("DeviceIDs") or []))
    cdi = any(name.startswith("nvidia.com/") for name in ids)
    driver = request.get("Driver") or ("cdi" if cdi else "nvidia")
    return driver, request.get("Count") or 0, ids


def borrowed(reference: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Host folders that an image borrows, from its label `ae.binds`."""
    text = labels.get("ae.binds")
    if not text:
        return ()
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(
        isinstance(path, str) and path.startswith("/") and path != "/" for path in paths
    ):
        raise EnvironmentFault(
            f"the label ae.binds of {reference} is not a JSON list of absolute folders",
            fix="build the image again",
        )
    return tuple(paths)


def container_name(point: Point, token: str) -> str:
    """A name that says what runs in the container; `token` makes it the only one."""
    recipe, ident = (
        re.sub(r"[^A-Za-z0-9_.-]", "-", word)[:60] or "x" for word in (point.recipe, point.id)
    )
    return f"ae-{recipe}-{ident}-{token}"


def seconds_between(start: str, end: str) -> float:
    """Time between two of Docker's time stamps, which have nanoseconds."""
    both = datetime.fromisoformat(start), datetime.fromisoformat(end)
    return max(0.0, (both[1] - both[0]).total_seconds())


# The driver's program where the container has it, else the driver's own files: the kernel lists all
# GPUs of the host there, and those with a device node in the container are the container's.
LOOK = (
    "ls /dev/nvidia[0-9]* 2>/dev/null; nvidia-smi -L 2>/dev/null; "
    "for f in /proc/driver/nvidia/gpus/*/information; do "
    "awk '/GPU UUID/ {u=$NF} /Device Minor/ {print \"kernel\", $NF, u}' $f 2>/dev/null; done; :"
)


def gpus_inside(lines: Sequence[str]) -> tuple[int, frozenset[str]]:
    """How many GPUs the output of LOOK shows, and their UUIDs; no UUIDs: only nodes are there."""
    nodes = {found[1] for line in lines if (found := re.fullmatch(r"/dev/nvidia(\d+)", line))}
    listed = {found[1] for line in lines if (found := re.match(r"GPU \d+: .*\(UUID: (.+)\)", line))}
    kernel = [found for line in lines if (found := re.fullmatch(r"kernel (\d+) (\S+)", line))]
    uuids = listed or {found[2] for found in kernel if found[1] in nodes}
    return len(uuids) or len(nodes), frozenset(uuids)


def check_inside(request: GpuRequest, lines: Sequence[str]) -> int:
    """Return the number of GPUs inside. Raises EnvironmentFault when they are not those asked for;
    UUIDs are compared where both sides know them."""
    count, uuids = gpus_inside(lines)
    asked = {device.uuid for device in request.devices} - {""}
    if count == request.count and not (uuids and len(asked) == count and asked != uuids):
        return count
    here = ", ".join(sorted(uuids)) or "no UUID seen"
    raise EnvironmentFault(
        f"the container was granted {', '.join(one.name for one in request.devices)} "
        f"({request.count} GPUs asked for), and inside there are {count} ({here})",
        fix="make the CDI spec again (nvidia-ctk cdi generate), and try nvidia-smi in a container",
    )

"""A container as data: what is asked of the engine, and what of that an engine dropped. Pure."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from ae.engines.base import OUT_DIR, Job
from ae.engines.secrets import mounts_of
from ae.errors import EnvironmentFault
from ae.model import GpuRequest, Mount, Point, RuntimeNeeds

HOME = "/ae/home"
# Beside the out folder, what a container may write to; in memory. Compiled kernels are run there.
WRITABLE = dict.fromkeys((HOME, "/tmp"), "rw,exec,nosuid,nodev,mode=1777")
ORDINARY = "10001:10001"  # who runs inside when the launcher is root; as in our images
PIDS = 32768  # processes and threads: above every thread pool of a large host, below a fork bomb
PRIVILEGES = "no-new-privileges"
_FOLDERS = TypeAdapter(tuple[Annotated[str, Field(pattern="^/.")], ...])


@dataclass(frozen=True, kw_only=True)
class GpuGrant:
    """How GPUs are asked for. `route` is `cdi` or `nvidia`; devices are names the engine knows."""

    route: str
    devices: tuple[str, ...]


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
    binds: tuple[str, ...] = ()  # host folders seen read-only at the same path
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
    if gpus is not None:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as the driver numbers them
    if gpus is None or gpus.route == "cdi":
        # Images made from NVIDIA's say `all`, which a daemon's NVIDIA runtime would obey.
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    mine = Mount(source=job.out, target=OUT_DIR, read_only=False)
    return ContainerSpec(
        name=name,
        image=image or point.image.reference,
        argv=point.argv,
        env=env | dict(point.env),
        labels=labels,
        user=user,
        mounts=(mine, *point.needs.mounts, *mounts_of(job)),
        needs=point.needs,
        gpus=gpus,
        binds=tuple(binds),
    )


def _settings(spec: ContainerSpec) -> dict[str, tuple[str, int | str]]:
    """What one word asks for: option -> key in the engine's inspect, value."""
    needs = spec.needs
    asked: dict[str, tuple[str, int | str | None]] = {
        "--network": ("NetworkMode", needs.network),
        "--pids-limit": ("PidsLimit", spec.pids),
        "--ipc": ("IpcMode", needs.ipc),
        # The host's own is what `ipc: host` gives.
        "--shm-size": ("ShmSize", None if needs.ipc == "host" else needs.shm_bytes),
        "--userns": ("UsernsMode", spec.userns or None),
        "--memory": ("Memory", needs.memory_bytes),
        "--memory-swap": ("MemorySwap", needs.memory_bytes),  # no swap on top: it fails early
    }
    return {option: (key, value) for option, (key, value) in asked.items() if value is not None}


def refused_by(runtime: str, point: Point) -> list[str]:
    """What of a point's needs a runtime does not give; none: a process without a container."""
    needs = point.needs
    refused = [f"capability {cap}" for cap in needs.cap_add]
    refused += [f"ulimit {limit.name}" for limit in needs.ulimits]
    refused += [f"mount {mount.target}" for mount in needs.mounts if runtime == "none"]
    refused += [f"secret {one.name}" for one in needs.secrets if runtime == "none"]
    refused += ["network none"] * (needs.network == "none" and runtime != "apptainer")
    return refused if runtime != "podman" else []


def to_argv(spec: ContainerSpec, head: Sequence[str]) -> tuple[str, ...]:
    """The command line of a client; `head` begins it."""
    asked: list[tuple[str, ...]] = [("--name", spec.name)] if spec.name else []
    asked += [("--label", f"{key}={value}") for key, value in spec.labels.items()]
    # A point's argv is the whole command, whatever entry point the image has.
    asked += [("--user", spec.user), ("--entrypoint", ""), ("--cap-drop", "ALL")]
    asked += [("--security-opt", PRIVILEGES), ("--read-only",)]
    asked += [(option, str(value)) for option, (_, value) in _settings(spec).items()]
    asked += [("--tmpfs", f"{path}:{how}") for path, how in WRITABLE.items()]
    for mount in spec.all_mounts():
        fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
        csv.writer(line := StringIO()).writerow(fields + ["readonly"] * mount.read_only)
        asked += [("--mount", line.getvalue().strip())]
    asked += [("--cap-add", cap) for cap in spec.needs.cap_add]
    asked += [("--ulimit", f"{one.name}={one.soft}:{one.hard}") for one in spec.needs.ulimits]
    if spec.gpus is not None and spec.gpus.route == "cdi":
        asked += [("--device", device) for device in spec.gpus.devices]
    elif spec.gpus is not None:
        devices = ",".join(spec.gpus.devices)
        asked += [("--gpus", f'"device={devices}","capabilities=compute,utility"')]
    asked += [("--env", f"{key}={value}") for key, value in spec.env.items()]
    return (*head, *chain(*asked), spec.image, *spec.argv)


def dropped(spec: ContainerSpec, inspected: Mapping[str, Any]) -> list[str]:
    """Return what was asked for and is not so in the created container, and what it has that nobody
    asked for; some engines drop and add silently."""
    host: Mapping[str, Any] = inspected.get("HostConfig") or {}
    needs = spec.needs
    missing: list[str] = []
    asked = [(spec.gpus.route, 0, tuple(sorted(spec.gpus.devices)))] if spec.gpus else []
    if [_plain(one) for one in host.get("DeviceRequests") or []] != asked:
        missing.append(f"GPUs ({', '.join(spec.gpus.devices) if spec.gpus else 'none'})")
    granted = {cap.removeprefix("CAP_") for cap in host.get("CapAdd") or []}
    missing += [f"capability {cap}" for cap in needs.cap_add if cap not in granted]
    missing += [f"no capability {cap}" for cap in sorted(granted - set(needs.cap_add))]
    limits = {u["Name"]: (u["Soft"], u["Hard"]) for u in host.get("Ulimits") or []}
    missing += [f"ulimit {u.name}" for u in needs.ulimits if limits.get(u.name) != (u.soft, u.hard)]
    if not any(str(word).startswith(PRIVILEGES) for word in host.get("SecurityOpt") or []):
        missing.append(PRIVILEGES)
    wanted: dict[str, object] = {"Init": True, "CapDrop": ["ALL"], "ReadonlyRootfs": True}
    wanted |= dict(_settings(spec).values())
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
            "Memory", "PidsLimit", "ReadonlyRootfs", "SecurityOpt", "UsernsMode",
            "Runtime")  # fmt: skip
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
    return request.get("Driver") or ("cdi" if cdi else "nvidia"), request.get("Count") or 0, ids


def borrowed(reference: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Host folders that an image borrows, from its label `ae.binds`."""
    try:
        return _FOLDERS.validate_json(labels.get("ae.binds") or "[]")
    except ValidationError as error:
        raise EnvironmentFault(
            f"the label ae.binds of {reference} is not a JSON list of absolute folders",
            fix="build the image again",
        ) from error


def container_name(point: Point, token: str) -> str:
    """A name that says what runs in the container; `token` makes it the only one."""
    words = (re.sub(r"[^A-Za-z0-9_.-]", "-", one)[:60] or "x" for one in (point.recipe, point.id))
    return "-".join(("ae", *words, token))


def seconds_between(start: str, end: str) -> float:
    """Time between two of Docker's time stamps, which have nanoseconds."""
    both = datetime.fromisoformat(start), datetime.fromisoformat(end)
    return max(0.0, (both[1] - both[0]).total_seconds())


def check_inside(request: GpuRequest, lines: Sequence[str]) -> None:
    """Raise EnvironmentFault when the GPUs inside are not those asked for: what `nvidia-smi -L`
    lists, by UUID where the plan knows them; where the image has it not, device files by number."""
    found = {match[1] for line in lines if (match := re.match(r"GPU \d+: .*\(UUID: (.+)\)", line))}
    asked = {device.uuid for device in request.devices} - {""}
    count = len(found) or sum(bool(re.fullmatch(r"/dev/nvidia\d+", line)) for line in lines)
    if count != request.count or (found and len(asked) == count and asked != found):
        raise EnvironmentFault(
            f"the container was granted {', '.join(one.name for one in request.devices)} "
            f"({request.count} GPUs asked for), and inside there are {count} "
            f"({', '.join(sorted(found)) or 'nvidia-smi lists none'})",
            fix="make the CDI spec again (nvidia-ctk cdi generate), try nvidia-smi in a container",
        )

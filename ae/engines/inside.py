"""Which GPUs there are inside a container: an engine may grant a device that brings none along."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ae.errors import EnvironmentFault
from ae.model import GpuRequest

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

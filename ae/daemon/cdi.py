"""Which GPUs a daemon is asked for, by the names that its CDI specs give them. Pure."""

from __future__ import annotations

from ae.engines.spec import CDI_KIND
from ae.errors import EnvironmentFault
from ae.model import GpuRequest

NO_ROUTE = (
    "the Docker daemon has no way to hand GPUs to containers: no CDI spec and no NVIDIA runtime",
    "install the NVIDIA Container Toolkit, then: nvidia-ctk cdi generate "
    "--output=/etc/cdi/nvidia.yaml, and restart the daemon",
)


def choose_cdi(request: GpuRequest, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the CDI names for a request. `names` None: what the daemon knows cannot be seen.

    Raises EnvironmentFault when a GPU that a person picked has no such name.
    """
    if request.devices:
        wanted = tuple(f"{CDI_KIND}={device}" for device in request.devices)
        unknown = [name for name in wanted if names is not None and name not in names]
        if unknown:
            raise EnvironmentFault(
                f"no CDI device {', '.join(unknown)}; the daemon knows {', '.join(names or ())}",
                fix="pick a GPU by its number (--gpus device=0), or make the CDI spec anew",
            )
        return wanted
    if names is None:
        return tuple(f"{CDI_KIND}={index}" for index in range(request.count))
    numbered = sorted(
        (name for name in names if name.rpartition("=")[2].isdigit()),
        key=lambda name: int(name.rpartition("=")[2]),
    )
    if not numbered and f"{CDI_KIND}=all" in names:
        return (f"{CDI_KIND}=all",)
    if len(numbered) < request.count:
        raise EnvironmentFault(
            f"{request.count} GPUs are needed and the daemon's CDI specs have {len(numbered)}",
            fix="ask for fewer with --gpus, or make the CDI spec anew: nvidia-ctk cdi generate",
        )
    return tuple(numbered[: request.count])

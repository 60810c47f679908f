"""Theoretical occupancy: the rule of NVIDIA's occupancy calculator, with the limits of the CUDA
programming guide's table of compute capabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

REGISTER_GRANULE = 256  # registers are given to a warp in units of this many
WARP_GRANULE = 4  # an SM has four partitions, each with a quarter of the registers
WARP = 32
SHARED_GRANULE = 128
SHARED_SYSTEM = 1024  # bytes of every block's shared memory that the system keeps


@dataclass(frozen=True, kw_only=True)
class Sm:
    """The limits of one streaming multiprocessor. Shared memory in bytes."""

    warps: int
    blocks: int
    registers: int
    shared: int


SMS: Mapping[str, Sm] = MappingProxyType(
    {
        "sm_80": Sm(warps=64, blocks=32, registers=65_536, shared=164 * 1024),
        "sm_86": Sm(warps=48, blocks=16, registers=65_536, shared=100 * 1024),
        "sm_89": Sm(warps=48, blocks=24, registers=65_536, shared=100 * 1024),
        "sm_90": Sm(warps=64, blocks=32, registers=65_536, shared=228 * 1024),
        "sm_100": Sm(warps=64, blocks=32, registers=65_536, shared=228 * 1024),
        "sm_120": Sm(warps=48, blocks=24, registers=65_536, shared=100 * 1024),
    }
)


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """How many blocks and warps of a kernel an SM holds at once, and what limits them."""

    blocks: int
    warps: int
    percent: float
    limit: str  # "registers", "shared memory", "warps" or "blocks"


def occupancy(arch: str, threads: int, registers: int, shared_bytes: int = 0) -> Occupancy:
    """Return the theoretical occupancy of a kernel on `arch` ("sm_80").

    threads: of a block; registers: per thread; shared_bytes: of a block, static and dynamic.
    Raises KeyError for an architecture that is not in SMS.
    """
    sm = SMS[arch]
    warps = -(-threads // WARP)
    fits = {"warps": sm.warps // warps, "blocks": sm.blocks}
    if registers:
        per_warp = -(-registers * WARP // REGISTER_GRANULE) * REGISTER_GRANULE
        resident = sm.registers // per_warp // WARP_GRANULE * WARP_GRANULE
        fits["registers"] = resident // warps
    block = -(-(shared_bytes + SHARED_SYSTEM) // SHARED_GRANULE) * SHARED_GRANULE
    fits["shared memory"] = sm.shared // block
    blocks = min(fits.values())
    limit = next(name for name, count in fits.items() if count == blocks)
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps,
        percent=100.0 * blocks * warps / sm.warps,
        limit=limit,
    )

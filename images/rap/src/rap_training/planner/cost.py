"""What preprocessing beside training costs, by stage (docs/papers/rap.md, 3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StageCapacity:
    """A training stage: its duration and the stand-alone preprocessing time that fits for free.

    Both are in us, on one GPU.
    """

    name: str
    us: float
    capacity_us: float

    def __post_init__(self) -> None:
        if not (self.us > 0 and self.capacity_us >= 0):
            raise ValueError(
                f"stage {self.name} takes {self.us} us and has {self.capacity_us} us of capacity; "
                "fix: a positive time and a capacity of at least 0"
            )

    @property
    def intensity(self) -> float:
        """Capacity per time of the stage: which stage to use first (docs/papers/rap.md, 3.1)."""
        return self.capacity_us / self.us


def exposed(placed_us: Mapping[str, float], stages: Sequence[StageCapacity]) -> float:
    """Return the us of preprocessing that do not fit into the stages they are placed in.

    `placed_us` maps stage names to stand-alone us of the kernels there; work inside a stage's
    capacity is free. Raises ValueError for a stage that is not among `stages`.
    """
    known = {stage.name for stage in stages}
    for name in placed_us:
        if name not in known:
            raise ValueError(f"no stage {name}; fix: one of {', '.join(sorted(known))}")
    return sum(max(0.0, placed_us.get(stage.name, 0.0) - stage.capacity_us) for stage in stages)

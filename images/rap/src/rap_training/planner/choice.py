"""Whether RAP's schedule is worth its gates: where a simpler way is not slower, RAP is that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

TIE = 0.005  # of an iteration: what is within it is not slower
WAYS = {
    "stream": "a plain stream",
    "ungated": "fused, and not gated",
    "gated": "gated by training stages",
}
"""What RAP may be, the simplest first. Gates hold kernels back until their stage: where there is
more work than all stages hide, the rest waits for the last one, and the GPU may have nothing to do
before. Without gates everything may begin at once."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One way to preprocess beside training, on one GPU, by the cost model. Times in us.

    The host queues `launches` and `gates` (an event that the side waits for) in every iteration.
    """

    training_us: float
    overflow_us: float  # of preprocessing, beyond what training hides
    launches: int
    gates: int
    launch_us: float
    gate_us: float

    @property
    def terms(self) -> Mapping[str, float]:
        """What can differ between two ways."""
        return {
            "overflow": self.overflow_us,
            "launches": self.launches * self.launch_us,
            "gates": self.gates * self.gate_us,
        }

    @property
    def device_us(self) -> float:
        """Of an iteration on the GPU."""
        return self.training_us + self.overflow_us

    @property
    def host_us(self) -> float:
        """That the host needs for an iteration's preprocessing."""
        return self.terms["launches"] + self.terms["gates"]

    @property
    def us(self) -> float:
        """Of an iteration: the host and the GPU work at the same time."""
        return max(self.device_us, self.host_us)


@dataclass(frozen=True)
class Choice:
    """One of WAYS, and a sentence that says why."""

    way: str
    reason: str


def choose(
    ways: Mapping[str, Estimate], measured: Mapping[str, Sequence[float]] | None = None
) -> Choice:
    """Return the fastest way; a simpler one that is not slower wins.

    `measured`: us of iterations of every way, taken in turns on this machine. They decide where
    they are given, the model where not; it says which term does.
    """
    if measured:
        took = {way: median(measured[way]) for way in ways}
        how = f"measured in {len(next(iter(measured.values())))} turns"
    else:
        took, how = {way: ways[way].us for way in ways}, "predicted"
    least = min(took.values())
    chosen = next(way for way in WAYS if way in took and took[way] <= least * (1 + TIE))
    second = min((way for way in took if way != chosen), key=took.__getitem__)
    times = ", ".join(
        f"{took[way]:.1f} us {words}"
        for way, words in (
            ("gated", "an iteration gated"), ("ungated", "ungated"), ("stream", "as a stream")
        )
        if way in took
    )  # fmt: skip
    return Choice(
        chosen, f"{WAYS[chosen]}: {times}, {how}; {_deciding(ways[chosen], ways[second])}"
    )


def _deciding(chosen: Estimate, other: Estimate) -> str:
    """The term that speaks most against the way that was not chosen, where that way is bound."""
    bound = ("launches", "gates") if other.host_us > other.device_us else ("overflow", "gates")
    gains = {name: other.terms[name] - chosen.terms[name] for name in bound}
    term = max(gains, key=gains.__getitem__)
    if gains[term] <= 0:
        return "by the cost model no term decides"
    return f"{term} decide: {other.terms[term]:.1f} us against {chosen.terms[term]:.1f}"

"""Whether RAP's schedule is worth its gates: where a plain stream is not slower, RAP is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

TIE = 0.005  # of an iteration: what is within it is not slower


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
    """Whether to be a plain stream, and a sentence that says why."""

    stream: bool
    reason: str


def choose(
    gated: Estimate,
    stream: Estimate,
    measured: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Choice:
    """Return the faster way; a plain stream that is not slower wins.

    `measured`: us of iterations of the gated schedule and of the stream, taken in turns on this
    machine. They decide where they are given, the model where not; it says which term does.
    """
    if measured:
        ours, plain = (median(each) for each in measured)
        how = f"measured in {len(measured[0])} turns"
    else:
        ours, plain, how = gated.us, stream.us, "predicted"
    is_stream = plain <= ours * (1 + TIE)
    kind = "a plain stream" if is_stream else "gated by training stages"
    chosen, other = (stream, gated) if is_stream else (gated, stream)
    return Choice(
        is_stream,
        f"{kind}: {ours:.1f} us an iteration gated, {plain:.1f} us as a stream, {how}; "
        f"{_deciding(chosen, other)}",
    )


def _deciding(chosen: Estimate, other: Estimate) -> str:
    """The term that speaks most against the way that was not chosen, where that way is bound."""
    bound = ("launches", "gates") if other.host_us > other.device_us else ("overflow", "gates")
    gains = {name: other.terms[name] - chosen.terms[name] for name in bound}
    term = max(gains, key=gains.__getitem__)
    if gains[term] <= 0:
        return "by the cost model no term decides"
    return f"{term} decide: {other.terms[term]:.1f} us against {chosen.terms[term]:.1f}"

"""What RAP, RAP+ and other graphs are run as: the fastest of several ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rap_training.planner.capacity import STAGES

_PLACES = {
    "at_once": "begun at once",
    "in_line": "in line with training",
    **{stage: f"begun with {stage}" for stage in STAGES[1:]},
}
# A way of a graph whose launches run side by side: the same with one after another.
IN_ORDER = {"branches": "in_order", **{place: f"{place}_in_order" for place in _PLACES}}
WAYS = {
    "stream": "a plain stream",
    "ungated": "not gated",
    "gated": "gated by training stages",
    "in_order": "one launch after another",
    "branches": "launches side by side",
}
for _place, _words in _PLACES.items():
    WAYS |= {IN_ORDER[_place]: f"{_words}, one launch after another", _place: _words}
"""What RAP, also without a part (the first three), another graph (the next two) and RAP+ may be,
the simplest first. Gates hold kernels back until their stage: where there is more work than all
stages hide, the rest waits for the last one, and the GPU may have nothing to do before. Without
gates everything may begin at once. RAP+ has too few kernels to spread over stages: they begin with
one of them. Launches that need nothing of each other may run side by side, which pays where one
does not fill the GPU."""


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
    """Return the way of least median; of equal ones the simplest.

    `measured`: us of iterations of every way, taken in turns on this machine. They decide where
    they are given, the model where not; it says which term does, if there is a model of the ways.
    """
    if measured:
        took = {way: median(times) for way, times in measured.items()}
        how = f"measured in {len(next(iter(measured.values())))} turns"
    else:
        took, how = {way: ways[way].us for way in ways}, "predicted"
    chosen = min((way for way in WAYS if way in took), key=took.__getitem__)
    second = min((way for way in took if way != chosen), key=took.__getitem__)
    others = ", ".join(f"{us:.1f} us {WAYS[way]}" for way, us in took.items() if way != chosen)
    reason = f"{WAYS[chosen]}: {took[chosen]:.1f} us an iteration against {others}, {how}"
    if ways:
        reason += f"; {_deciding(ways[chosen], ways[second])}"
    return Choice(chosen, reason)


def _deciding(chosen: Estimate, other: Estimate) -> str:
    """The term that speaks most against the way that was not chosen, where that way is bound."""
    bound = ("launches", "gates") if other.host_us > other.device_us else ("overflow", "gates")
    gains = {name: other.terms[name] - chosen.terms[name] for name in bound}
    term = max(gains, key=gains.__getitem__)
    if gains[term] <= 0:
        return "by the cost model no term decides"
    return f"{term} decide: {other.terms[term]:.1f} us against {chosen.terms[term]:.1f}"

"""Which GPU preprocesses which feature.

The artifact has no search; this is the RECONSTRUCTION of docs/papers/rap.md, 3.6, with two
additions: a feature may also be preprocessed everywhere, and ties for the busiest GPU do not end
the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

EVERYWHERE = -1
"""In the place of a GPU: every GPU preprocesses its own rows of the feature (data-parallel)."""

Assignment = Mapping[str, int]


@dataclass(frozen=True)
class MappingResult:
    """The GPU of every feature (or EVERYWHERE), the predicted us, how many moves led there, and
    `history`: the us at the chosen start and after every move."""

    gpu_of: Assignment
    us: float
    moves: int
    history: tuple[float, ...]


def search(
    features: Sequence[str],
    home: Assignment,
    gpus: int,
    time_of: Callable[[Assignment], Sequence[float]],
    communication_us: Callable[[Assignment], float],
    *,
    rounds: int = 100,
    data_parallel: bool = True,
) -> MappingResult:
    """Search a mapping of `features` to `gpus` GPUs of little preprocessing on the busiest.

    `home` is the GPU that owns a feature's table. `time_of(mapping)` re-fuses and returns the us of
    every GPU's kernels, `communication_us` those of the exchange that the mapping causes. What is
    made small is the busiest GPU's kernels plus communication.

    From locality, and with `data_parallel` from every feature EVERYWHERE: in each round the best
    move of one feature off the busiest GPU is made, to the idlest GPU, to its home or EVERYWHERE,
    if the us become fewer (or equal, and the GPUs' times in falling order smaller). It ends
    without such a move or after `rounds`. The better end is returned, never worse than locality.
    Raises ValueError for a feature without a home among the GPUs, or wrongly many times.
    """
    for feature in features:
        if not 0 <= home.get(feature, EVERYWHERE) < gpus:
            raise ValueError(
                f"feature {feature} has no home among {gpus} GPUs; fix: the GPU of its table"
            )
    known: dict[tuple[int, ...], tuple[float, list[float]]] = {}

    def value(mapping: dict[str, int]) -> tuple[float, list[float]]:
        key = tuple(mapping[feature] for feature in features)
        if key not in known:
            times = [float(us) for us in time_of(mapping)]
            if len(times) != gpus:
                raise ValueError(f"{len(times)} times for {gpus} GPUs; fix: one time per GPU")
            known[key] = (max(times) + communication_us(mapping), times)
        return known[key]

    starts = [{feature: home[feature] for feature in features}]
    if data_parallel and gpus > 1:
        starts.append(dict.fromkeys(features, EVERYWHERE))
    ends = [_descend(start, home, value, rounds, data_parallel) for start in starts]
    return min(ends, key=lambda end: end.us)


def _descend(
    mapping: dict[str, int],
    home: Assignment,
    value: Callable[[dict[str, int]], tuple[float, list[float]]],
    rounds: int,
    data_parallel: bool,
) -> MappingResult:
    now, times = value(mapping)
    history = [now]
    for _ in range(rounds):
        moves = _moves(mapping, home, times, data_parallel)
        best = min(moves, key=lambda trial: _rank(*value(trial)), default=None)
        if best is None or not _rank(*value(best)) < _rank(now, times):
            break
        mapping = best
        now, times = value(mapping)
        history.append(now)
    return MappingResult(mapping, now, len(history) - 1, tuple(history))


def _rank(total: float, times: Sequence[float]) -> tuple[float, ...]:
    # Nanoseconds: the same work summed in another order must not look like progress.
    return (round(total, 3), *(round(us, 3) for us in sorted(times, reverse=True)))


def _moves(
    mapping: dict[str, int], home: Assignment, times: Sequence[float], data_parallel: bool
) -> Iterator[dict[str, int]]:
    busiest, idlest = times.index(max(times)), times.index(min(times))
    for feature, gpu in mapping.items():
        if gpu not in (busiest, EVERYWHERE):
            continue
        targets = {idlest, home[feature]} | ({EVERYWHERE} if data_parallel else set())
        for target in sorted(targets - {gpu}):
            yield {**mapping, feature: target}

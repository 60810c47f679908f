"""Our planner's plans, run: within the cap, with the plain run's bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import autotm
import autotm_networks
import autotm_plans
import pytest
import torch
from autotm.executor.errors import BudgetError
from autotm.executor.profiling import Measured
from autotm.executor.workspace import Width, _fastest
from autotm.fitting import Fitted, timed
from autotm.graph import Graph, Machine, Plan
from autotm.planner.model import NoPlan
from autotm.planner.ours import plan as ours
from torch import nn

LOSS = nn.functional.cross_entropy


def even(graph: Graph, machine: Machine, rate: float) -> Plan:
    """Planned for a link of `rate` bytes/s and operators of a millisecond each.

    Not for measured times: on a busy host an operator may take so long that a copy over any link
    hides beside it. How good a plan is does not matter here: it need not be the best within 1 %.
    """
    ops = tuple(replace(op, seconds=1e-3) for op in graph.ops)
    return ours(replace(graph, ops=ops), replace(machine, to_host=rate, from_host=rate), gap=0.1)


def fast(graph: Graph, machine: Machine) -> Plan:
    """A link over which all that leaves is free."""
    return even(graph, machine, 1e12)


def slow(graph: Graph, machine: Machine) -> Plan:
    """A link over which nothing is worth to be sent."""
    return even(graph, machine, 1e5)


def bounds(module: nn.Module, sample: Sequence[torch.Tensor]) -> tuple[int, int]:
    """The least budget that can be, and one with which everything is kept."""
    with pytest.raises(BudgetError) as error:
        autotm.fit(module, sample, LOSS, budget=1)
    step = autotm.fit(module, sample, LOSS, budget="1GB", planner=lambda g, m: autotm_plans.kept(g))
    step.close()
    return error.value.least, 10**9 - step.fit.machine.capacity + step.fit.plan.peak_bytes


def within(
    module: nn.Module, sample: Sequence[torch.Tensor], share: float, planner: object = None
) -> Fitted:
    """Fitted into a share of the way from the least budget to the largest."""
    least, most = bounds(module, sample)
    budget = int(least + share * (most - least))
    return autotm.fit(module, sample, LOSS, budget=budget, planner=planner)  # type: ignore[arg-type]


def fitted(name: str, share: float, planner: object = None) -> Fitted:
    return within(*autotm_networks.network(name), share, planner)


@pytest.mark.parametrize("planner", [fast, slow], ids=["fast link", "slow link"])
@pytest.mark.parametrize("name", ["residual", "transformer", "unet"])
def test_a_capped_step_has_the_plain_bits(name: str, planner: object) -> None:
    step = fitted(name, 0.6, planner)
    made_again = len(step.fit.plan.steps) - len(step.fit.graph.ops)
    moved = sum(stay.saved is not None for stay in step.fit.plan.stays)
    assert (made_again > 0) if planner is slow else (moved > 0)
    holds(step)


def test_a_step_planned_by_measured_times_has_the_plain_bits() -> None:
    holds(fitted("residual", 0.6))


def holds(step: Fitted) -> None:
    found = step.measure(1)
    assert found.differ == ()
    assert found.arena == step.fit.plan.peak_bytes <= step.fit.machine.capacity
    step.close()


def only_kept(graph: Graph, machine: Machine) -> Plan:
    found = autotm_plans.kept(graph)
    if found.peak_bytes > machine.capacity:
        raise NoPlan("no room")
    return found


def test_a_budget_for_which_no_plan_is_found_names_the_least_one() -> None:
    module, sample = autotm_networks.network("unet")
    least, most = bounds(module, sample)
    with pytest.raises(BudgetError, match="the least for which a plan was found") as error:
        autotm.fit(module, sample, LOSS, budget=least, planner=only_kept)
    assert most - 512 < error.value.least <= most  # addresses are multiples of 512
    autotm.fit(module, sample, LOSS, budget=most, planner=only_kept).close()


def test_workspace_is_what_makes_a_step_fastest_within_its_budget() -> None:
    """By an estimate: what does not fit leaves and comes back."""
    module, sample = autotm_networks.network("unet")
    found = timed(module, sample, LOSS)
    most, count = found.graph.peak_bytes, len(found.capture.calls)

    def width(seconds: float, workspace: int) -> Width:
        times = [Measured(seconds / count, workspace) for _ in range(count)]
        return Width([None for _ in times], times)

    every = [width(1.0, most), width(0.9, most // 4), width(0.901, most // 8), width(1.2, 0)]
    link = replace(found.rates, to_host=most, from_host=most, duplex=True)
    tried = replace(found, widths=every, rates=link)
    slow = replace(tried, rates=replace(link, to_host=most / 10))
    fits = found.capture.resident_bytes + most + most // 8
    assert tried.best_width(math.inf) == 2  # as fast as the fastest, with less
    assert tried.best_width(fits) == slow.best_width(fits) == 2
    assert tried.best_width(fits - most // 8) == 2  # an eighth of a second, mostly hidden
    assert slow.best_width(fits - most // 8) == 3  # more than a second
    assert tried.best_width(1) == 3  # none fits: the one that needs the least
    assert tried.narrowed(3).graph.seconds == pytest.approx(1.2)
    assert tried.narrowed(3).outside == tried.narrowed(0).outside - most


def test_a_step_with_less_workspace_is_refused_in_another_thread() -> None:
    """PyTorch keeps to an algorithm of cuDNN by the thread."""
    module, sample = autotm_networks.network("mlp")
    free = timed(module, sample, LOSS)
    limits = [0 for _ in free.capture.calls]
    limited = replace(free, widths=[replace(free.widths[0], limits=limits)])
    for found in (free, limited):
        step = found.fitted(autotm_plans.kept(found.graph), 10**9)
        step(*sample).backward()
        with ThreadPoolExecutor(1) as pool:
            elsewhere = pool.submit(step, *sample)
            if found is free:
                elsewhere.result().backward()
            else:
                with pytest.raises(ValueError, match="fitted in another thread"):
                    elsewhere.result()
        step.close()


def test_a_width_has_narrower_limits_where_these_are_faster() -> None:
    fast, slow, alike = Measured(1.0, 5), Measured(2.0, 5), Measured(1.99, 5)
    wide = Width([None, None, 8], [fast, slow, slow])
    narrow = Width([4, 4, 4], [slow, fast, alike])
    assert _fastest(wide, narrow) == Width([None, 4, 8], [fast, fast, slow])

"""Claims of real training put points together that were measured one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import product

import pytest

from ae.claims.tables import load_claims
from ae.model import Machine
from ae.plan.gpus import unknown_gpu
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.load import load_recipe
from ae.records.files import Row
from tests.judged import judge
from tests.upstream import ROOT

RECIPE = load_recipe(ROOT, "autotm")
NETS = RECIPE.values_of("rivals", "real_net")
CAPS = ("0.8", "0.6", "0.4", "0.3", "0.2")
RIVALS = RECIPE.values_of("rivals", "rival")
UNCAPPED = {"first": 1.1, "fastest": 0.97, "same": 1.0}  # seconds of the plain step, by workspace
Gain = Callable[[str, str, str], float]  # of ours beside a rival, by net, cap and rival


def row(metric: str, value: float, experiment: str, **labels: str) -> Row:
    point = "-".join(value for name, value in labels.items() if name not in ("cap", "variant"))
    return Row(
        metric=metric, unit="1", evidence="measured", samples=(value,) * 5, labels=labels,
        experiment=experiment, point=point, process=point,
    )  # fmt: skip


def training(gain: Gain = lambda net, cap, rival: 1.2) -> list[Row]:
    """What the points of `rivals` write: ours takes 1 s."""
    rows = []
    for net, cap, rival in product(NETS, CAPS, RIVALS):
        point = {"real_net": net, "cap": cap, "rival": rival}
        rows += [
            row("iteration_time", 1.0, "rivals", variant="Ours", **point),
            row("prediction_error", -2.0, "rivals", variant="Ours", **point),
            row("dominated", 0.0, "rivals", **point),
            row("comparable", 1.0, "rivals", **point),
        ]
        if rival == "plain":
            for kind, seconds in UNCAPPED.items():
                rows.append(row("uncapped_time", seconds, "rivals", workspace=kind, **point))
        else:
            rows.append(row("rival_time", gain(net, cap, rival), "rivals", **point))
    return rows


def batches(ours: float = 2.0, rival: float = 1.5) -> list[Row]:
    gains = {"Ours": ours, "checkpoint": rival, "offload_activations": 1.1}
    return [
        row("batch_gain", gain, "largest_batch", real_net=net, budget_gb=budget, contender=system,
            variant=system)
        for net, budget, (system, gain) in product(NETS, ("10.2", "80", "141"), gains.items())
    ]  # fmt: skip


def verdicts(rows: list[Row]) -> dict[str, str]:
    found = judge(load_claims(ROOT, "autotm"), rows, {"gpu": "NVIDIA H200"})
    return {one.id: str(one.verdict) for one in found if one.id.startswith("R-")}


def front(found: dict[str, str], rivals: Collection[str] = RIVALS) -> set[str]:
    """The verdicts on whether a point of one of these is both faster and smaller."""
    return {found[f"R-front.{rival}"] for rival in rivals if rival != "plain"}


def test_each_point_is_a_network_and_a_rival_at_all_caps() -> None:
    machine = Machine(gpus=(unknown_gpu("0"),))
    chosen = Selection(experiments=("rivals", "rivals_compiled", "largest_batch"))
    points = make_plan(RECIPE, chosen, machine, ROOT, {"autotm": "1"}).points
    assert len(points) == len(NETS) * (11 + 3 * 3)
    caps = ",".join((*CAPS, "10.2GB"))
    assert all(caps in point.argv for point in points if "rival" in point.labels)
    assert max(point.expected_s for point in points) < 0.95 * 25 * 60  # of a lease of 30 minutes
    names = {point.labels["rival"] for point in points if "rival" in point.labels}
    assert names == set(RECIPE.axes["rival"].values)


def test_points_that_hold() -> None:
    found = verdicts(training() + batches())
    assert front(found) == {"reproduced"}
    rest = {name: verdict for name, verdict in found.items() if verdict != "reproduced"}
    compiled = {f"R-front.{name}" for name in RECIPE.experiments["rivals_compiled"].only["rival"]}
    assert rest == dict.fromkeys({*compiled, "R-faster-compiled"}, "not run")


def test_ours_is_held_to_the_fastest_plain_step_whatever_its_workspace() -> None:
    for kind in UNCAPPED:
        slow = [one for one in training() if one.labels.get("workspace") != kind]
        assert verdicts(slow)["R-60"] == "not run"
        point = {"real_net": NETS[0], "cap": "0.6", "rival": "plain", "workspace": kind}
        rows = [one for one in training() if {**one.labels, **point} != one.labels]
        fast = verdicts([*rows, row("uncapped_time", 0.9, "rivals", **point)])
        assert fast["R-60"] == "not reproduced"


def cell(found: Row, metric: str) -> bool:
    place = found.labels.get("real_net"), found.labels.get("cap"), found.labels.get("rival")
    return found.metric == metric and place == (NETS[-1], "0.4", "checkpoint")


def test_one_point_that_ours_is_dominated_in_is_enough() -> None:
    rows = [one for one in training() if not cell(one, "dominated")]
    assert verdicts(rows)["R-front.checkpoint"] == "not run"  # ours was void beside that rival
    point = {"real_net": NETS[-1], "cap": "0.4", "rival": "checkpoint"}
    found = verdicts([*rows, row("dominated", 1.0, "rivals", **point)])
    assert front(found, ["checkpoint"]) == {"not reproduced"}
    assert front(found, [one for one in RIVALS if one != "checkpoint"]) == {"reproduced"}


@pytest.mark.parametrize("there", [("plain",), ("plain", "checkpoint"), RIVALS])
def test_rivals_that_nobody_ran_or_ours_is_void_beside_are_missed(there: tuple[str, ...]) -> None:
    void = [
        one for one in training()
        if one.labels["rival"] in there
        and (one.labels["rival"] != "checkpoint" or one.metric == "iteration_time")
    ]  # fmt: skip
    alone = [one for one in training() if one.labels["rival"] in there]
    for rows in [void, alone] if there != RIVALS else [void]:
        found = verdicts(rows)
        seen = {one.labels["rival"] for one in rows if one.metric == "dominated"}
        assert front(found, {*RIVALS} - seen) == {found["R-faster"]} == {"not run"}


def test_a_rival_that_cannot_run_or_reach_a_cap_has_no_time() -> None:
    rows = training()
    without = [one for one in rows if one.labels["rival"] != "torchtune_offload"]
    without = [one for one in without if not cell(one, "rival_time")]
    found = verdicts(without)
    assert front(found, ["torchtune_offload"]) == {"not run"}
    assert front(found, [one for one in RIVALS if one != "torchtune_offload"]) == {"reproduced"}
    assert found["R-faster"] == "reproduced"


def at(found: Row, net: str, cap: str) -> bool:
    return (found.labels["real_net"], found.labels["cap"]) == (net, cap)


def test_a_cap_that_nobody_trains_at_decides_nothing() -> None:
    rows = [one for one in training() if not at(one, NETS[0], "0.2")]
    missing = verdicts(rows)
    assert front(missing) | {missing["R-faster"], missing["R-error"]} == {"not run"}
    for rival in RIVALS:
        point = {"real_net": NETS[0], "cap": "0.2", "rival": rival}
        rows += [row(name, 0.0, "rivals", **point) for name in ("dominated", "comparable")]
    found = verdicts(rows)
    assert front(found) | {found["R-faster"], found["R-error"]} == {"reproduced"}


def test_where_ours_has_no_plan_and_a_rival_trains_it_is_told() -> None:
    there = {"real_net": NETS[0], "cap": "0.3", "rival": "checkpoint"}
    rows = [one for one in training() if not there.items() <= one.labels.items()]
    rows += [row("rival_time", 1.2, "rivals", **there), row("dominated", 1.0, "rivals", **there)]
    found = verdicts(rows)
    assert front(found, ["checkpoint"]) == {"not reproduced"}
    assert found["R-faster"] == "not run"


@pytest.mark.parametrize(("least", "verdict"), [(1.1, "not reproduced"), (1.16, "reproduced")])
def test_the_rival_that_ours_gains_least_on_counts(least: float, verdict: str) -> None:
    found = verdicts(training(lambda net, cap, rival: least if rival == RIVALS[2] else 2.0))
    assert found["R-faster"] == verdict


@pytest.mark.parametrize(("ours", "rival"), [(1.0, 0.5), (2.0, 2.1)])
def test_a_batch_that_is_no_larger_is_told(ours: float, rival: float) -> None:
    rows = [one for one in batches() if one.labels["real_net"] != NETS[0]]
    assert verdicts(rows)[f"R-batch.{NETS[0]}"] == "not run"
    rows += [one for one in batches(ours, rival) if one.labels["real_net"] == NETS[0]]
    found = verdicts(rows)
    batch = {net: found[f"R-batch.{net}"] for net in NETS}
    assert batch == dict.fromkeys(NETS, "reproduced") | {NETS[0]: "not reproduced"}

"""Which points decide a claim: never too few, which the reference results show for every claim."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ae.claims.deciding import can_be_judged, cells, deciding, incomplete, writers
from ae.claims.judge import Claim, Judgement, Verdict, judge
from ae.claims.tables import load_claims
from ae.plan.selection import is_protocol
from ae.records.files import Row
from ae.records.results import Results, load_reference

ROOT = Path(__file__).resolve().parents[2]
SETS = [
    path.parent
    for path in sorted((ROOT / "results/reference").glob("*/*/runs"))
    if (ROOT / "recipes" / path.parent.name).is_dir()
]


@dataclass(frozen=True)
class Spot:
    id: str
    experiment: str = "e"
    labels: dict[str, str] = field(default_factory=dict)
    variants: tuple[str, ...] = ()


POINTS = [
    Spot("hot", labels={"data": "hot"}, variants=("slow", "fast")),
    Spot("hot-r1", labels={"data": "hot"}, variants=("slow", "fast")),
    Spot("cold", labels={"data": "cold"}, variants=("slow", "fast")),
    Spot("other", experiment="f", labels={"data": "hot"}, variants=("slow",)),
    Spot("plain", experiment="g"),
]


def make_claim(expression: str | None, **more: object) -> Claim:
    plain = {
        "id": "C", "figure": "1", "sentence": "So.", "tag": "order", "paper_hardware": "none",
        "scored_on": ["any"], "source": "paper", "expression": expression,
    }  # fmt: skip
    return Claim.model_validate({**plain, **more})


@pytest.mark.parametrize(
    ("expression", "points"),
    [
        ("median(t, experiment=e, data=hot) > 1", "hot hot-r1"),
        ("ratio(t, experiment=e, data=hot/cold) > 1", "hot hot-r1 cold"),
        ("every_over(median(t, experiment=e) > 1, data=[cold])", "cold"),
        ("every_over(median(t, experiment=e) > 1, data=found)", "hot hot-r1 cold"),
        ("median(t, experiment=f) > median(t, experiment=g)", "other plain"),
        ("median(t, experiment=e, variant=fast, data=cold) > 1", "cold"),
        ("median(t, experiment=f, variant=fast) > 1", ""),  # no point has it
        ("median(t, experiment=e) > 1 and median(t, experiment=nowhere) > 1", ""),
        ("median(t, experiment=g, variant=fast, label=x) > 1", "plain"),  # it may write so
        ("median(t, data=hot) > 1", "hot hot-r1 other plain"),  # of an unknown metric, all
        ("median(known, data=hot) > 1", "other"),
    ],
)
def test_a_claim_needs_every_point_that_can_write_its_records(expression: str, points: str) -> None:
    found = deciding(make_claim(expression), POINTS, {"known": ["f"]})
    assert found == frozenset(points.split())


def test_labels_of_the_whole_claim_count_and_unread_claims_need_nothing() -> None:
    claim = make_claim("median(t) > 1", where={"experiment": "e", "data": "cold"})
    assert cells(claim) == [{"experiment": "e", "data": "cold", "metric": "t"}]
    assert deciding(claim, POINTS, {}) == {"cold"}
    assert cells(make_claim(None, transcribed=False)) == []


def test_a_claim_over_what_is_found_is_not_run_while_there_may_be_more() -> None:
    found = make_claim("every_over(median(t, experiment=e) > 1, data=found)")
    closed = make_claim("every_over(median(t, experiment=e) > 1, data=[hot])")
    missing = POINTS[2:3]
    holds, failed = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED

    def after(claim: Claim, verdict: Verdict, missing: list[Spot]) -> Verdict:
        judged = Judgement(claim=claim, verdict=verdict, reason="r")
        (one,) = incomplete([judged], missing, {})
        assert (one.reason == "r") == (one.verdict is verdict)
        return one.verdict

    assert after(found, holds, missing) is Verdict.NOT_RUN
    assert after(found, Verdict.DIRECTION, missing) is Verdict.NOT_RUN
    assert after(found, Verdict.UNDECIDED, missing) is Verdict.NOT_RUN
    assert after(found, failed, missing) is failed  # what is broken stays broken
    assert after(found, holds, []) is holds
    assert after(found, holds, POINTS[3:]) is holds  # of other experiments
    assert after(closed, holds, POINTS[1:2]) is holds  # a process less of the same cell


@pytest.fixture(scope="module", params=SETS, ids=lambda path: f"{path.parent.name}/{path.name}")
def results(request: pytest.FixtureRequest) -> Results:
    return load_reference(request.param)


@pytest.fixture(scope="module")
def judgements(results: Results) -> list[Judgement]:
    return judge(load_claims(ROOT, results.recipe), results.rows)


def test_the_deciding_points_alone_give_the_same_verdict(
    results: Results, judgements: list[Judgement]
) -> None:
    """Of every claim of every recipe that the reference decides, to the last digit; but what one
    cell breaks is broken, also where others have no point."""
    points, wrote = spots(results), writers(results.rows)
    decided: dict[frozenset[str], list[Judgement]] = {}
    for one in judgements:
        if one.verdict not in (Verdict.NOT_RUN, Verdict.NOT_TRANSCRIBED):
            decided.setdefault(deciding(one.claim, points, wrote), []).append(one)
    assert decided
    assert {one.verdict for one in decided.pop(frozenset(), ())} <= {Verdict.NOT_REPRODUCED}
    for need, judged in decided.items():
        rows = [row for row in results.rows if row.process.split("/")[1] in need]
        assert judge([one.claim for one in judged], rows) == judged


def test_what_can_be_judged_is_what_is_comparable(
    results: Results, judgements: list[Judgement]
) -> None:
    """On the hardware of the records, as the judge itself says."""
    smaller = [word for origin in results.origins for word in origin.reduced]
    assert all(map(is_protocol, smaller))
    for one in judgements:
        if one.verdict in (Verdict.NOT_RUN, Verdict.NOT_TRANSCRIBED) or not one.hardware:
            continue
        comparable = one.verdict is not Verdict.NOT_COMPARABLE
        assert can_be_judged(one.claim, one.hardware, []) == comparable, one


def test_a_small_run_is_judged_on_static_facts_alone() -> None:
    measured = make_claim("median(t) > 1")
    static = make_claim("median(t) > 1", evidence=["static"])
    assert not can_be_judged(measured, ["CPU"], ["--quick"])
    assert can_be_judged(measured, ["CPU"], ["--set samples=3"])
    assert can_be_judged(static, ["CPU"], ["--quick"])
    nvidia = make_claim("median(t) > 1", scored_on=["NVIDIA"])
    assert can_be_judged(nvidia, ["NVIDIA T4"], [])
    assert not can_be_judged(nvidia, ["NVIDIA T4", "CPU"], [])
    other = make_claim("median(t)", scored_on=["A100"], reference=2, lower=1, direction="> 1")
    assert can_be_judged(other, ["NVIDIA T4"], [])
    assert not can_be_judged(other, ["CPU"], [])


def spots(results: Results) -> list[Spot]:
    each = ((p.folder.name, p.status) for p in results.points)
    return [Spot(name, s.experiment, s.labels, s.variants) for name, s in each]


def test_writers_are_the_experiments_of_a_metric() -> None:
    rows = load_reference(SETS[-1]).rows if SETS else []
    first = rows[0]
    found = writers([first, replace(first, experiment="another"), replace(first, metric="m")])
    assert found == {first.metric: {first.experiment, "another"}, "m": {first.experiment}}


def test_a_variant_that_comes_unasked_is_of_the_points_that_bring_it() -> None:
    asked = {"experiment": "e", "labels": {"variant": "fast"}, "argv": ("--variants", "fast,slow")}
    rows = [
        Row(metric="t", unit="s", evidence="measured", samples=(1.0,), point="p", **more)
        for more in (asked, {**asked, "labels": {"variant": "plain"}})
    ]
    known = writers(rows)
    assert known == {"t": {"e"}, "variant=plain": {"e"}}
    baseline = make_claim("ratio(t, experiment=e, data=cold, variant=fast/plain) > 1")
    assert deciding(baseline, POINTS, known) == {"cold"}
    assert deciding(baseline, POINTS, {"t": {"e"}}) == frozenset()

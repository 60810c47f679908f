"""A time and what it is spent on: closed sets of points, the most claims a second, nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ae.errors import ExitCode, UsageError
from ae.model import Flavour, ImageRef, Point, RuntimeNeeds
from ae.plan.budget import Budget, Choice, choose, parse_budget

SECONDS = {"a": 10.0, "b": 10.0, "c": 30.0, "d": 5.0}
NEEDS = {
    "ab1": frozenset("ab"),
    "ab2": frozenset("ab"),
    "ab3": frozenset("ab"),
    "a": frozenset("a"),
    "abc": frozenset("abc"),
    "d": frozenset("d"),
}


def make_point(name: str, seconds: float, experiment: str = "") -> Point:
    image = ImageRef(name="i", flavour=Flavour.CPU, content="c", source=Path("/i"))
    return Point(
        id=name, recipe="r", experiment=experiment or name, labels={}, variants=(), argv=("x",),
        env={}, image=image, needs=RuntimeNeeds(), timeout_s=1, expected_s=seconds, disk_bytes=1,
        key=name,
    )  # fmt: skip


def make_budget(limit_s: float, **more: object) -> Budget:
    points = [make_point(name, seconds) for name, seconds in SECONDS.items()]
    return Budget(**{"limit_s": limit_s, "points": points, "needs": NEEDS, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["0", "soon", "0s", "-5m", "20", ""])
def test_a_budget_is_a_time_above_nothing(word: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_budget(word)
    assert error.value.exit_code is ExitCode.USAGE
    assert "--budget 20m" in error.value.fix
    assert parse_budget("1h30m") == 5400


@pytest.mark.parametrize(
    ("limit_s", "points", "claims"),
    [
        (4, "", ""),
        (5, "d", "d"),
        (19, "da", "d a"),  # both are not had for 19 s; a alone decides one in ten seconds
        (20, "ab", "ab1 ab2 ab3 a"),  # a whole set is worth more than d, which came cheaper
        (25, "abd", "ab1 ab2 ab3 a d"),
        (54, "abd", "ab1 ab2 ab3 a d"),
        (55, "abdc", "ab1 ab2 ab3 a d abc"),
    ],
)
def test_chosen_is_what_decides_most_in_the_time(limit_s: float, points: str, claims: str) -> None:
    choice = choose(NEEDS, SECONDS, limit_s)
    assert "".join(choice.points) == points
    assert choice.claims == claims.split()
    assert choice.seconds == sum(SECONDS[name] for name in points)
    assert {name for step in choice.left for name in step.points} == set("abcd") - set(points)


def test_what_has_run_costs_nothing_and_counts() -> None:
    choice = choose(NEEDS, SECONDS, 10, {"a", "d"})
    assert choice.decided == ("a", "d")
    assert choice.points == ["b"]
    assert choice.claims == ["a", "d", "ab1", "ab2", "ab3"]
    assert [(step.points, step.claims, step.seconds) for step in choice.left] == [
        (("c",), ("abc",), 30.0)
    ]


names = st.sampled_from("abcdefgh")


@given(
    needs=st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.frozensets(names, min_size=1)),
    seconds=st.fixed_dictionaries({n: st.floats(0.1, 100) for n in "abcdefgh"}),
    limit_s=st.floats(0, 300),
    done=st.frozensets(names),
)
def test_no_claim_is_counted_without_all_its_points(
    needs: dict[str, frozenset[str]],
    seconds: dict[str, float],
    limit_s: float,
    done: frozenset[str],
) -> None:
    choice = choose(needs, seconds, limit_s, done)
    assert choice == choose(needs, seconds, limit_s, done)
    assert choice.seconds <= limit_s * (1 + 1e-9)
    there = done | set(choice.points)
    assert done.isdisjoint(choice.points)
    assert len(set(choice.points)) == len(choice.points)
    assert set(choice.claims) == {claim for claim, need in needs.items() if need <= there}
    left = [claim for step in choice.left for claim in step.claims]
    assert sorted([*choice.claims, *left]) == sorted(needs)
    spare = limit_s - choice.seconds - 1e-6  # and nothing that fits is left out
    assert all(sum(seconds[n] for n in need - there) > spare for c, need in needs.items()
               if c in left)  # fmt: skip


def test_the_pace_is_that_of_the_same_experiment_then_of_measured_times() -> None:
    points = [
        make_point("a0", 10, "a"), make_point("a1", 10, "a"),
        make_point("b0", 10, "b"), make_point("c0", 10, "c"),
    ]  # fmt: skip
    budget = Budget(limit_s=99, points=points, needs={}, measured=frozenset({"a0", "a1", "c0"}))
    assert budget.seconds({}) == {"a0": 10, "a1": 10, "b0": 10, "c0": 10}
    assert budget.seconds({"a0": 20}) == {"a0": 20, "a1": 20, "b0": 20, "c0": 20}
    # b is only known from the recipe: how wrong that is says nothing of the others.
    assert budget.seconds({"b0": 90}) == {"a0": 10, "a1": 10, "b0": 90, "c0": 10}
    took = {"a0": 20.0, "b0": 90.0}
    assert budget.seconds(took) == {"a0": 20, "a1": 20, "b0": 90, "c0": 20}


class Here:
    """A machine on which points take so many times as long as they are expected to."""

    def __init__(self, budget: Budget, slower: Mapping[str, float], fails: str = "") -> None:
        self.clock, self.took = 0.0, dict[str, float]()
        self.seen: list[Choice] = []
        self.ran = []
        for point in budget.order(lambda: self.took, lambda: self.clock, self.seen.append):
            self.ran.append(point.id)
            self.clock += point.expected_s * slower.get(point.id, 1.0)
            if point.id not in fails:
                self.took[point.id] = point.expected_s * slower.get(point.id, 1.0)


def test_points_run_as_chosen_and_the_last_choice_runs_nothing() -> None:
    here = Here(make_budget(55), {})
    assert here.ran == ["a", "b", "d", "c"]
    assert len(here.seen) == 5
    assert here.seen[0].points == here.ran
    assert not here.seen[-1].points
    assert len(here.seen[-1].claims) == 6


def test_a_slower_machine_is_noticed_and_gets_less_to_do() -> None:
    here = Here(make_budget(55, measured=frozenset("abcd")), dict.fromkeys("abcd", 2.0))
    assert here.ran == ["a", "b", "d"]  # after a, c takes 60 s of the 35 that are left
    assert here.seen[1].points == ["b", "d"]
    assert here.clock <= 55
    assert [step.seconds for step in here.seen[-1].left] == [60.0]


def test_the_time_that_has_gone_is_gone() -> None:
    needs = {name: frozenset({name}) for name in SECONDS}
    budget = make_budget(25, needs=needs, measured=frozenset(SECONDS))
    assert budget.choice(25, {}).points == ["d", "a", "b"]
    here = Here(budget, dict.fromkeys(SECONDS, 1.5))
    assert here.ran == ["d", "a"]  # 7.5 s and 15 s; b would take 15 s of the 2.5 s that are left
    assert here.clock == 22.5


def test_a_faster_machine_gets_more_to_do() -> None:
    budget = make_budget(25, measured=frozenset("abcd"))
    here = Here(budget, dict.fromkeys("abcd", 0.25))
    assert budget.choice(25, {}).points == ["a", "b", "d"]
    assert here.ran == ["a", "b", "d", "c"]


def test_a_point_that_fails_takes_its_claims_along_and_is_not_tried_again() -> None:
    here = Here(make_budget(100), {}, fails="b")
    assert here.ran == ["a", "b", "d"]  # c would only decide what b decides with it
    assert here.seen[-1].claims == ["a", "d"]


def test_too_little_time_is_refused_with_what_would_do() -> None:
    with pytest.raises(UsageError, match="no claim can be decided within 4 s") as error:
        make_budget(4).require({})
    assert error.value.fix == "--budget 1m is enough for 1 claim"
    make_budget(4).require(dict.fromkeys("abcd", 1.0))  # all is done
    with pytest.raises(UsageError, match="no claim needs"):
        make_budget(60, needs={}).require({})


@pytest.mark.parametrize("width", [80, 100])
def test_the_text_says_what_is_left_out_and_what_it_takes(width: int) -> None:
    budget = make_budget(25, notes=["a note " + "of many words " * 12])
    said = budget.text(budget.require({}), width)
    assert max(map(len, said.splitlines())) <= width
    first, *_ = said.splitlines()
    assert first == "budget 25 s: 3 of 4 points, about 25 s, to decide 5 of 6 claims"
    assert said.splitlines()[-2:] == [
        "left out, and not run:", "  1 claim for 30 s more: c (1 point)"
    ]  # fmt: skip


def test_many_steps_are_put_together() -> None:
    points = [make_point(f"p{i}", 10 + i) for i in range(9)]
    needs = {f"c{i}": frozenset({f"p{i}"}) for i in range(9)}
    budget = Budget(limit_s=10, points=points, needs=needs)
    lines = budget.left_out(budget.require({}))
    assert len(lines) == 7
    assert lines[1] == "  1 claim for 11 s more: p1 (1 point)"
    assert lines[-1] == "  3 claims for another 51 s"


def test_the_order_asks_for_one_point_at_a_time() -> None:
    def endless(took: Callable[[], Mapping[str, float]]) -> Iterator[Point]:
        return make_budget(100).order(took, lambda: 0.0, lambda _: None)

    order = endless(dict)
    assert next(order).id == "a"
    order.close()  # Ctrl-C: nothing else is started
    assert list(order) == []

"""Claims: the loader's errors and every verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ae.claims.judge import (
    Claim,
    Judgement,
    Verdict,
    exit_code,
    runs_on,
    scoreboard,
    to_json,
    verdict_lines,
)
from ae.claims.tables import load_claims
from ae.errors import ExitCode, RecipeError, UsageError
from ae.recipe.load import list_recipes
from ae.records.files import Environment, Row
from tests.judged import judge
from tests.toy import make_toy

ROOT = Path(__file__).resolve().parents[2]
A100: Mapping[str, Any] = {"gpu": "NVIDIA A100-SXM4-40GB"}
H200: Mapping[str, Any] = {"gpu": "NVIDIA H200"}
CPU: Mapping[str, Any] = {"gpu": None}
ORDERING: Mapping[str, Any] = {"reference": None, "lower": None, "upper": None}
RATIO = "median(time, variant=base) / median(time, variant=fast)"


def row(variant: str, *samples: float, evidence: str = "measured", **more: Any) -> Row:
    return Row(
        metric=more.pop("metric", "time"), unit="us", evidence=evidence, samples=samples,
        labels={"variant": variant}, experiment="e", point="e", **more,
    )  # fmt: skip


def spread(variant: str, *samples: float, **more: Any) -> list[Row]:
    """One sample a process."""
    return [row(variant, x, process=str(i), **more) for i, x in enumerate(samples)]


ROWS = [  # a ratio of 2
    *spread("base", 20.0, 20.1, 19.9, 20.05, 19.95), *spread("fast", 10.0, 10.1, 9.9, 10.0, 10.0)
]  # fmt: skip


def claim(**fields: Any) -> Claim:
    return Claim.model_validate(
        {
            "id": "C1", "figure": "Fig. 1", "sentence": "s", "tag": "magnitude", "reference": 2.0,
            "lower": 1.5, "upper": 2.5, "unit": "x", "paper_hardware": "NVIDIA A100 40GB",
            "scored_on": ["A100"], "source": "paper", "expression": RATIO,
        }
        | fields
    )  # fmt: skip


def _known(environment: Mapping[str, Any]) -> Environment:
    return Environment.model_validate(environment)


def one(
    environment: Mapping[str, Any],
    rows: list[Row] | None = None,
    reduced: tuple[str, ...] = (),
    **fields: Any,
) -> Judgement:
    return judge([claim(**fields)], ROWS if rows is None else rows, environment, reduced=reduced)[0]


@pytest.mark.parametrize(
    ("environment", "fields", "verdict"),
    [
        (A100, {}, "reproduced"),
        (A100, {"lower": 2.2}, "not reproduced"),
        (A100, {"upper": 1.9}, "not reproduced"),
        (A100, {"lower": 2.0, "upper": None}, "undecided"),
        (A100, {"lower": 1.9, "upper": None}, "reproduced"),
        (A100, {"lower": 2.2, "direction": "> 1"}, "not reproduced"),
        (H200, {}, "not comparable"),
        (H200, {"direction": "> 1"}, "direction holds"),
        (H200, {"direction": "> 2.5"}, "not reproduced"),
        (H200, {"direction": "<= 2"}, "undecided"),
        (H200, {"direction": "<= 2.1"}, "direction holds"),
        (CPU, {}, "not comparable"),
        (CPU, {"direction": "> 1"}, "not comparable"),
        (CPU, {"scored_on": ["any"]}, "reproduced"),
        (CPU, {"scored_on": ["any"], "lower": 2.2}, "not reproduced"),
        (H200, {"scored_on": ["A100", "H200"]}, "reproduced"),
        ({}, {}, "not comparable"),
        (A100, {"evidence": ["simulated"]}, "not comparable"),
        (A100, {"expression": RATIO.replace("fast", "slow")}, "not run"),
        (A100, {"transcribed": False, "reference": None}, "not transcribed"),
        (A100, {"transcribed": False, "expression": None}, "not transcribed"),
    ],
)
def test_numbers(environment: Mapping[str, Any], fields: dict[str, Any], verdict: str) -> None:
    found = one(environment, **fields)
    assert found.verdict == verdict
    assert found.reason


def test_no_infinity_reaches_a_verdict() -> None:
    huge = [row("base", 1e300, 1e300), row("fast", 1e-300, 1e-300)]
    found = one(A100, huge, upper=None)
    assert found.verdict == "not run"
    assert (found.value, found.low, found.high) == (None, None, None)
    ordering: dict[str, Any] = {"upper": None, "reference": None, "tag": "order"}
    found = one(A100, huge, expression=f"{RATIO} > 1", **ordering)
    assert found.verdict == "not run"
    assert "no finite number" in found.reason


def test_an_undefined_draw_leaves_a_bound_undecided() -> None:
    """Some draws of the divisor are nothing, the median is not: no such draw is left out."""
    rows = [*spread("base", *[4.0] * 5), *spread("fast", 0.0, 1.0, 1.0, 1.0, 0.0)]
    found = one(A100, rows, upper=None)
    assert (found.value, found.low, found.high, found.spread) == (4.0, None, None, "none")
    assert found.verdict is Verdict.UNDECIDED
    assert "the interval is undefined" in found.reason
    assert one(H200, rows, direction="> 1").verdict is Verdict.UNDECIDED
    ordering: dict[str, Any] = {"upper": None, "reference": None, "tag": "order"}
    for faster in (f"{RATIO} > 1", f"not {RATIO} < 1"):
        assert one(A100, rows, expression=faster, **ordering).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("environment", "fields", "verdict"),
    [
        (H200, {"scored_on": ["any"]}, "reproduced"),
        (CPU, {"scored_on": ["any"]}, "reproduced"),
        (H200, {}, "not comparable"),
        (A100, {}, "reproduced"),
        (A100, {"expression": "median(time, variant=base) < median(time, variant=fast)"},
         "not reproduced"),
    ],
)  # fmt: skip
def test_orderings(environment: Mapping[str, Any], fields: dict[str, Any], verdict: str) -> None:
    ordering = {
        **ORDERING,
        "expression": "median(time, variant=base) > median(time, variant=fast)",
    }  # fmt: skip
    found = one(environment, **(ordering | fields))
    assert found.verdict == verdict
    assert found.value is None


def test_static_claims_need_no_gpu() -> None:
    rows = [row("base", 74.0, evidence="static", metric="registers")]
    fields: dict[str, Any] = {
        **ORDERING,
        "scored_on": ["static"], "evidence": ["static"],
        "expression": "median(registers, variant=base) == 74",
    }  # fmt: skip
    for environment in (CPU, H200):
        found = one(environment, rows, **fields)
        assert found.verdict is Verdict.REPRODUCED
        assert found.hardware == ()
        assert found.reason == "holds"
    wrong = fields | {"expression": "median(registers, variant=base) == 73"}
    assert one(CPU, rows, **wrong).reason == "does not hold"


def test_the_value_comes_with_its_interval_and_samples() -> None:
    found = one(A100)
    assert found.value == pytest.approx(2.0)
    assert found.low is not None
    assert found.high is not None
    assert 1.9 < found.low <= 2.0 <= found.high < 2.1
    assert (found.n, found.processes, found.devices, found.spread) == (10, 5, 1, "ci95")
    assert one(A100, [row("base", 20.0, 20.0, 20.0), row("fast", 10.0, 10.0)]).n == 5
    assert found.hardware == ("NVIDIA A100-SXM4-40GB",)
    assert found.evidence == ("measured",)
    assert found.reason == "1.5 to 2.5 x expected; paper: 2 x"


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ({"lower": 1.999, "upper": None}, "undecided"),
        ({"lower": 2.001, "upper": None}, "undecided"),  # the value is outside, an end is inside
        ({"lower": None, "upper": 2.001}, "undecided"),
        ({"lower": 1.9, "upper": 2.1}, "reproduced"),
        ({"lower": 2.1, "upper": None}, "not reproduced"),
    ],
)
def test_a_promise_needs_the_end_of_the_interval(bounds: dict[str, Any], verdict: str) -> None:
    found = one(A100, **bounds)
    assert found.verdict == verdict
    assert ("the 95 % interval crosses the bound" in found.reason) == (verdict == "undecided")


def test_of_two_to_four_processes_the_range_decides() -> None:
    rows = [*spread("base", 20.0, 22.0, 21.0), *spread("fast", 10.0, 10.0, 10.0)]
    rows += rows  # two samples a process
    found = one(A100, rows, lower=1.9)
    assert (found.low, found.high, found.spread) == (2.0, 2.2, "range")
    assert found.verdict is Verdict.REPRODUCED
    found = one(A100, rows, lower=2.05)
    assert found.verdict is Verdict.UNDECIDED
    assert "the range of the processes crosses the bound" in found.reason


def test_of_one_process_the_value_decides_and_the_verdict_says_so() -> None:
    rows = [row("base", 20.0, 30.0, 10.0, 20.0, 20.0), row("fast", 10.0, 9.0, 12.0, 10.0, 10.0)]
    found = one(A100, rows, lower=1.999)
    assert found.verdict is Verdict.REPRODUCED
    assert found.reason.endswith("; 1 process")
    assert (found.low, found.high) == (None, None)
    assert one(A100, rows, lower=2.001).verdict is Verdict.NOT_REPRODUCED
    few = [*spread("base", 20.0, 20.1), *spread("fast", 10.0, 10.1)]
    assert one(A100, few).reason.endswith("; fewer than 5 samples")


def test_variants_of_one_point_that_two_runs_measured_are_not_paired_and_said_so() -> None:
    """A newer run of fewer variants leaves the others to the older one (`Results.rows`)."""
    old, new = ([row(name, *[20.0] * 5, process=f"{run}/e") for name in ("base", "fast")]
                for run in ("monday", "tuesday"))  # fmt: skip
    said = "variants of one point are of several runs"
    mixed = one(A100, [new[0], old[1]])
    assert (said in mixed.reason, mixed.verdict) == (True, Verdict.UNDECIDED)
    assert said not in one(A100, new).reason
    more = [row(name, *[20.0] * 5, process="monday/e-r1", repeat=1) for name in ("base", "fast")]
    moved = [Row(**{**vars(each), "point": "e-r1"}) for each in more]
    assert said not in one(A100, [*new, *moved]).reason, "another process of both variants"


def test_an_ordering_that_flips_is_undecided_and_says_how_often_it_holds() -> None:
    ordering: dict[str, Any] = {
        **ORDERING,
        "expression": "median(time, variant=base) > median(time, variant=fast)",
    }  # fmt: skip
    rows = [*spread("base", 5.0, 5.0, 5.0, 4.0, 4.0), *spread("fast", 4.5, 4.5, 4.5, 4.5, 4.5)]
    found = one(A100, rows, **ordering)
    assert found.verdict is Verdict.UNDECIDED
    share = float(found.reason.removeprefix("holds, as in ").partition("%")[0])
    assert 55 < share < 80
    assert one(A100, spread("base", 5.0) + spread("fast", 4.5), **ordering).reason.startswith(
        "holds;"
    )
    other = ordering | {"expression": "median(time, variant=base) < median(time, variant=fast)"}
    assert one(A100, rows, **other).verdict is Verdict.UNDECIDED
    four = [*rows[:4], *rows[5:9]] * 2
    assert one(A100, four, **ordering).verdict is Verdict.UNDECIDED


def test_of_a_range_no_draw_may_fall_on_the_other_side() -> None:
    """All three are 0 in one of 64 draws, which of a 95 % interval would be few enough."""
    rows = [
        row(name, value, value, process=f"{name}{number}")
        for name in "abc" for number, value in enumerate((1.0, 1.0, 1.0, 0.0))
    ]  # fmt: skip
    words = " + ".join(f"median(time, variant={name})" for name in "abc")
    found = one(A100, rows, reference=None, lower=None, upper=None, expression=f"{words} > 0.5")
    assert found.verdict is Verdict.UNDECIDED
    assert found.reason.startswith("holds, as in ")
    share = float(found.reason.removeprefix("holds, as in ").removesuffix("% of the draws"))
    assert 97.5 < share < 100
    above = one(A100, rows, reference=None, lower=None, upper=None, expression=f"{words} > 3.5")
    assert above.reason == "does not hold"
    most = one(A100, rows, reference=None, lower=None, upper=None, expression=f"{words} < 0.5")
    assert most.verdict is Verdict.UNDECIDED
    assert re.fullmatch(r"does not hold, but does in [12]\.\d% of the draws", most.reason)


@pytest.mark.parametrize(
    ("name", "wanted", "there"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100", True),
        ("NVIDIA A100 80GB PCIe", "A100", True),
        ("NVIDIA A100 80GB PCIe", "NVIDIA", True),
        ("NVIDIA RTX A1000", "A100", False),
        ("NVIDIA A1000 Laptop GPU", "A100", False),
        ("NVIDIA GH200 480GB", "H200", False),
        ("NVIDIA H200", "H200", True),
        ("NVIDIA GeForce RTX 2080 Ti", "2080 Ti", True),
        ("NVIDIA GeForce RTX 2080 Ti", "2080", False),
        ("NVIDIA GeForce RTX 3060", "RTX 3060", True),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "RTX 3060", False),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100", False),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA", False),
        ("AMD Instinct MI300X", "NVIDIA", False),
    ],
)
def test_hardware_is_matched_by_words(name: str, wanted: str, there: bool) -> None:
    assert runs_on(name, wanted) is there


def test_hardware_is_that_of_the_records() -> None:
    rows = [row("base", 20.0, environment=_known(A100)), row("fast", 10.0, environment=_known(CPU))]
    found = one(A100, rows)
    assert found.hardware == ("CPU", "NVIDIA A100-SXM4-40GB")
    assert found.verdict is Verdict.NOT_COMPARABLE
    rows = [
        row("base", 20.0, environment=_known(A100)),
        row("fast", 10.0, environment=_known(A100)),
    ]
    assert one(CPU, rows).verdict is Verdict.REPRODUCED


def test_a_reduced_run_is_not_scored() -> None:
    found = one(A100, reduced=("--quick",))
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert found.reason == "not at the paper's size: --quick"
    assert found.value == pytest.approx(2.0)


def test_what_one_run_reduced_is_not_scored_and_static_facts_are() -> None:
    rows = [row("base", 20.0, reduced=("--quick",)), row("fast", 10.0)]
    assert one(A100, rows).reason == "not at the paper's size: --quick"
    assert one(A100, rows).verdict is Verdict.NOT_COMPARABLE
    static = [row("base", 2.0, evidence="static", reduced=("--quick",)), row("fast", 1.0)]
    found = one(A100, static, evidence=["static", "measured"])
    assert found.verdict is Verdict.REPRODUCED
    assert one(A100, static, evidence=["static"]).verdict is Verdict.NOT_COMPARABLE


def test_measured_less_is_said_and_scored() -> None:
    rows = [row("base", 20.0, reduced=("--set repeats=1",)), row("fast", 10.0)]
    found = one(A100, rows)
    assert found.verdict is Verdict.REPRODUCED
    assert found.reason.endswith("; a reduced run: --set repeats=1")
    both = one(A100, rows, reduced=("--set rows=5",))
    assert both.verdict is Verdict.NOT_COMPARABLE
    assert both.reason == "not at the paper's size: --set rows=5"


def test_static_records_take_nothing_from_an_interval() -> None:
    static = [row("base", 20.0, evidence="static"), *ROWS[5:]]
    found = one(A100, static, evidence=["static", "measured"])
    assert found.spread == "ci95"
    alone = one(
        A100, [row("base", 20.0, evidence="static")], evidence=["static"], lower=19, upper=21,
        scored_on=["static"], expression="median(time, variant=base)",
    )  # fmt: skip
    assert alone.reason == "19 to 21 x expected; paper: 2 x"  # known exactly: no process is named


def test_the_bounds_themselves_are_inside() -> None:
    rows = [row("base", 20.0), row("fast", 10.0)]
    assert one(A100, rows, lower=2.0, upper=2.0).verdict is Verdict.REPRODUCED
    assert one(H200, rows, direction="< 2").verdict is Verdict.NOT_REPRODUCED
    assert one(H200, rows, direction="> 2").verdict is Verdict.NOT_REPRODUCED
    assert one(H200, rows, direction=">= 2").verdict is Verdict.DIRECTION
    assert one(H200, rows, direction="> -1.5").verdict is Verdict.DIRECTION


def test_every_gpu_must_be_one_that_is_scored() -> None:
    rows = [row("base", 20.0, environment=_known(H200)), row("fast", 10.0)]
    found = one(A100, rows)
    assert found.hardware == ("NVIDIA A100-SXM4-40GB", "NVIDIA H200")
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert one(A100, rows, direction="> 1").verdict is Verdict.DIRECTION
    rows = [row("base", 20.0, environment=_known(CPU)), row("fast", 10.0)]
    assert one(A100, rows, direction="> 1").verdict is Verdict.NOT_COMPARABLE


def test_a_band_of_a_negative_reference_is_around_it() -> None:
    found = claim(reference=-2.0, band="10 %")
    assert (found.lower, found.upper) == (-2.2, -1.8)


def test_bounds_and_sources_are_told() -> None:
    assert one(A100, upper=None).reason == "at least 1.5 x expected; paper: 2 x"
    assert one(A100, lower=None).reason == "at most 2.5 x expected; paper: 2 x"
    assert one(A100, source="third_party").reason.endswith("; third party: 2 x")
    assert one(A100, source="ours").reason == "1.5 to 2.5 x expected"
    assert one(A100, source="ours", lower=2.5).reason == "2.5 x expected"


def test_wrong_evidence_says_what_there_is() -> None:
    rows = [row("base", 1.0, evidence="emulated"), row("fast", 1.0, evidence="emulated")]
    found = one(A100, rows)
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert "emulated" in found.reason
    assert "only measured ones may serve" in found.reason


def test_a_division_by_nothing_is_not_run() -> None:
    found = one(A100, [row("base", 1.0), row("fast", 0.0)])
    assert found.verdict is Verdict.NOT_RUN
    assert "is 0" in found.reason


def test_exit_code() -> None:
    good, bad = one(A100), one(A100, lower=2.2)
    assert exit_code([good]) is ExitCode.OK
    assert exit_code([good, bad]) is ExitCode.CLAIM
    assert exit_code([one(H200), one(CPU), one(A100, transcribed=False)]) is ExitCode.OK
    assert exit_code([]) is ExitCode.OK


def test_json() -> None:
    verdicts = [one(A100), one(H200, id="C2"), one(H200, id="C3", direction="> 1")]
    data = json.loads(json.dumps(to_json(verdicts)))
    assert data["counts"]["reproduced"] == 1
    assert sum(data["counts"].values()) == 3
    assert data["claims"][2]["verdict"] == "direction holds"
    assert data["claims"][0]["scored_on"] == ["A100"]
    assert data["claims"][0]["hardware"] == ["NVIDIA A100-SXM4-40GB"]
    assert verdict_lines(verdicts).splitlines()[1:] == ["C2 not comparable", "C3 direction holds"]
    assert data["scoreboard"] == scoreboard(verdicts)
    assert data["claims"][0]["spread"] == "ci95"
    assert data["claims"][0]["processes"] == 5


def test_the_scoreboard_counts_a_fact_once_and_by_its_worst_verdict() -> None:
    several = [
        one(A100), one(A100, id="C1-upstream", fact="C1", lower=2.2),
        one(A100, id="C2", tag="ours"), one(A100, id="C1-order", fact="C1", tag="order"),
    ]  # fmt: skip
    board = scoreboard(several)
    assert scoreboard(several[::-1]) == board
    assert {tag: {w: n for w, n in row.items() if n} for tag, row in board.items()} == {
        "magnitude": {"not reproduced": 1}, "order": {"reproduced": 1}, "arithmetic": {},
        "ours": {"reproduced": 1},
    }  # fmt: skip
    assert scoreboard(several[::-1]) == board


# The loader.


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return make_toy(tmp_path / "toy")


@pytest.mark.parametrize("name", list_recipes(ROOT))
def test_the_claims_of_every_recipe_of_this_repository_load(name: str) -> None:
    assert load_claims(ROOT, name)


def test_a_recipe_without_claims(toy: Path) -> None:
    (toy / "recipes" / "toy" / "claims.yaml").unlink()
    assert load_claims(toy, "toy") == ()
    with pytest.raises(UsageError, match="no recipe"):
        load_claims(toy, "tyo")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id: T2", "id: T1", "T1: another claim has this id"),
        ("tag: order", "tag: ordering", "claims[0].tag: must be 'magnitude', 'order'"),
        ("    tag: order\n", "", "missing key 'tag' in claims[0]"),
        ("tag: order", "tag: order\n    lower: 1\n    reference: 1",
         "T1: an ordering has no lower"),
        ("every_over(dataset, ", "every_over(colour, ",
         "T1: the recipe does not know the values of 'colour': write colour=[a, b], or"),
        ("    lower: 4\n    upper: 12\n", "    band: much\n", "claims[1]: a band is a number"),
        ("defaults: {", "defaults: {tagg: order, ", "unknown key 'tagg' in claims[0]"),
        ("tag: order", "tag: order\n    where: {variant: fats}",
         "T1: unknown variant 'fats'; did you mean 'fast'?"),
        ("sentence: \"Fast is faster", "sentnce: \"Fast is faster",
         "unknown key 'sentnce' in claims[0]; did you mean 'sentence'?"),
        ("    reference: 8\n", "", "T2: a number without its reference"),
        ("    lower: 4\n    upper: 12\n", "", "T2: neither lower nor upper"),
        ("lower: 4\n", "lower: 40\n", "T2: lower is above upper"),
        ("direction: \"> 1\"", "direction: \"up\"", "claims[1].direction: "),
        ("source: abstract", "source: hearsay", "claims[2].source: must be 'paper'"),
        ("variant=fast) <", "variant=fats) <", "T1: unknown variant 'fats'; did you mean 'fast'?"),
        ("dataset=ones)\"\n  - id: T5", "dataset=one)\"\n  - id: T5",
         "T4: unknown dataset 'one'; did you mean 'ones'?"),
        ("experiment=together, variant=fast) <", "experiment=tgether, variant=fast) <",
         "T1: unknown experiment 'tgether'; did you mean 'together'?"),
        ("\"median(energy", "\"medain(energy", "T5: there is no function 'medain'"),
        ("    expression: \"median(energy, variant=fast, dataset=ones)\"\n", "",
         "T5: missing key 'expression'"),
        ("    reference: 5\n", "    reference: 5\n    evidence: [guessed]\n",
         "claims[4].evidence[0]: must be 'measured'"),
        ("    reference: 5\n", "    reference: .inf\n", "claims[4].reference: "),
        ("scored_on: [Another GPU]", "scored_on: []", "claims[1].scored_on: "),
        ("schema: 2", "schema: 3", "schema: must be 2, not 3"),
    ],
)  # fmt: skip
def test_errors(toy: Path, old: str, new: str, message: str) -> None:
    path = toy / "recipes" / "toy" / "claims.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(RecipeError) as caught:
        load_claims(toy, "toy")
    place = caught.value.message.split(": ")[0]
    assert place.startswith("recipes/toy/claims.yaml:")
    assert message in caught.value.message
    assert caught.value.fix
    line = int(place.rpartition(":")[2])
    assert abs(line - 1 - text[: text.index(old)].count("\n")) <= 14  # within that claim


def test_an_ordering_has_no_direction(toy: Path) -> None:
    path = toy / "recipes" / "toy" / "claims.yaml"
    text = path.read_text().replace("tag: order\n", 'tag: order\n    direction: "> 1"\n')
    path.write_text(text)
    with pytest.raises(RecipeError, match="an ordering has no direction"):
        load_claims(toy, "toy")

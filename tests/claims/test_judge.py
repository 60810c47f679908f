"""Claims: the loader's errors and every verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ae.claims.judge import Claim, Judgement, Verdict, judge, load_claims
from ae.claims.models import exit_code, to_json, verdict_lines, write_claims
from ae.errors import ExitCode, RecipeError, UsageError
from ae.recipe.load import list_recipes
from ae.records.files import Environment, Row
from tests.toy import make_toy

ROOT = Path(__file__).resolve().parents[2]
A100: Mapping[str, Any] = {"gpu": "NVIDIA A100-SXM4-40GB"}
H200: Mapping[str, Any] = {"gpu": "NVIDIA H200"}
CPU: Mapping[str, Any] = {"gpu": None}
RATIO = "median(time, variant=base) / median(time, variant=fast)"


def row(variant: str, *samples: float, evidence: str = "measured", **more: Any) -> Row:
    return Row(
        metric=more.pop("metric", "time"), unit="us", evidence=evidence, samples=samples,
        labels={"variant": variant}, experiment="e", point="e", **more,
    )  # fmt: skip


ROWS = [row("base", 20.0, 20.1, 19.9), row("fast", 10.0, 10.1, 9.9)]  # a ratio of 2


def claim(**fields: Any) -> Claim:
    return Claim.model_validate(
        {
            "id": "C1", "figure": "Fig. 1", "sentence": "s", "kind": "ratio", "reference": 2.0,
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
        (A100, {"lower": 2.0, "upper": None}, "reproduced"),
        (A100, {"lower": 2.2, "direction": "> 1"}, "not reproduced"),
        (H200, {}, "not comparable"),
        (H200, {"direction": "> 1"}, "direction holds"),
        (H200, {"direction": "> 2.5"}, "not reproduced"),
        (H200, {"direction": "<= 2"}, "direction holds"),
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


def test_no_infinity_reaches_an_interval() -> None:
    """Some draws of the divisor are nearly nothing, the median is not."""
    rows = [row("base", 1e200, 1e200, 1e200), row("fast", 1e-200, 1.0, 1.0, 1.0)]
    found = one(A100, rows, upper=None)
    assert found.value == 1e200
    assert found.low is not None
    assert found.high is not None
    assert found.high < float("inf")


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
        "kind": "ordering", "reference": None, "lower": None, "upper": None,
        "expression": "median(time, variant=base) > median(time, variant=fast)",
    }  # fmt: skip
    found = one(environment, **(ordering | fields))
    assert found.verdict == verdict
    assert found.value is None


def test_static_claims_need_no_gpu() -> None:
    rows = [row("base", 74.0, evidence="static", metric="registers")]
    fields: dict[str, Any] = {
        "kind": "exact", "reference": None, "lower": None, "upper": None,
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
    assert found.n == 6
    assert found.hardware == ("NVIDIA A100-SXM4-40GB",)
    assert found.evidence == ("measured",)
    assert found.reason == "1.5 to 2.5 x expected; paper: 2 x"


def test_an_interval_across_the_bound_is_told() -> None:
    assert "crosses the bound" in one(A100, lower=1.999).reason
    assert "crosses the bound" in one(A100, lower=2.001).reason
    assert "crosses the bound" not in one(A100).reason


def test_an_ordering_in_doubt_says_how_often_it_holds() -> None:
    rows = [row("base", 1.0, 5.0, 9.0, 5.1, 4.9), row("fast", 1.0, 4.8, 9.0, 5.0, 4.7)]
    found = one(
        A100, rows, kind="ordering", reference=None, lower=None, upper=None,
        expression="median(time, variant=base) > median(time, variant=fast)",
    )  # fmt: skip
    assert found.verdict is Verdict.REPRODUCED
    assert "of the bootstrap draws" in found.reason


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


def test_fewer_than_three_samples_have_no_interval() -> None:
    rows = [row("base", 20.0, 21.0), row("fast", 10.0, 10.1, 9.9)]
    found = one(A100, rows, upper=2.051)
    assert (found.low, found.high) == (None, None)
    assert found.verdict is Verdict.REPRODUCED
    assert "crosses" not in found.reason
    found = one(A100, [*rows, row("base", 20.5)])  # repeats are put together
    assert found.low is not None
    static = [row("base", 2.0, evidence="static"), *ROWS[1:]]
    assert one(A100, static, evidence=["static", "measured"]).low is not None


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


def test_bounds_and_sources_are_told() -> None:
    assert one(A100, upper=None).reason == "at least 1.5 x expected; paper: 2 x"
    assert one(A100, lower=None).reason == "at most 2.5 x expected; paper: 2 x"
    assert one(A100, source="third_party").reason.endswith("; third party: 2 x")
    assert one(A100, source="ours").reason == "1.5 to 2.5 x expected"


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


def test_json(tmp_path: Path) -> None:
    verdicts = [one(A100), one(H200), one(H200, direction="> 1")]
    path = write_claims(tmp_path, verdicts)
    data = json.loads(path.read_text())
    assert data == json.loads(json.dumps(to_json(verdicts)))
    assert data["counts"]["reproduced"] == 1
    assert sum(data["counts"].values()) == 3
    assert data["claims"][2]["verdict"] == "direction holds"
    assert data["claims"][0]["scored_on"] == ["A100"]
    assert data["claims"][0]["hardware"] == ["NVIDIA A100-SXM4-40GB"]
    assert verdict_lines(verdicts).splitlines()[1:] == ["C1 not comparable", "C1 direction holds"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["claims.json"]


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
        ("id: T2", "id: T1", "the claim 'T1' stands twice"),
        ("kind: ordering", "kind: order", "claims[0].kind: must be 'ratio', 'value', 'ordering'"),
        ("kind: ordering", "kind: ratio\n    reference: 1\n    lower: 1",
         "T1: a claim of kind ratio needs a number expression"),
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
        ("schema: 1", "schema: 3", "schema: must be 1, not 3"),
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
    text = path.read_text().replace("kind: ordering\n", 'kind: ordering\n    direction: "> 1"\n')
    path.write_text(text)
    with pytest.raises(RecipeError, match="a claim of kind ordering has no direction"):
        load_claims(toy, "toy")

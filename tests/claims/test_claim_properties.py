"""Whatever stands in claims.yaml or in an expression: it is judged, or it is one sentence."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ae.claims.expressions import parse_expression
from ae.claims.judge import Claim, Verdict, judge
from ae.claims.tables import load_claims
from ae.errors import RecipeError
from ae.records.files import Environment, Row
from tests.toy import make_toy

QUICK = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SAMPLES = st.lists(
    st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5
).map(tuple)  # fmt: skip
METRICS = st.sampled_from(["median(t, variant=a)", "mean(t, variant=b)", "minimum(t, variant=a)",
                           "maximum(t, variant=b)", "ratio(t, variant=a/b)", "0", "3"])  # fmt: skip
NUMBERS = st.recursive(
    METRICS,
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=6,
)
FIELDS: dict[str, Any] = {
    "id": "C1", "figure": "Fig. 1", "sentence": "s", "tag": "magnitude", "reference": 2.0,
    "lower": 1.5, "unit": "x", "paper_hardware": "A100", "scored_on": ["any"], "source": "paper",
    "expression": "median(work_time, variant=slow) / median(work_time, variant=fast)",
}  # fmt: skip
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.lists(st.text(max_size=4), max_size=3)
    | st.dictionaries(st.text(max_size=4), st.integers())
)  # fmt: skip


def row(variant: str, samples: tuple[float, ...], gpu: str | None) -> Row:
    return Row(
        metric="t", unit="us", evidence="measured", samples=samples, labels={"variant": variant},
        experiment="e", point="p", environment=Environment(gpu=gpu),
    )  # fmt: skip


@QUICK
@given(NUMBERS, SAMPLES, SAMPLES, st.sampled_from([None, "NVIDIA A100", "NVIDIA H200"]),
       st.sampled_from(["any", "A100"]), st.sampled_from([None, "> 1", "<= -2"]))  # fmt: skip
def test_a_judged_value_is_finite_and_its_verdict_follows_from_it(
    expression: str, a: tuple[float, ...], b: tuple[float, ...], gpu: str | None, where: str,
    direction: str | None,
) -> None:  # fmt: skip
    claim = Claim.model_validate(
        FIELDS | {"expression": expression, "scored_on": [where], "direction": direction}
    )
    (found,) = judge([claim], [row("a", a, gpu), row("b", b, gpu)])
    if found.value is None:
        assert found.verdict is Verdict.NOT_RUN
        return
    assert isfinite(found.value)
    assert (found.low is None) == (found.high is None)
    if found.low is not None and found.high is not None:
        assert found.low <= found.value <= found.high
    if where == "any":
        assert (found.verdict is Verdict.REPRODUCED) == (found.value >= 1.5)
    if gpu is None and where != "any":
        assert found.verdict is Verdict.NOT_COMPARABLE


@QUICK
@given(st.text(max_size=60) | st.text("median(tvri=, )<>/*.'\"[]_0123456789", max_size=60))
def test_any_text_is_an_expression_or_one_sentence(text: str) -> None:
    try:
        found = parse_expression(text)
    except ValueError:
        return
    assert found.kind in ("number", "boolean")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize("expression", ["0", "2", "1 < 2", "2 < 1", "every_over(1 < 2, d=[a])"])
def test_without_a_record_there_is_no_verdict(expression: str) -> None:
    fields = FIELDS if expression.isdecimal() else FIELDS | {"reference": None, "lower": None}
    claim = Claim.model_validate(fields | {"expression": expression})
    (found,) = judge([claim], [row("a", (1.0,), None)])
    assert (found.verdict, found.value) == (Verdict.NOT_RUN, None)
    assert found.reason == "the expression reads no record"


@QUICK
@example("expression", "0")
@given(st.sampled_from([*FIELDS, "upper", "direction", "evidence", "transcribed", "odd"]), VALUES)
def test_a_claim_with_one_odd_key_loads_or_is_one_sentence(
    toy: Path, key: str, value: object
) -> None:
    path = toy / "recipes" / "toy" / "claims.yaml"
    path.write_text(json.dumps({"schema": 2, "claims": [{**FIELDS, key: value}]}))  # JSON is YAML
    message = "recipes/toy/claims.yaml:"
    try:
        (found,) = load_claims(toy, "toy")
        assert key != "odd"
        assert judge([found], [])[0].verdict in (Verdict.NOT_RUN, Verdict.NOT_TRANSCRIBED)
    except RecipeError as error:
        message = error.message
    assert message.startswith("recipes/toy/claims.yaml:")

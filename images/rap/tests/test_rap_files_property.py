"""Whatever a plan file holds: a plan, or one short sentence with a fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rap_training.plan import files
from rap_training.plan.files import dump, load, parse
from rap_training.plan.generator import generate
from rap_training.plan.graph import Plan, PlanError
from rap_training.plan.operators import OPERATORS
from test_rap_files import good

WORDS = st.sampled_from(["df", "db", "sh", "name", "kind", "width", "dense", "rows", *OPERATORS])
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(-2, 3) | st.floats() | st.text()
    | WORDS | st.just(10**30)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | WORDS, inner), max_leaves=8
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON value, its own first."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    found = [path]
    for key, value in items:
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
        else:
            found.append((*path, key))
    return found


PLACES = places(good())


def plan_or_sentence(text: str) -> Plan | None:
    try:
        return parse(text)
    except PlanError as error:
        words = str(error)
        assert "; fix: " in words
        assert len(words) < 1000
        assert "\n" not in words
        return None


@given(st.text() | VALUES.map(json.dumps))
@example('{"\\n": null}')
def test_any_text(text: str) -> None:
    assert plan_or_sentence(text) is None


@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3))
def test_a_plan_with_values_changed(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """What is taken is whole: it comes back the same from its own text."""
    data: Any = good()
    for path, value in changes:
        at: Any = {"": data}
        try:
            for key in ("", *path[:-1]):
                at = at[key]
            at[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            pass  # an earlier change took that place away
    plan = plan_or_sentence(json.dumps(data))
    if plan:
        assert parse(dump(plan)) == plan


@given(st.integers(1, 6), st.integers(1, 6), st.integers(3, 12), st.integers(1, 20), st.integers(0))
def test_generated_plans_come_back_the_same(
    dense: int, sparse: int, depth: int, width: int, seed: int
) -> None:
    plan = generate(dense=dense, sparse=sparse, depth=depth, width=width, seed=seed)
    assert parse(dump(plan)) == plan


def grown(**changes: Any) -> str:
    return json.dumps(good() | changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "64 bits"),
        (grown(over_arch=[2**63, 1]), "64 bits"),
        (grown(over_arch=[10**6, 1]), "1 to 65536"),
        (grown(name="n" * 201), "a word of at most 200"),
        (grown(name="a\nb"), "a word of at most 200 printable letters"),
        (grown(dense=["df"] * 10_001), "at most 10000"),
        (json.dumps(good()).replace('"width": 3', '"width": 65537'), "s is 65537 wide"),
        (grown(sparse=[{"node": "sh", "rows": 2**40 + 1}]), f"at most {2**40}"),
        (json.dumps({"k" * 10_000_000: 1}), "unknown key"),
    ],
    ids=range(10),
)
def test_sizes_are_bounded(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words) as error:
        parse(text)
    assert len(str(error.value)) < 1000


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(good()))
    assert load(path).name == "mine"
    monkeypatch.setattr(files, "MOST_BYTES", path.stat().st_size - 1)
    with pytest.raises(PlanError, match="is larger than"):
        load(path)


def test_a_value_that_grows_too_wide_along_its_chain() -> None:
    data = good()
    data["nodes"][1] = {"name": "db", "op": "one_hot", "input": "df",
                        "parameters": {"lo": 0, "hi": 1, "k": 65_537}}  # fmt: skip
    with pytest.raises(PlanError, match="db is 65537 wide"):
        parse(json.dumps(data))

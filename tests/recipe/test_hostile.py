"""Nothing that stands in a recipe, in claims or after `--set` ends in a traceback."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ae.claims.tables import load_claims
from ae.errors import RecipeError
from ae.recipe.load import load_recipe
from ae.recipe.models import Recipe
from ae.recipe.yamlfile import read_yaml, validate
from tests.toy import make_toy

QUICKLY = settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TOY = Path(__file__).resolve().parents[1] / "toy" / "root" / "recipes" / "toy"
RECIPE, CLAIMS = ((TOY / name).read_text() for name in ("recipe.yaml", "claims.yaml"))
BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("hostile") / "toy")


def refused(toy: Path, text: str | bytes, name: str = "recipe.yaml") -> str:
    """Load the toy with this file instead of its own; the error, or nothing if it is accepted."""
    path = toy / "recipes" / "toy" / name
    before = path.read_bytes()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        load_recipe(toy, "toy")
        load_claims(toy, "toy")
    except RecipeError as fault:
        error = fault
    else:
        return ""
    finally:
        path.write_bytes(before)
    assert re.match(r"recipes/toy/(recipe|claims)\.yaml:\d+: ", error.message), error.message
    assert len(error.message) < 2000
    assert error.fix
    return error.message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x: " + "[" * 100_000, ":1: not valid YAML: nested more than 50 deep"),
        ("x: " + "{a: " * 100_000, ":1: not valid YAML: nested more than 50 deep"),
        ("\n" + "- " * 100_000, ":2: not valid YAML: nested more than 50 deep"),
        (BOMB, ":6: not valid YAML: more than 50000 values"),
        ("x: " + "9" * 5000, ":1: not valid YAML: '999999999999...9999999999999' cannot be read"),
        ("x: " + "1:1" * 5000, ":1: "),
        ("x: !!int seven", ":1: not valid YAML: the tag"),
        ("x: !!bool seven", ":1: not valid YAML: the tag"),
        ("x: 0b_", ":1: not valid YAML: '0b_' cannot be read as int"),
        ("x: !!timestamp 2024-13-45", ":1: not valid YAML: the tag"),
        ("x: !!binary =", ":1: not valid YAML: the tag"),
        ("x: !!set {a, b}", ":1: not valid YAML: the tag"),
        ("a: &a [*a]", ":1: not valid YAML: found undefined alias"),
        ("a: *b", ":1: not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 2", ":2: not valid YAML: expected a single document"),
        ("a: 1\nb: \"\\0\"", ":2: not valid YAML: a zero byte is no text"),
        ("x" * 201 + ": 1", ":1: not valid YAML: "),
        (b"a: 1\nb: \xff", ":2: not UTF-8 text"),
        (b"a: 1\nb: \x01", ":2: not valid YAML: "),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_hostile_file_costs_a_moment_and_an_error_with_its_line(
    toy: Path, line: str | bytes, message: str
) -> None:
    began = time.monotonic()
    assert message in refused(toy, line)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("venue", ["2024-13-45", "2024-01-02", "2024-01-02 03:04:05", "=", "<<"])
def test_what_yaml_takes_for_a_date_or_a_sign_is_text(toy: Path, venue: str) -> None:
    path = toy / "recipes" / "toy" / "recipe.yaml"
    before = path.read_text()
    (old,) = (line for line in before.splitlines() if line.strip().startswith("venue:"))
    path.write_text(before.replace(old, f"  venue: {venue}"))
    try:
        assert load_recipe(toy, "toy").paper.venue == venue
    finally:
        path.write_text(before)


def test_a_huge_file_is_not_read_to_its_end(toy: Path) -> None:
    with (toy / "huge.yaml").open("wb") as file:
        file.truncate(100 << 30)
    with pytest.raises(RecipeError, match=r"huge\.yaml:1: the file is larger than 1 MiB"):
        read_yaml(toy / "huge.yaml", toy)


def test_a_thousand_wrong_keys_cost_a_moment(toy: Path) -> None:
    began = time.monotonic()
    text = "".join(f"wrong{number}: {{}}\n" for number in range(20_000))
    assert "(and 20" in refused(toy, text)
    assert time.monotonic() - began < 20


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.sampled_from(["all", "{axis}", "1GB", "9" * 400 + "GB", "9" * 400 + "h", "8.0", "native"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def places(data: object, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data)  # type: ignore[arg-type]
    found: list[tuple[str | int, ...]] = []
    for key, value in items:
        found.append((*at, key))
        if isinstance(value, dict | list):
            found += places(value, (*at, key))
    return found


@pytest.mark.parametrize("name", ["recipe.yaml", "claims.yaml"])
@QUICKLY
@given(data=st.data())
def test_any_value_anywhere_is_accepted_or_refused_with_its_line(
    toy: Path, name: str, data: st.DataObject
) -> None:
    document = yaml.safe_load(RECIPE if name == "recipe.yaml" else CLAIMS)
    place = data.draw(st.sampled_from(places(document)))
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = data.draw(values)
    refused(toy, yaml.safe_dump(document, allow_unicode=False), name)


@pytest.mark.parametrize("name", ["recipe.yaml", "claims.yaml"])
@QUICKLY
@given(start=st.integers(0, 10**5), size=st.integers(0, 40), other=st.text() | st.binary())
def test_any_damage_to_the_text_is_accepted_or_refused_with_its_line(
    toy: Path, name: str, start: int, size: int, other: str | bytes
) -> None:
    text = (RECIPE if name == "recipe.yaml" else CLAIMS).encode()
    start %= len(text)
    new = other.encode(errors="replace") if isinstance(other, str) else other
    refused(toy, text[:start] + new + text[start + size :], name)


@QUICKLY
@given(text=st.text() | st.integers().map(str) | st.floats().map(str))
@example(text="9" * 400)
@example(text="9" * 5000)
@example(text="1e999")
@example(text="\udcff")
@example(text="a,\0")
def test_any_setting_is_read_or_refused_in_words(toy: Path, text: str) -> None:
    path = toy / "recipes" / "toy" / "recipe.yaml"
    for parameter in validate(read_yaml(path, toy), Recipe).parameters.values():
        said = "must be "
        try:
            value = parameter.parse(text)
        except ValueError as error:
            said = str(error)
        else:
            assert parameter.check(list(value) if isinstance(value, tuple) else value) == value
            str(value).encode()
        assert said.startswith(("must be ", "cannot be "))

"""Logs of programs that are not ours become records, or one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ae.errors import RecipeError, WorkloadError
from ae.model import Machine, Point
from ae.plan.planner import make_plan
from ae.plan.points import point_key
from ae.plan.selection import Selection
from ae.recipe.load import load_recipe
from ae.records.files import read_point
from ae.run.loop import parse_point
from tests.toy import make_toy


@pytest.fixture
def recipe_dir(tmp_path: Path) -> Path:
    return make_toy(tmp_path / "root") / "recipes" / "toy"


@pytest.fixture
def point(recipe_dir: Path) -> Point:
    root = recipe_dir.parent.parent
    selection = Selection(experiments=("logged",))
    plan = make_plan(load_recipe(root, "toy"), selection, Machine(), root, {"toy": "1"})
    return plan.points[0]


def test_a_log_becomes_records(recipe_dir: Path, point: Point, tmp_path: Path) -> None:
    (tmp_path / "stdout.log").write_text("added 5 numbers in 1.5 us\nadded 5 numbers in 2 us\n")
    parse_point(recipe_dir, point, tmp_path)
    (record,) = read_point(tmp_path).records
    assert record.samples == (1.5, 2.0)
    assert record.labels == {"variant": "slow"}


@pytest.mark.parametrize("log", ["", "hello\n", "added 5 numbers in 1.5 us\nadded 5 num"])
def test_a_log_that_is_something_else(
    recipe_dir: Path, point: Point, tmp_path: Path, log: str
) -> None:
    (tmp_path / "stdout.log").write_text(log)
    with pytest.raises(WorkloadError, match="the log of logged could not be read: a line is not"):
        parse_point(recipe_dir, point, tmp_path)
    assert not (tmp_path / "records.jsonl").exists()


def test_a_parser_that_is_broken(recipe_dir: Path, point: Point, tmp_path: Path) -> None:
    code = "def read_log(folder, labels):\n    return [{'samples': 1 / 0}]\n"
    (recipe_dir / "parse.py").write_text(code)
    with pytest.raises(WorkloadError, match=r"parser read_log of toy failed .* ZeroDivisionError"):
        parse_point(recipe_dir, point, tmp_path)
    (recipe_dir / "parse.py").write_text("def read_log(f, l):\n    return [float('nan')]\n")
    with pytest.raises(WorkloadError, match="could not be read"):
        parse_point(recipe_dir, point, tmp_path)


def test_a_parser_that_is_not_there(recipe_dir: Path, point: Point, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no function 'read_lgo'") as caught:
        parse_point(recipe_dir, replace(point, parser="read_lgo"), tmp_path)
    assert caught.value.fix == "did you mean 'read_log'?"
    (recipe_dir / "parse.py").unlink()
    with pytest.raises(RecipeError, match=r"parse\.py does not exist"):
        parse_point(recipe_dir, point, tmp_path)


def test_a_parser_belongs_to_what_defines_a_point(point: Point) -> None:
    assert point_key(point, ()) != point_key(replace(point, parser=None), ())

"""YAML with line numbers, and the keys that a model allows at a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ae.errors import RecipeError
from ae.recipe.models import Recipe
from ae.recipe.yamlfile import Document, dotted, known_keys, read_yaml

TEXT = """\
a: 1
b:
  - x: yes
  - &here {y: 2}
c: *here
"""


@pytest.fixture
def document(tmp_path: Path) -> Document:
    (tmp_path / "f.yaml").write_text(TEXT)
    return read_yaml(tmp_path / "f.yaml", tmp_path)


def test_data_and_lines(document: Document) -> None:
    assert document.data == {"a": 1, "b": [{"x": True}, {"y": 2}], "c": {"y": 2}}
    assert document.name == "f.yaml"
    assert document.line(("a",)) == 1
    assert document.line(("b", 1)) == 4
    assert document.line(("b", 0, "x")) == 3
    assert document.line(("c",)) == 5


def test_what_is_not_there_stands_where_its_surroundings_stand(document: Document) -> None:
    assert document.line(("b", 1, "why")) == 4
    assert document.line(("nothing", "at", "all")) == 1


def test_a_file_outside_the_root_is_named_in_full(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("a: [")
    with pytest.raises(RecipeError) as caught:
        read_yaml(tmp_path / "f.yaml", tmp_path / "elsewhere")
    assert caught.value.message.startswith(f"{tmp_path}/f.yaml:")


def test_a_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_yaml(tmp_path / "none.yaml", tmp_path)


def test_dotted() -> None:
    assert dotted(("needs", "cap_add", 0, "why")) == "needs.cap_add[0].why"
    assert dotted(()) == ""


def test_known_keys() -> None:
    assert known_keys(Recipe, ())[0] == "schema"
    assert known_keys(Recipe, ("needs", "gpus")) == [
        "count", "min_memory", "min_compute_capability", "min_driver", "why",
    ]  # fmt: skip
    assert known_keys(Recipe, ("needs", "cap_add", 3)) == ["value", "why"]
    assert known_keys(Recipe, ("experiments", "any", "time")) == ["full", "quick"]
    assert known_keys(Recipe, ("title",)) == []
    assert known_keys(Recipe, ("nonsense", "x")) == []

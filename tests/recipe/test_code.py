"""A recipe's own Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from ae.errors import RecipeError
from ae.recipe.code import function_of, load_code


def test_only_a_public_function_of_the_file_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "parse.py").write_text(
        "from json import loads\ndef read_log(): return 7\ndef _inner(): return 8\nNOTE = 'x'\n"
    )
    module = load_code(tmp_path, "parse", fix="write it")
    assert function_of(module, "read_log")() == 7
    for name in ("_inner", "NOTE", "raed_log"):
        with pytest.raises(RecipeError) as caught:
            function_of(module, name)
        assert f"has no function '{name}'" in caught.value.message
        assert "loads" not in caught.value.fix


@pytest.mark.parametrize(
    ("text", "said"), [("1 / 0\n", "ZeroDivisionError"), ("def (\n", "SyntaxError")]
)
def test_a_file_that_cannot_be_loaded(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=r"parse\.py does not exist"):
        load_code(tmp_path, "parse", fix="write it")
    (tmp_path / "parse.py").write_text(text)
    with pytest.raises(RecipeError, match=f"cannot be loaded: {said}"):
        load_code(tmp_path, "parse", fix="write it")

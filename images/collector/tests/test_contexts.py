"""The calling-context tree, and names of functions for it."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from accel_trace.contexts.symbols import function_at, functions, plain
from accel_trace.contexts.tree import Tree
from hypothesis import given
from hypothesis import strategies as st

PATHS = st.lists(
    st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.integers(1, 9)),
    max_size=20,
)


@given(PATHS)
def test_equal_paths_are_one_node_and_costs_add_up(paths: list[tuple[list[str], int]]) -> None:
    """Also in another order; the folded lines hold all of it."""
    tree, other = Tree(), Tree()
    wanted: Counter[str] = Counter()
    for path, cost in paths:
        tree.add(path, {"faults": cost})
        wanted[";".join(path)] += cost
    for path, cost in reversed(paths):
        other.add(path, {"faults": cost})
    assert dict(line.split(" ") for line in tree.folded("faults").splitlines()) == {
        path: str(cost) for path, cost in wanted.items()
    }
    assert other.folded("faults") == tree.folded("faults")
    assert tree.root.total()["faults"] == sum(wanted.values())
    for path, node in tree.walk():
        below = [v for k, v in wanted.items() if (k + ";").startswith(";".join(path) + ";")]
        assert node.total()["faults"] == sum(below)


def test_lines_for_a_person() -> None:
    tree = Tree()
    tree.add(["main", "step", "kernel: scale", "write"], {"faults": 30})
    tree.add(["main", "step", "kernel: scale", "read"], {"faults": 10})
    tree.add(["main", "step", "cpu write"], {"faults": 60, "bytes": 4})
    tree.add(["main", "end"], {"bytes": 8})
    assert tree.lines("faults") == [
        "     100 100%  main",
        "               step",
        "      60  60%    cpu write",
        "      40  40%    kernel: scale",
        "      30  30%      write",
        "      10  10%      read",
    ]
    assert tree.lines("faults", least=0.5)[-1] == "      60  60%    cpu write"
    assert tree.lines("faults", most=2)[-1] == "and 4 lines more: see the file of the tree"
    assert tree.lines("none") == []
    assert tree.folded("bytes") == "main;end 8\nmain;step;cpu write 4\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elf")
    (folder / "a.cc").write_text(
        "static __attribute__((noinline)) int hidden(int x) { return x * 3 + 1; }\n"
        "int main(int c, char**) { return hidden(c); }\n"
    )
    subprocess.run(["g++", "-O0", folder / "a.cc", "-o", folder / "a"], check=True)
    return folder / "a"


def test_functions_that_are_not_exported_have_names(program: Path, tmp_path: Path) -> None:
    table = functions(program)
    starts = {name: start for start, _, name in table}
    assert "main" in starts
    hidden = starts["_ZL6hiddeni"]
    assert function_at(program, hidden + 4) == "hidden(int)"
    assert function_at(program, 1) == ""
    bare = tmp_path / "bare"
    subprocess.run(["strip", "-o", bare, program], check=True)
    assert function_at(bare, hidden + 4) == ""
    (tmp_path / "text").write_text("no program")
    (tmp_path / "cut").write_bytes(program.read_bytes()[:900])
    assert functions(tmp_path / "text") == functions(tmp_path / "none") == ()
    assert functions(tmp_path / "cut") == ()


def test_frames_of_both_writers_are_one_form(program: Path) -> None:
    hidden = next(start for start, _, name in functions(program) if "hidden" in name) + 4
    want = "native: hidden(int) in a"
    assert plain(f"native: ?{hidden:#x} {program}", {}) == want
    assert plain(f"native:a+{hidden:#x} in a", {"a": program}) == want
    assert plain(f"native:a+{hidden:#x} in a", {}) == f"native: ?{hidden:#x} in a"
    assert plain("native:f(int, long)+0x1a in lib.so", {}) == "native: f(int, long) in lib.so"
    assert plain("native: f(int, long) /usr/lib/lib.so", {}) == "native: f(int, long) in lib.so"
    assert plain("python: f a.py:3", {}) == "python: f a.py:3"

"""The lists of mutants fit the code, and a run of them that is stopped leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mutants import run

ROOT = Path(__file__).resolve().parents[1]


def test_every_mutant_changes_one_place_of_todays_code() -> None:
    mutants = run.load(ROOT)
    stale = [f"{one.module}: {one.why}: {one.old}" for one in mutants if one.path is None]
    assert not stale, "write the same fault anew, or take it out with its code"
    texts = run.sources(ROOT)
    known: dict[str, str] = {}
    for one in mutants:
        assert one.path is not None
        changed = texts[one.path].replace(one.old, one.new)
        assert changed != texts[one.path], one
        compile(changed, one.path, "exec")
        assert changed not in known, f"{one.why}: as {known[changed]}"
        known[changed] = one.why


def test_the_tests_of_every_mutant_are_there() -> None:
    names = {name for one in run.load(ROOT) for name in one.tests}
    assert [name for name in sorted(names) if not run.files(ROOT, [name])] == []


def test_a_text_that_is_gone_or_there_twice_is_stale() -> None:
    texts = {Path("a/one.py"): "x = 1\ny = 1\n", Path("a/two.py"): "x = 1\n"}
    assert run.find(texts, "one.py", "x = 1") == Path("a/one.py")
    assert run.find(texts, "moved.py", "y = 1") == Path("a/one.py")
    assert run.find(texts, "one.py", "= 1\n") == Path("a/two.py")  # twice in the first
    assert run.find(texts, "moved.py", "x = 1") is None
    assert run.find(texts, "one.py", "z = 1") is None


@pytest.mark.slow
def test_a_run_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    before = run.sources(ROOT)
    process = subprocess.Popen(
        [sys.executable, "tests/mutants/run.py", "units"],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process:
        assert process.stdout.readline().startswith("killed ")
        (copy,) = tmp_path.glob("ae-mutants-*/copy")
        until = time.monotonic() + 60
        while run.sources(copy) == before:  # the next mutant is not in place yet
            assert time.monotonic() < until
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert list(tmp_path.iterdir()) == []
    assert run.sources(ROOT) == before
    until = time.monotonic() + 10
    while left := [folder for folder in working_folders() if folder.is_relative_to(tmp_path)]:
        assert time.monotonic() < until, left  # what was killed may take a moment to be gone
        time.sleep(0.05)


def working_folders() -> list[Path]:
    """Those of all processes that can be asked."""
    folders = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # it has ended
            folders.append(entry.readlink())
    return folders

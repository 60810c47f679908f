#!/usr/bin/env python3
"""Breaks one line of code at a time and says which breaks no test notices. By hand, not in CI.

    python tests/mutants/run.py                 all of the lists beside it
    python tests/mutants/run.py claims plan     some modules
    python tests/mutants/run.py --jobs 2

Works in copies of the checkout. Exit code 1: a mutant survived, is stale (its text is not there, or
more than once), or was not tried because its tests fail without it.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CODE = ("ae", "images/*/src")
LEFT_OUT = (".git", ".venv", ".cache", "__pycache__", ".mypy_cache", ".ruff_cache")
TIMEOUT_S = 900  # a mutant that never ends is killed, too


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and the test files that should notice."""

    module: str
    path: Path | None  # below the root; None: stale
    old: str
    new: str
    why: str
    tests: tuple[str, ...]


def sources(root: Path) -> list[Path]:
    """All Python code that can be mutated."""
    return [path for where in CODE for top in root.glob(where) for path in top.rglob("*.py")]


def find(root: Path, file: str, old: str) -> Path | None:
    """The file that holds a text once: the one of that name if several do."""
    holding = [path for path in sources(root) if path.read_text().count(old) == 1]
    named = [path for path in holding if path.name == file] or holding
    return named[0].relative_to(root) if len(named) == 1 else None


def load(root: Path, modules: Sequence[str]) -> list[Mutant]:
    """The mutants of some modules, or of all."""
    data: dict[str, Any] = {}
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        data |= yaml.safe_load(path.read_text())
    if unknown := set(modules) - set(data):
        raise SystemExit(f"unknown: {', '.join(unknown)}; known: {', '.join(data)}")
    return [
        Mutant(module, find(root, about["file"], one["old"]), one["old"], one["new"], one["why"],
               tuple(about["tests"]))
        for module, about in data.items() if not modules or module in modules
        for one in about["mutants"]
    ]  # fmt: skip


def tested(root: Path, names: Sequence[str]) -> int:
    """Pytest's exit code for the test files of these names; 99 where they do not end."""
    files = [str(path) for name in names for path in root.rglob(name) if path.is_file()]
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
             "-m", "not docker and not gpu and not torch", *files]  # fmt: skip
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("CI", None)
    try:
        done = subprocess.run(
            words, cwd=root, env=env, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 99
    return done.returncode


def killed(root: Path, mutant: Mutant) -> bool:
    """Whether a test notices the mutant in this copy, which is mended afterwards."""
    assert mutant.path is not None
    path = root / mutant.path
    text = path.read_text()
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        return tested(root, mutant.tests) != 0
    finally:
        path.write_text(text)


def main(arguments: Sequence[str]) -> int:
    """Try all mutants, and print survivors and the rate of every module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args(arguments)
    mutants = load(ROOT, given.modules)
    stale = [one for one in mutants if one.path is None]
    fresh = [one for one in mutants if one.path is not None]
    with tempfile.TemporaryDirectory(prefix="ae-mutants-") as folder:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(given.jobs):
            copy = Path(folder) / str(number)
            shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
            copies.put(copy)

        def in_a_copy(work: Mutant | tuple[str, ...]) -> bool:
            copy = copies.get()
            try:
                if isinstance(work, Mutant):
                    found = killed(copy, work)
                    print("killed  " if found else "SURVIVED", f"{work.module}: {work.why}",
                          flush=True)  # fmt: skip
                    return found
                return tested(copy, work) == 0
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(given.jobs) as pool:
            sets = list(dict.fromkeys(one.tests for one in fresh))
            red = [names for names, green in zip(sets, pool.map(in_a_copy, sets), strict=True)
                   if not green]  # fmt: skip
            fresh = [one for one in fresh if one.tests not in red]
            results = list(pool.map(in_a_copy, fresh))
    for names in red:
        print("NO USE  ", f"these fail without any mutant: {', '.join(names)}")
    for one in stale:
        print("STALE   ", f"{one.module}: {one.why}: {one.old}")
    for module in dict.fromkeys(one.module for one in fresh):
        mine = [dead for one, dead in zip(fresh, results, strict=True) if one.module == module]
        print(f"{sum(mine):3} of {len(mine):3}  {module}")
    print(f"{sum(results)} of {len(results)} killed ({sum(results) / max(1, len(results)):.0%})")
    return 0 if all(results) and not stale and not red else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

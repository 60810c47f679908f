#!/usr/bin/env python3
"""Breaks one line of code at a time and says which breaks no test notices. By hand, not in CI.

    python tests/mutants/run.py                 all of the lists beside it
    python tests/mutants/run.py claims plan     some modules
    python tests/mutants/run.py --check         only whether every mutant still applies

Works in a copy of the checkout, with its uncommitted changes; the checkout itself is only read.
Exit code 1: a mutant survived, is stale (its text is not there, or more than once), or was not
tried because its tests fail without it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CODE = ("ae", "images/*/src")
TESTS = ("tests", "recipes", "images")
LEFT_OUT = (".git", ".venv", ".cache", "__pycache__", ".mypy_cache", ".ruff_cache")
CTRL_C = {signal.SIGINT}
TIMEOUT_S = 300  # a mutant that never ends is killed, too
# Imported once; every run of tests is a fork. Nothing of ours: that is read from the copy.
SHARED = ("numpy", "pandas", "pydantic", "matplotlib.pyplot", "docker", "typer")


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and the test files that should notice."""

    module: str
    path: Path | None  # below the root; None: stale
    old: str
    new: str
    why: str
    tests: tuple[str, ...]


def sources(root: Path) -> dict[Path, str]:
    """All Python code that can be mutated, by its path below the root."""
    found = [path for where in CODE for top in root.glob(where) for path in top.rglob("*.py")]
    return {path.relative_to(root): path.read_text() for path in found}


def find(texts: dict[Path, str], file: str, old: str) -> Path | None:
    """The file that holds a text once: the one of that name if several do."""
    holding = [path for path, text in texts.items() if text.count(old) == 1]
    named = [path for path in holding if path.name == file] or holding
    return named[0] if len(named) == 1 else None


def load(root: Path, modules: Sequence[str] = ()) -> list[Mutant]:
    """The mutants of some modules, or of all."""
    data: dict[str, Any] = {}
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        data |= yaml.safe_load(path.read_text())
    if unknown := set(modules) - set(data):
        raise SystemExit(f"unknown: {', '.join(unknown)}; known: {', '.join(data)}")
    texts = sources(root)
    return [
        Mutant(module, find(texts, about["file"], one["old"]), one["old"], one["new"], one["why"],
               tuple(about["tests"]))
        for module, about in data.items() if not modules or module in modules
        for one in about["mutants"]
    ]  # fmt: skip


def files(root: Path, names: Sequence[str]) -> list[str]:
    """The test files of these names, in their order."""
    return [str(path) for name in names for top in TESTS for path in (root / top).rglob(name)]


def tested(root: Path, names: Sequence[str]) -> str:
    """Which test of these files fails first: its name; "" where none does."""
    log = root.parent / "log"
    signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)  # in a hook of the fork it would be lost
    if not (child := os.fork()):
        _test(root, names, log)
    until, status = time.monotonic() + TIMEOUT_S, None
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CTRL_C)
        while status is None and time.monotonic() < until:
            ended, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if ended else None
            time.sleep(0.01)
    finally:  # also at Ctrl-C, and for what the tests have left
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.kill(child, signal.SIGKILL)  # it may have no group yet
            os.waitpid(child, 0)
    if status is None:
        return f"no end within {TIMEOUT_S} s"
    failed = re.search(r"^(?:FAILED|ERROR) (?:.*/)?(\S+)", log.read_text(), re.MULTILINE)
    return "" if status == 0 else failed[1] if failed else f"exit code {status}"


def _test(root: Path, names: Sequence[str], log: Path) -> None:
    """What the fork does."""
    status = 99
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CTRL_C)
        os.setsid()
        for name in ("CI", "PYTHONDONTWRITEBYTECODE"):
            os.environ.pop(name, None)
        os.environ["PYTHONPATH"] = str(root)
        sys.dont_write_bytecode = False
        sys.path[:] = [str(root), *(path for path in sys.path if path not in ("", str(ROOT)))]
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(out, number)
        os.chdir(root)
        words = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider"]
        words += ["-m", "not docker and not gpu and not torch", *files(root, names)]
        status = int(pytest.main(words, [_Fastest(root.parent / "times")]))
    except BaseException:  # noqa: BLE001 -- a fork must not go on as its parent
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


class _Fastest:
    """Runs the tests that took least first, as far as their times are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._times = json.loads(path.read_text()) if path.exists() else {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._times.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = self._times.get(report.nodeid, 0.0) if report.when != "setup" else 0.0
        self._times[report.nodeid] = known + report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0:
            self._path.write_text(json.dumps(self._times))


def killed(root: Path, mutant: Mutant) -> str:
    """The test that notices the mutant in this copy, which is mended afterwards; "": none."""
    assert mutant.path is not None
    path = root / mutant.path
    text, compiled = path.read_text(), Path(cache_from_source(str(path)))
    compiled.unlink(missing_ok=True)  # it is told from another by size and second
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        return tested(root, mutant.tests)
    finally:
        path.write_text(text)
        compiled.unlink(missing_ok=True)


def table(results: Sequence[tuple[Mutant, str]]) -> str:
    """How many were killed in every folder and file, in Markdown."""
    tried = Counter(one.path for one, _ in results if one.path)
    dead = Counter(one.path for one, test in results if one.path and test)
    lines = [f"| {date.today()} | Killed | By file |", "| --- | --- | --- |"]
    for folder in sorted({path.parent for path in tried}):
        mine = sorted(path for path in tried if path.parent == folder)
        each = [f"{path.stem} {dead[path]}/{tried[path]}" for path in mine]
        counts = f"{sum(dead[path] for path in mine)} of {sum(tried[path] for path in mine)}"
        lines.append(f"| `{folder}` | {counts} | {', '.join(each)} |")
    share = sum(dead.values()) / max(1, sum(tried.values()))
    lines.append(f"| All | {sum(dead.values())} of {sum(tried.values())} | {share:.0%} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Try the mutants, and print survivors and the counts of every file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    mutants = load(ROOT, given.modules)
    stale = [one for one in mutants if one.path is None]
    for one in stale:
        print(f"STALE    {one.module}: {one.why}: {one.old}")
    if given.check:
        return 1 if stale else 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in SHARED:
        importlib.import_module(name)
    green: dict[tuple[str, ...], str] = {}  # which test of each fails without any mutant
    results: list[tuple[Mutant, str]] = []
    with tempfile.TemporaryDirectory(prefix="ae-mutants-") as folder:
        root = Path(folder) / "copy"
        shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for one in mutants:
            began = time.monotonic()
            if one.tests not in green:
                green[one.tests] = tested(root, one.tests)
                if green[one.tests]:
                    print(f"NO USE   {', '.join(one.tests)}: {green[one.tests]} fails as it is")
            if one.path and not green[one.tests]:
                results.append((one, test := killed(root, one)))
                word, took = "killed  " if test else "SURVIVED", time.monotonic() - began
                about = f"{test or one.path}, {took:.1f} s"
                print(f"{word} {one.module}: {one.why} ({about})", flush=True)
    print(table(results))
    return 1 if stale or any(green.values()) or not all(test for _, test in results) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

"""What the tests of upstream lanes share: a recipe's lane, and runs of its driver and its fixes.

The images hold the authors' code and cannot be built here. What is ours runs: on samples of ours in
the authors' formats, with stand-ins for the authors' programs.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ae.claims.tables import load_claims
from ae.model import Machine, Point
from ae.plan.gpus import unknown_gpu
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.code import load_code
from ae.recipe.load import load_recipe
from ae.records.files import Row, frame
from ae.report.chapter import Drawn, draw
from tests.judged import judge

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "images" / "sources"  # what the fixes share; in an image it lies beside them
Records = Sequence[Mapping[str, Any]]


class Lane:
    """The lane upstream of a recipe; `driver` is the module that runs a point."""

    def __init__(self, name: str, driver: str = "") -> None:
        self.name, self.module = name, driver or f"{name}_driver"
        self.folder, self.image = ROOT / "recipes" / name, ROOT / "images" / f"{name}-upstream"
        self.recipe = load_recipe(ROOT, name)
        self.parse = load_code(self.folder, "parse", fix="")

    @cached_property
    def driver(self) -> ModuleType:
        folder = self.image / "driver"
        sys.path.insert(0, str(folder))
        package = (folder / self.module).is_dir()
        return importlib.import_module(self.module + (".__main__" if package else ""))

    def plan(self, experiments: Sequence[str] = (), gpus: int = 4) -> Sequence[Point]:
        machine = Machine(gpus=tuple(unknown_gpu(str(index)) for index in range(gpus)))
        chosen = Selection(lane="upstream", experiments=tuple(experiments))
        return make_plan(self.recipe, chosen, machine, ROOT, {self.image.name: "1"}).points

    def words(self, point: Point) -> dict[str, Any]:
        """What the driver understands of a point's command line."""
        assert (point.image.name, point.argv[1:3]) == (self.image.name, ("-m", self.module))
        assert callable(getattr(self.parse, point.parser))
        return vars(self.driver.parse(list(point.argv[3:])))

    def refuses(self, reader: str, folder: Path, labels: Mapping[str, str], why: str) -> None:
        """The parser says in one sentence why a log is none."""
        with pytest.raises(ValueError, match=re.escape(why)) as caught:
            getattr(self.parse, reader)(folder, labels)
        assert "\n" not in str(caught.value)

    def verdicts(self, rows: Iterable[Row], gpu: str) -> dict[str, str]:
        found = judge(load_claims(ROOT, self.name), tuple(rows), {"gpu": gpu})
        return {one.id: str(one.verdict) for one in found}

    def draw(self, rows: Sequence[Row], *names: str) -> dict[str, Drawn]:
        return {one.name: one for one in draw(self.folder, names, frame(rows), {}, None)}

    def fix(self, name: str, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a fix of the image as its build does."""
        fix = self.image / "fixes" / name
        argv = (sys.executable, fix) if fix.suffix == ".py" else (fix,)
        return run(*argv, *words, PYTHONPATH=str(SOURCES))

    def fixed(
        self, root: Path, files: Mapping[str, tuple[str, str]], name: str, *words: str
    ) -> None:
        """A fix makes the second text of each file's first; again, it refuses."""
        for path, (before, _) in files.items():
            write(root / path, before)
        for refused in (False, True):
            done = self.fix(name, root, *words)
            assert (done.returncode != 0, "expected" in done.stderr) == (refused, refused), done
            for path, (_, after) in files.items():
                assert (root / path).read_text() == after

    def drive(
        self, out: Path, *words: object, path: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the driver as a container does; its results lie in `out`."""
        out.mkdir(exist_ok=True)
        places = {"AE_OUT": str(out), "PYTHONPATH": f"{self.image / 'driver'}:{SOURCES}"}
        return run(sys.executable, "-m", self.module, *words, path=path, **places | variables)


def run(*words: object, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever that is; `path`: another PATH."""
    environment = os.environ | variables | ({"PATH": path} if path else {})
    argv = [str(word) for word in words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def programs(folder: Path, **scripts: str) -> str:
    """Write shell scripts and return a PATH on which they come first; `_` stands for `-`."""
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def write(path: Path, text: str) -> Path:
    """Write a file, its folders too; returns the file's folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path.parent


def values(found: Records, metric: str) -> dict[tuple[str, ...], Any]:
    """The samples of a parser's records of a metric, by the values of their labels."""
    return {
        tuple(one["labels"].values()): one["samples"] for one in found if one["metric"] == metric
    }


def rows(found: Records, labels: Mapping[str, str], experiment: str, point: str = "p") -> list[Row]:
    """A parser's records as the launcher reads them back."""
    return [
        Row(
            metric=one["metric"], unit=one["unit"], evidence=one["evidence"],
            samples=tuple(one["samples"]), labels={**labels, **one.get("labels", {})},
            experiment=experiment, point=point, note=one.get("note", ""),
        )
        for one in found
    ]  # fmt: skip

"""What the tests of upstream lanes share: stand-ins, and runs of a lane's driver and fixes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ae.records.files import Row

IMAGES = Path(__file__).resolve().parents[1] / "images"
SOURCES = IMAGES / "sources"  # what the fixes of all images share; in an image it lies beside them


def load(path: Path) -> ModuleType:
    """A module by its path."""
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def python(*words: object, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run our Python to its end, whatever that is; `path`: another PATH."""
    environment = os.environ | variables | ({"PATH": path} if path else {})
    argv = [sys.executable, *map(str, words)]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def fix(image: Path, name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a fix of an image as its build does."""
    return python(image / "fixes" / name, *words, PYTHONPATH=str(SOURCES))


def drive(
    image: Path, out: Path, *words: object, path: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a driver, `<paper>_driver`, as a container does."""
    out.mkdir(exist_ok=True)
    module = f"{image.name.removesuffix('-upstream')}_driver"
    places = {"AE_OUT": str(out), "PYTHONPATH": str(image / "driver")}
    return python("-m", module, *words, path=path, **places)


def programs(folder: Path, **scripts: str) -> str:
    """Write shell scripts and return a PATH on which they come first; `_` stands for `-`."""
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def rows(
    found: Iterable[Mapping[str, Any]], labels: Mapping[str, str], experiment: str, point: str = "p"
) -> list[Row]:
    """A parser's records as the launcher reads them back."""
    return [
        Row(
            metric=one["metric"], unit=one["unit"], evidence=one["evidence"],
            samples=tuple(one["samples"]), labels={**labels, **one.get("labels", {})},
            experiment=experiment, point=point, note=one.get("note", ""),
        )
        for one in found
    ]  # fmt: skip

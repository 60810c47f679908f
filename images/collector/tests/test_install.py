"""`pip install ./images/collector` alone is the whole tool: its wheel, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COLLECTOR = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel was installed into; nothing of the checkout is on its path.

    It is built of a copy: a build writes beside the sources, which other tests read.
    """
    folder = tmp_path_factory.mktemp("installed")
    ignore = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in ("collector", "common/src"):
        shutil.copytree(COLLECTOR.parent / name, folder / "images" / name, ignore=ignore)
    source = folder / "images/collector"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    for command in (
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder / "wheels", source],
        [*pip, "install", "--no-deps", "--no-index", "--target", folder / "lib",
         "--find-links", folder / "wheels", "accel-trace"],
    ):  # fmt: skip
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "lib"


def call(installed: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "ACCEL_TRACE_NATIVE"}
    return subprocess.run(
        [sys.executable, str(installed / "bin" / "accel-trace"), *words], cwd=cwd,
        env=env | {"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_command_and_its_tools_are_there(installed: Path, tmp_path: Path) -> None:
    assert "run a program under a tool" in call(installed, "--help", cwd=tmp_path).stdout
    assert "working_set: " in call(installed, "tools", cwd=tmp_path).stdout
    code = "import accel_trace, reprokit; print(accel_trace.__file__, reprokit.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(installed)}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert all(path.startswith(str(installed)) for path in where)


def test_a_program_without_a_gpu_runs_and_is_reported(installed: Path, tmp_path: Path) -> None:
    done = call(
        installed, "run", "--tool", "overhead", "--set", "mode=none", "--out", "out", "--",
        sys.executable, "-c", "print('hello'); raise SystemExit(3)", cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "hello\n")
    assert (tmp_path / "out" / "records.jsonl").read_text()
    again = call(installed, "report", "out", cwd=tmp_path)
    assert again.stdout.startswith("accel-trace: overhead")


def test_all_that_a_build_compiles_is_in_the_wheel(installed: Path) -> None:
    sources = {path.name for path in (COLLECTOR / "native").iterdir() if path.is_file()}
    assert {path.name for path in (installed / "accel_trace" / "native").iterdir()} == sources

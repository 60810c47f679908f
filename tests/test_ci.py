"""What CI itself does: packages by lock, expectations of recipes, skips, and the list of tools."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from tests.images.requirements import entries

ROOT = Path(__file__).resolve().parents[1]
EXPECTED = sorted(ROOT.glob("recipes/*/tests/expected.yaml"))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Packages.


def packages(environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, ".ci/packages.py", "--dry-run"],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_pytorch_comes_from_its_own_index_where_pip_has_no_wheels(tmp_path: Path) -> None:
    nothing = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    plain = packages(nothing)
    index = "--extra-index-url https://download.pytorch.org/whl/cpu"
    assert {line.split("/")[-2] for line in plain if index in line} == {
        path.parent.name
        for path in load("packages").locks(ROOT / "images")
        if "\ntorch==" in path.read_text()
    }
    wheels = packages({**nothing, "PIP_FIND_LINKS": f"/nonexistent {tmp_path}"})
    assert not [line for line in wheels if "index" in line]
    assert len(wheels) == len(plain)
    assert all("--require-hashes" in line for line in plain + wheels)


def test_every_lock_that_tests_name_is_there() -> None:
    locks = load("packages").locks(ROOT / "images")
    assert locks
    for lock in locks:
        assert entries(lock)
        assert all(one.version and one.hashes for one in entries(lock)), lock


def test_the_tools_are_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = [one for one in entries(ROOT / "requirements-dev.txt") if one.hashes]
    for text in project["dependencies"] + project["optional-dependencies"]["dev"]:
        wanted = Requirement(text)
        versions = [one.version for one in locked if one.name == wanted.name.lower()]
        assert versions, f"{wanted.name} is not locked: make lock"
        assert all(wanted.specifier.contains(version) for version in versions), wanted


# Expectations.


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.parts[-3])
def test_expectations_can_be_read(path: Path) -> None:
    assert load("recipes").read(path)


def test_a_misspelt_expectation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "expected.yaml"
    path.write_text("figures: [one]\nverdicts: {A: reproduced}\nvariant: {one: [x]}\n")
    with pytest.raises(AssertionError, match="unknown \\['variant'\\]"):
        load("recipes").read(path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The files of a run that is as WANTED says."""
    plan = {"points": [{"id": "one-x", "experiment": "one"}]}
    (tmp_path / "run.json").write_text(json.dumps({"plan": plan}))
    point = tmp_path / "points" / "one-x"
    point.mkdir(parents=True)
    (point / "status.json").write_text('{"status": "done"}')
    lines = [{"labels": {"variant": name}} for name in ("slow", "fast")]
    (point / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "figures").mkdir()
    for ending in ("pdf", "png", "csv"):
        text = "x,y\n" + "1,2\n" * 99
        (tmp_path / "figures" / f"bars.{ending}").write_text(text)
    claims = [{"id": "A", "verdict": "reproduced"}]
    (tmp_path / "claims.json").write_text(json.dumps({"claims": claims}))
    return tmp_path


WANTED = {
    "figures": ["bars"],
    "verdicts": {"A": "reproduced"},
    "variants": {"one": ["slow", "fast"]},
}


def test_a_run_as_expected(run: Path) -> None:
    assert "1 points done, 1 verdicts" in load("recipes").verify(run, WANTED)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("points/one-x/status.json", '{"status": "skipped"}', "point one-x is skipped"),
        ("points/one-x/status.json", None, "point one-x is not begun"),
        ("points/one-x/records.jsonl", '{"labels": {"variant": "slow"}}', "no records of .*fast"),
        ("figures/bars.png", "", "bars.png is empty"),
        ("figures/bars.pdf", None, "bars has no pdf"),
        ("figures/bars.csv", "x" * 200 + "\n", "bars shows nothing"),
        ("claims.json", '{"claims": []}', "claim A is 'missing', not 'reproduced'"),
        ("run.json", '{"plan": {"points": []}}', "nothing was planned"),
    ],
)
def test_a_run_that_is_not_as_expected(
    run: Path, file: str, text: str | None, message: str
) -> None:
    if text is None:
        (run / file).unlink()
    else:
        (run / file).write_text(text)
    with pytest.raises(AssertionError, match=message):
        load("recipes").verify(run, WANTED)


# Skips and workers.

SOME = """
import pytest
@pytest.mark.parametrize("n", [1])
def test_skipped(n): pytest.skip("no such thing here")
def test_done(): pass
"""


def pytest_there(folder: Path, *words: str, ci: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder with our conftest.py."""
    shutil.copy(ROOT / "conftest.py", folder)
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **({"CI": "true"} if ci else {})}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder),
         "-c", os.devnull, *words, str(folder)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1", "--dist", "loadgroup")])
def test_a_skip_that_is_not_on_the_list_fails_ci(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_some.py").write_text(SOME)
    (tmp_path / "test_whole.py").write_text('import pytest\npytest.importorskip("no_such_module")')
    done = pytest_there(tmp_path, *workers)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "no such thing here" in done.stdout.rpartition("skipped, and not in")[2]
    assert "test_whole.py" in done.stdout.rpartition("skipped, and not in")[2]
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "allowed_skips.txt").write_text(
        "# why\ntest_some.py::test_skipped  not here\ntest_whole.py  neither\n"
    )
    assert pytest_there(tmp_path, *workers).returncode == 0


def test_elsewhere_any_test_may_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SOME)
    assert pytest_there(tmp_path, ci=False).returncode == 0


def test_what_needs_the_engine_shares_one_worker(tmp_path: Path) -> None:
    """And each other file has one; two releases of pytest and xdist may not agree on that."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = docker: x\n")
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(
            "import os, time, pytest\n"
            "def put(name):\n"
            "    time.sleep(0.2)\n"
            "    worker = os.environ['PYTEST_XDIST_WORKER']\n"
            "    with open(name, 'a') as file: print(worker, file=file)\n"
            "@pytest.mark.parametrize('n', range(2))\n"
            f"def test_plain(n): put('{name}')\n"
            "@pytest.mark.docker\n"
            "@pytest.mark.parametrize('n', range(2))\n"
            "def test_engine(n): put('engine')\n"
        )
    words = ("-p", "xdist", "-n", "3", "--dist", "loadgroup", "-c", "pytest.ini")
    done = pytest_there(tmp_path, *words)
    assert done.returncode == 0, done.stdout
    used = {name: (tmp_path / name).read_text().split() for name in ("engine", *"abcd")}
    assert {name: len(workers) for name, workers in used.items()} == {
        "engine": 8, "a": 2, "b": 2, "c": 2, "d": 2
    }  # fmt: skip
    assert [len(set(workers)) for workers in used.values()] == [1] * 5
    assert len({workers[0] for workers in used.values()}) > 1


def test_whatever_is_timed_needs_a_gpu(tmp_path: Path) -> None:
    """Or it would run among all others, where nothing is alone."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu: x\n  timed: x\n")
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.timed\n"
        "def test_times(): raise SystemExit('among all others')\n"
        "def test_done(): pass\n"
    )
    done = pytest_there(tmp_path, "-c", "pytest.ini", "-m", "not gpu")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 deselected" in done.stdout


def test_an_ignored_interrupt_reaches_the_tests_children(tmp_path: Path) -> None:
    """As under nohup, or as a shell's job in the background."""
    (tmp_path / "test_some.py").write_text(
        "import signal, subprocess, sys\n"
        "def test_it():\n"
        "    child = subprocess.Popen([sys.executable, '-c',\n"
        "        'import time; print(1, flush=True); time.sleep(60)'], stdout=subprocess.PIPE)\n"
        "    child.stdout.readline()\n"
        "    child.send_signal(signal.SIGINT)\n"
        "    assert child.wait(20) != 0\n"
    )
    shutil.copy(ROOT / "conftest.py", tmp_path)
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "pytest", "-q", "-p",
         "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout

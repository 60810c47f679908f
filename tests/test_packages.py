"""Wheels and source distributions of `ae` and `accel-trace`: built, installed anew, and used.

Nothing of the checkout is on the path of what is installed. A wheel is built from its source
distribution, with the setuptools that is locked; installing a source distribution takes PyPI's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from ae import __version__

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).parent / "uv"
KINDS = {"wheel": "-py3-none-any.whl", "source": ".tar.gz"}


def run(*words: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command that knows nothing of this checkout."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AE_", "PYTHON", "VIRTUAL_"))}
    argv = [str(word) for word in words]
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, (argv, done.stdout, done.stderr)
    return done


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make dist` makes them, of a copy of the sources."""
    folder = tmp_path_factory.mktemp("dist")
    tree, ignore = folder / "tree", shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("ae", "images/collector", "images/common/src"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tree)
    build = [UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable]
    for project in (".", "images/collector"):
        run(*build, "--out-dir", folder / "dist", project, cwd=tree)
    shutil.rmtree(tree)
    return folder / "dist"


@pytest.fixture(scope="module", params=KINDS)
def programs(
    request: pytest.FixtureRequest, dist: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder `bin` of a new environment with both projects, from wheels or from sources."""
    folder = tmp_path_factory.mktemp(request.param)
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "env", cwd=folder)
    files = [dist / f"{name}-{__version__}{KINDS[request.param]}" for name in ("ae", "accel_trace")]
    words = ["--python", folder / "env", "--constraint", ROOT / "requirements-dev.txt"]
    run(UV, "pip", "install", "--quiet", *words, *files, cwd=folder)
    return folder / "env/bin"


def test_ae_says_where_recipes_come_from(programs: Path, tmp_path: Path) -> None:
    assert run(programs / "ae", "--version", cwd=tmp_path).stdout == f"ae {__version__}\n"
    said = run(programs / "ae", "list", cwd=tmp_path, code=2).stderr
    assert f"at or above {tmp_path} there are no recipes/ and images/" in said
    assert "run in a checkout or loaded bundle, or set AE_ROOT" in said


def test_ae_works_in_a_checkout(programs: Path, tmp_path: Path) -> None:
    for name in ("recipes", "images"):
        shutil.copytree(ROOT / "tests/toy/root" / name, tmp_path / name)
    assert "toy" in run(programs / "ae", "list", cwd=tmp_path).stdout
    said = run(programs / "ae", "run", "toy", "--dry-run", "--engine", "local", cwd=tmp_path).stdout
    assert "python -m toy" in said


def test_accel_trace_runs_a_program(programs: Path, tmp_path: Path) -> None:
    trace, python = programs / "accel-trace", programs / "python"
    words = ["--tool", "overhead", "--set", "mode=none", "--out", "out"]
    done = run(trace, "run", *words, "--", python, "-c", "print('hello')", cwd=tmp_path)
    assert done.stdout == "hello\n"
    assert run(trace, "report", "out", cwd=tmp_path).stdout.startswith("accel-trace: overhead")
    code = "import accel_trace, reprokit; print(accel_trace.__file__, reprokit.__file__)"
    where = run(python, "-c", code, cwd=tmp_path).stdout.split()
    assert all(path.startswith(str(programs.parent)) for path in where)


def test_ae_from_its_wheel_without_an_install(dist: Path, tmp_path: Path) -> None:
    """As `pipx run --spec WHEEL ae` does it."""
    wheel = dist / f"ae-{__version__}-py3-none-any.whl"
    words = ["--isolated", "--python", sys.executable, "--from", wheel]
    said = run(UV, "tool", "run", *words, "ae", "list", cwd=tmp_path, code=2).stderr
    assert "run in a checkout or loaded bundle, or set AE_ROOT" in said


def test_what_is_in_them(dist: Path) -> None:
    """Every file of the package, in both; licences; no tests, which need the rest."""
    for package in (ROOT / "ae", ROOT / "images/collector/src/accel_trace"):
        name = f"{package.name}-{__version__}"
        files = {
            path.relative_to(package.parent).as_posix()
            for path in package.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        with zipfile.ZipFile(dist / f"{name}-py3-none-any.whl") as wheel:
            names = set(wheel.namelist())
        assert files <= names, files - names
        assert f"{name}.dist-info/licenses/LICENSE" in names
        with tarfile.open(dist / f"{name}.tar.gz") as tar:
            members = {member.name.partition("/")[2].removeprefix("src/") for member in tar}
        assert files | {"LICENSE"} <= members
        assert not [member for member in members if member.startswith(("tests", ".."))]

"""A secret reaches the container as a file, and its content nothing else at all."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.real.acting import NAME, ae_run, make_root

pytestmark = pytest.mark.docker

WORD = "k9-very-private-licence-word"
TARGET = "/run/secrets/gurobi.lic"
NEED = f"{{secrets: [{{name: gurobi, target: {TARGET}, optional: OPTIONAL, why: the solver}}]}}"


@pytest.fixture
def licence(tmp_path: Path) -> Path:
    path = tmp_path / "private" / "gurobi.lic"
    path.parent.mkdir(mode=0o700)
    path.write_text(f"TOKEN={WORD}\n")
    path.chmod(0o600)
    return path


def holding(folder: Path, word: str = WORD) -> list[str]:
    """The files below a folder that hold the secret's content."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path) for path in found if word.encode() in path.read_bytes()]


def processes_saying(word: str) -> list[str]:
    """Command lines and environments of all processes that hold it."""
    found = []
    for path in [*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")]:
        try:
            if word.encode() in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found


def running() -> list[str]:
    """The recipe's containers. Docker lists one some time after its program has begun."""
    docker = ["docker", "ps", "-q", "--filter", f"label=ae.recipe={NAME}"]
    end = time.monotonic() + 30
    while True:
        said = subprocess.run(docker, capture_output=True, text=True, check=True).stdout
        if said or time.monotonic() > end:
            return said.split()
        time.sleep(0.05)


def test_nothing_but_the_container_sees_it(docker_host: str, licence: Path, tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", needs=NEED.replace("OPTIONAL", "false"))
    results = tmp_path / "results"
    acts = f"read:{TARGET}|print:up|until:seen|exit:5"
    launch = ae_run(root, results, acts, "--secret", f"gurobi={licence}")
    launch.until("up")
    (container,) = running()
    told = subprocess.run(["docker", "inspect", container], capture_output=True, check=True)
    (mount,) = [m for m in json.loads(told.stdout)[0]["Mounts"] if m["Destination"] == TARGET]
    assert (mount["RW"], mount["Source"]) == (False, str(licence))
    assert WORD.encode() not in told.stdout
    assert processes_saying(WORD) == []
    touch = ["docker", "exec", container, "sh", "-c", 'touch "$AE_OUT/seen"']
    subprocess.run(touch, check=True)
    code, said = launch.end()
    assert code == 4  # the exit 5 of the point
    assert WORD not in said
    assert holding(results) == []
    point = launch.run_folder() / "points/middle"
    assert (point / "stdout.log").read_text().startswith("[secret gurobi]\n")
    assert licence.read_text() == f"TOKEN={WORD}\n"
    plan = json.loads((launch.run_folder() / "run.json").read_text())["plan"]
    assert plan["points"][1]["needs"]["secrets"][0]["name"] == "gurobi"
    assert str(licence) not in json.dumps(plan)


def test_without_it(docker_host: str, tmp_path: Path) -> None:
    needed = make_root(tmp_path / "needed", needs=NEED.replace("OPTIONAL", "false"))
    code, said = ae_run(needed, tmp_path / "r1", "print:x").end()
    assert code == 3
    assert "middle needs the secret 'gurobi' (the solver)" in said
    assert "--secret gurobi=FILE" in said
    assert not (tmp_path / "r1").exists()
    code, said = ae_run(needed, tmp_path / "r1", "print:x", "--secret", f"gurobi={tmp_path}").end()
    assert code == 2
    assert "is no file" in said
    optional = make_root(tmp_path / "optional", needs=NEED.replace("OPTIONAL", "true"))
    launch = ae_run(optional, tmp_path / "r2", "print:x", "--experiment", "middle")
    code, said = launch.end()
    assert (code, launch.words()) == (0, {"middle": "done"}), said

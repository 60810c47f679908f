"""`--budget`, `ae review`, `ae appendix` and `ae oracle` as a person and a program meet them: on
real runs of the toy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ae.errors import ExitCode
from tests.calling import Ae, caller
from tests.toy import make_toy

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed checkout of the toy, whose points are processes of this machine."""
    made = make_toy(tmp_path / "checkout")
    (made / ".gitignore").write_text("results/runs\n__pycache__\n")
    commit(made)
    path = [f for f in os.environ["PATH"].split(os.pathsep) if not Path(f, "nvidia-smi").exists()]
    for name, value in {
        "AE_ROOT": str(made), "AE_LOCAL_PYTHON": sys.executable, "AE_REVISION": "a" * 40,
        "PATH": os.pathsep.join(path), "PYTHONPATH": str(CHECKOUT), "COLUMNS": "80",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AE_RESULTS", raising=False)
    return made


def commit(root: Path) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "--allow-empty", "-mx"]):
        subprocess.run(["git", "-C", str(root), *words], check=True)


@pytest.fixture
def ae(root: Path, capsys: pytest.CaptureFixture[str]) -> Ae:
    return caller(capsys)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """`ae run` as a process of its own."""
    argv = [sys.executable, "-m", "ae", "run", "toy", "--engine", "local", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def test_a_wrong_budget_is_refused_before_anything_runs(root: Path, ae: Ae) -> None:
    for words in (["--budget", "0"], ["--budget", "soon"], ["--budget", "0s"]):
        code, out, err = ae("run", "toy", *words)
        assert code == ExitCode.USAGE
        assert not out
        assert err.startswith("error: --budget")
        assert "fix: --budget 20m" in err
    code, _, err = ae("run", "toy", "--budget", "1s", "--engine", "local")
    assert code == ExitCode.USAGE
    assert "no claim can be decided within 1 s" in err
    (root / "recipes/toy/claims.yaml").write_text("schema: 2\nclaims: []\n")
    code, _, err = ae("run", "toy", "--budget", "1m", "--engine", "local")
    assert code == ExitCode.USAGE
    assert "no claim needs what this run would measure" in err
    assert not (root / "results").exists()


def test_the_plan_of_a_budget_shows_what_is_chosen_and_what_is_left(ae: Ae) -> None:
    code, out, err = ae("run", "toy", "--budget", "4s", "--dry-run", "--engine", "local")
    assert code == 0
    chosen = [line.split()[1] for line in out.splitlines() if line.startswith("# ")]
    assert chosen == ["together-ones", "together-ramp"]
    said = err.splitlines()
    assert said[0] == "note: budget 4 s: 2 of 6 points, about 4 s, to decide 2 of 3 claims"
    assert said[-2:] == ["left out, and not run:", "  1 claim for 1 s more: apart (1 point)"]
    assert max(map(len, said)) <= 80
    code, out, _ = ae("run", "toy", "--budget", "4s", "--dry-run", "--engine", "local", "--json")
    assert [point["id"] for point in json.loads(out)["points"]] == chosen


def test_a_time_is_that_of_the_same_command(root: Path, ae: Ae) -> None:
    """With other values a point is another one, and takes what the recipe says."""
    run("--budget", "1m")
    (kept,) = (root / "results/runs/toy").iterdir()
    assert ae("keep", kept.name, "--machine", "toy")[0] == 0
    plan = ("run", "toy", "--budget", "1m", "--dry-run", "--engine", "local")
    assert "3 as measured on Toy GPU 1" in " ".join(ae(*plan)[2].split())
    said = ae(*plan, "--experiment", "together", "--set", "order=backward")[2]
    assert said.startswith("note: budget 1 min")
    assert "as measured" not in said


def test_a_budget_runs_what_it_chose_and_the_rest_is_not_run_until_it_is(
    root: Path, ae: Ae
) -> None:
    done = run("--budget", "4s")
    assert done.returncode == 0, done.stderr
    assert "budget 4 s: 2 of 6 points" in done.stderr
    made = {path.name for path in (root / "results/runs/toy").glob("*/points/*")}
    assert {"together-ones", "together-ramp"} <= made
    _, out, _ = ae("check", "toy", "--json")
    verdicts = {one["id"]: one["verdict"] for one in json.loads(out)["claims"]}
    assert verdicts["T1"] == "reproduced"
    assert verdicts["T5"] == "not run"
    assert f"{len(made)} of 6 points are done and kept; to run the rest:" in done.stderr
    assert judged(ae, "data")["pass"]  # what a budget left out is not lost
    (lost,) = (root / "results/runs/toy").glob("*/points/together-ones/records.jsonl")
    kept = lost.read_bytes()
    lost.write_text("")
    assert list(bad(judged(ae, "data")).values()) == ["there are no records of together-ones"]
    lost.write_bytes(kept)
    done = run("--resume", "--budget", "1m")
    assert done.returncode == 0, done.stderr
    assert "to decide 3 of 3 claims" in done.stderr


def test_ctrl_c_under_a_budget_stops_at_once_and_keeps_what_is_done(root: Path) -> None:
    claim = (root / "recipes/toy/claims.yaml").read_text()
    last = claim.rindex("median(energy, variant=fast, dataset=ones)")
    stuck = claim[:last] + "median(energy, experiment=stuck)" + claim[last + 42 :]
    (root / "recipes/toy/claims.yaml").write_text(stuck)
    words = ["run", "toy", "--engine", "local", "--budget", "10s", "-v"]
    words += ["--experiment", "together,stuck"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ae", *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "] stuck" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == ExitCode.INTERRUPTED
    (path,) = (root / "results/runs/toy").glob("*/points/stuck/status.json")
    name = path.parents[2].name
    assert f"2 of 3 points are done and kept; to run the rest: ae run {name} --resume" in said
    status = json.loads(path.read_text())
    assert status["status"] == "interrupted"
    assert 0.5 <= status["seconds"] < 60


def test_a_run_becomes_a_review_and_a_recipe_an_appendix(root: Path, ae: Ae) -> None:
    assert run("--experiment", "together").returncode == 0
    (folder,) = (root / "results/runs/toy").iterdir()
    code, out, _ = ae("review", folder.name)
    assert code == 0
    assert ae("review", str(folder))[1] == out
    heads = [line for line in out.splitlines() if line.startswith("## ")]
    assert heads == [
        "## Machine", "## What ran", "## Verdicts", "## Deviations", "## To repeat",
        "## What it was made with",
    ]  # fmt: skip
    assert "- together: 2 done; " in out
    assert (
        f"    git checkout {'a' * 40}\n    ae run toy --engine local --experiment together" in out
    )
    assert "- T3: Fast is a thousand times as fast as slow. Here: ours " in out
    code, _, err = ae("review", "nosuch")
    assert code == ExitCode.USAGE
    assert "'nosuch' is no run or reference set; " in err
    assert ae("keep", folder.name, "--machine", "toys")[0] == 0
    assert "Results: toys, judged by ae." in ae("review", "toys/toy")[1]
    for wrong in ("toys/nosuch", "toyz/toy"):
        code, _, err = ae("review", wrong)
        assert code == ExitCode.USAGE
        assert f"'{wrong}' is no run or reference set; did you mean 'toys/toy'?" in err
    code, out, _ = ae("appendix", "toy")
    assert code == 0
    assert r"\section{Artifact Appendix}" in out
    assert "On the reference machine" in out
    assert ae("appendix", "nosuch")[0] == ExitCode.USAGE


def judged(ae: Ae, judge: str, *words: str) -> dict[str, Any]:
    """What a judge says, twice the same and the same as its exit code."""
    code, out, err = ae("oracle", judge, "toy", *words, "--json")
    assert (code, out, err) == ae("oracle", judge, "toy", *words, "--json")
    said: dict[str, Any] = json.loads(out)
    assert list(said) == ["schema", "judge", "recipe", "pass", "exit_code", "findings"]
    assert (said["judge"], said["recipe"]) == (judge, "toy")
    assert code == said["exit_code"] == (0 if said["pass"] else CODES[judge])
    assert said["pass"] == all(one["ok"] for one in said["findings"])
    for one in said["findings"]:
        assert list(one) == ["check", "ok", "detail", "fix"]
        assert one["ok"] or (one["detail"] and one["fix"])
    assert said["findings"]
    return said


CODES = {"env": 21, "build": 22, "data": 23, "run": 24}


def bad(said: dict[str, Any]) -> dict[str, str]:
    return {one["check"]: one["detail"] for one in said["findings"] if not one["ok"]}


def test_the_oracle_of_the_environment(ae: Ae, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(ae, "env", "--engine", "local")["pass"]
    monkeypatch.setenv("AE_RESULTS", "/proc/nowhere")
    assert "disk" in bad(judged(ae, "env", "--engine", "local"))


def test_the_oracle_of_the_build(
    root: Path, ae: Ae, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AE_LOCAL_PYTHON")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said = bad(judged(ae, "build", "--engine", "local"))
    assert "ae/toy:cpu" in said
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    assert judged(ae, "build", "--engine", "local")["pass"]
    assert "engine local has it" in ae("oracle", "build", "toy", "--engine", "local")[1]
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("AE_LOCAL_PYTHON", str(broken))
    assert bad(judged(ae, "build", "--engine", "local")) == {"ae/toy:cpu": "exit code 3: broken"}


def test_what_else_a_reader_must_know_goes_with_the_results(
    root: Path, ae: Ae, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AE_ABOUT", "GPU tests: 3 passed\nAnd a neighbour.")
    assert run("--experiment", "together").returncode == 0
    (folder,) = (root / "results/runs/toy").iterdir()
    assert ae("keep", folder.name, "--machine", "toys")[0] == 0
    monkeypatch.delenv("AE_ABOUT")
    for name in (folder.name, "toys/toy"):
        text = ae("review", name)[1]
        assert "GPU tests: 3 passed" in text
        assert "And a neighbour." in text


def test_the_oracles_of_data_and_run(root: Path, ae: Ae) -> None:
    assert judged(ae, "data")["pass"]
    said = bad(judged(ae, "run"))
    assert said == {"run": "no run of toy has begun yet"}
    assert run("--experiment", "together").returncode == 0
    (folder,) = (root / "results/runs/toy").iterdir()
    assert bad(judged(ae, "run")) == {"reference": "there is no reference set of toy-gpu-1"}
    assert ae("keep", folder.name)[0] == 0
    sources = bad(judged(ae, "data"))  # new, and not committed
    assert sources == {"sources": "?? results/reference/toy-gpu-1/toy/"}
    commit(root)
    assert judged(ae, "data")["pass"]
    assert judged(ae, "run")["pass"]
    assert judged(ae, "run", folder.name, "--reference", "toy-gpu-1")["pass"]
    kept = root / "results/reference/toy-gpu-1/toy"

    records = folder / "points/together-ones/records.jsonl"
    whole = records.read_text()
    records.write_text(whole[:-20])
    assert f"run {folder.name}" in bad(judged(ae, "data"))
    assert "run" in bad(judged(ae, "run"))  # what cannot be read is no pass
    shutil.rmtree(folder / "points/together-ones")
    assert bad(judged(ae, "run"))["T1"] == "not run; in the reference: reproduced"
    shutil.copytree(kept / "points/together-ones", records.parent)  # as it was
    assert judged(ae, "data")["pass"]

    (kept / "verdicts.txt").write_text("T1 not reproduced\n")
    found = bad(judged(ae, "data"))
    assert set(found) == {"sources", "reference toy-gpu-1"}
    assert found["sources"] == " M results/reference/toy-gpu-1/toy/verdicts.txt"
    (kept / "verdicts.txt").write_bytes(b"T1 \xff\n")
    assert set(bad(judged(ae, "data"))) == {"sources", "reference toy-gpu-1"}
    (kept / "verdicts.txt").unlink()
    assert set(bad(judged(ae, "data"))) == {"sources", "reference toy-gpu-1"}
    (records.parent / "status.json").unlink()
    (records.parent / "status.json").mkdir()  # which no system reads as a file
    found = bad(judged(ae, "data"))
    assert found[f"run {folder.name}"].startswith("the system refused: Is a directory")
    assert bad(judged(ae, "run"))["run"].startswith("the system refused: Is a directory")


@pytest.mark.parametrize("ended", ["failed", "timeout", "oom", "interrupted", "skipped"])
@pytest.mark.parametrize("budget", [False, True])
def test_a_point_that_ended_without_records_is_not_whole(
    root: Path, ae: Ae, ended: str, budget: bool
) -> None:
    assert run(*(["--budget", "4s"] if budget else ["--experiment", "together"])).returncode == 0
    assert judged(ae, "data")["pass"]
    (folder,) = (root / "results/runs/toy").iterdir()
    point = folder / "points/together-ones"
    status = json.loads((point / "status.json").read_text())
    (point / "status.json").write_text(json.dumps(status | {"status": ended}))
    (point / "records.jsonl").unlink()
    name = f"run {folder.name}"
    wanted = {} if ended == "skipped" else {name: "there are no records of together-ones"}
    assert bad(judged(ae, "data")) == wanted
    if not budget:
        assert ae("keep", folder.name, "--machine", "x")[1].startswith("kept 1 point in ")


@pytest.mark.parametrize("left", ["an empty file", "no file", "no folder"])
def test_a_point_whose_records_are_gone_is_found_and_runs_again(
    root: Path, ae: Ae, left: str
) -> None:
    assert run("--experiment", "together").returncode == 0
    (folder,) = (root / "results/runs/toy").iterdir()
    records = folder / "points/together-ones/records.jsonl"
    if left == "an empty file":
        records.write_text("")
    elif left == "no file":
        records.unlink()
    else:
        shutil.rmtree(records.parent)
    name = f"run {folder.name}"
    assert bad(judged(ae, "data")) == {name: "there are no records of together-ones"}
    assert json.loads(ae("runs", "--json")[1])[0]["done"] == 1
    out = ae("run", "toy", "--resume", "--dry-run")[1]
    assert [line.split()[1] for line in out.splitlines() if line[0] == "#"] == ["together-ones"]
    assert run("--resume").returncode == 0
    assert judged(ae, "data")["pass"]


def test_what_follows_from_the_seed_is_the_same_in_run_and_reference(root: Path, ae: Ae) -> None:
    assert run("--experiment", "together").returncode == 0
    (folder,) = (root / "results/runs/toy").iterdir()
    fact = {
        "metric": "sum", "unit": "", "samples": [20000.0], "labels": {}, "evidence": "static"
    }  # fmt: skip
    records = folder / "points/together-ones/records.jsonl"
    records.write_text(records.read_text() + json.dumps(fact) + "\n")
    assert ae("keep", folder.name)[0] == 0
    commit(root)
    assert judged(ae, "data")["pass"]
    changed = records.read_text().replace("20000.0", "20001.0")
    records.write_text(changed)
    name = f"run {folder.name}"
    assert bad(judged(ae, "data")) == {name: "sum of together-ones differs from the reference"}


def test_the_oracle_speaks_to_people_too_and_refuses_what_it_does_not_know(ae: Ae) -> None:
    code, out, _ = ae("oracle", "run", "toy")
    assert code == CODES["run"]
    assert out.splitlines()[0].startswith("fail  run")
    assert "fix: ae run toy" in out
    assert ae("oracle", "runs", "toy")[0] == ExitCode.USAGE
    assert ae("oracle", "env", "nosuch")[0] == ExitCode.USAGE
    for judge, words, said in (
        ("env", ("nope",), "RUN ('nope')"),
        ("build", ("nope",), "RUN ('nope')"),
        ("data", ("--engine", "local"), "--engine ('local')"),
        ("data", ("--reference", "h200"), "--reference ('h200')"),
    ):
        code, out, err = ae("oracle", judge, "toy", *words)
        assert (code, out) == (ExitCode.USAGE, "")
        assert err == f"error: {judge} takes no {said}\n  fix: ae oracle {judge} toy\n"

"""`ae plot`, `check`, `table`, `report` and `keep` as a person meets them, on a real toy run."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ae.errors import ExitCode
from ae.recipe import load as models
from ae.records import results as loading
from tests.calling import Ae, caller
from tests.toy import make_toy


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with one finished run of the toy, at full size."""
    root = make_toy(tmp_path_factory.mktemp("toy") / "checkout")
    environment = os.environ | {
        "AE_ROOT": str(root), "AE_LOCAL_PYTHON": sys.executable, "AE_REVISION": "a" * 40,
        "PATH": os.pathsep.join(
            f for f in os.environ["PATH"].split(os.pathsep) if not Path(f, "nvidia-smi").exists()
        ),
    }  # fmt: skip
    environment.pop("AE_RESULTS", None)
    words = ["run", "toy", "--engine", "local", "--experiment", "together"]
    done = subprocess.run(
        [sys.executable, "-m", "ae", *words], env=environment, capture_output=True, text=True,
        check=False, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "claims:" in done.stdout
    assert len(done.stdout.splitlines()) < 45
    return root


@pytest.fixture
def ae(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ae:
    monkeypatch.setenv("AE_ROOT", str(made))
    monkeypatch.delenv("AE_RESULTS", raising=False)
    return caller(capsys)


def the_run(made: Path) -> Path:
    (run,) = (made / "results/runs/toy").iterdir()
    return run


def state(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def test_a_run_writes_its_figures_and_claims_and_reading_it_writes_nothing(
    made: Path, ae: Ae, tmp_path: Path
) -> None:
    run = the_run(made)
    before = state(run)
    assert {path.suffix for path in (run / "figures").iterdir()} == {".csv", ".pdf", ".png", ".svg"}
    assert json.loads((run / "claims.json").read_text())["counts"]["reproduced"] >= 1
    code, out, _ = ae("plot", "toy")
    assert code == 0
    drawn = made / "results/report/figures" / f"toy-{run.name}"
    assert out == f"figures: {drawn}: times.png\n"
    assert (drawn / "times.csv").read_bytes() == (run / "figures/times.csv").read_bytes()
    assert ae("plot", "toy", run.name, "-o", str(tmp_path / "mine"))[0] == 0
    assert (tmp_path / "mine/figures" / f"toy-{run.name}" / "times.pdf").is_file()
    assert ae("check", "toy")[0] == ExitCode.CLAIM
    assert ae("table", "toy")[0] == 0
    assert ae("report")[0] == 0
    assert (made / "results/report/report.html").is_file()
    assert ae("report", "toy", run.name, "-o", str(tmp_path / "page"))[0] == 0
    assert (tmp_path / "page/report.html").is_file()
    assert ae("site", str(tmp_path / "site"))[0] == 0
    code, _, said = ae("site", str(tmp_path / "named"), run.name)
    assert (code, said.split(";")[0]) == (0, "drawing figures of 1 page"), "it is not silent"
    for name in ("site", "named"):
        pages = {path.name for path in (tmp_path / name).iterdir()}
        assert pages == {"index.html", f"toy-{run.name}.html", "assets"}
    code, _, said = ae("site", str(tmp_path / "none"), "nosuch")
    assert code == ExitCode.USAGE
    assert "'nosuch' is no run or reference set; known: " in said
    assert not (tmp_path / "none").exists()
    assert state(run) == before


def test_check_says_first_what_is_not_reproduced(ae: Ae) -> None:
    code, out, _ = ae("check", "toy")
    assert code == ExitCode.CLAIM
    board, failed, *_ = out.split("\n\n")
    assert board.split()[0] == "facts"
    head, _, first, *_ = failed.splitlines()
    assert head.split() == ["claim", "paper", "ours", "verdict", "why"]
    assert first.startswith("T3")
    assert "not reproduced" in first
    assert "(1 process)" in first
    assert "1,000 x" in first
    assert out.splitlines()[-1].startswith("6 claims: 1 not reproduced, ")
    code, out, _ = ae("check", "toy", "--json")
    assert json.loads(out)["claims"][2]["reference"] == 1000


def test_tables_as_text_csv_and_latex(ae: Ae) -> None:
    code, out, _ = ae("table", "toy", "--format", "csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {(row["dataset"], row["variant"]) for row in rows} >= {
        ("ones", "fast"),
        ("ramp", "slow"),
    }
    assert float(rows[0]["median"]) > 0
    assert r"\begin{tabular}" in ae("table", "toy", "--format", "latex")[1]
    assert "together" in ae("table", "toy")[1]
    code, _, err = ae("table", "toy", "--format", "cvs")
    assert code == ExitCode.USAGE
    assert "'cvs' is not one of 'text', 'csv', 'latex'" in err


def test_keep_then_judge_the_set_by_its_machine(made: Path, ae: Ae, tmp_path: Path) -> None:
    run = the_run(made)
    code, out, err = ae("keep", run.name, "--machine", "toy-gpu")
    assert code == 0, err
    folder = made / "results/reference/toy-gpu/toy"
    assert f"kept 2 points in {folder}, 0 of them instead of older ones" in out
    verdicts = dict(
        line.split(" ", 1) for line in (folder / "verdicts.txt").read_text().splitlines()
    )
    assert verdicts["T1"] == "reproduced"
    assert verdicts["T3"] == "not reproduced"
    before = state(folder)
    assert ae("check", "toy", "toy-gpu")[0] == ExitCode.CLAIM
    assert ae("check", "toy", str(folder))[1] == ae("check", "toy", run.name)[1]
    assert ae("report", "-o", str(tmp_path))[0] == 0
    page = (tmp_path / "report.html").read_text()
    assert page.count("<h2") == 2  # the latest run, and the set
    assert "<p>toy-gpu: " in page
    assert state(folder) == before
    assert "2 of them instead" in ae("keep", str(run), "--machine", "toy-gpu")[1]
    assert ae("keep", "nosuch")[0] == ExitCode.USAGE


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a b", "", "..", ".x", "a/b", "x\n", "é"])
def test_a_set_has_a_plain_name(made: Path, ae: Ae, name: str) -> None:
    before = sorted(made.parent.rglob("*"))
    code, out, err = ae("keep", the_run(made).name, "--machine", name)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith(f"error: --machine '{name}': not letters, digits")
    assert "fix: --machine NAME" in err
    assert sorted(made.parent.rglob("*")) == before


@pytest.mark.parametrize("words", [("plot", "toy", "-o"), ("report", "toy", "-o")])
def test_figures_that_do_not_fit_the_disk(ae: Ae, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Here no file may be larger than 3 kB; a full disk says another word."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert ae(*words, str(whole))[0] == 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, limits[1]))
    try:
        code, out, err = ae(*words, str(part))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, out) == (ExitCode.ENVIRONMENT, "")
    assert err.startswith("error: the system refused: File too large")
    assert "free disk" in err
    assert not [path for path in part.rglob("*") if path.is_file()]


def test_records_and_recipe_are_read_once(ae: Ae, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    point, yaml = loading.read_point, models.read_yaml

    def counted_point(folder: Path) -> object:
        read.append(folder.name)
        return point(folder)

    def counted_yaml(path: Path, root: Path) -> object:
        read.append(path.name)
        return yaml(path, root)

    monkeypatch.setattr(loading, "read_point", counted_point)
    monkeypatch.setattr(models, "read_yaml", counted_yaml)
    for words in (("check", "toy"), ("report", "toy"), ("table", "toy"), ("plot", "toy")):
        read.clear()
        assert ae(*words)[0] in (0, 1)
        assert sorted(read) == ["recipe.yaml", "together-ones", "together-ramp"], words

"""`ae compare` as a person meets it: on runs with known times, and on real runs of a toy."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ae.compare.turns import orders
from ae.errors import ExitCode
from ae.model import Machine
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.load import load_recipe
from tests.calling import Ae, caller
from tests.compare.calibrated import calibrate
from tests.toy import make_toy

ROOT = Path(__file__).resolve().parents[2]
Change = Callable[[str, dict[str, Any]], object]  # of a file's name and one of its objects

CLAIM = """
  - id: T6a
    figure: Fig. 1
    sentence: "Fast takes at most 60 us."
    tag: magnitude
    reference: 60
    upper: 60
    unit: us
    expression: median(work_time, variant=fast, dataset=ones)
  - id: T7
    figure: Fig. 1
    sentence: "Fast is at least four times as fast as slow."
    tag: magnitude
    reference: 4
    lower: 4
    unit: x
    expression: ratio(work_time, variant=slow/fast, dataset=ones)
"""


def measure(root: Path, *words: str) -> Path:
    """Run the toy really, as child processes; the run's folder."""
    environment = os.environ | {"AE_ROOT": str(root), "AE_LOCAL_PYTHON": sys.executable}
    environment.pop("AE_RESULTS", None)
    command = ["run", "toy", "--engine", "local", "--experiment", "together", *words]
    done = subprocess.run(
        [sys.executable, "-m", "ae", *command], env=environment, capture_output=True, text=True,
        check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Path(re.findall(r"^run \S+: (.+)$", done.stdout, re.MULTILINE)[-1])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy, with claims that one dataset decides, and calibrated times."""
    made = make_toy(tmp_path_factory.mktemp("compare") / "checkout")
    calibrate(made / "images/toy")
    with (made / "recipes/toy/claims.yaml").open("a") as file:
        file.write(CLAIM)
    return made


@pytest.fixture(scope="module")
def real(root: Path) -> Path:
    """Six processes of one dataset."""
    return measure(root, "--dataset", "ones", "--repeat", "6")


@pytest.fixture(scope="module")
def again(root: Path, real: Path) -> Path:
    """The same once more."""
    return measure(root, "--dataset", "ones", "--repeat", "6")


@pytest.fixture(scope="module")
def changed(root: Path, again: Path) -> Path:
    """The same with a `fast` that adds every number three times."""
    adding = root / "images/toy/src/toy/adding.py"
    text = adding.read_text()
    adding.write_text(text.replace('"fast": 1', '"fast": 3'))
    try:
        return measure(root, "--dataset", "ones", "--repeat", "6")
    finally:
        adding.write_text(text)


@pytest.fixture
def ae(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ae:
    monkeypatch.setenv("AE_ROOT", str(root))
    monkeypatch.setenv("AE_RESULTS", str(tmp_path))
    return caller(capsys)


@pytest.fixture
def made(real: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes a run: a copy of the real one, with times that are known and what `change` does."""

    def make(name: str, change: Change = lambda *_: None, **factors: float) -> Path:
        folder = tmp_path / "runs/toy" / name
        shutil.copytree(real, folder)
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        for path in [*sorted(folder.glob("points/*/*.json*")), folder / "run.json"]:
            objects = [json.loads(line) for line in path.read_text().splitlines()] \
                if path.suffix == ".jsonl" else [json.loads(path.read_text())]  # fmt: skip
            for one in objects:
                if path.name == "records.jsonl":
                    variant = one["labels"]["variant"]
                    time = {"slow": 800, "fast": 100}[variant] * factors.get(variant, 1)
                    one["samples"] = list(time * np.exp(rng.normal(0, 0.001, 9)))
                if path.name == "run.json":
                    one["name"] = name
                change(path.name, one)
            path.write_text("".join(json.dumps(one) + "\n" for one in objects))
        return folder

    return make


Make = Callable[..., Path]


def cells(out: str) -> dict[str, Any]:
    return {one["variant"]: one for one in json.loads(out)["cells"]}


def test_what_is_slower_is_said_and_is_exit_code_1(
    ae: Ae, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("run-a"), made("run-b", fast=1.05)
    code, out, _ = ae("compare", "toy", "run-a", "run-b")
    assert code == ExitCode.CLAIM
    assert out.startswith("toy: B run-b against A run-a\n")
    (slower,) = re.findall(r"^slower .*$", out, re.MULTILINE)
    numbers = r"1\.05\d? +1\.04\d* to 1\.05\d* +(99|100)\S* +10[45]\S*"
    assert re.fullmatch(rf"slower +{numbers} +ones fast", slower), slower
    assert re.search(r"^same +(1|1\.00\d|0\.99\d) .* ones slow$", out, re.MULTILINE)
    assert out.splitlines()[-1] == "1 slower, 1 same"
    assert "false discovery rate of changes, and of the same: 5%" in out
    assert ae("compare", "run-a", "run-b")[:2] == (code, out)  # a run knows its paper
    assert ae("compare", "toy", "run-b", "run-a")[0] == ExitCode.OK  # the other way: faster
    code, _, err = ae("compare", "tyo", "run-a")
    assert code == ExitCode.USAGE
    assert "'tyo'" in err
    code, _, err = ae("compare", "toy", "run-a", "run-a")
    assert (code, err.splitlines()[0]) == (ExitCode.USAGE, "error: A and B are both run-a")
    for width in (80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        _, out, _ = ae("compare", "toy", "run-a", "run-b")
        assert max(map(len, out.splitlines())) <= width


def test_json_and_csv_hold_every_cell(ae: Ae, made: Make) -> None:
    a, b = made("run-a"), made("run-b", fast=1.05)
    code, out, _ = ae("compare", "toy", str(a), str(b), "--json")
    assert code == ExitCode.CLAIM
    data = json.loads(out)
    assert (data["recipe"], data["a"], data["b"], data["worse"]) == ("toy", "run-a", "run-b", True)
    fast = cells(out)["fast"]
    assert fast["low"] < fast["ratio"] < fast["high"]
    assert fast["b"] / fast["a"] == pytest.approx(fast["ratio"])
    assert (fast["word"], fast["spread"], fast["margin"], fast["needed"]) == (
        "slower", "ci95", 0.01, None,
    )  # fmt: skip
    assert (fast["processes_a"], fast["processes_b"]) == (6, 6)
    code, out, _ = ae("compare", "toy", "run-a", "run-b", "--format", "csv")
    assert code == ExitCode.CLAIM
    rows = {row["variant"]: row for row in csv.DictReader(io.StringIO(out))}
    assert rows.keys() == {"slow", "fast"}
    assert (rows["fast"]["word"], rows["slow"]["word"]) == ("slower", "same")
    assert float(rows["fast"]["ratio"]) == fast["ratio"]


def test_flipped_claims_come_first(ae: Ae, made: Make) -> None:
    made("run-a"), made("run-b", slow=0.1, fast=0.5)
    code, out, _ = ae("compare", "toy", "run-a", "run-b")
    assert code == ExitCode.CLAIM  # all is faster, and yet a claim is worse
    flipped = out.split("\n\n")[1]
    assert flipped.splitlines()[0].split() == ["claim", "flipped", "A", "B", "why,", "of", "B"]
    assert re.search(r"^T7 +reproduced +not reproduced +at least 4 x expected", flipped, re.M)
    assert out.splitlines()[-1] == "2 faster"
    data = json.loads(ae("compare", "toy", "run-a", "run-b", "--json")[1])
    assert (data["worse"], data["flips"]) == (
        True,
        [{"id": "T7", "a": "reproduced", "b": "not reproduced"},
         {"id": "T6a", "a": "not reproduced", "b": "reproduced"}],
    )  # fmt: skip
    made("run-c", slow=0.1, fast=0.01)
    code, out, _ = ae("compare", "toy", "run-b", "run-c")
    assert code == ExitCode.OK
    assert re.search(r"^T7 +not reproduced +reproduced ", out, re.MULTILINE)


def driver(version: str, name: str = "Toy GPU 1") -> Change:
    def change(file: str, one: dict[str, Any]) -> None:
        if file == "environment.json":
            one |= {"gpu": name, "driver": version, "clocks": {"end": {"sm": version + " MHz"}}}

    return change


def option(name: str, value: str) -> Change:
    def change(file: str, one: dict[str, Any]) -> None:
        if file == "status.json":
            one["argv"][one["argv"].index(name) + 1] = value

    return change


def evidence(file: str, one: dict[str, Any]) -> None:
    if file == "records.jsonl":
        one["evidence"] = "simulated"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (driver("580.1", "Toy GPU 2"), "hardware Toy GPU 1 / Toy GPU 2"),
        (driver("590.1"), "driver 580 / 590"),
        (evidence, "evidence measured / simulated"),
        (option("--samples", "31"), "samples 30 / 31"),
        (option("--order", "backward"), "order forward / backward"),
    ],
)
def test_what_was_not_measured_alike_is_refused(
    ae: Ae, made: Make, change: Change, why: str
) -> None:
    def both(file: str, one: dict[str, Any]) -> None:
        driver("580.1")(file, one)
        change(file, one)

    made("run-a", driver("580.1")), made("run-b", both, fast=2)
    code, out, err = ae("compare", "toy", "run-a", "run-b")
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.splitlines()[0].startswith(
        "error: A (run-a) and B (run-b) were not measured alike: "
    )
    assert why in err
    assert "fix: --across shows the ratios without verdicts" in err
    code, out, _ = ae("compare", "toy", "run-a", "run-b", "--across")
    assert code == ExitCode.OK
    assert f"not measured alike: {why} (2 cells)" in out
    assert "ratios alone: no verdicts" in out
    assert re.search(r"^ +(2|2\.00\d|1\.99\d) +\S+ to 2\.0\d+ .*ones fast$", out, re.MULTILINE)
    assert not re.search("slower|same|undecided|claim flipped", out.replace("the same in both", ""))


def test_a_minor_driver_and_the_number_of_a_process_are_no_difference(ae: Ae, made: Make) -> None:
    made("run-a", driver("580.1")), made("run-b", driver("580.2"), fast=1.05)
    code, out, _ = ae("compare", "toy", "run-a", "run-b")
    assert code == ExitCode.CLAIM
    assert re.search(r"^driver +580\.1 +580\.2$", out, re.MULTILINE)
    assert re.search(r"^sm clock +580\.1 MHz +580\.2 MHz$", out, re.MULTILINE)
    assert "the same in both: image, engine, host" in out


def test_runs_without_common_records_are_refused(ae: Ae, made: Make) -> None:
    def other(file: str, one: dict[str, Any]) -> None:
        if file == "records.jsonl":
            one["metric"] = "other_time"

    made("run-a"), made("run-b", other)
    code, _, err = ae("compare", "toy", "run-a", "run-b")
    assert code == ExitCode.USAGE
    assert "have no records in common" in err
    code, _, err = ae("compare", "toy", "run-a", "run-z")
    assert code == ExitCode.USAGE
    assert "'run-z' is no run or reference set of toy" in err


def test_cells_of_one_side_alone_are_counted(ae: Ae, made: Make) -> None:
    def other(file: str, one: dict[str, Any]) -> None:
        if file == "records.jsonl" and one["labels"]["variant"] == "fast":
            one["labels"]["variant"] = "faster"

    made("run-a")
    shutil.move(made("run-b"), made("run-c", other).parent / "run-bb")
    code, out, _ = ae("compare", "toy", "run-a", "run-c")
    assert code == ExitCode.OK
    assert "only in A: 1 cells\nonly in B: 1 cells" in out


def test_repeats_of_a_widen_what_is_the_same(ae: Ae, made: Make) -> None:
    """Another run of A's points lies 4 % off, so 3 % are no change."""
    made("run-a"), made("run-b", fast=1.03)
    assert ae("compare", "toy", "run-a", "run-b")[0] == ExitCode.CLAIM
    made("run-again", fast=1.04)
    code, out, _ = ae("compare", "toy", "run-a", "run-b")
    assert code == ExitCode.OK
    assert re.search(r"^same: within 1%; work_time 3\.\d%; from run-again$", out, re.MULTILINE)
    assert out.splitlines()[-1] == "2 same"

    def failed(file: str, one: dict[str, Any]) -> None:
        if file == "status.json":
            one["status"] = "failed"

    shutil.rmtree(made("run-never") / "points")  # what gave nothing is no source
    made("run-failed", failed)
    assert ae("compare", "toy", "run-a", "run-b")[:2] == (code, out)
    for file in ("points/*/records.jsonl", "run.json"):  # nor is what nobody can read
        next(made(f"run-damaged-{len(file)}").glob(file)).write_text("{")
    assert ae("compare", "toy", "run-a", "run-b")[:2] == (code, out)

    def key(file: str, one: dict[str, Any]) -> None:
        if file == "status.json":
            one["key"] = "0" * 64
        if file == "run.json":
            for point in one["plan"]["points"]:
                point["key"] = "0" * 64

    shutil.rmtree(ROOT / made("run-gone").parent / "run-again")
    shutil.rmtree(made("run-goner").parent / "run-gone")
    shutil.rmtree(made("run-other", key, fast=1.04).parent / "run-goner")  # other points: no repeat
    assert ae("compare", "toy", "run-a", "run-b")[0] == ExitCode.CLAIM


def test_few_processes_decide_nothing_and_more_are_asked_for(ae: Ae, made: Make) -> None:
    a, b = made("run-a"), made("run-b", fast=2)
    for folder in (a, b):
        for point in list(folder.glob("points/*-r[1-5]")):
            shutil.rmtree(point)
    code, out, _ = ae("compare", "toy", "run-a", "run-b")
    assert code == ExitCode.OK
    assert re.search(r"^undecided, [5-9] needed +(2|2\.00\d|1\.99\d) ", out, re.MULTILINE)
    assert "2 cells have fewer than 5 processes in A or B: no interval" in out


@pytest.mark.parametrize("several", [("together",), ("together", "apart"), ("noop",)])
def test_each_image_goes_first_as_often_as_the_other(root: Path, several: tuple[str, ...]) -> None:
    """For every point, and along the run: A B B A."""
    selection = Selection(experiments=several, repeat=4)
    points = make_plan(load_recipe(root, "toy"), selection, Machine(), root, {"toy": "1"}).points
    each: dict[object, list[bool]] = {}
    for point, a_first in zip(points, found := list(orders(points)), strict=True):
        each.setdefault((point.experiment, *point.labels.values()), []).append(a_first)
    assert found[0]
    assert all(one in ([True, False] * 2, [False, True] * 2) for one in each.values())
    first = found[: len(each)]
    assert all(one != other for one, other in itertools.pairwise(first))


# -- real times ------------------------------------------------------------------------------------


def test_real_runs_of_one_program_do_not_differ_and_of_a_changed_one_do(
    ae: Ae, root: Path, real: Path, again: Path, changed: Path
) -> None:
    changes = {"slower", "faster"}
    found = cells(ae("compare", "toy", str(real), str(again), "--json")[1])
    if {one["word"] for one in found.values()} & changes:  # as in one table of twenty (FALSE)
        other = measure(root, "--dataset", "ones", "--repeat", "6")
        found = cells(ae("compare", "toy", str(other), str(again), "--json")[1])
    assert not {one["word"] for one in found.values()} & changes
    assert all(0.8 < one["ratio"] < 1.25 for one in found.values())
    code, out, _ = ae("compare", "toy", str(again), str(changed), "--json")
    assert code == ExitCode.CLAIM
    found = cells(out)
    assert found["fast"]["word"] == "slower"
    assert 2.4 < found["fast"]["ratio"] < 3.6
    assert found["slow"]["word"] not in changes
    facts = json.loads(out)["facts"]
    assert facts["image"]["a"] != facts["image"]["b"]
    found = cells(ae("compare", "toy", str(changed), str(again), "--json")[1])
    assert found["fast"]["word"] == "faster"

"""The lane upstream of autotm: parser, driver, fixes, refusals, plan, figure and claims."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ae.claims.tables import load_claims
from ae.model import Machine
from ae.plan.gpus import unknown_gpu
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.code import load_code
from ae.recipe.load import load_recipe
from ae.records.files import frame
from ae.report.chapter import draw
from tests.judged import judge
from tests.upstream import drive, fix, programs, python, rows

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "recipes/autotm"
IMAGE = ROOT / "images/autotm-upstream"
LOG = (Path(__file__).parent / "logs/vgg19_128.log").read_text()
LABELS = {"net": "vgg19_128", "variant": "Synchronous"}


@pytest.fixture(scope="module")
def parse() -> ModuleType:
    return load_code(RECIPE, "parse", fix="")


@pytest.fixture(scope="module")
def driver() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(IMAGE / "driver")
        yield importlib.import_module("autotm_driver")


def log(folder: Path, text: str) -> Path:
    (folder / "stdout.log").write_text(text)
    return folder


def test_a_result_becomes_records(parse: ModuleType, tmp_path: Path) -> None:
    found = parse.read_run(log(tmp_path, LOG), LABELS)
    values = {one["metric"]: (one["samples"], one["evidence"]) for one in found}
    assert values == {
        "iteration_time": ([0.52], "measured"),
        "predicted_time": ([0.5], "simulated"),
        "oracle_time": ([0.41], "simulated"),
        "managed_time": ([1.3], "measured"),
    }
    without = parse.read_run(log(tmp_path, LOG.replace("0.41", "null")), LABELS)
    assert {one["metric"] for one in without} == {
        "iteration_time", "predicted_time", "managed_time",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 results"),
        (LOG + LOG, "2 results"),
        (LOG[:60], "is cut off"),
        (LOG.replace("oracle_time", "oracle"), "other fields"),
        (LOG.replace("0.52", "null"), "actual_runtime is no number"),
        (LOG.replace("0.52", "NaN"), "actual_runtime is nan, no time"),
        (LOG.replace("0.52", "0.0"), "actual_runtime is 0.0, no time"),
        (LOG.replace("1.3", "true"), "managed_runtime is no number"),
    ],
)
def test_a_result_that_is_none(parse: ModuleType, tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse.read_run(log(tmp_path, text), LABELS)


def run(
    tmp_path: Path, *words: str, capability: str = "7.5", free: int = 10_800, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run the driver with stand-ins for nvidia-smi and Julia, which prints the sample log."""
    said = f"NVIDIA GeForce RTX 2080 Ti, 440.33, {capability}, {free}"
    (tmp_path / "log").write_text(LOG)
    julia = f'echo "$@" >{tmp_path}/asked; cat {tmp_path}/log; exit {code}'
    path = programs(tmp_path / "bin", nvidia_smi=f"echo '{said}'", julia=julia)
    return drive(IMAGE, tmp_path, *words, "--project", tmp_path, path=path)


SMALL = ("--net", "vgg19_128", "--optimizer", "Synchronous")
LARGE = ("--net", "resnet200_128", "--optimizer", "Asynchronous")


def test_the_driver_prints_what_the_parser_reads(parse: ModuleType, tmp_path: Path) -> None:
    done = run(tmp_path, *SMALL, "--overhead-mb", "561")
    assert done.returncode == 0, done.stderr
    assert parse.read_run(log(tmp_path, done.stdout), LABELS)
    assert (tmp_path / "asked").read_text().split()[-3:] == ["11", "Synchronous", "561000000"]
    facts = json.loads((tmp_path / "environment.json").read_text())
    assert facts["gpu"] == "NVIDIA GeForce RTX 2080 Ti"
    assert facts["solver"] == "Cbc"
    failed = run(tmp_path, *SMALL, code=3)
    assert (failed.returncode, "julia ended with 3" in failed.stderr) == (1, True)


def test_what_cannot_run_says_why(tmp_path: Path) -> None:
    newer = run(tmp_path, *SMALL, capability="9.0")
    assert newer.returncode == 77
    assert "CUDA 10.1 cannot compile for more than 7.5" in newer.stderr
    large = run(tmp_path, *LARGE)
    assert large.returncode == 77
    assert "can hang a GPU: --set own_gpu=true if it is your own" in large.stderr
    assert not (tmp_path / "asked").exists()
    assert run(tmp_path, *LARGE, "--own-gpu", "true").returncode == 0


def test_the_networks_are_the_recipes(driver: ModuleType) -> None:
    assert list(driver.NETS) == list(load_recipe(ROOT, "autotm").axes["net"].values)


# Persistent memory: refusals, and never more than words.


def memory(tmp_path: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    (tmp_path / "dev").mkdir(exist_ok=True)
    (tmp_path / "mounts").touch()
    places = ("--devices", tmp_path / "dev", "--mounts", tmp_path / "mounts")
    return python(IMAGE / "driver/persistent_memory.py", *words, *places, path=path)


@pytest.mark.parametrize("mode", ["1LM", "2LM"])
def test_without_a_region_nothing_is_even_said(tmp_path: Path, mode: str) -> None:
    for words in ((), ("--yes-destroy-data-on", "none"), ("--yes-destroy-data-on", "")):
        done = memory(tmp_path, "--mode", mode, *words)
        assert (done.returncode, done.stdout) == (77, "")
        assert "erases persistent memory; name the region to lose" in done.stderr


def test_every_other_refusal_comes_in_turn(tmp_path: Path) -> None:
    words = ("--mode", "1LM", "--yes-destroy-data-on", "0x0001")
    odd = memory(tmp_path, "--mode", "1LM", "--yes-destroy-data-on", "a;b")
    assert (odd.returncode, "is no region's id" in odd.stderr) == (77, True)
    assert "no persistent memory" in memory(tmp_path, *words).stderr
    (tmp_path / "dev").mkdir(exist_ok=True)
    (tmp_path / "dev/pmem1").touch()
    (tmp_path / "mounts").write_text("/dev/pmem1 /mnt/public ext4 rw,dax 0 0\n")
    assert "is mounted at /mnt/public" in memory(tmp_path, *words).stderr
    (tmp_path / "mounts").write_text("")
    assert "there is no ipmctl" in memory(tmp_path, *words, path="/nonexistent").stderr
    says = f'echo "$0 $@" >>{tmp_path}/called\necho 0x0000'
    path = programs(tmp_path / "bin", ipmctl=says, ndctl=says)
    assert "no region 0x0001 on this host" in memory(tmp_path, *words, path=path).stderr
    done = memory(tmp_path, "--mode", "1LM", "--yes-destroy-data-on", "0x0000", path=path)
    assert done.returncode == 0
    assert "nothing was run" in done.stdout
    assert "--region=0x0000" in done.stdout
    called = set((tmp_path / "called").read_text().splitlines())
    assert called == {f"{tmp_path}/bin/ipmctl show -region"}  # asked, never told


def test_the_fix_writes_the_authors_parameters(tmp_path: Path) -> None:
    missing = fix(IMAGE, "01-build-parameters.py", tmp_path)
    assert "a submodule is missing" in missing.stderr
    for name in ("deps/nGraph/deps", "AutoTM/deps"):
        (tmp_path / name).mkdir(parents=True)
    assert fix(IMAGE, "01-build-parameters.py", tmp_path).returncode == 0
    assert json.loads((tmp_path / "deps/nGraph/deps/build.json").read_text())["GPU"] is True
    assert json.loads((tmp_path / "AutoTM/deps/build.json").read_text()) == {"GUROBI": True}


def test_plan_figure_and_claims(parse: ModuleType, tmp_path: Path) -> None:
    recipe = load_recipe(ROOT, "autotm")
    machine = Machine(gpus=(unknown_gpu("0"),))
    content = {"autotm-upstream": "1"}
    plan = make_plan(recipe, Selection(lane="upstream"), machine, ROOT, content)
    assert len(plan.points) == 11 * 2
    found = []
    for variant, text in (("Synchronous", LOG), ("Asynchronous", LOG.replace("0.52", "0.44"))):
        labels = LABELS | {"variant": variant}
        found += rows(parse.read_run(log(tmp_path, text), labels), labels, "gpu", variant)
    (drawn,) = draw(RECIPE, ["managed"], frame(found), {}, None)
    assert drawn.table is not None, drawn.reason
    judged = judge(load_claims(ROOT, "autotm"), found, {"gpu": "NVIDIA GeForce RTX 2080 Ti"})
    assert {one.id: str(one.verdict) for one in judged} == {
        "F12": "not transcribed",
        "F12-async": "not run",
        "F12-managed": "not run",
    }

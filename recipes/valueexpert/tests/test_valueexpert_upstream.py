"""The lane upstream of valueexpert: parsers, driver, fixes, plan, figure and claims."""

from __future__ import annotations

import subprocess
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
from tests.upstream import drive, programs, rows
from tests.upstream import fix as run_fix

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "recipes/valueexpert"
IMAGE = ROOT / "images/valueexpert-upstream"
BENCH = (Path(__file__).parent / "logs/bench_backprop.log").read_text()
OVERHEAD = "".join(
    f"backprop/alone/seconds: {0.5 + n / 100}s\nbackprop/data_flow/seconds: {4 + n / 10}s\n"
    for n in range(3)
)
CASE = {"case": "backprop"}
MODE = CASE | {"mode": "data_flow"}


@pytest.fixture(scope="module")
def parse() -> ModuleType:
    return load_code(RECIPE, "parse", fix="")


def log(folder: Path, text: str) -> Path:
    (folder / "stdout.log").write_text(text)
    return folder


def test_the_benchmark_of_the_authors(parse: ModuleType, tmp_path: Path) -> None:
    found = parse.read_speedups(log(tmp_path, BENCH), CASE)
    kernels = {
        one["labels"]["version"]: one["samples"] for one in found if one["metric"] == "kernel_time"
    }
    assert kernels == {"base": [8.5e-05, 8.7e-05], "vp-opt1": [5.0e-05, 5.2e-05]}
    assert {one["metric"] for one in found} == {
        "elapsed_time", "kernel_time", "gpu_kernel_time", "gpu_memory_time",
    }  # fmt: skip
    assert {one["unit"] for one in found} == {"s"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no time of backprop"),
        ("make: error\n", "has no time of backprop"),
        (BENCH.replace("0.000121", "nan"), "no time above zero"),
        (BENCH.replace("0.000121", "0.0"), "no time above zero"),
        (BENCH.replace("0.000121", "1e"), "has no time"),
        ("".join(BENCH.splitlines(True)[:5]), "the original alone"),
        ("".join(BENCH.splitlines(True)[:7]), "no gpu_kernel_time of the version vp-opt1"),
        (BENCH.replace("None", "old"), "no gpu_kernel_time of the version base"),
    ],
)
def test_a_benchmark_that_failed(parse: ModuleType, tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse.read_speedups(log(tmp_path, text), CASE)


def test_the_overhead(parse: ModuleType, tmp_path: Path) -> None:
    alone, profiled = parse.read_overhead(log(tmp_path, OVERHEAD), MODE)
    assert alone["labels"] == {"run": "alone"}
    assert profiled["samples"] == [4.0, 4.1, 4.2]
    for text, why in (
        ("", "has no time"),
        (OVERHEAD.replace("alone", "data_flow"), "no time of the sample alone"),
        ("".join(OVERHEAD.splitlines(True)[:-1]), "cut off"),
    ):
        with pytest.raises(ValueError, match=why):
            parse.read_overhead(log(tmp_path, text), MODE)


NVCC = "echo 'Cuda compilation tools, release {release}, V'"


def run(tmp_path: Path, *words: str, release: str = "11.8") -> subprocess.CompletedProcess[str]:
    gvprof = 'mkdir gvprof-measurements gvprof-database; shift 2; exec "$@"'
    path = programs(tmp_path / "bin", nvcc=NVCC.format(release=release), gvprof=gvprof)
    root = tmp_path / "GVProf"
    (root / "python").mkdir(parents=True, exist_ok=True)
    (root / "python/bench.py").write_text(f"print({BENCH!r})\n")
    sample = root / "samples/backprop"
    sample.mkdir(parents=True, exist_ok=True)
    rule = "all:\n\tprintf '#!/bin/sh\\nexit 0\\n' >backprop; chmod +x backprop\n"
    rule += "\ttest $(ARCH) = sm_80\n"
    (sample / "Makefile").write_text(rule + "clean:\n\trm -f backprop\n")
    return drive(IMAGE, tmp_path, *words, "--root", root, path=path)


def test_the_driver_prints_what_the_parser_reads(parse: ModuleType, tmp_path: Path) -> None:
    done = run(tmp_path, "speedup", "--case", "backprop", "--arch", "sm_80")
    assert done.returncode == 0, done.stderr
    assert parse.read_speedups(log(tmp_path, done.stdout), CASE)
    words = ("overhead", "--case", "backprop", "--arch", "sm_80", "--mode", "data_flow")
    done = run(tmp_path, *words, "--rounds", "2")
    assert done.returncode == 0, done.stderr
    alone, profiled = parse.read_overhead(log(tmp_path, done.stdout), MODE)
    assert len(alone["samples"]) == len(profiled["samples"]) == 2
    failed = run(tmp_path, "overhead", "--case", "backprop", "--arch", "sm_99")
    assert (failed.returncode, "make ended with" in failed.stderr) == (1, True)


@pytest.mark.parametrize(
    ("case", "release", "why"),
    [
        ("bfs", "11.8", "data/graph1MW_6.txt is not in the image: mount it"),
        ("backprop", "12.3", "GVProf reads values rightly with 11.8 to 12.2"),
        ("backprop", "11.4", "GVProf reads values rightly with 11.8 to 12.2"),
    ],
)
def test_what_cannot_run_says_why(tmp_path: Path, case: str, release: str, why: str) -> None:
    done = run(tmp_path, "speedup", "--case", case, "--arch", "sm_80", release=release)
    assert done.returncode == 77
    assert why in done.stderr


def fix(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run_fix(IMAGE, name, *words)


def test_the_fixes_expect_what_they_change(tmp_path: Path) -> None:
    flags = " ".join(f"-gencode arch=compute_{n},code=sm_{n}" for n in (50, 60, 70, 75))
    (tmp_path / "Makefile").write_text(f"CFLAGS := {flags} -O3\n")
    (tmp_path / "python").mkdir()
    (tmp_path / "python/utils.py").write_text("x = ['make', 'ARCH={}'.join(arch)]\n")
    done = fix("01-architectures.py", str(tmp_path), "80 90")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "Makefile").read_text()
    assert text.split() == [
        "CFLAGS", ":=", "-gencode", "arch=compute_80,code=sm_80", "-gencode",
        "arch=compute_90,code=sm_90", "-O3",
    ]  # fmt: skip
    assert "expected 3 to 8" in fix("01-architectures.py", str(tmp_path), "80").stderr
    assert "no list" in fix("01-architectures.py", str(tmp_path), "sm80").stderr
    assert fix("02-make-arguments.py", str(tmp_path)).returncode == 0
    assert "'ARCH={}'.format(arch)" in (tmp_path / "python/utils.py").read_text()


def test_plan_figure_and_claims(parse: ModuleType, tmp_path: Path) -> None:
    recipe = load_recipe(ROOT, "valueexpert")
    machine = Machine(gpus=(unknown_gpu("0"),))
    content = {"valueexpert-upstream": "1"}
    plan = make_plan(recipe, Selection(lane="upstream"), machine, ROOT, content)
    assert len(plan.points) == 4 + 4 * 3
    found = rows(parse.read_speedups(log(tmp_path, BENCH), CASE), CASE, "speedups")
    found += rows(parse.read_overhead(log(tmp_path, OVERHEAD), MODE), MODE, "overhead")
    (drawn,) = draw(RECIPE, ["speedup"], frame(found), {}, None)
    assert drawn.table is not None, drawn.reason
    judged = judge(load_claims(ROOT, "valueexpert"), found, {"gpu": "NVIDIA A100"})
    verdicts = {one.id: str(one.verdict) for one in judged}
    assert verdicts == {
        "VE-01-A100": "reproduced",
        "VE-01-2080Ti": "direction holds",
        "VE-01-memory": "reproduced",
        "VE-slower": "not run",
    }

"""The lane upstream of rap: parser, driver, fixes, plan and figures, on samples of our own."""

from __future__ import annotations

import importlib
import json
import shutil
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
from ae.records.files import Row, frame
from ae.report.chapter import draw
from tests.judged import judge
from tests.upstream import drive, programs
from tests.upstream import fix as run_fix
from tests.upstream import rows as rows_of

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "recipes/rap"
IMAGE = ROOT / "images/rap-upstream"
LOGS = Path(__file__).parent / "logs"
RESULT = LOGS / "result_GPU-4_Plan-0_Batch-4096_77.log"
SCRIPT = (LOGS / "run_sample.sh").read_text()
LABELS = {"plan": "0", "batch": "4096", "variant": "rap"}


@pytest.fixture(scope="module")
def parse() -> ModuleType:
    return load_code(RECIPE, "parse", fix="")


@pytest.fixture(scope="module")
def driver() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(IMAGE / "driver")
        yield importlib.import_module("rap_driver")


def test_a_result_becomes_samples_per_second(parse: ModuleType, tmp_path: Path) -> None:
    shutil.copy(RESULT, tmp_path / "result.log")
    throughput, latency = parse.read_throughput(tmp_path, LABELS)
    assert throughput["samples"] == [492.308 * 4096]
    assert throughput["unit"] == "samples/s"
    assert throughput["labels"] == {"gpus": "4"}
    assert latency["samples"] == [8.125]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "is missing"),
        ("", "holds 0 results"),
        (RESULT.read_text()[:60], "holds 0 results"),
        (RESULT.read_text() * 2, "holds 2 results"),
        (RESULT.read_text().replace("rank:0", "rank:1"), "holds 0 results"),
        (RESULT.read_text().replace("8.125", "0.000"), "of zero"),
        (RESULT.read_text().replace("492.308", "400.000"), "inconsistent"),
        (RESULT.read_text().replace("492.308", "nan"), "holds 0 results"),
    ],
)
def test_a_result_that_is_none(
    parse: ModuleType, tmp_path: Path, text: str | None, why: str
) -> None:
    if text is not None:
        (tmp_path / "result.log").write_text(text)
    with pytest.raises(ValueError, match=why):
        parse.read_throughput(tmp_path, LABELS)


def test_the_authors_line_for_one_cell(driver: ModuleType) -> None:
    prepare, program = driver.commands(SCRIPT, "2", "0", "8192")
    assert prepare == ["python", "data_prepare.py", "--batch_size=8192", "--nDev=2", "--plan=0"]
    assert program[-1] == "--sizes=1,2,3"
    prepare, program = driver.commands(SCRIPT, "4", "1", "4096")
    assert "--plan=1" in prepare
    assert "--preprocessing_plan=1" in program
    with pytest.raises(driver.Failed, match="has 0 runs with 8 GPUs"):
        driver.commands(SCRIPT, "8", "0", "4096")
    with pytest.raises(driver.Failed, match="has 2 runs"):
        driver.commands(SCRIPT + "\n" + SCRIPT, "2", "0", "4096")


def test_a_preparation_is_that_of_its_cell(driver: ModuleType) -> None:
    """Scripts that list every cell, and those that prepare both batches before the first."""
    cells = (LOGS / "run_cells.sh").read_text()
    prepare, program = driver.commands(cells, "4", "1", "8192")
    assert prepare[2:] == ["--preprocessing_plan=1", "--nDev=4", "--batch_size=8192"]
    assert program[1] == "/made/GPU_4_plan_1.py"
    workers = (LOGS / "run_workers.sh").read_text()
    prepare, program = driver.commands(workers, "2", "1", "8192")
    assert prepare == ["python", "data_prepare.py", "--batch_size=8192"]
    assert program[-1] == "--nWorker=2"
    without = "\n".join(line for line in cells.splitlines() if "data_prepare" not in line)
    assert len(driver.commands(without, "4", "0", "4096")) == 1


@pytest.fixture
def artifact(tmp_path: Path, driver: ModuleType) -> Path:
    """The folders of the artifact with scripts and programs of our own in the same form."""
    root = tmp_path / "RAP"
    for name, _ in driver.SCRIPTS.values():
        script = root / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPT)
        (script.parent / "result").mkdir(exist_ok=True)
        (script.parent / "data_prepare.py").write_text("open('prepared', 'w').close()\n")
        program = f"open('prepared'); open('result/x_7.log', 'w').write({RESULT.read_text()!r})\n"
        (script.parent / "train.py").write_text(program)
    return root


def run(root: Path, out: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return drive(IMAGE, out, *words, "--root", root, path=path)


def cell(figure: str, method: str, gpus: str = "4") -> tuple[str, ...]:
    return (
        "--figure", figure, "--method", method, "--gpus", gpus, "--plan", "0", "--batch", "4096",
    )  # fmt: skip


def test_a_point_runs_the_authors_programs(artifact: Path, tmp_path: Path) -> None:
    done = run(artifact, tmp_path / "out", *cell("10", "sequential"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/result.log").read_text() == RESULT.read_text()
    assert "+ python data_prepare.py" in done.stdout
    assert isinstance(json.loads((tmp_path / "out/environment.json").read_text()), dict)


SMI = """\
echo "NVIDIA A100-SXM4-40GB, 535.1, {mib}"
echo "NVIDIA A100-SXM4-40GB, 535.1, 81920"
"""


@pytest.mark.parametrize(("mib", "code"), [(40960, 77), (81920, 1)])
def test_tables_that_do_not_fit_are_refused_before_the_start(
    artifact: Path, tmp_path: Path, mib: int, code: int
) -> None:
    words = ("--figure", "9", "--method", "stream", "--gpus", "2", "--plan", "1", "--batch", "4096")
    path = programs(tmp_path / "bin", nvidia_smi=SMI.format(mib=mib))
    done = run(artifact, tmp_path / "out", *words, path=path)
    assert done.returncode == code, done.stderr
    assert ("puts 46.6 GiB of tables on one GPU, and one here has 40.0 GiB" in done.stderr) == (
        code == 77
    )
    facts = json.loads((tmp_path / "out/environment.json").read_text())
    assert facts == {"gpu": "NVIDIA A100-SXM4-40GB", "driver": "535.1", "gpus": 2}


def test_rap_needs_a_licence_only_where_nothing_is_cached(
    artifact: Path, tmp_path: Path, driver: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (artifact, "10", "rap", "4", "0", [])
    licence = tmp_path / "gurobi.lic"
    monkeypatch.setattr(driver, "LICENCE", licence)
    with pytest.raises(driver.CannotRun, match=r"plan 0 on 4 GPUs.*--secret gurobi="):
        driver.check(*arguments)
    driver.check(artifact, "10", "rap_no_fusion", "4", "0", [])  # solves nothing
    licence.touch()
    driver.check(*arguments)
    licence.unlink()
    cached = artifact / driver.PLANS.format(plan="0", gpus="4")
    cached.parent.mkdir(parents=True)
    cached.touch()
    driver.check(*arguments)


def test_what_cannot_run_says_why(artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    without = run(artifact, out, *cell("10", "mps"), path="/nonexistent")
    assert (without.returncode, "nvidia-cuda-mps-control" in without.stderr) == (77, True)
    assert run(artifact, out, *cell("10", "ideal", "8")).returncode == 77
    cpu = run(artifact, out, *cell("9", "cpu"))
    assert (cpu.returncode, "--build-arg TORCHARROW=1" in cpu.stderr) == (77, True)
    assert run(artifact, out, *cell("9", "ideal")).returncode == 2
    rap = run(artifact, out, *cell("10", "rap"))
    assert (rap.returncode, "--secret gurobi=" in rap.stderr) == (77, True)
    folder = artifact / "breakdown_study/MPS_and_sequential"
    (folder / "train.py").write_text("raise SystemExit(5)\n")
    failed = run(artifact, out, *cell("10", "sequential"))
    assert (failed.returncode, "train.py ended with 5" in failed.stderr) == (1, True)
    (folder / "train.py").write_text("\n")
    assert "left 0 result files" in run(artifact, out, *cell("10", "sequential")).stderr


CONTROL = """\
[ "$1" = -d ] && exec touch "$CUDA_MPS_PIPE_DIRECTORY/up"
read word
[ "$word" = quit ] && echo quit >>{log}
[ "$word" = get_server_list ] && {answer}
exit 0
"""


@pytest.mark.parametrize(("answer", "code"), [("echo 42", 0), ("true", 1)])
def test_mps_is_private_and_must_have_been_used(
    artifact: Path, tmp_path: Path, answer: str, code: int
) -> None:
    control = CONTROL.format(log=tmp_path / "log", answer=answer)
    path = programs(tmp_path / "bin", nvidia_cuda_mps_control=control)
    done = run(artifact, tmp_path / "out", *cell("10", "rap_no_fusion"), path=path)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "log").read_text() == "quit\n"
    assert ("what ran was not MPS" in done.stderr) == (code == 1)


def fix(name: str, root: Path) -> subprocess.CompletedProcess[str]:
    return run_fix(IMAGE, name, root)


def test_no_script_sets_a_compute_mode(artifact: Path) -> None:
    sequential = artifact / "breakdown_study/MPS_and_sequential/get_sequential_result.sh"
    mps = artifact / "baseline_end_to_end/MPS/run_MPS.sh"
    refused = fix("02-compute-mode.py", artifact)  # our sample sets it twice there, theirs once
    assert "2 lines set a compute mode, expected 1" in refused.stderr
    assert "nvidia-smi -i" in mps.read_text()  # nothing is written by a fix that refuses
    sequential.write_text(SCRIPT.replace("nvidia-smi -i 0,1 -c EXCLUSIVE_PROCESS\n", ""))
    done = fix("02-compute-mode.py", artifact)
    assert done.returncode == 0, done.stderr
    assert "13 lines" in done.stdout
    assert "nvidia-smi" not in mps.read_text() + sequential.read_text()
    assert "nvidia-cuda-mps-control -d" in mps.read_text()
    assert fix("02-compute-mode.py", artifact).returncode != 0  # it is done already


def test_methods_that_train_other_models_stop_the_build(artifact: Path) -> None:
    done = fix("03-one-model.py", artifact)
    assert done.returncode == 0, done.stderr
    assert "plan 0: default; plan 1: default" in done.stdout
    sizes = ' --over_arch_layer_sizes="512,1"'
    for path in artifact.rglob("*.sh"):
        lines = path.read_text().splitlines()
        told = [line + sizes if "preprocessing_plan=0" in line else line for line in lines]
        path.write_text("\n".join(told))
    assert "plan 0: 512,1; plan 1: default" in fix("03-one-model.py", artifact).stdout
    stream = artifact / "baseline_end_to_end/CUDA_stream/run_stream.sh"
    stream.write_text(stream.read_text().replace(sizes, "", 1))
    refused = fix("03-one-model.py", artifact)
    assert refused.returncode != 0
    assert "run_stream.sh: 512,1 and default" in refused.stderr
    stream.write_text("mkdir result\n")
    assert "has no program for plan 0" in fix("03-one-model.py", artifact).stderr


def test_the_plan_has_every_cell() -> None:
    recipe = load_recipe(ROOT, "rap")
    assert not recipe.lanes["upstream"].built
    machine = Machine(gpus=tuple(unknown_gpu(str(index)) for index in range(4)))
    selection = Selection(lane="upstream")
    plan = make_plan(recipe, selection, machine, ROOT, {"rap-upstream": "1"})
    assert len(plan.points) == 4 * 4 + 4 * 6
    assert {point.needs.ipc for point in plan.points} == {"host"}
    assert [(one.name, one.optional) for one in recipe.needs.secrets] == [("gurobi", True)]


def rows(parse: ModuleType, tmp_path: Path) -> list[Row]:
    """Every cell of Figure 10, read by the parser from logs with plausible numbers."""
    speeds = {"sequential": 50, "mps": 60, "rap_no_mapping": 80, "rap_no_fusion": 70, "rap": 99}
    speeds["ideal"] = 100
    found = []
    for plan in ("0", "1"):
        for batch in ("4096", "8192"):
            for variant, speed in speeds.items():
                text = f"rank:0, avg_latency:{1000 / speed:.3f} ms/iter, "
                text += f"throughput:{speed:.3f} iters/s, total_throughput:{4 * speed:.3f}"
                (tmp_path / "result.log").write_text(text)
                labels = {"plan": plan, "batch": batch, "variant": variant}
                read = parse.read_throughput(tmp_path, labels)
                found += rows_of(read, labels, "figure10", f"{plan}-{batch}-{variant}")
    return found


def test_figure_and_claims(parse: ModuleType, tmp_path: Path) -> None:
    found = rows(parse, tmp_path)
    names = list(load_recipe(ROOT, "rap").figures)
    drawn = {one.name: one for one in draw(RECIPE, names, frame(found), {}, None)}
    assert drawn["breakdown"].table is not None
    assert "no cell" in drawn["end_to_end"].reason
    judged = judge(load_claims(ROOT, "rap"), found, {"gpu": "NVIDIA A100-SXM4-40GB"})
    verdicts = {one.id: str(one.verdict) for one in judged}
    ours = [f"{name}-upstream" for name in ("R1", "R2", "R-order")]
    assert {verdicts[name] for name in ours} == {"reproduced"}, verdicts
    assert {verdicts[f"R{number}-upstream"] for number in range(6, 12)} == {"not transcribed"}
    assert {verdicts[name] for name in ("R1", "R-order", "G1", "F1")} == {"not run"}
    here = judge(load_claims(ROOT, "rap"), found, {"gpu": "NVIDIA H200"})
    assert {one.id: str(one.verdict) for one in here}["R1-upstream"] == "direction holds"

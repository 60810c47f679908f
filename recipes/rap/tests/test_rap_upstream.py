"""The lane upstream of rap: parser, driver, fixes, plan and figures, on samples of our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ae.records.files import Row
from tests.upstream import Lane, programs, rows, write

LANE = Lane("rap")
DRIVER = LANE.driver
LOGS = Path(__file__).parent / "logs"
RESULT = (LOGS / "result_GPU-4_Plan-0_Batch-4096_77.log").read_text()
SCRIPTS = {name: (LOGS / f"run_{name}.sh").read_text() for name in ("sample", "cells", "workers")}
SCRIPTS["bare"] = "".join(x for x in SCRIPTS["cells"].splitlines(True) if "prepare" not in x)
SCRIPT = SCRIPTS["sample"]


def test_a_result_becomes_samples_per_second(tmp_path: Path) -> None:
    throughput, latency = LANE.parse.read_throughput(
        write(tmp_path / "result.log", RESULT), {"batch": "4096"}
    )
    assert (throughput["samples"], throughput["unit"]) == ([492.308 * 4096], "samples/s")
    assert (throughput["labels"], latency["samples"]) == ({"gpus": "4"}, [8.125])
    assert {one["evidence"] for one in (throughput, latency)} == {"measured"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "is missing"),
        (RESULT[:60], "holds 0 results"),
        (RESULT * 2, "holds 2 results"),
        (RESULT.replace("rank:0", "rank:1"), "holds 0 results"),
        (RESULT.replace("8.125", "0.000"), "of zero"),
        (RESULT.replace("123.077", "110.000"), "inconsistent"),
        (RESULT.replace("492.308", "nan"), "holds 0 results"),
    ],
)
def test_a_result_that_is_none(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        write(tmp_path / "result.log", text)
    LANE.refuses("read_throughput", tmp_path, {"batch": "4096"}, why)


@pytest.mark.parametrize(
    ("script", "cell", "expected"),
    [  # a preparation before each cell of a loop, before each cell, of both batches first, or none
        ("sample", "2 0 8192", [
            "data_prepare.py --batch_size=8192 --nDev=2 --plan=0",
            "train.py --nDev=2 --batch_size=8192 --preprocessing_plan=0 --sizes=1,2,3"]),
        ("sample", "4 1 4096", [
            "data_prepare.py --batch_size=4096 --nDev=4 --plan=1",
            "train.py --nDev=4 --batch_size=4096 --preprocessing_plan=1"]),
        ("cells", "4 1 8192", [
            "data_prepare.py --preprocessing_plan=1 --nDev=4 --batch_size=8192",
            "/made/GPU_4_plan_1.py --nDev=4 --batch_size=8192 --preprocessing_plan=1"]),
        ("workers", "2 1 4096", [
            "data_prepare.py --batch_size=4096",
            "workers.py --nDense=13 --nDev=2 --batch_size=4096 --preprocessing_plan=1 --nWorker=4",
        ]),
        ("bare", "4 1 4096", [
            "/made/GPU_4_plan_1.py --nDev=4 --batch_size=4096 --preprocessing_plan=1"]),
    ],
)  # fmt: skip
def test_the_authors_line_for_one_cell(script: str, cell: str, expected: list[str]) -> None:
    found = DRIVER.commands(SCRIPTS[script], *cell.split())
    assert [" ".join(argv) for argv in found] == [f"python {words}" for words in expected]


@pytest.mark.parametrize(("times", "gpus", "found"), [(1, "8", 0), (2, "2", 2)])
def test_a_cell_that_is_not_there_once(times: int, gpus: str, found: int) -> None:
    with pytest.raises(DRIVER.Failed, match=f"has {found} runs with {gpus} GPUs"):
        DRIVER.commands(SCRIPT * times, gpus, "0", "4096")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """The folders of the artifact with scripts and programs of our own in the same form."""
    root = tmp_path / "RAP"
    made = SCRIPTS["bare"].replace("/made/GPU_4_plan_", "made_")
    write(write(root / DRIVER.GENERATOR, made) / "made_0.py", "open('made', 'w').close()\n")
    for name, _ in DRIVER.SCRIPTS.values():
        folder = write(root / name, SCRIPT)
        (folder / "result").mkdir(exist_ok=True)
        (folder / "data_prepare.py").write_text("open('prepared', 'w').close()\n")
        program = f"open('prepared'); open('result/x_7.log', 'w').write({RESULT!r})\n"
        (folder / "train.py").write_text(program)
    return root


SMI = "echo 'A100, 535.1, {mib}'; echo 'A100, 535.1, 81920'"
CONTROL = """\
[ "$1" = -d ] && exec touch "$CUDA_MPS_PIPE_DIRECTORY/up"
read word
[ "$word" = quit ] && echo quit >>{log}
[ "$word" = get_server_list ] && {answer}
exit 0
"""


@pytest.mark.parametrize(
    ("cell", "stands", "code", "why"),
    [
        ("10 sequential 4 0", {}, 0, ""),
        ("10 sequential 4 0", {"train": "raise SystemExit(5)"}, 1, "train.py ended with 5"),
        ("10 sequential 4 0", {"train": ""}, 1, "left 0 result files"),
        ("9 ideal 4 0", {}, 2, "figure 9 has no method ideal"),
        ("10 ideal 8 0", {}, 77, "for 4 GPUs alone"),
        ("9 cpu 4 0", {}, 77, "--build-arg TORCHARROW=1"),
        ("10 rap 4 0", {}, 77, "--secret gurobi="),
        ("10 rap 4 0", {"cached": "plan", "mps": "echo 42"}, 0, ""),
        ("9 stream 2 1", {"mib": "40960"}, 77, "puts 46.6 GiB of tables on one GPU"),
        ("9 stream 2 1", {"mib": "81920"}, 1, "0 runs with 2 GPUs, plan 1"),
        ("10 mps 4 0", {}, 77, "nvidia-cuda-mps-control"),
        ("10 rap_no_fusion 4 0", {"mps": "echo 42"}, 0, ""),
        ("10 rap_no_fusion 4 0", {"mps": "true"}, 1, "what ran was not MPS"),
    ],
)  # fmt: skip
def test_a_point_runs_the_authors_programs_or_says_why_not(
    artifact: Path, tmp_path: Path, cell: str, stands: dict[str, str], code: int, why: str
) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    scripts = {"nvidia_smi": SMI.format(mib=stands["mib"]) if "mib" in stands else "exit 9"}
    if "mps" in stands:
        scripts["nvidia_cuda_mps_control"] = CONTROL.format(log=log, answer=stands["mps"])
    if "cached" in stands:
        write(artifact / DRIVER.PLANS.format(plan="0", gpus="4"), stands["cached"])
    if "train" in stands:
        write(artifact / "breakdown_study/MPS_and_sequential/train.py", stands["train"])
    figure, method, gpus, plan = cell.split()
    path = "/nonexistent" if method == "mps" else programs(tmp_path / "bin", **scripts)
    done = LANE.drive(
        out, "--figure", figure, "--method", method, "--gpus", gpus, "--plan", plan,
        "--batch", "4096", "--root", artifact, path=path,
    )  # fmt: skip
    assert (done.returncode, why in done.stderr) == (code, True), done.stderr
    assert (out / "result.log").exists() == (code == 0)
    if code == 0:
        assert (out / "result.log").read_text() == RESULT
        assert "+ python data_prepare.py" in done.stdout
        assert ("+ python made_0.py" in done.stdout) == (method == "rap")
    if code != 2:
        facts = json.loads((out / "environment.json").read_text())
        assert facts == ({"gpu": "A100", "driver": "535.1", "gpus": 2} if "mib" in stands else {})
    assert (log.read_text() if log.exists() else "") == ("quit\n" if "mps" in stands else "")


def test_a_licence_serves_where_nothing_is_cached(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DRIVER.CannotRun, match=r"plan 0 on 4 GPUs.*--secret gurobi="):
        DRIVER.check(artifact, "10", "rap", "4", "0", [])
    monkeypatch.setattr(DRIVER, "LICENCE", artifact / DRIVER.GENERATOR)
    DRIVER.check(artifact, "10", "rap", "4", "0", [])


def test_no_script_sets_a_compute_mode(tmp_path: Path) -> None:
    sequential = DRIVER.SCRIPTS["10", "sequential"][0]
    names = {name for name, mps in DRIVER.SCRIPTS.values() if mps} | {sequential}
    once = SCRIPT.replace("nvidia-smi -i 0,1 -c EXCLUSIVE_PROCESS\n", "")
    none = once.replace("nvidia-smi -i 0,1 -c DEFAULT\n", "")
    files = {name: (once if name == sequential else SCRIPT, none) for name in names}
    LANE.fixed(tmp_path, files, "02-compute-mode.py")
    for name in names:
        write(tmp_path / name, SCRIPT)  # theirs has one such line in the sequential script
    refused = LANE.fix("02-compute-mode.py", tmp_path)
    assert "2 lines set a compute mode, expected 1" in refused.stderr
    assert {(tmp_path / name).read_text() for name in names} == {SCRIPT}


def test_methods_that_train_other_models_stop_the_build(artifact: Path) -> None:
    assert "plan 0: default; plan 1: default" in LANE.fix("03-one-model.py", artifact).stdout
    sizes = ' --over_arch_layer_sizes="512,1"'
    for path in artifact.rglob("*.sh"):
        lines = path.read_text().splitlines()
        told = [line + sizes if "preprocessing_plan=0" in line else line for line in lines]
        path.write_text("\n".join(told))
    assert "plan 0: 512,1; plan 1: default" in LANE.fix("03-one-model.py", artifact).stdout
    stream = artifact / "baseline_end_to_end/CUDA_stream/run_stream.sh"
    stream.write_text(stream.read_text().replace(sizes, "", 1))
    refused = LANE.fix("03-one-model.py", artifact)
    assert (refused.returncode != 0, "run_stream.sh: 512,1 and" in refused.stderr) == (True, True)
    stream.write_text("mkdir result\n")
    assert "has no program for plan 0" in LANE.fix("03-one-model.py", artifact).stderr


def test_the_plan_has_every_cell() -> None:
    points = LANE.plan()
    assert len(points) == 4 * 4 + 4 * 6
    for point in points:
        words = LANE.words(point)
        assert (words["figure"], words["gpus"], words["method"]) == (
            "10" if point.experiment == "figure10" else "9", "4", point.labels["variant"],
        )  # fmt: skip
        assert (words["plan"], words["batch"]) == (point.labels["plan"], point.labels["batch"])
        assert point.needs.ipc == "host"


def test_figure_and_claims(tmp_path: Path) -> None:
    """Every cell of Figure 10, read by the parser from logs with plausible numbers."""
    speeds = {"sequential": 50, "mps": 60, "rap_no_mapping": 80, "rap_no_fusion": 70, "rap": 99}
    found: list[Row] = []
    for plan, batch in (("0", "4096"), ("0", "8192"), ("1", "4096"), ("1", "8192")):
        for variant, speed in (speeds | {"ideal": 100}).items():
            text = f"rank:0, avg_latency:{1000 / speed:.3f} ms/iter, "
            text += f"throughput:{speed:.3f} iters/s, total_throughput:{4 * speed:.3f}"
            labels = {"plan": plan, "batch": batch, "variant": variant}
            read = LANE.parse.read_throughput(write(tmp_path / "result.log", text), labels)
            found += rows(read, labels, "figure10", f"{plan}-{batch}-{variant}")
    drawn = LANE.draw(found, "breakdown", "end_to_end")
    assert drawn["breakdown"].table is not None
    assert "no cell" in drawn["end_to_end"].reason
    here, verdicts = (LANE.verdicts(found, f"NVIDIA {gpu}") for gpu in ("H200", "A100-SXM4-40GB"))
    ours = [f"{name}-upstream" for name in ("R1", "R2", "R-order")]
    assert {verdicts[name] for name in ours} == {"reproduced"}, verdicts
    assert {verdicts[f"R{number}-upstream"] for number in range(6, 12)} == {"not transcribed"}
    assert {verdicts[name] for name in ("R1", "R-order", "G1", "F1")} == {"not run"}
    assert here["R1-upstream"] == "direction holds"

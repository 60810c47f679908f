"""The lane upstream of autotm: parser, driver, fix, refusals, plan, figure and claims."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.upstream import Lane, programs, rows, run, values, write

LANE = Lane("autotm")
LOG = (Path(__file__).parent / "logs/vgg19_128.log").read_text()
LABELS = {"net": "vgg19_128", "variant": "Synchronous"}


def test_a_result_becomes_records(tmp_path: Path) -> None:
    found = LANE.parse.read_run(write(tmp_path / "stdout.log", LOG), LABELS)
    assert {one["metric"]: (one["samples"], one["evidence"]) for one in found} == {
        "iteration_time": ([0.52], "measured"), "predicted_time": ([0.5], "simulated"),
        "oracle_time": ([0.41], "simulated"), "managed_time": ([1.3], "measured"),
    }  # fmt: skip
    without = write(tmp_path / "stdout.log", LOG.replace("0.41", "null"))
    assert not values(LANE.parse.read_run(without, LABELS), "oracle_time")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LOG + LOG, "2 results"),
        (LOG[:60], "is cut off"),
        (LOG.replace("oracle_time", "oracle"), "other fields"),
        (LOG.replace("0.52", "null"), "actual_runtime is no number"),
        (LOG.replace("0.52", "NaN"), "actual_runtime is nan, no time"),
        (LOG.replace("0.52", "0.0"), "actual_runtime is 0.0, no time"),
        (LOG.replace("1.3", "true"), "managed_runtime is no number"),
    ],
)
def test_a_result_that_is_none(tmp_path: Path, text: str, why: str) -> None:
    LANE.refuses("read_run", write(tmp_path / "stdout.log", text), LABELS, why)


SMALL = ("--net", "vgg19_128", "--optimizer", "Synchronous", "--overhead-mb", "561")
LARGE = ("--net", "resnet200_128", "--optimizer", "Asynchronous")


@pytest.mark.parametrize(
    ("words", "capability", "julia", "code", "why"),
    [
        (SMALL, "7.5", 0, 0, ""),
        (SMALL, "7.5", 3, 1, "julia ended with 3"),
        (SMALL, "9.0", 0, 77, "CUDA 10.1 cannot compile for more than 7.5"),
        (LARGE, "7.5", 0, 77, "can hang a GPU: --set own_gpu=true if it is your own"),
        ((*LARGE, "--own-gpu", "true"), "7.5", 0, 0, ""),
    ],
)
def test_the_driver_prints_what_the_parser_reads(
    tmp_path: Path, words: tuple[str, ...], capability: str, julia: int, code: int, why: str
) -> None:
    (tmp_path / "log").write_text(LOG)
    said = f"echo 'NVIDIA GeForce RTX 2080 Ti, 440.33, {capability}, 10800'"
    runs = f'echo "$@" >{tmp_path}/asked; cat {tmp_path}/log; exit {julia}'
    path = programs(tmp_path / "bin", nvidia_smi=said, julia=runs)
    done = LANE.drive(tmp_path, *words, "--project", tmp_path, path=path)
    assert (done.returncode, why in done.stderr) == (code, True), done.stderr
    assert (tmp_path / "asked").exists() == (code != 77)
    facts = json.loads((tmp_path / "environment.json").read_text())
    assert (facts["gpu"], facts["solver"]) == ("NVIDIA GeForce RTX 2080 Ti", "Cbc")
    if code == 0:
        assert LANE.parse.read_run(write(tmp_path / "stdout.log", done.stdout), LABELS)
    if words is SMALL and code == 0:  # vgg19_128 is the last of the authors' eleven
        asked = (tmp_path / "asked").read_text().split()
        assert asked[-3:] == ["11", "Synchronous", "561000000"]


def test_persistent_memory_is_refused_in_turn_and_never_changed(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/pmem1 /mnt/public ext4 rw,dax 0 0\n")

    def memory(region: str, path: str = "", mode: str = "1LM") -> subprocess.CompletedProcess[str]:
        words = ("--mode", mode, "--yes-destroy-data-on", region)
        places = ("--devices", tmp_path / "dev", "--mounts", mounts)
        script = LANE.image / "driver/persistent_memory.py"
        return run(sys.executable, script, *words, *places, path=path)

    def refused(why: str, *words: str) -> None:
        done = memory(*words)
        assert (done.returncode, done.stdout, why in done.stderr) == (77, "", True), done.stderr

    for mode in ("1LM", "2LM"):
        for region in ("", "none"):
            refused("erases persistent memory; name the region to lose", region, "", mode)
    refused("is no region's id", "a;b")
    refused("no persistent memory", "0x0001")
    (tmp_path / "dev/pmem1").touch()
    refused("is mounted at /mnt/public", "0x0001")
    mounts.write_text("")
    refused("there is no ipmctl", "0x0001", "/nonexistent")
    says = f'echo "$0 $@" >>{tmp_path}/called\necho 0x0000'
    path = programs(tmp_path / "bin", ipmctl=says, ndctl=says)
    refused("no region 0x0001 on this host", "0x0001", path)
    done = memory("0x0000", path)
    assert (done.returncode, "--region=0x0000" in done.stdout) == (0, True)
    called = set((tmp_path / "called").read_text().splitlines())
    assert called == {f"{tmp_path}/bin/ipmctl show -region"}  # asked, never told


def test_the_fix_writes_the_authors_parameters(tmp_path: Path) -> None:
    assert "a submodule is missing" in LANE.fix("01-build-parameters.py", tmp_path).stderr
    for name in ("deps/nGraph/deps", "AutoTM/deps"):
        (tmp_path / name).mkdir(parents=True)
    assert LANE.fix("01-build-parameters.py", tmp_path).returncode == 0
    assert json.loads((tmp_path / "deps/nGraph/deps/build.json").read_text())["GPU"] is True
    assert json.loads((tmp_path / "AutoTM/deps/build.json").read_text()) == {"GUROBI": True}


def test_plan_figure_and_claims(tmp_path: Path) -> None:
    points = LANE.plan()
    assert {point.labels["net"] for point in points} == set(LANE.driver.NETS)
    assert len(points) == 11 * 2
    for point in points:
        words = LANE.words(point)
        assert (words["net"], words["optimizer"]) == (point.labels["net"], point.labels["variant"])
    found = []
    for variant, text in (("Synchronous", LOG), ("Asynchronous", LOG.replace("0.52", "0.44"))):
        labels = LABELS | {"variant": variant}
        read = LANE.parse.read_run(write(tmp_path / "stdout.log", text), labels)
        found += rows(read, labels, "gpu", variant)
    assert LANE.draw(found, "managed")["managed"].table is not None
    verdicts = LANE.verdicts(found, "NVIDIA GeForce RTX 2080 Ti")
    assert {name: verdict for name, verdict in verdicts.items() if name.startswith("F12")} == {
        "F12": "not transcribed", "F12-async": "not run", "F12-managed": "not run",
    }  # fmt: skip

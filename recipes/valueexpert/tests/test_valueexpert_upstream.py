"""The lane upstream of valueexpert: parsers, driver, fixes, plan, figure and claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upstream import Lane, programs, rows, values, write

LANE = Lane("valueexpert")
BENCH = (Path(__file__).parent / "logs/bench_backprop.log").read_text()
LINES = BENCH.splitlines(True)
OVERHEAD = "".join(
    f"backprop/alone/seconds: {0.5 + n / 100}s\nbackprop/data_flow/seconds: {4 + n / 10}s\n"
    for n in range(3)
)
UPSTREAM = {"VE-01-A100", "VE-01-2080Ti", "VE-01-memory", "VE-slower"}
MODE = {"case": "backprop", "mode": "data_flow"}


def test_the_parsers(tmp_path: Path) -> None:
    found = LANE.parse.read_speedups(write(tmp_path / "stdout.log", BENCH), MODE)
    kernels = {labels[0]: times for labels, times in values(found, "kernel_time").items()}
    assert kernels == {"base": [8.5e-05, 8.7e-05], "vp-opt1": [5.0e-05, 5.2e-05]}
    assert {one["metric"] for one in found} == {
        "elapsed_time", "kernel_time", "gpu_kernel_time", "gpu_memory_time",
    }  # fmt: skip
    assert {(one["unit"], one["evidence"]) for one in found} == {("s", "measured")}
    found = LANE.parse.read_overhead(write(tmp_path / "stdout.log", OVERHEAD), MODE)
    alone, profiled = values(found, "seconds").items()
    assert (alone[0], profiled[1]) == (("alone",), [4.0, 4.1, 4.2])


@pytest.mark.parametrize(
    ("reader", "text", "why"),
    [
        ("speedups", "make: error\n", "has no time of backprop"),
        ("speedups", BENCH.replace("0.000121", "nan"), "no time above zero"),
        ("speedups", BENCH.replace("0.000121", "0.0"), "no time above zero"),
        ("speedups", BENCH.replace("0.000121", "1e"), "has no time"),
        ("speedups", "".join(LINES[:5]), "the original alone"),
        ("speedups", "".join(LINES[:7]), "no gpu_kernel_time of the version vp-opt1"),
        ("speedups", BENCH.replace("None", "old"), "no gpu_kernel_time of the version base"),
        ("overhead", "", "has no time"),
        ("overhead", OVERHEAD.replace("alone", "data_flow"), "no time of the sample alone"),
        ("overhead", "".join(OVERHEAD.splitlines(True)[:-1]), "cut off"),
    ],
)
def test_a_run_that_failed(tmp_path: Path, reader: str, text: str, why: str) -> None:
    LANE.refuses(f"read_{reader}", write(tmp_path / "stdout.log", text), MODE, why)


@pytest.mark.parametrize(
    ("what", "case", "arch", "release", "code", "why"),
    [
        ("speedup", "backprop", "sm_80", "11.8", 0, ""),
        ("overhead", "backprop", "sm_80", "12.2", 0, ""),
        ("overhead", "backprop", "sm_99", "11.8", 1, "make ended with"),
        ("speedup", "bfs", "sm_80", "11.8", 77, "graph1MW_6.txt is not in the image: mount it"),
        ("speedup", "backprop", "sm_80", "12.3", 77, "values rightly with 11.8 to 12.2"),
        ("speedup", "backprop", "sm_80", "11.4", 77, "values rightly with 11.8 to 12.2"),
    ],
)
def test_the_driver_prints_what_the_parser_reads(
    tmp_path: Path, what: str, case: str, arch: str, release: str, code: int, why: str
) -> None:
    gvprof = 'mkdir gvprof-measurements gvprof-database; shift 2; exec "$@"'
    nvcc = f"echo 'Cuda compilation tools, release {release}, V'"
    root = tmp_path / "GVProf"
    write(root / "python/bench.py", f"print({BENCH!r})\n")
    rule = "all:\n\tprintf '#!/bin/sh\\nexit 0\\n' >backprop; chmod +x backprop\n"
    rule += "\ttest $(ARCH) = sm_80\nclean:\n\trm -f backprop\n"
    write(root / "samples/backprop/Makefile", rule)
    done = LANE.drive(
        tmp_path, what, "--case", case, "--arch", arch, "--mode", "data_flow", "--rounds", "2",
        "--root", root, path=programs(tmp_path / "bin", nvcc=nvcc, gvprof=gvprof),
    )  # fmt: skip
    assert (done.returncode, why in done.stderr) == (code, True), done.stderr
    if code == 0:
        read = {"speedup": LANE.parse.read_speedups, "overhead": LANE.parse.read_overhead}[what]
        found = read(write(tmp_path / "stdout.log", done.stdout), MODE)
        assert {len(one["samples"]) for one in found} == {2}


def test_the_fixes_expect_what_they_change(tmp_path: Path) -> None:
    before, after = (
        " ".join(f"-gencode arch=compute_{n},code=sm_{n}" for n in archs)
        for archs in ((50, 60, 70, 75), (80, 90))
    )
    flags = {"Makefile": (f"CFLAGS := {before} -O3\n", f"CFLAGS := {after}    -O3\n")}
    LANE.fixed(tmp_path, flags, "01-architectures.py", "80 90")
    assert "no list" in LANE.fix("01-architectures.py", tmp_path, "sm80").stderr
    write(tmp_path / "python/utils.py", "['make', 'ARCH={}'.join(arch)]\n")
    assert LANE.fix("02-make-arguments.py", tmp_path).returncode == 0
    assert (tmp_path / "python/utils.py").read_text() == "['make', 'ARCH={}'.format(arch)]\n"


def test_plan_figure_and_claims(tmp_path: Path) -> None:
    points = LANE.plan()
    assert len(points) == 4 + 4 * 3
    for point in points:
        words = LANE.words(point)
        assert words["what"] == point.experiment.removesuffix("s")
        assert point.labels.items() <= words.items()
    found = rows(
        LANE.parse.read_speedups(write(tmp_path / "stdout.log", BENCH), MODE), MODE, "speedups"
    )
    assert LANE.draw(found, "speedup")["speedup"].table is not None
    judged = LANE.verdicts(found, "NVIDIA A100")
    assert {judged.pop(name) for name in list(judged) if name not in UPSTREAM} == {"not run"}
    assert judged == {
        "VE-01-A100": "reproduced", "VE-01-2080Ti": "direction holds",
        "VE-01-memory": "reproduced", "VE-slower": "not run",
    }  # fmt: skip

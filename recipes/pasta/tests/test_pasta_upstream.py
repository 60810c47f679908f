"""PASTA's lane upstream: logs become records and claims; fixes; the driver and the artifact."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pasta_records import MODELS, PARTS, Records, allocated

from ae.records.files import Row
from tests.upstream import Lane, programs, rows, values, write

LANE = Lane("pasta")
LOGS = Path(__file__).parent / "logs"
A100, H200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H200"
EXPERIMENTS = ("working_sets", "memory", "hotness", "overhead", "breakdown", "parallel")
LABELS = {"model": "bert", "variant": "cs_cpu", "parallelism": "dp"}
ALEXNET = {"model": "alexnet"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The logs of every experiment, as the driver keeps them."""
    shutil.copytree(LOGS, tmp_path / "logs")
    about = {"sampling": "readme", "sampling_rate": 20, "blocks": "as-is"}
    return write(tmp_path / "logs/point.json", json.dumps(about) + "\n")


def test_working_sets(folder: Path) -> None:
    found = LANE.parse.working_sets(folder, ALEXNET)
    sets = values(found, "working_set")
    # 40, 20, 40, 20, 80 MiB: numpy's percentiles, linear between the sorted values
    stats = ("max", "min", "mean", "median", "p90")
    assert [sets["test", stat] for stat in stats] == [[80], [20], [40], [40], [64]]
    assert values(found, "kernels") == {("train",): [4], ("test",): [5]}
    # the mean over launches of what the driver had handed out, not the largest
    assert values(found, "footprint")["test",] == [(100 + 100 + 110 + 110 + 130) / 5]
    launches = values(found, "kernel_launches")
    assert launches["test", "at::native::im2col_kernel"] == [2]
    assert launches["train", "gemm"] == [1]
    assert values(found, "top5_share")["test",] == [100]


def test_overhead_as_the_authors_count_it_and_soundly(folder: Path) -> None:
    found = LANE.parse.overhead(folder, LABELS)
    assert values(found, "elapsed") == {("untooled",): [20], ("tooled",): [3620]}
    # 2 of 50 launches were profiled, so what profiling added is multiplied by 25, and no more
    sound = (20 + 3600 * 25) / 20
    slow = {("readme", "authors"): [3620], ("readme", "sound"): [sound]}
    assert values(found, "slowdown") == slow
    assert {one["evidence"] for one in found if one["metric"] == "slowdown"} == {"scaled"}
    fast = LANE.parse.overhead(folder, LABELS | {"variant": "cs_gpu"})
    assert values(fast, "slowdown") == {("none",): [4]}
    assert {one["evidence"] for one in fast} == {"measured"}


def test_breakdown(folder: Path) -> None:
    gpu = values(LANE.parse.breakdown(folder, LABELS | {"variant": "cs_gpu"}), "tool_time")
    assert gpu == {(part,): [s] for part, s in zip(PARTS, (20, 12.5, 0.5, 0.25), strict=True)}
    cpu = LANE.parse.breakdown(folder, LABELS)
    assert values(cpu, "tool_time")["readme", "analysis"] == [2000]
    assert [one["evidence"] for one in cpu] == ["measured", "scaled", "scaled", "scaled"]


def test_hotness_memory_and_parallel(folder: Path) -> None:
    found = LANE.parse.hotness(folder, {})
    assert values(found, "hot_windows") == {("as-is",): [10]}
    assert values(found, "hot_blocks") == {("as-is",): [3]}  # the fourth is never touched
    third = [pytest.approx(100 / 3)]
    assert values(found, "block_share") == {("as-is", "always"): third, ("as-is", "burst"): third}
    assert sum(one[0] for one in values(found, "accesses").values()) == 900 * 10 + 5 + 7 * 5
    found = LANE.parse.memory(folder, {})
    assert values(found, "peak_allocated") == {(): [800]}
    assert values(found, "tensor_events") == {("malloc",): [3], ("free",): [2]}
    curve = values(found, "allocated")
    assert (len(curve), curve["0",], curve["50",], curve["100",]) == (101, [100], [800], [200])
    log = folder / "dp.accelprof.log"
    log.write_text(log.read_text().replace("device", "stream 7 device"))  # the last number counts
    both = LANE.parse.parallel(folder, LABELS)
    assert values(both, "peak_allocated") == {("0",): [600], ("1",): [605]}


SETS, HOT = "test_alexnet_app_analysis.log", "bert_time_hotness_cpu.log"
BROKEN: list[tuple[str, str, Callable[[str], str], str]] = [
    ("working_sets", SETS, lambda t: t[: t.rindex("  Memory Foot")], "cut off within a kernel"),
    ("working_sets", SETS, lambda t: t.replace("ID: 3", "ID: 4"), "kernel 3 is missing"),
    ("working_sets", SETS, lambda t: t.replace("Count: 1000", "Count: nan"), "no whole number"),
    ("working_sets", "test_alexnet.accelprof.log", lambda t: t.replace("Time taken", "Error"),
     "measured nothing"),
    ("overhead", "run_bert.accelprof.log", lambda t: t.replace("0:20", "0:00"), "a clock of 1 s"),
    ("overhead", "test_cpu_bert.accelprof.log", lambda t: t[:-1], "cut off within a line"),
    ("overhead", "point.json", lambda _: '{"sampling_rate": 0}\n', "at which rate"),
    ("breakdown", "test_cpu_bert.accelprof.log", lambda t: t.replace("Trace transfer", "trace"),
     "no time for transfer"),
    ("hotness", HOT, lambda t: t[:-5] + "\n", "different numbers of blocks"),
    ("memory", "gpt2_app_analysis.accelprof.log", lambda t: t.replace(", allocated", ", was"),
     "of another form"),
    ("parallel", "dp.accelprof.log", lambda t: t.replace("device 1", "device 0"),
     "of 1 GPUs, expected 2"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "name", "harm", "why"), BROKEN)
def test_a_broken_log_is_one_sentence(
    folder: Path, reader: str, name: str, harm: Callable[[str], str], why: str
) -> None:
    before = (folder / name).read_text()
    assert harm(before) != before
    (folder / name).write_text(harm(before))
    LANE.refuses(reader, folder, LABELS | (ALEXNET if reader == "working_sets" else {}), why)


# The fixes and the driver, on stand-ins for the authors' sources and their launcher.


def test_the_fixes_expect_what_they_change(tmp_path: Path) -> None:
    march = ("all:\n", "\tcc -O3 -march=native a.c\n", "\tcc -O3 -march=x86-64-v2 a.c\n")
    parts = {"sanalyzer": 1, "nv-compute": 4, "sanalyzer/cpp_trace": 0, "sanalyzer/py_frame": 1,
             "nv-nvbit": 4}  # fmt: skip
    LANE.fixed(tmp_path, {
        f"{part}/Makefile": (march[0] + count * march[1], march[0] + count * march[2])
        for part, count in parts.items()
    }, "01-march.py", "x86-64-v2")  # fmt: skip
    bits = ("const int SHIFT_BITS = 20;\n", "const int SHIFT_BITS = 21;\n")
    source = {"sanalyzer/src/tools/time_hotness_cpu.cpp": bits}
    LANE.fixed(tmp_path, source, "03-hotness-blocks.py")
    off = "torch.backends.cudnn.enabled = False  # as in the paper's runs\n"
    program = ("import torch\nimport torch.nn\n", f"import torch\n{off}import torch.nn\n")
    LANE.fixed(tmp_path, {"run_a.py": program}, "10-cudnn.py")
    for text in ("import numpy\n", "def f():\n    import torch\n", "import torch\nimport torch\n"):
        (tmp_path / "run_a.py").write_text(text)
        assert LANE.fix("10-cudnn.py", tmp_path).returncode != 0
        assert (tmp_path / "run_a.py").read_text() == text


ACCELPROF = r"""
echo "$* rate=$ACCEL_PROF_ENV_SAMPLE_RATE $CUBLAS_WORKSPACE_CONFIG" >>"$AE_OUT/calls"
name=$(echo "$*" | grep -o 'run_[a-z0-9_]*\(\.sh\)\?' | head -1)
grep -hs cudnn.enabled *.py >>"$AE_OUT/calls"
for log in .accelprof .time_hotness_cpu _app_analysis; do
  echo "${SAYS-Time taken: 1.000 seconds}" >$name$log.log
done
exit ${ENDS-0}
"""
BOTH = ("-t none python3 run_{0}.py -t train rate=", "-t none python3 run_{0}.py -t test rate=")
GOOD: dict[str, tuple[Sequence[str], str]] = {
    "working-sets --model bert": (
        [f"-t app_analysis python3 run_bert.py -t {mode} rate=" for mode in ("train", "test")],
        "test_bert_app_analysis train_bert_app_analysis test_bert.accelprof train_bert.accelprof"),
    "overhead --model resnet34 --variant nvbit_cpu": (
        [*BOTH, "-d nvbit -t app_analysis python3 run_{0}.py -t test rate=100"],
        "run_resnet34.accelprof test_nvbit_resnet34.accelprof checkpoint_resnet34.accelprof"),
    "overhead --model bert --variant cs_cpu --sampling paper": (
        [*BOTH, "-t app_analysis_cpu python3 run_{0}.py -t test rate=10"],
        "run_bert.accelprof test_cpu_bert.accelprof checkpoint_bert.accelprof"),
    "breakdown --model gpt2 --variant cs_gpu": (
        [*BOTH, "-t app_analysis python3 run_{0}.py -t test rate="],
        "run_gpt2.accelprof test_gpu_gpt2.accelprof checkpoint_gpt2.accelprof"),
    "hotness": (
        ["-t none python3 run_bert.py -t train rate=",
         "-t time_hotness_cpu python3 run_bert.py -t test rate="],
        "bert_time_hotness_cpu hotness_bert.accelprof checkpoint_bert.accelprof"),
    "memory": (["-t app_analysis python3 run_gpt2.py -t train rate="],
               "gpt2_app_analysis.accelprof"),
    "parallel --mode tp": (["-t event_trace_mgpu ./run_dist_training.sh tp rate="],
                           "tp.accelprof"),
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs the driver in a made-up AccelProf; returns exit code and what it said."""
    home = tmp_path / "AccelProf"
    for model in MODELS:
        write(home / f"cgo26-ae/benchmarks/{model}/run_{model}.py", "import torch\n")
    write(home / "cgo26-ae/bin/run_dist_training.sh", "#!/bin/sh\n")
    (tmp_path / "Megatron-LM").mkdir()
    write(home / "lib/libcompute_sanitizer.so", "\0Trace collection time\0")
    places = {"ACCEL_PROF_HOME": home, "PASTA_MEGATRON": tmp_path / "Megatron-LM",
              "PASTA_FIXES": LANE.image / "fixes"}  # fmt: skip
    variables = {name: str(path) for name, path in places.items()}

    def drive(words: str, gpu: str = "H200, 570.86, 9.0", **more: str) -> tuple[int, str]:
        path = programs(tmp_path / "bin", accelprof=ACCELPROF, nvidia_smi=f"echo '{gpu}'")
        done = LANE.drive(tmp_path / "out", *words.split(), path=path, **{**variables, **more})
        return done.returncode, done.stderr

    return drive


@pytest.mark.parametrize("words", GOOD)
def test_a_point_runs_the_artifacts_commands(
    run: Callable[..., tuple[int, str]], tmp_path: Path, words: str
) -> None:
    assert run(words) == (0, "")
    commands, kept = GOOD[words]
    model = words.partition("--model ")[2].partition(" ")[0]
    off = "torch.backends.cudnn.enabled = False"
    calls = (tmp_path / "out/calls").read_text().splitlines()
    assert [line for line in calls if not line.startswith(off)] == [
        f"-v {command.format(model)} :4096:2:16:8" for command in commands
    ]
    assert len(calls) == (1 if "parallel" in words else 2) * len(commands)  # cuDNN was off
    assert {path.stem for path in (tmp_path / "out").glob("*.log")} == set(kept.split())
    rate = json.loads((tmp_path / "out/point.json").read_text())["sampling_rate"]
    assert commands[-1].endswith(f"rate={rate if rate > 1 else ''}")
    programs = (tmp_path / "AccelProf").rglob("run_*.py")
    assert {path.read_text() for path in programs} == {"import torch\n"}  # the image's own stay


@pytest.mark.parametrize(
    ("words", "gpu", "nvbit", "more", "code", "why"),
    [
        ("memory", "9.0", "", {"SAYS": "Error"}, 1, "measured nothing"),
        ("memory", "9.0", "", {"ENDS": "3"}, 1, "ended with exit code 3"),
        ("memory", "9.0", "", {"ACCEL_PROF_HOME": "/no"}, 1, "has no benchmark gpt2"),
        ("memory", "10.0", "", {}, 77, "no code for it"),
        ("breakdown --model bert --variant nvbit_cpu", "9.0", "", {}, 77, "without the timers"),
        ("overhead --model bert --variant nvbit_cpu", "9.0", "1.7.1", {}, 77, "on driver 580"),
        ("overhead --model bert --variant nvbit_cpu", "9.0", "1.8", {}, 0, ""),
        ("overhead --model bert --variant cs_cpu", "9.0", "1.7.1", {}, 0, ""),
    ],
)  # fmt: skip
def test_what_does_not_run_says_why(
    run: Callable[..., tuple[int, str]], tmp_path: Path, words: str, gpu: str, nvbit: str,
    more: dict[str, str], code: int, why: str,
) -> None:  # fmt: skip
    header = tmp_path / "AccelProf/nv-nvbit/core/nvbit.h"
    write(header, f'#define NVBIT_VERSION "{nvbit}"\n' if nvbit else "")
    ended, said = run(words, f"NVIDIA H200, 580.159.03, {gpu}", **more)
    assert (ended, why in said, said.count("\n")) == (code, True, min(code, 1)), said


# Plan, claims and figures.


def test_every_command_line_is_understood() -> None:
    assert {point.experiment for point in LANE.plan()} == set(EXPERIMENTS[:3])  # nothing of days
    points = LANE.plan(EXPERIMENTS)
    assert Counter(point.experiment for point in points) == {
        "working_sets": 6, "memory": 1, "hotness": 1, "overhead": 18, "breakdown": 18,
        "parallel": 3,
    }  # fmt: skip
    for point in points:
        words = LANE.words(point)
        assert words["experiment"].replace("-", "_") == point.parser == point.experiment
        named = {"parallelism": "mode"}
        assert {named.get(k, k): v for k, v in point.labels.items()}.items() <= words.items()


def test_launches_are_sampled_as_in_the_paper_the_readme_and_the_first_scripts() -> None:
    rates = (30, 30, 50, 10, 10, 10)
    for name, factor in (("paper", 1), ("readme", 2), ("early", 5)):
        assert LANE.driver.SAMPLING[name] == tuple(factor * rate for rate in rates)


def lane_records(folder: Path, gpu: float = 2) -> list[Row]:
    """Rows of every experiment: of our logs, and made up where a claim needs more of them."""
    records = Records()
    for model in MODELS:
        records.add("overhead", "slowdown", gpu, "x", model=model, variant="cs_gpu", scaling="none")
        for variant, factor in (("cs_cpu", 941), ("nvbit_cpu", 13006)):
            for scaling in ("authors", "sound"):
                records.add("overhead", "slowdown", 2 * factor, "x", "scaled", model=model,
                            variant=variant, scaling=scaling, sampling="paper")  # fmt: skip
        for variant, analysis in (("cs_gpu", 1), ("cs_cpu", 900), ("nvbit_cpu", 900)):
            for part, value in zip(PARTS, (10, 30, 5, analysis), strict=True):
                records.add("breakdown", "tool_time", value, "s", model=model, variant=variant,
                            part=part)  # fmt: skip
    allocated(records, "memory", 8000)
    for mode in ("dp", "tp", "pp"):
        for device in "01":
            peak = 4000 if mode == "tp" else 8000
            allocated(records, "parallel", peak, parallelism=mode, device=device)
    sets = rows(LANE.parse.working_sets(folder, ALEXNET), ALEXNET, "working_sets")
    return [*records.rows, *sets, *rows(LANE.parse.hotness(folder, {}), {}, "hotness")]


def test_claims_and_figures(folder: Path) -> None:
    made = lane_records(folder)
    found = LANE.verdicts(made, A100)
    table_v = {name: verdict for name, verdict in found.items() if name.startswith("T5.1-")}
    assert table_v["T5.1-max"] == "not reproduced"  # our log is not AlexNet's
    assert {n: v for n, v in found.items() if v != "not run" and not n.startswith(("T", "F7"))} == {
        **dict.fromkeys(("F9.1-upstream", "F9.2", "F9.5-cs-upstream", "F9.5-nvbit", "F13.1",
                         "F10.1-upstream", "F10.2-upstream", "F14.1-upstream", "F15.1-upstream",
                         "F15.2-upstream", "F15.3-upstream"), "reproduced"),
        "F9.3-upstream": "direction holds", "F9.4": "direction holds",  # judged on an RTX 3060
    }  # fmt: skip
    here = LANE.verdicts(made, H200)
    assert (here["F9.5-cs-upstream"], here["F9.1-upstream"]) == ("reproduced", "direction holds")
    slow = LANE.verdicts(lane_records(folder, gpu=1e6), A100)
    assert slow["F9.5-cs-upstream"] == slow["F9.1-upstream"] == "not reproduced"
    names = ("working_sets", "kernels", "overhead", "breakdown", "hotness", "memory")
    drawn = LANE.draw(made, *names)
    assert {name: one.reason for name, one in drawn.items() if one.reason} == {}
    assert drawn["kernels"].table["kernel"][0] == "at::native::im2col_kernel"

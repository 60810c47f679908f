"""The image of PASTA's lane upstream: its fixes, its driver, its pins, and a point in a container.

Stand-ins take the place of the authors' sources and of their launcher.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.upstream import SOURCES, load
from tests.upstream import fix as run_fix

ROOT = Path(__file__).resolve().parents[3]
IMAGE = ROOT / "images" / "pasta-upstream"
MODELS = ("alexnet", "resnet18", "resnet34", "bert", "gpt2", "whisper")


@pytest.fixture(scope="module")
def driver() -> ModuleType:
    return load(IMAGE / "driver" / "pasta_driver.py")


# Fixes: on stand-ins for the sources, as a build runs them


def fix(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    return run_fix(IMAGE, name, *words)


def makefiles(root: Path, counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        (root / name / "Makefile").write_text("all:\n" + "\tcc -O3 -march=native a.c\n" * count)


PARTS = {
    "sanalyzer": 1,
    "nv-compute": 4,
    "sanalyzer/cpp_trace": 0,
    "sanalyzer/py_frame": 1,
    "nv-nvbit": 4,
}


def test_march(tmp_path: Path) -> None:
    makefiles(tmp_path, PARTS)
    done = fix("01-march.py", tmp_path, "x86-64-v2")
    assert done.returncode == 0, done.stderr
    assert "10 times" in done.stdout
    texts = [path.read_text() for path in tmp_path.rglob("Makefile")]
    assert sum(text.count("-march=x86-64-v2") for text in texts) == 10
    assert not any("native" in text for text in texts)


def test_hotness_blocks(tmp_path: Path) -> None:
    source = tmp_path / "sanalyzer" / "src" / "tools" / "time_hotness_cpu.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("const int SHIFT_BITS = 20;\n")
    assert fix("03-hotness-blocks.py", tmp_path).returncode == 0
    assert source.read_text() == "const int SHIFT_BITS = 21;\n"
    again = fix("03-hotness-blocks.py", tmp_path)
    assert again.returncode != 0
    assert "occurs 0 times, expected 1" in again.stderr


def test_cudnn(tmp_path: Path) -> None:
    program = tmp_path / "run_a.py"
    program.write_text("import os\nimport torch\nimport torch.nn as nn\nprint(1)\n")
    assert fix("10-cudnn.py", tmp_path).returncode == 0
    lines = program.read_text().splitlines()
    assert lines[1] == "import torch"
    assert lines[2].startswith("torch.backends.cudnn.enabled = False")
    for text in ("import numpy\n", "def f():\n    import torch\n", "import torch\nimport torch\n"):
        program.write_text(text)
        done = fix("10-cudnn.py", tmp_path)
        assert done.returncode != 0
        assert program.read_text() == text
    assert fix("10-cudnn.py", tmp_path / "nowhere").returncode == 2


# The driver, with a stand-in for the authors' launcher

ACCELPROF = """#!{python}
import os, pathlib, sys
words = sys.argv[1:]
tool = words[words.index("-t") + 1]
name = pathlib.Path(words[words.index("python3") + 1]).stem if "python3" in words else words[-2][2:]
with open("calls", "a") as calls:
    rate = os.environ.get("ACCEL_PROF_ENV_SAMPLE_RATE", "")
    calls.write(" ".join(words) + " rate=" + rate + "\\n")
text = pathlib.Path(name + ".py").read_text() if "python3" in words else ""
pathlib.Path("workspace").write_text(os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
if words[-1] == "test" and not pathlib.Path("weights").exists():
    text += "no weights"
pathlib.Path("weights").touch()
said = "Time taken: 1.000 seconds" if "no weights" not in text else "Error: no weights"
pathlib.Path(name + ".accelprof.log").write_text(said + "\\n")
if tool == "app_analysis":
    pathlib.Path(name + "_app_analysis.log").write_text("cudnn off" if "cudnn" in text else "as-is")
if tool == "time_hotness_cpu":
    pathlib.Path(name + ".time_hotness_cpu.log").write_text("1\\n")
sys.exit(3 if "fail" in text else 0)
"""


@pytest.fixture
def place(driver: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    home = tmp_path / "AccelProf"
    for model in MODELS:
        folder = home / "cgo26-ae" / "benchmarks" / model
        folder.mkdir(parents=True)
        (folder / f"run_{model}.py").write_text("import torch\n")
    (home / "bin").mkdir()
    launcher = home / "bin" / "accelprof"
    launcher.write_text(ACCELPROF.format(python=sys.executable))
    launcher.chmod(0o755)
    (home / "lib").mkdir()
    (home / "cgo26-ae" / "bin").mkdir()
    (home / "cgo26-ae" / "bin" / "run_dist_training.sh").write_text("#!/bin/sh\n")
    (tmp_path / "Megatron-LM").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(driver, "gpus", list)
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    return driver.Place(
        accelprof=home, megatron=tmp_path / "Megatron-LM", fixes=IMAGE / "fixes",
        out=tmp_path / "out", work=work,
    )  # fmt: skip


def run(driver: ModuleType, place: Any, *words: str) -> list[str]:
    driver.run(driver.parse(words), place)
    (calls,) = place.work.rglob("calls")
    return str(calls.read_text()).splitlines()


def test_working_sets_train_first_then_test_without_cudnn(driver: ModuleType, place: Any) -> None:
    calls = run(driver, place, "working-sets", "--model", "bert")
    assert calls == [
        "-v -t app_analysis python3 run_bert.py -t train rate=",
        "-v -t app_analysis python3 run_bert.py -t test rate=",
    ]
    assert (place.out / "test_bert_app_analysis.log").read_text() == "cudnn off"
    assert (place.out / "train_bert.accelprof.log").is_file()
    assert next(place.work.rglob("workspace")).read_text() == ":4096:2:16:8"
    source = place.artifact / "benchmarks" / "bert" / "run_bert.py"
    assert source.read_text() == "import torch\n"  # the image's own copy stays as it is


def test_overhead_samples_only_the_run_that_is_profiled(driver: ModuleType, place: Any) -> None:
    calls = run(driver, place, "overhead", "--model", "resnet34", "--variant", "nvbit_cpu")
    assert calls == [
        "-v -t none python3 run_resnet34.py -t train rate=",
        "-v -t none python3 run_resnet34.py -t test rate=",
        "-v -d nvbit -t app_analysis python3 run_resnet34.py -t test rate=100",
    ]
    assert (place.out / "test_nvbit_resnet34.accelprof.log").is_file()
    assert json.loads((place.out / "point.json").read_text())["sampling_rate"] == 100


def test_a_run_that_measured_nothing_is_a_failure(driver: ModuleType, place: Any) -> None:
    program = place.artifact / "benchmarks" / "resnet18" / "run_resnet18.py"
    program.write_text("import torch\n# no weights\n")
    with pytest.raises(driver.Failed, match="measured nothing"):
        run(driver, place, "working-sets", "--model", "resnet18")
    program.write_text("import torch\n# fail\n")
    shutil.rmtree(place.work / "resnet18")
    with pytest.raises(driver.Failed, match="ended with exit code 3"):
        run(driver, place, "working-sets", "--model", "resnet18")
    assert (place.out / "train_resnet18.accelprof.log").is_file()  # kept, to see why


def test_what_is_known_not_to_run_is_said_before_it_is_tried(
    driver: ModuleType, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(driver.CannotRun, match="without the timers of Figure 10"):
        run(driver, place, "breakdown", "--model", "bert", "--variant", "cs_gpu")
    (place.accelprof / "lib" / "libcompute_sanitizer.so").write_bytes(b"\0Trace collection time\0")
    run(driver, place, "breakdown", "--model", "bert", "--variant", "cs_gpu")
    core = place.accelprof / "nv-nvbit" / "core"
    core.mkdir(parents=True)
    (core / "nvbit.h").write_text('#define NVBIT_VERSION "1.7.1"\n')
    h200 = {"name": "NVIDIA H200", "driver": "580.159.03", "capability": "9.0"}
    with pytest.raises(driver.CannotRun, match=r"NVBit 1\.7\.1.*aborts on driver 580"):
        driver.require([h200], "nvbit_cpu", place)
    driver.require([h200], "cs_cpu", place)
    driver.require([h200 | {"driver": "570.86.10"}], "nvbit_cpu", place)
    (core / "nvbit.h").write_text('#define NVBIT_VERSION "1.8"\n')
    driver.require([h200], "nvbit_cpu", place)
    with pytest.raises(driver.CannotRun, match="no code for it"):
        driver.require([h200 | {"capability": "10.0"}], "cs_gpu", place)


def test_exit_codes(
    driver: ModuleType,
    place: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ACCEL_PROF_HOME", str(place.accelprof))
    monkeypatch.setenv("PASTA_FIXES", str(place.fixes))
    monkeypatch.setenv("AE_OUT", str(place.out))
    assert driver.main(["working-sets", "--model", "gpt2"]) == 0
    assert driver.main(["breakdown", "--model", "gpt2", "--variant", "cs_cpu"]) == 77
    assert capsys.readouterr().err.splitlines()[-1].startswith("this image was built without")
    shutil.rmtree(place.artifact / "benchmarks" / "gpt2")
    assert driver.main(["memory"]) == 1

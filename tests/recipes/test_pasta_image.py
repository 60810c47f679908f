"""The image of PASTA's lane upstream: its fixes, its driver, its pins, and a point in a container.

Stand-ins take the place of the authors' sources and of their launcher.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ae.records.files import read_point

ROOT = Path(__file__).resolve().parents[2]
LOGS = Path(__file__).parent / "logs" / "pasta"
IMAGE = ROOT / "images" / "pasta-upstream"
SOURCES = ROOT / "images" / "sources"
MODELS = ("alexnet", "resnet18", "resnet34", "bert", "gpt2", "whisper")
A100 = "NVIDIA A100-SXM4-80GB"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def driver() -> ModuleType:
    return load(IMAGE / "driver" / "pasta_driver.py")


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fixes of all images share lies beside them in an image, and elsewhere here."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))


# Fixes: on stand-ins for the sources, as a build runs them


def fix(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(IMAGE / "fixes" / name), *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sanalyzer": 0}, "occurs 0 times, expected 1 or 4"),
        ({"nv-compute": 2}, "occurs 2 times, expected 1 or 4"),
        ({"other": 1}, "still asked for in other/Makefile"),
    ],
)
def test_march_stops_on_another_commit(
    tmp_path: Path, change: Mapping[str, int], words: str
) -> None:
    makefiles(tmp_path, PARTS | change)
    done = fix("01-march.py", tmp_path)
    assert done.returncode != 0
    assert words in done.stderr


def test_libbacktrace_is_found_under_both_names(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "utils" / "build_libbacktrace"
    script.parent.mkdir(parents=True)
    folder = "$ACCEL_PROF_DIR/build/backtrace/lib"
    install = f"make() {{ mkdir -p {folder}; touch {folder}/l.so; }}\n"
    script.write_text(f"{install}make install")
    assert fix("02-libbacktrace-folder.py", tmp_path).returncode == 0
    for _ in range(2):  # the authors' script is sourced again when a build is repeated
        subprocess.run(
            ["bash", "-euc", '. "$1"', "-", str(script)], check=True,
            env={"ACCEL_PROF_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    assert (tmp_path / "build" / "backtrace" / "lib64" / "l.so").is_file()
    assert "fixed already" in fix("02-libbacktrace-folder.py", tmp_path).stderr
    script.write_text("cmake --install .\n")
    assert "does something else" in fix("02-libbacktrace-folder.py", tmp_path).stderr


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


def test_every_fix_says_what_where_and_what_it_does_to_a_measurement() -> None:
    fixes = sorted((IMAGE / "fixes").glob("[0-9]*.py"))
    page = (ROOT / "docs" / "upstream" / "pasta.md").read_text()
    assert len(fixes) == 4
    for path in fixes:
        words = path.read_text().split('"""')[1]
        assert "Where:" in words
        assert "Measurement:" in words
        assert path.name in page


# Fetching while building


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "weights").write_bytes(b"weights")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_fetch_keeps_what_has_the_right_checksum_and_nothing_else(
    served: str, tmp_path: Path
) -> None:
    fetch = load(SOURCES / "fetch.py").fetch
    target = tmp_path / "cache" / "whisper" / "small.pt"
    right = hashlib.sha256(b"weights").hexdigest()
    with pytest.raises(ValueError, match=f"has the sha256 {right}"):
        fetch(f"{served}/weights", "0" * 64, target)
    assert list(target.parent.iterdir()) == []
    with pytest.raises(OSError, match="404"):
        fetch(f"{served}/other", right, target)
    fetch(f"{served}/weights", right, target)
    assert target.read_bytes() == b"weights"


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


def test_as_is_leaves_the_benchmark_alone(
    driver: ModuleType, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    run(
        driver, place, "working-sets", "--model", "bert", "--cudnn", "as-is", "--workspace", "as-is"
    )
    assert (place.out / "test_bert_app_analysis.log").read_text() == "as-is"
    assert next(place.work.rglob("workspace")).read_text() == ""


def test_overhead_samples_only_the_run_that_is_profiled(driver: ModuleType, place: Any) -> None:
    calls = run(driver, place, "overhead", "--model", "resnet34", "--variant", "nvbit_cpu")
    assert calls == [
        "-v -t none python3 run_resnet34.py -t train rate=",
        "-v -t none python3 run_resnet34.py -t test rate=",
        "-v -d nvbit -t app_analysis python3 run_resnet34.py -t test rate=100",
    ]
    assert (place.out / "test_nvbit_resnet34.accelprof.log").is_file()
    assert json.loads((place.out / "point.json").read_text())["sampling_rate"] == 100


def test_hotness_memory_and_parallel(driver: ModuleType, place: Any) -> None:
    run(driver, place, "hotness")
    assert (place.out / "bert_time_hotness_cpu.log").is_file()
    shutil.rmtree(place.work / "bert")
    assert len(run(driver, place, "memory")) == 1
    shutil.rmtree(place.work / "gpt2")
    calls = run(driver, place, "parallel", "--mode", "tp")
    assert calls == ["-v -t event_trace_mgpu ./run_dist_training.sh tp rate="]
    assert (place.out / "tp.accelprof.log").is_file()


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


# The image


def test_every_source_is_pinned() -> None:
    text = (IMAGE / "Dockerfile").read_text()
    pins = dict(re.findall(r"^ARG (\w+_(?:COMMIT|TAG|SHA256))=(\S+)$", text, flags=re.M))
    assert set(pins) == {
        "ACCELPROF_COMMIT", "ARTIFACT_COMMIT", "BENCHMARKS_COMMIT", "MEGATRON_TAG",
        "WHISPER_SHA256",
    }  # fmt: skip
    for name, value in pins.items():
        length = {"COMMIT": 40, "SHA256": 64}.get(name.rsplit("_", 1)[1])
        assert length is None or re.fullmatch(rf"[0-9a-f]{{{length}}}", value)
    assert len(re.findall(r"https://github.com/\S+", text)) == len(re.findall(r"fetch -q", text))
    assert "ENABLE_CS=1 ENABLE_NVBIT=1 ENABLE_TORCH=1" in text
    assert not re.search(r"^(CMD|ENTRYPOINT) [^\[]", text, flags=re.M)


@pytest.mark.parametrize("path", sorted(IMAGE.glob("requirements*.txt")), ids=lambda p: p.name)
def test_python_packages_are_pinned_by_hash(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0] == "# python: 3.11"
    packages = [line for line in lines if line and not line.startswith(("#", " "))]
    hashes = [line for line in lines if re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line)]
    assert packages
    assert len(packages) == len(hashes)
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.+]+ \\", line) for line in packages)


@pytest.mark.docker
def test_bake_prints_the_plan(docker_host: str) -> None:
    from ae.images.bake import resolve
    from ae.images.content import client_environment, find_client

    client = find_client(docker_host)
    (target,) = resolve(
        (client, "buildx"), ROOT, "pasta-upstream", "pasta-upstream-cuda",
        client_environment(docker_host),
    )  # fmt: skip
    assert target.tags == ("ae/pasta-upstream:cuda",)
    assert target.args["CUDA_IMAGE"].startswith("nvidia/cuda:12.1")


STAND_IN = """FROM ae/base:cpu
COPY AccelProf /opt/AccelProf
COPY logs /logs
COPY driver /opt/pasta/driver
COPY fixes /opt/pasta/fixes
ENV ACCEL_PROF_HOME=/opt/AccelProf PATH=/opt/AccelProf/bin:/usr/bin:/bin \\
    PYTHONPATH=/opt/pasta/driver
USER 10001:10001
"""
REPLAY = """#!/usr/bin/env python3
import shutil, sys
mode = sys.argv[-1]
shutil.copy(f"/logs/{mode}_alexnet_app_analysis.log", "run_alexnet_app_analysis.log")
shutil.copy(f"/logs/{mode}_alexnet.accelprof.log", "run_alexnet.accelprof.log")
"""
SMI = """#!/bin/sh
case "$*" in *query-gpu*) echo "0, GPU-0, NVIDIA A100, 81920, 81000, 8.0, 570.86.10" ;; esac
"""


@pytest.mark.docker
def test_a_point_in_a_real_container(docker_host: str, tmp_path: Path) -> None:
    from ae.images.content import client_environment, find_client

    context = tmp_path / "context"
    for name in ("driver", "fixes"):
        shutil.copytree(IMAGE / name, context / name)
    shutil.copy(SOURCES / "edit.py", context / "fixes")
    shutil.copytree(LOGS, context / "logs")
    bench = context / "AccelProf" / "cgo26-ae" / "benchmarks" / "alexnet"
    bench.mkdir(parents=True)
    (bench / "run_alexnet.py").write_text("import torch\n")
    (context / "Dockerfile").write_text(STAND_IN)
    for path, text in (
        (context / "AccelProf" / "bin" / "accelprof", REPLAY),
        (tmp_path / "smi" / "nvidia-smi", SMI),
    ):
        path.parent.mkdir()
        path.write_text(text)
        path.chmod(0o755)
    tag = f"pasta-stand-in:{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    client = find_client(docker_host)
    environment = client_environment(docker_host)
    build = [client, "buildx", "build", "--builder", "default", "--load", "--tag", tag]
    subprocess.run([*build, str(context)], env=environment, check=True, capture_output=True)
    environment |= {
        "PATH": f"{tmp_path / 'smi'}:{environment['PATH']}",
        "PYTHONPATH": str(ROOT),
        "AE_ROOT": str(ROOT),
        "AE_RESULTS": str(tmp_path / "results"),
    }
    words = ["run", "pasta", "--lane", "upstream", "--experiment", "working_sets",
             "--set", "model=alexnet", "--image", tag, "--engine", "docker"]  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ae", *words], env=environment, check=False,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    finally:
        subprocess.run(
            [client, "image", "rm", tag], env=environment, check=False, capture_output=True
        )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "results" / "runs" / "pasta").glob("*/points/working_sets-alexnet")
    found = {record.metric for record in read_point(folder).records}
    assert found >= {"working_set", "footprint", "kernels", "kernel_launches"}
    assert (folder.parents[1] / "figures" / "working_sets.png").is_file()
    assert "cuDNN is off in run_alexnet.py" in (folder / "stdout.log").read_text()

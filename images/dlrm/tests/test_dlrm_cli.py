import os
import subprocess
import sys
from pathlib import Path

import pytest
from dlrm_inference import cli
from dlrm_inference.config import Config, ConfigError

SOURCE = os.pathsep.join(
    str(Path(__file__).parents[2] / part) for part in ("common/src", "dlrm/src")
)
SMALL = ["--tables", "1", "--rows", "200", "--batch", "4", "--pooling", "5", "--batches", "1",
         "--samples", "2", "--warmup", "1"]  # fmt: skip


def workload(*argv, **environment):
    return subprocess.run(
        [sys.executable, "-m", "dlrm_inference", *argv],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": SOURCE, **environment},
    )  # fmt: skip


def test_flags_become_a_config():
    config = cli.parse(
        ["sweep", "--device", "cuda", "--dataset", "low_hot", "--variants", "rpf,best",
         "--rows", "7", "--distances", "1,3", "--archs", "80,90", "--trace", ""]
    )  # fmt: skip
    assert config == Config(
        experiment="sweep", device="cuda", dataset="low_hot", variants=("rpf", "best"), rows=7,
        distances=(1, 3), archs=("80", "90"),
    )  # fmt: skip


def test_every_field_of_the_config_has_a_flag():
    flags = {"experiment", "device", *cli._HELP}
    assert flags == set(Config().facts())


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "required: experiment"),
        (["embeding"], "did you mean 'embedding'?"),
        (["embedding", "--rows", "many"], "'many' is not a whole number"),
        (["embedding", "--rwos", "5"], "unrecognized arguments: --rwos 5"),
        (["embedding", "--variants", "rfp"], "did you mean 'rpf'?"),
    ],
)
def test_a_bad_command_line_is_a_config_error(argv, words):
    with pytest.raises(ConfigError) as error:
        cli.parse(argv)
    assert words in str(error.value)


def test_a_run_writes_its_records(tmp_path):
    done = workload("embedding", "--variants", "base", *SMALL, AE_OUT=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert '"kernel_time"' in (tmp_path / "records.jsonl").read_text()
    assert done.stdout.splitlines()[-1] == "::progress 3/3 embedding rounds"


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["embedding", "--rows", "0"], 2, "--rows must be at least 1, not 0"),
        (["embedding", "--trace", "/none"], 2, "trace '/none' is not a file"),
        (["embedding", "--variants", "optmt"], 77, "no variant can run here"),
        (["sweep"], 77, "sweep needs a GPU"),
    ],
)
def test_a_refusal_is_one_line_with_the_right_exit_code(tmp_path, argv, code, words):
    done = workload(*argv, AE_OUT=str(tmp_path))
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def test_results_that_cannot_be_written_are_said(tmp_path):
    (tmp_path / "file").write_text("")
    done = workload("embedding", AE_OUT=str(tmp_path / "file" / "out"))
    assert done.returncode == 2
    assert "cannot write results" in done.stderr


def test_wrong_sums_end_with_1(monkeypatch, tmp_path, capsys):
    from dlrm_inference.config import WrongResult

    def fail(config, out):
        raise WrongResult("the sums of variant 'base' differ from the reference")

    monkeypatch.setattr(cli, "run", fail)
    monkeypatch.setattr(cli, "prepare_process", lambda config, environment: None)
    monkeypatch.setenv("AE_OUT", str(tmp_path))
    assert cli.main(["embedding"]) == 1
    assert "differ from the reference" in capsys.readouterr().err


@pytest.mark.parametrize(("experiment", "device", "module"), [
    ("embedding", "cpu", "dlrm_inference.cpu.experiments"),
    ("static", "cpu", "dlrm_inference.cuda.static"),
    ("embedding", "cuda", "dlrm_inference.cuda.experiments"),
    ("endtoend", "cuda", "dlrm_inference.cuda.endtoend"),
        ("profile", "cuda", "dlrm_inference.cuda.profiler"),
])  # fmt: skip
def test_an_experiment_goes_to_its_devices_code(monkeypatch, experiment, device, module):
    asked = []

    class Code:
        def __getattr__(self, name):
            return lambda config, out: asked.append(name)

    def find(name):
        asked.append(name)
        return Code()

    monkeypatch.setattr(cli, "_import", find)
    cli.run(Config(experiment=experiment, device=device), None)
    assert asked == [module, "run" if module.endswith("cpu.experiments") else experiment]


def test_an_image_without_a_package_cannot_run(capsys, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'cuda'", name="cuda")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    with pytest.raises(SystemExit) as left:
        cli._import("dlrm_inference.cuda.static")
    assert left.value.code == 77
    assert "lacks the Python package 'cuda'" in capsys.readouterr().err


def test_threads_and_the_kernel_cache_are_set_before_numpy_is_loaded():
    environment = {"HOME": "/h", "OMP_NUM_THREADS": "7"}
    cli.prepare_process(Config(threads=2), environment)
    assert environment["OMP_NUM_THREADS"] == "7"  # what a person set stays
    assert environment["OPENBLAS_NUM_THREADS"] == "2"
    assert environment["NUMBA_CACHE_DIR"].startswith("/h/.cache/dlrm_inference/")
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, dlrm_inference.cli; print('numpy' in sys.modules)"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip
    assert loaded.stdout.strip() == "False"

import os
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
from dlrm_inference import cli
from dlrm_inference.config import EXPERIMENTS, Config, ConfigError

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
    assert all(field.metadata for field in fields(Config))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "required: experiment"),
        (["embeding"], "did you mean 'embedding'?"),
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
        (["embedding", "--rows", "0"], 2, "--rows 0 is out of range; fix: at least 1"),
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
    assert "cannot use" in done.stderr


def test_wrong_sums_end_with_1(monkeypatch, tmp_path, capsys):
    from dlrm_inference.cpu import kernels

    def wrong(weight, indices, offsets, first, last, out):
        out[:] = 1
        return -1

    monkeypatch.setattr(kernels, "base", wrong)
    assert cli.main(["embedding", *SMALL, "--out", str(tmp_path)]) == 1
    assert "differ from the reference" in capsys.readouterr().err


def test_every_experiment_is_a_file_of_its_name():
    found = {Path(name).stem for name in (Path(cli.__file__).parent / "experiments").glob("[!_]*")}
    assert found - {"__pycache__"} == set(EXPERIMENTS)
    for name in EXPERIMENTS:
        assert find_spec(f"dlrm_inference.experiments.{name}")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_image_without_a_package_cannot_run(tmp_path, experiment):
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'cuda', 'numba')));"
        "from dlrm_inference.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, experiment, "--device", "cuda"],
        env={**os.environ, "PYTHONPATH": SOURCE, "AE_OUT": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 77, done.stderr
    assert "lacks the Python package" in done.stderr.splitlines()[-1]


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

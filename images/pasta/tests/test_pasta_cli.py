"""The command line: bad input in one sentence, and what runs on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pasta_workloads import config
from pasta_workloads.cli import main, parse
from pasta_workloads.config import EXPERIMENTS, PROGRAMS, Config, ConfigError

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bogus", "experiment 'bogus' is unknown"),
        ("model --model vgg", "--model vgg is unknown; fix: one of alexnet"),
        ("model --mode sleep", "--mode sleep is unknown"),
        ("table_v --modes test,test", "--modes names one twice"),
        ("table_v --modes ,", "--modes is empty"),
        ("overhead --variants cs_gpu,nvbit", "--variants nvbit is unknown"),
        ("model --iterations 0", "--iterations 0 is out of range; fix: at least 1"),
        ("model --iterations many", "'many' is not a whole number"),
        ("model --device tpu", "--device tpu is unknown"),
        ("model --size huge", "--size huge is unknown"),
        ("uvm --oversubscribe 20", "out of range; fix: 0, or 1 to 8"),
        ("model --patience 0", "--patience 0.0 is out of range"),
        ("table_v --model whisper_paper --modes test_bf16", "is the paper's, in fp32; fix:"),
        ("model --nonsense 1", "unrecognized arguments"),
        ("", "the following arguments are required"),
    ],
)
def test_bad_input_is_one_sentence_with_a_fix(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pasta_workloads: ")
    assert said in line
    assert "fix:" in line


def test_every_experiment_is_a_file_of_its_name() -> None:
    folder = Path(config.__file__).parent / "experiments"
    assert {path.stem for path in folder.glob("[!_]*.py")} == set(EXPERIMENTS) - set(PROGRAMS)


def test_sizes_follow_the_device() -> None:
    assert Config(experiment="model").scale == "full"
    assert Config(experiment="model", device="cpu").scale == "tiny"
    assert Config(experiment="model", device="cpu", size="small").scale == "small"


def test_flags_become_a_config() -> None:
    words = "table_v --model gpt2 --modes train,step --repeats 5 --patience 9"
    given = parse(words.split())
    assert given.modes == ("train", "step")
    assert (given.model, given.repeats, given.patience) == ("gpt2", 5, 9.0)
    with pytest.raises(ConfigError, match="unknown"):
        parse(["table_v", "--modes", "test,all"])


@needs_torch
@pytest.mark.parametrize("experiment", ["overhead", "hotness", "uvm", "counts"])
def test_what_needs_a_gpu_leaves_with_77_on_a_cpu(
    experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([experiment, "--device", "cpu", "--out", str(tmp_path)])
    assert left.value.code == 77
    assert "needs a GPU" in capsys.readouterr().err.splitlines()[-1]


@needs_torch
def test_without_a_gpu_cuda_leaves_with_77(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SystemExit) as left:
        main(["table_v", "--out", str(tmp_path)])
    assert left.value.code == 77
    assert "needs a GPU and none was found" in capsys.readouterr().err


@needs_torch
def test_experiments_that_run_on_a_cpu(tmp_path: Path) -> None:
    from pasta_written import records, samples

    assert main(["oracle", "--models", "bert", "--modes", "test", "--out", str(tmp_path)]) == 0
    assert samples(tmp_path, "kernels_oracle") == [487]
    assert samples(tmp_path, "working_set_oracle", stat="max") == [212.625]
    assert all(record["evidence"] == "static" for record in records(tmp_path))
    words = ["--device", "cpu", "--out"]
    assert main(["table_v", "--modes", "test,step", *words, str(tmp_path / "b")]) == 0
    assert samples(tmp_path / "b", "operators", mode="test")[0] > 80
    assert (
        main(["timeline", "--model", "gpt2", "--mode", "train", *words, str(tmp_path / "t")]) == 0
    )
    peak = samples(tmp_path / "t", "peak_allocated")[0]
    assert samples(tmp_path / "t", "allocated", progress="100")[0] < peak
    assert "cudnn_enabled" in (tmp_path / "t" / "environment.json").read_text()


@needs_torch
def test_parallel_on_a_cpu_as_a_program(tmp_path: Path) -> None:
    from pasta_written import samples

    done = subprocess.run(
        [sys.executable, "-m", "pasta_workloads", "parallel", "--device", "cpu",
         "--parallelism", "pp"],
        env={**os.environ, "AE_OUT": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "::progress 1/1 pp" in done.stdout
    # The second stage holds the logits.
    first, second = (samples(tmp_path, "peak_allocated", device=name)[0] for name in "01")
    assert first != second
    assert samples(tmp_path, "loss", rank="0") == samples(tmp_path, "loss", rank="1")
    assert not (tmp_path / "ranks").exists()


@needs_torch
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["oracle", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "cannot use" in capsys.readouterr().err

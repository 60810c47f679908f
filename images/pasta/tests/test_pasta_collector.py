"""Processes: what is started, what is read of them, and how failures are told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pasta_workloads import collector
from pasta_workloads.collector import Ran, run_alone, run_traced, target, trace_argv
from pasta_workloads.config import Config
from pasta_workloads.errors import RunFailed


def test_the_target_is_the_model_with_the_configs_numbers() -> None:
    config = Config(experiment="overhead", model="gpt2", iterations=4, seed=9)
    words = target(config, "train", warmup=2)[3:]
    assert words[0] == "model"
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert flags == {"--device": "cuda", "--model": "gpt2", "--mode": "train", "--size": "full",
                     "--iterations": "4", "--warmup": "2", "--seed": "9"}  # fmt: skip


def test_the_collectors_command_line(tmp_path: Path) -> None:
    words = trace_argv("overhead", tmp_path, ["prog", "--x"], {"mode": "touch", "workers": 2})
    assert words[1:5] == ["-m", "accel_trace", "run", "--tool"]
    assert words[words.index("--region") + 1] == "iteration"
    assert words[-3:] == ["--", "prog", "--x"]
    assert [words[i + 1] for i, word in enumerate(words) if word == "--set"] == [
        "mode=touch", "workers=2"
    ]  # fmt: skip
    assert "--region" not in trace_argv("t", tmp_path, [], {}, region="")


def test_iterations_are_read_from_what_the_target_prints(tmp_path: Path) -> None:
    ran = Ran("iteration 0 took 0.500000000 s\nx\niteration 1 took 2.25 s\n", 3.0, tmp_path)
    assert ran.iterations == [0.5, 2.25]
    with pytest.raises(RunFailed, match="printed no iteration"):
        _ = Ran("nothing", 3.0, tmp_path).iterations


def test_the_target_under_the_clock(tmp_path: Path) -> None:
    config = Config(experiment="overhead", device="cpu", model="bert")
    ran = run_alone(target(config, "test", iterations=2), tmp_path, patience=120)
    assert len(ran.iterations) == 2
    assert sum(ran.iterations) < ran.seconds


# A process that ends as a traced one does.
WRITES = """
import json, pathlib
counts = {{"dropped_events": {lost}, "damaged_logs": 0}}
lines = [json.dumps({{"metric": m, "samples": [n], "labels": {{}}}}) for m, n in counts.items()]
pathlib.Path(r"{folder}", "records.jsonl").write_text("\\n".join(lines))
print("iteration 0 took 1.0 s")
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_failures_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunFailed, match="ended with 3: boom"):
        run_alone(python("import sys; print('boom', file=sys.stderr); sys.exit(3)"), tmp_path, 60)
    with pytest.raises(RunFailed, match=r"did not end within 0\.2 s"):
        run_alone(python("import time; time.sleep(60)"), tmp_path, 0.2)
    with pytest.raises(SystemExit) as left:
        run_alone(
            python("import sys; print('no patching', file=sys.stderr); sys.exit(77)"), tmp_path, 60
        )
    assert left.value.code == 77
    assert capsys.readouterr().err.splitlines()[-1] == "no patching"


def test_a_traced_run_starts_with_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "old").touch()
    monkeypatch.setattr(
        collector, "trace_argv", lambda *_, **__: python(WRITES.format(folder=folder, lost=0))
    )
    ran = run_traced("overhead", folder, ["x"], {}, 60)
    assert ran.folder == folder
    assert not (folder / "old").exists()
    assert ran.iterations == [1.0]
    monkeypatch.setattr(
        collector, "trace_argv", lambda *_, **__: python(WRITES.format(folder=folder, lost=2))
    )
    with pytest.raises(RunFailed, match="not whole: 2 dropped_events"):
        run_traced("overhead", folder, ["x"], {}, 60)
    monkeypatch.setattr(collector, "trace_argv", lambda *_, **__: python("pass"))
    with pytest.raises(RunFailed, match=r"records\.jsonl cannot be read"):
        run_traced("overhead", folder, ["x"], {}, 60)


def test_the_target_runs_with_what_is_pinned(tmp_path: Path) -> None:
    ran = run_alone(python("import os; print(os.environ['CUBLAS_WORKSPACE_CONFIG'])"), tmp_path, 60)
    assert ran.stdout.strip() == ":4096:2:16:8"


def test_without_a_gpu_or_collector_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    collector.require_gpus(1)
    with pytest.raises(SystemExit) as left:
        collector.require_gpus(2)
    assert left.value.code == 77
    monkeypatch.setattr(collector.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as left:
        collector.require_collector()
    assert left.value.code == 77

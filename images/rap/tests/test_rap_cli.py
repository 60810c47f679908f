"""Bad input at the command line: an exit code and one sentence, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rap_ranks import needs_two_gpus
from rap_training import config, sessions
from rap_training.cli import main, parse
from rap_training.config import EXPERIMENTS, ConfigError

pytestmark = pytest.mark.torch

SMALL = (
    "fig10", "--batch", "32", "--scale", "0.0001", "--iterations", "4", "--warmup", "1",
    "--batches", "2", "--repeats", "1", "--workers", "1",
)  # fmt: skip


def plan(**changes: Any) -> dict[str, Any]:
    """A small plan as JSON that runs."""
    return {
        "name": "mine",
        "columns": [
            {"name": "price", "kind": "dense", "null_rate": 0.1},
            {"name": "item", "kind": "sparse", "width": 3, "ragged": True, "ids": 500,
             "null_rate": 0.1},
        ],
        "nodes": [
            {"name": "price.fill", "op": "fill_null", "input": "price", "parameters": {"value": 0}},
            {"name": "item.fill", "op": "fill_null", "input": "item", "parameters": {"value": 0}},
            {"name": "item.hash", "op": "sigrid_hash", "input": "item.fill",
             "parameters": {"salt": 1, "modulus": 100}},
        ],
        "dense": ["price.fill"],
        "sparse": [{"node": "item.hash", "rows": 100}],
        "over_arch": [16, 1],
    } | changes  # fmt: skip


def node(number: int, **changes: Any) -> list[dict[str, Any]]:
    """The nodes of `plan`, one of them changed."""
    nodes: list[dict[str, Any]] = plan()["nodes"]
    nodes[number] = nodes[number] | changes
    return nodes


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AE_OUT", str(tmp_path / "out"))
    return tmp_path / "out"


def with_plan(path: Path, given: Mapping[str, Any]) -> list[str]:
    path.write_text(json.dumps(given))
    return [*SMALL, "--plan-file", str(path)]


def one_sentence(words: str) -> str:
    """The only line of standard error; it names a fix."""
    lines = words.strip().splitlines()
    assert len(lines) == 1, words
    assert "; fix: " in lines[0]
    return lines[0]


def metrics(out: Path, metric: str) -> dict[str, list[float]]:
    """Samples of a metric by variant."""
    lines = (out / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {r["labels"]["variant"]: r["samples"] for r in records if r["metric"] == metric}


def test_the_small_plan_runs_and_its_name_is_no_code(tmp_path: Path, out: Path) -> None:
    given = plan(name='a""" + open("/none").read() + """b\\')
    assert main([*with_plan(tmp_path / "mine.json", given), "--variants", "rap,stream"]) == 0
    assert set(metrics(out, "throughput")) == {"rap", "stream"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(
            plan(nodes=node(1, input="item.hash")), "cycle: item.fill -> item.hash", id="cycle"
        ),
        pytest.param(
            plan(nodes=node(2, op="sigrid_hush")), "unknown operator sigrid_hush", id="operator"
        ),
        pytest.param(
            plan(nodes=node(2, op="logit", parameters={"eps": 0.1})),
            "logit takes float32 and reads int64", id="type",
        ),
        pytest.param(plan(columns=[]), "no columns", id="columns"),
        pytest.param(plan(sparse=[]), "no dense or no sparse output", id="outputs"),
        pytest.param(
            plan(columns=[plan()["columns"][0], {"name": "item", "kind": "sparse", "width": 0}]),
            "column item has width 0", id="width",
        ),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_run(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], words: str
) -> None:
    path = tmp_path / "bad.json"
    assert main(with_plan(path, given)) == 2
    line = one_sentence(capsys.readouterr().err)
    assert line.startswith(f"rap_training: {path}: ")
    assert words in line


def test_a_plan_file_that_is_none(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    assert main([*SMALL, "--plan-file", str(path)]) == 2
    assert "there is no such plan file" in one_sentence(capsys.readouterr().err)
    path.write_text("columns: none")
    assert main([*SMALL, "--plan-file", str(path)]) == 2
    assert "not JSON" in one_sentence(capsys.readouterr().err)


def test_nothing_but_the_sentence_is_printed_by_the_program(tmp_path: Path) -> None:
    """The whole program, once: exit code and output as a caller of the container sees them."""
    done = subprocess.run(
        [sys.executable, "-m", "rap_training", *with_plan(tmp_path / "b.json", plan(dense=[]))],
        env={**os.environ, "AE_OUT": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    one_sentence(done.stderr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig11"], "experiment 'fig11' is unknown"),
        (["fig10", "--batch", "many"], "'many' is not a whole number"),
        (["fig10", "--batch", "0"], "--batch 0 is out of range"),
        (["fig10", "--variants", "rap,raap"], "--variants rap,raap is unknown|raap is unknown"),
        (["fig10", "--variants", ""], "--variants is empty"),
        (["fig10", "--variants", "rap,ideal,rap"], "names one twice"),
        (["fig10", "--plan", "4"], "--plan 4 is unknown"),
        (["fig10", "--scale", "2"], "--scale 2.0 is out of range"),
        (["fig10", "--solver-seconds", "0"], "--solver-seconds 0.0 is out of range"),
        (["fig10", "--patience", "-1"], r"--patience -1.0 is out of range"),
        (["fig10", "--patience", "nan"], r"--patience nan is out of range"),
        (["fig10", "--mps-percentage", "101"], "--mps-percentage 101 is out of range"),
        (["fig10", "--frobnicate"], "unrecognized arguments"),
    ],
)
def test_bad_arguments(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(arguments)
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_every_experiment_is_a_file_of_its_name() -> None:
    folder = Path(config.__file__).parent / "experiments"
    assert {path.stem for path in folder.glob("[!_]*.py")} == set(EXPERIMENTS)


def test_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AE_OUT", str(tmp_path / "file" / "out"))
    assert main(SMALL) == 2
    assert str(tmp_path / "file") in one_sentence(capsys.readouterr().err)


def test_data_that_is_none(tmp_path: Path, out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow", reason="PyArrow is not installed")
    (tmp_path / "rows.parquet").write_text("no parquet")
    assert main([*SMALL, "--data", str(tmp_path / "rows.parquet")]) == 2
    assert "rows.parquet" in capfd.readouterr().err.splitlines()[-1]


def test_fewer_gpus_than_asked_for(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = torch.cuda.device_count()
    with pytest.raises(SystemExit) as left:
        main([*SMALL, "--device", "cuda", "--gpus", str(found + 3)])
    assert left.value.code == 77
    wanted = f"{found + 3} GPUs were asked for" if found else "no GPU was found"
    assert wanted in one_sentence(capsys.readouterr().err)


def test_columns_without_a_value(tmp_path: Path, out: Path) -> None:
    nothing = [{**column, "null_rate": 1.0} for column in plan()["columns"]]
    arguments = with_plan(tmp_path / "null.json", plan(columns=nothing))
    variants = ("cpu", "sequential", "rap", "rap_plus", "ideal")
    assert main([*arguments, "--variants", ",".join(variants)]) == 0
    assert set(metrics(out, "throughput")) == set(variants)
    assert all(value > 0 for values in metrics(out, "throughput").values() for value in values)


@pytest.mark.parametrize("gpus", [1, 2])
def test_ids_outside_of_a_table(
    tmp_path: Path, out: Path, gpus: int, capfd: pytest.CaptureFixture[str]
) -> None:
    raw = plan(sparse=[{"node": "item.fill", "rows": 100}, {"node": "item.hash", "rows": 100}])
    arguments = with_plan(tmp_path / "raw.json", raw)
    assert main([*arguments, "--variants", "ideal", "--gpus", str(gpus)]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert "ids of table 0, node item.fill, were outside of its 100 rows" in last
    assert "and were left out; fix: " in last
    assert last.startswith("rap_training: rank ")


def test_ids_that_a_plan_lets_out_of_a_table_start_no_process(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sessions, "run_session", lambda *_, **__: pytest.fail("was started"))
    wide = plan(sparse=[{"node": "item.hash", "rows": 99}])
    assert main(with_plan(tmp_path / "wide.json", wide)) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert "the ids of table 0, node item.hash, go from 0 to 99, and the table has 99 rows" in last


def machine(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPUs of so much memory, as far as the parent asks."""
    monkeypatch.setattr(sessions, "_check_gpus", lambda _: None)
    monkeypatch.setattr("reprokit.command.machine_facts", lambda _: {"gpu_memory": memory})
    monkeypatch.setattr(sessions, "run_session", lambda *_, **__: pytest.fail("was started"))


def test_tables_that_no_gpu_can_take(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine("81559 MiB", monkeypatch)
    rows = 180_000_000
    large = plan(
        nodes=node(2, parameters={"salt": 1, "modulus": rows}),
        sparse=[{"node": "item.hash", "rows": rows}],
    )
    arguments = with_plan(tmp_path / "large.json", large)
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--device", "cuda", "--gpus", "2"])
    assert left.value.code == 77
    line = one_sentence(capsys.readouterr().err)
    assert f"table 0 has {512 * rows} bytes and a rank takes {int(0.9 * (81559 << 20)) + 1}" in line


def test_the_driver_s_words_for_memory() -> None:
    assert sessions._bytes("143771 MiB") == 143771 << 20
    assert sessions._bytes("") == sessions._bytes("[Unknown]") == 0


def test_a_solver_out_of_time_says_so(
    out: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the best plan found so far, as soon as possible at worst, the run goes on."""
    arguments = [*SMALL, "--plan", "2", "--variants", "sequential_fused,ideal"]
    assert main([*arguments, "--solver-seconds", "0.001"]) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("fusion: ")]
    assert len(said) == len(set(said))
    assert any("out of time after 0.001 s: the best plan found is used" in line for line in said)
    facts = json.loads((out / "environment.json").read_text())
    assert [f"fusion: {note}" for note in facts["fusion_notes"]] == said
    assert set(metrics(out, "throughput")) == {"sequential_fused", "ideal"}


@pytest.mark.parametrize("experiment", ["fig10", "fusion"])
def test_a_licence_that_is_none(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], experiment: str,
) -> None:  # fmt: skip
    licence = tmp_path / "gurobi.lic"
    licence.write_text("dear sir or madam")
    monkeypatch.setenv("GRB_LICENSE_FILE", str(licence))
    monkeypatch.setattr(sessions, "run_session", lambda *_, **__: pytest.fail("was started"))
    assert main([experiment, *SMALL[1:], "--solver", "gurobi"]) == 2
    assert f"{licence} is no Gurobi licence" in one_sentence(capsys.readouterr().err)


def test_a_solver_that_is_not_installed(
    tmp_path: Path, out: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    monkeypatch.delenv("GRB_LICENSE_FILE", raising=False)
    # A spawned rank has modules of its own; a folder before all others has the say there.
    broken = out.parent / "broken"
    broken.mkdir()
    (broken / "gurobipy.py").write_text("raise ImportError('not here')\n")
    monkeypatch.syspath_prepend(str(broken))
    with pytest.raises(SystemExit) as left:
        main(
            [*with_plan(tmp_path / "mine.json", plan()), "--variants", "rap", "--solver", "gurobi"]
        )
    assert left.value.code == 77
    assert "gurobipy is not installed here; fix: " in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.gpu
@needs_two_gpus
def test_nccl_that_does_not_start(
    out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "nonexistent")
    assert main([*SMALL, "--device", "cuda", "--gpus", "2", "--variants", "ideal"]) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("rap_training: rank ")
    assert "NCCL" in last


@pytest.mark.gpu
def test_tables_beyond_the_real_gpu(tmp_path: Path, out: Path) -> None:
    rows = 1 << 30  # 512 GiB
    large = plan(
        nodes=node(2, parameters={"salt": 1, "modulus": rows}),
        sparse=[{"node": "item.hash", "rows": rows}],
    )
    with pytest.raises(SystemExit) as left:
        main([*with_plan(tmp_path / "large.json", large), "--device", "cuda"])
    assert left.value.code == 77

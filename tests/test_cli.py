"""The command line as a person meets it: the toy paper, the local engine, real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ae.errors import ExitCode
from ae.records import folder
from tests.calling import Ae, caller
from tests.toy import make_toy


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the toy alone; its points run with this interpreter."""
    root = make_toy(tmp_path / "checkout")
    monkeypatch.setenv("AE_ROOT", str(root))
    monkeypatch.setenv("AE_LOCAL_PYTHON", sys.executable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", _path_without("nvidia-smi"))
    monkeypatch.delenv("AE_RESULTS", raising=False)
    return root


@pytest.fixture
def ae(root: Path, capsys: pytest.CaptureFixture[str]) -> Ae:
    """Run one command line in this process: exit code, standard output, standard error."""
    return caller(capsys)


def _path_without(program: str) -> str:
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(f for f in folders if not Path(f, program).exists())


def run_points(root: Path, recipe: str = "toy") -> dict[str, str]:
    """Point id -> status of the newest run. Names tell runs of one second apart in no order."""
    folders = (root / "results/runs" / recipe).iterdir()
    newest = max(folders, key=lambda folder: (folder / "run.json").stat().st_mtime_ns)
    found = newest.glob("points/[!.]*/status.json")
    return {p.parent.name: json.loads(p.read_text())["status"] for p in found}


def test_list_and_show_say_what_there_is(ae: Ae) -> None:
    code, out, _ = ae("list")
    assert code == 0
    assert "toy" in out
    assert "upstream" in out
    code, out, _ = ae("show", "toy")
    assert code == 0
    for word in ("Variants", "slow", "`ae run toy`", "together", "claims", "Figures", "2 MB"):
        assert word in out
    code, out, _ = ae("show", "toy", "--json")
    shown = json.loads(out)
    assert shown["recipe"]["lanes"]["upstream"]["built"] is False
    assert shown["claims"][0]["id"] == "T1"
    assert json.loads(ae("list", "--json")[1]) == [shown["recipe"]]


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], ""),
        (["--experiment", "noop", "--experiment", "gpu_only"], "GPU-0"),
        (["--experiment", "either", "--gpus", "device=1"], "GPU-1"),
        (["--experiment", "either", "--gpus", "none"], ""),
    ],
)
def test_a_shell_has_the_gpus_of_the_first_point_that_has_any(
    root: Path, tmp_path: Path, words: list[str], given: str
) -> None:
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    rows = "".join(f"{i}, GPU-{i}, NVIDIA H200, 143771, 143000, 9.0, 580.159\n" for i in (0, 1))
    smi.write_text(f"#!/bin/sh\ncase $1 in --query-gpu=*) printf '{rows}' ;; esac\n")
    smi.chmod(0o755)
    environment = os.environ | {"PATH": f"{smi.parent}:{os.environ['PATH']}", "SHELL": "/bin/sh"}
    done = subprocess.run(
        [sys.executable, "-m", "ae", "shell", "toy", "--engine", "local", *words],
        input="echo gpus=$CUDA_VISIBLE_DEVICES; exit 3", capture_output=True, text=True,
        env=environment, cwd=Path(__file__).parents[1], check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, f"gpus={given}\n"), done.stderr


def test_a_whole_run_ends_with_table_figure_and_verdicts(ae: Ae, root: Path) -> None:
    code, out, err = ae("run", "toy", "--quick", "--engine", "local")
    assert code == 0, err
    assert "[1/" in err
    assert "speed-up" in out
    assert "claims:" in out
    assert set(run_points(root).values()) == {"done"}
    figures = list((root / "results/runs/toy").glob("*/figures/*"))
    assert {path.suffix for path in figures} == {".png", ".svg", ".pdf", ".csv"}
    (judged,) = (root / "results/runs/toy").glob("*/claims.json")
    verdicts = {one["id"]: one for one in json.loads(judged.read_text())["claims"]}
    assert verdicts["T1"]["verdict"] == "not comparable"  # it holds, in a run that is reduced
    assert "--quick" in verdicts["T1"]["reason"]
    code, out, _ = ae("plot", "toy")
    assert code == 0
    assert ".png" in out
    code, out, _ = ae("report", "toy")
    assert code == 0
    assert (root / "results/report/report.html").is_file()


def test_json_on_standard_output_is_json_alone(ae: Ae) -> None:
    code, out, _ = ae("run", "toy", "--quick", "--engine", "local", "--dataset", "ones", "--json")
    assert code == 0
    data = json.loads(out)
    assert data["recipe"] == "toy"
    assert set(data["points"].values()) == {"done"}
    code, out, _ = ae("check", "toy", "--json")
    assert json.loads(out)["claims"]


def test_a_variant_brings_its_baseline(ae: Ae) -> None:
    _, out, _ = ae("run", "toy", "--variant", "fast", "--dry-run", "--json")
    plan = json.loads(out)
    assert plan["points"][0]["variants"] == ["slow", "fast"]


def test_dry_run_needs_no_engine_and_runs_nothing(
    ae: Ae, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    code, out, _ = ae("run", "toy", "--dry-run")
    assert code == 0
    assert "docker run" in out
    assert not (root / "results").exists()


def test_check_exits_1_when_a_claim_is_not_reproduced(ae: Ae) -> None:
    assert ae("run", "toy", "--engine", "local", "--set", "samples=5")[0] == 0
    code, out, _ = ae("check", "toy")
    assert "not reproduced" in out
    assert code == ExitCode.CLAIM


WRONG = [
    (("run", "toi"), "there is no recipe 'toi'; did you mean 'toy'?", ExitCode.USAGE),
    (("run", "toy", "--variant", "fst"), "did you mean 'fast'?", ExitCode.USAGE),
    (("run", "toy", "--dataset", "onse"), "did you mean 'ones'?", ExitCode.USAGE),
    (("run", "toy", "--experiment", "togeter"), "did you mean 'together'?", ExitCode.USAGE),
    (("run", "toy", "--set", "sizee=3"), "did you mean 'size'?", ExitCode.USAGE),
    (("run", "toy", "--experiment", ""), "no experiment ''; known: apart, ", ExitCode.USAGE),
    (("run", "toy", "--variant", ","), "no variant ','; known: fast, slow", ExitCode.USAGE),
    (("run", "toy", "--dataset", ""), "no dataset ''; known: ones, ramp", ExitCode.USAGE),
    (("oracle",), "Choose from: env, build, data, run\n", ExitCode.USAGE),
    (("run", "toy", "--set", "size=many"), "must be a whole number", ExitCode.USAGE),
    (("run", "toy", "--set", "size"), "not of the form NAME=VALUE", ExitCode.USAGE),
    (("run", "toy", "--gpus", "all-of-them"), "neither a count nor a list", ExitCode.USAGE),
    (("run", "toy", "--lane", "upstream"), "cannot be run yet", ExitCode.USAGE),
    (("run", "toy", "--engine", "dokcer"), "did you mean 'docker'?", ExitCode.USAGE),
    (("run", "toy", "--engine", ""), "there is no engine ''; known: docker", ExitCode.USAGE),
    (("run", "toy", "--engine", "", "--dry-run"), "there is no engine ''", ExitCode.USAGE),
    (("run", "toy", "--against", ""), "'' is no run or reference set of toy", ExitCode.USAGE),
    (("run", "toy", "--quik"), "No such option", ExitCode.USAGE),
    (("shw", "toy"), "No such command", ExitCode.USAGE),
    (("check", "toy"), "no run of toy has begun yet", ExitCode.USAGE),
    (("plot", "toy", "nosuch"), "'nosuch' is no run or reference set of toy", ExitCode.USAGE),
    (("run", "toy", "--resume"), "no run of toy has begun yet", ExitCode.USAGE),
    (("run", "toi", "--resume"), "'toi' is no run or recipe; did you mean 'toy'?", ExitCode.USAGE),
    (("run", "toy", "--experiment", "gpu_only"), "shows no GPU", ExitCode.ENVIRONMENT),
    (("run", "toy", "--samples", "3", "--set", "samples=5"), "samples is given", ExitCode.USAGE),
    (("run", "toy", "--set", "samples=3", "--set", "samples=5"), "'3' and '5'", ExitCode.USAGE),
    (("run", "toy", "--samples", "3", "--samples", "5"), "samples is given twice", ExitCode.USAGE),
    (("run", "toy", "--words", "a", "--words", "b"), "words is given twice", ExitCode.USAGE),
]


@pytest.mark.parametrize(("name", "kind"), [("--wheels", "dir"), ("--ca-bundle", "file")])
@pytest.mark.parametrize("command", ["run", "build"])
def test_what_a_build_is_to_use_is_looked_for_first(
    ae: Ae, root: Path, command: str, name: str, kind: str
) -> None:
    code, out, err = ae(command, "toy", name, "/nonexistent")
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.count("error: ") == 1
    assert f"'{name}': {kind} '/nonexistent' does not exist" in err
    assert "fix: " in err
    assert not (root / "results").exists()


@pytest.mark.parametrize("command", ["run", "build"])
def test_what_a_build_is_to_use_is_of_the_right_kind(
    ae: Ae, root: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").touch()
    wrong = {"--wheels": ("file", "is a file"), "--ca-bundle": (".", "is a directory")}
    for name, (path, kind) in wrong.items():
        code, out, err = ae(command, "toy", name, str(tmp_path / path))
        assert (code, out) == (ExitCode.USAGE, "")
        assert f"'{name}': " in err
        assert f"{str(tmp_path / path)!r} {kind}\n  fix: " in err
    assert not (root / "results").exists()


@pytest.mark.parametrize("command", ["report", "plot", "site"])
def test_a_file_is_no_folder_to_write_to(ae: Ae, tmp_path: Path, command: str) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    words = (str(file),) if command == "site" else ("toy", "-o", str(file))
    code, out, err = ae(command, *words)
    assert (code, out) == (ExitCode.USAGE, "")
    assert f"dir {str(file)!r} is a file\n  fix: " in err
    assert file.read_text() == "mine"


def test_a_working_folder_that_was_deleted_is_told(
    ae: Ae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AE_ROOT")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    said = "error: the working folder is gone\n  fix: cd to one that is there\n"
    for words in (("list",), ("run", "toy", "--dry-run"), ("wait", "toy")):
        assert ae(*words) == (ExitCode.USAGE, "", said)


@pytest.mark.parametrize(("words", "said", "code"), WRONG, ids=[" ".join(w[0]) for w in WRONG])
def test_wrong_input_gets_one_sentence_a_fix_and_its_code(
    ae: Ae, root: Path, words: tuple[str, ...], said: str, code: ExitCode
) -> None:
    got, out, err = ae(*words)
    assert got == code
    assert said in err
    assert err.count("error: ") == 1
    assert "fix: " in err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize("command", [("run",), ("run", "--dry-run"), ("shell",)])
def test_an_image_is_for_an_engine_of_containers(
    ae: Ae, root: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.delattr(os, "execvpe")  # by which a shell would take the place of this process
    code, out, err = ae(*command, "toy", "--engine", "local", "--image", "foo")
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith("error: --image foo needs a container, and --engine local has none\n")
    assert "fix: leave one of the two out" in err
    if "--dry-run" not in command:  # nor does it become local where there is no Docker
        code, _, err = ae(*command, "toy", "--image", "foo")
        assert code == ExitCode.ENVIRONMENT
        assert "engine docker: no Docker daemon" in err
    assert not (root / "results").exists()


def test_wrong_words_for_slurm_are_refused(ae: Ae, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("run", "toy", "--engine", "slurm", "--experiment", "noop", "--dry-run")
    assert ae(*words)[0] == 0
    monkeypatch.setenv("AE_SLURM_RUNTIME", "foo")
    code, out, err = ae(*words)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith("error: AE_SLURM_RUNTIME=foo: input should be 'pyxis', 'apptainer', ")
    assert "fix: " in err
    code, _, err = ae("clean", "--dry-run")  # asks no job, so that the others are cleaned
    assert code != ExitCode.USAGE
    assert "AE_SLURM_RUNTIME" not in err


def test_debug_adds_the_traceback(ae: Ae) -> None:
    code, _, err = ae("--debug", "run", "toi")
    assert code == ExitCode.USAGE
    assert "Traceback" in err


def test_an_engine_that_refuses_is_the_environments_fault(
    ae: Ae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    code, _, err = ae("run", "toy", "--engine", "docker")
    assert code == ExitCode.ENVIRONMENT
    assert "fix: " in err
    for name, said in ((f"{tmp_path}/no.tar", "there is no file"), (__file__, "is not a bundle")):
        code, _, err = ae("load", name)  # what the file is asks no engine
        assert (code, said in err) == (ExitCode.USAGE, True)


def test_a_results_folder_that_cannot_be_written(
    ae: Ae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("AE_RESULTS", str(tmp_path / "file"))
    code, _, err = ae("run", "toy", "--engine", "local")
    assert code == ExitCode.ENVIRONMENT
    assert "cannot write" in err


ENDINGS = [
    ("broken", "failed", ExitCode.WORKLOAD, "exit code"),
    ("malformed", "failed", ExitCode.WORKLOAD, "records.jsonl:"),
    ("truncated", "failed", ExitCode.WORKLOAD, "records.jsonl:"),
    ("future", "failed", ExitCode.WORKLOAD, "schema"),
    ("unfit", "skipped", ExitCode.ENVIRONMENT, "could run none of the points"),
]


@pytest.mark.parametrize(("experiment", "status", "code", "said"), ENDINGS)
def test_every_bad_end_of_a_point_is_told_apart(
    ae: Ae, root: Path, experiment: str, status: str, code: ExitCode, said: str
) -> None:
    got, _, err = ae("run", "toy", "--experiment", experiment, "--engine", "local")
    assert got == code
    assert said in err
    assert list(run_points(root).values()) == [status]


@pytest.mark.parametrize(
    ("experiment", "fix"),
    [("unfit", "other experiments may have: ae show toy"), ("broken", "ae run {} --resume")],
)
def test_a_run_without_records_has_nothing_to_show(
    ae: Ae, root: Path, experiment: str, fix: str
) -> None:
    assert ae("run", "toy", "--experiment", experiment, "--engine", "local")[0] != 0
    (run,) = (root / "results/runs/toy").iterdir()
    why = "; skipped experiment unfit: this machine has no abacus" * (experiment == "unfit")
    for said, *words in (
        ("records that a figure of toy draws", "plot", "toy"),
        (f"records{why}", "table", "toy"),
        (f"records{why}", "table", "toy", "--format", "csv"),
        (f"records{why}", "table", "toy", "--format", "latex"),
        ("finished point", "keep", run.name),
    ):
        code, out, err = ae(*words)
        assert (code, out) == (ExitCode.USAGE, "")
        assert err == f"error: {run.name} has no {said}\n  fix: {fix.format(run.name)}\n"


def test_a_program_that_ends_well_and_writes_no_record_is_not_done(ae: Ae, root: Path) -> None:
    recipe = root / "recipes/toy/recipe.yaml"
    text = recipe.read_text()
    assert "[python, -m, toy, noop]" in text
    recipe.write_text(text.replace("[python, -m, toy, noop]", '[python, -c, "pass"]'))
    code, _, err = ae("run", "toy", "--experiment", "noop", "--engine", "local")
    assert code == ExitCode.WORKLOAD
    assert "exited 0 but wrote no record" in err
    assert list(run_points(root).values()) == ["failed"]


def test_a_point_that_only_skips_is_told_apart_from_one_that_measured(ae: Ae, root: Path) -> None:
    words = ("--experiment", "partial", "--experiment", "noop", "--engine", "local")
    assert ae("run", "toy", *words)[0] == 0
    assert "  2 of 2 points done  " in ae("runs")[1]
    main = root / "images/toy/src/toy/__main__.py"
    main.write_text(main.read_text().replace('if variant == "fast":', "if variant:"))
    code, out, err = ae("run", "toy", *words)
    assert code == 0
    assert "[1/2] noop done in" in err
    assert "[2/2] partial done in" in err
    assert err.endswith(": all of it was skipped\n")
    assert "this machine has one abacus" in out
    newest = ae("runs")[1].splitlines()[-1]
    assert "  finished        1 of 2 points done, 1 skipped  " in newest
    code, out, _ = ae("wait", newest.split()[1])
    assert (code, out) == (0, f"run {newest.split()[1]}: finished, 1 of 2 points done, 1 skipped\n")
    assert ae("run", "toy", "--resume", "--dry-run")[1] == "# nothing is left to run\n"


def test_a_failed_point_does_not_take_the_others_along_and_resume_runs_only_it(
    ae: Ae, root: Path
) -> None:
    words = ("run", "toy", "--experiment", "together", "--experiment", "broken", "--quick")
    code, out, _ = ae(*words, "--engine", "local")
    assert code == ExitCode.WORKLOAD
    assert "speed-up" in out
    assert "ae table toy (rows)" in out, "the tables above are cut short"
    before = run_points(root)
    assert sorted(before.values()) == ["done", "done", "failed"]
    code, out, _ = ae("run", "toy", "--resume", "--dry-run", "--engine", "local")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("#")] == ["broken"]
    code, _, err = ae("run", "toy", "--resume", "--engine", "local")
    assert code == ExitCode.WORKLOAD
    assert "] broken" in err
    assert "] together-ones" not in err
    assert "on engine local: 2 of 3 points are done, 1 point, by the recipe about 1 s to run" in err
    (older,) = (root / "results/runs/toy").iterdir()
    rest = f"2 of 3 points are done and kept; to run the rest: ae run {older.name} --resume"
    assert rest in err
    assert run_points(root) == before
    assert ae("run", "toy", "--engine", "local", "--experiment", "noop")[0] == 0
    code, _, err = ae("run", older.name, "--resume")
    assert code == ExitCode.WORKLOAD
    assert f"run {older.name} on engine local: 2 of 3 points are done" in err
    code, _, err = ae("run", older.name)
    assert code == ExitCode.USAGE
    for detach in ((), ("--detach",)):
        code, out, err = ae("run", older.name[:-1], "--resume", *detach)
        assert (code, out) == (ExitCode.USAGE, "")
        assert f"is no run or recipe; did you mean '{older.name}'?\n  fix: runs lie in " in err
    code, out, err = ae("run", "toy", older.name, "--resume")  # or the latest would go on, too
    assert (code, out) == (ExitCode.USAGE, "")
    assert f"{older.name} is a run of toy: name one\n  fix: ae run {older.name} --resume" in err


def _start(root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ae", *words],
        env={**os.environ, "AE_ROOT": str(root), "PYTHONPATH": str(Path.cwd())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _processes_of(root: Path) -> list[str]:
    """Processes that were given this root: not those of another test run on the same machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{root}".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def _wait_for(process: subprocess.Popen[str], words: str, timeout_s: float = 60) -> str:
    """Read standard error until a line holds `words`."""
    assert process.stderr is not None
    seen = ""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        line = process.stderr.readline()
        seen += line
        if words in line:
            return seen
        if not line:
            break
    raise AssertionError(f"'{words}' never came; standard error was:\n{seen}")


def test_ctrl_c_during_a_run_exits_130_keeps_what_finished_and_leaves_nothing(
    ae: Ae, root: Path
) -> None:
    process = _start(
        root, "run", "toy", "--quick", "--engine", "local", "--dataset", "ones", "-v",
        "--experiment", "together", "--experiment", "stuck",
    )  # fmt: skip
    _wait_for(process, "] stuck")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert err.endswith("interrupted; what had finished is kept\n")
    name = ae("runs")[1].split()[1]
    assert f"1 of 2 points are done and kept; to run the rest: ae run {name} --resume" in err
    assert run_points(root) == {"together-ones": "done", "stuck": "interrupted"}
    assert "  stopped  " in ae("runs")[1]
    assert _processes_of(root) == []


def test_ctrl_c_while_a_point_is_put_away_does_not_lose_it(
    ae: Ae, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = folder.write_atomic

    def interrupted(path: Path, text: str) -> None:
        if path.name == "status.json":
            os.kill(os.getpid(), signal.SIGINT)
        write(path, text)

    monkeypatch.setattr(folder, "write_atomic", interrupted)
    words = ("--quick", "--engine", "local", "--experiment", "together")
    code, _, err = ae("run", "toy", *words)
    assert code == ExitCode.INTERRUPTED
    assert "1 of 2 points are done and kept" in err
    assert run_points(root) == {"together-ones": "done"}


def test_ctrl_c_during_plot_exits_130_and_leaves_no_half_figure(ae: Ae, root: Path) -> None:
    assert ae("run", "toy", "--quick", "--engine", "local")[0] == 0
    figures = root / "recipes/toy/figures.py"
    figures.write_text("import sys, time\nprint('drawing', file=sys.stderr)\ntime.sleep(60)\n")
    process = _start(root, "plot", "toy")
    _wait_for(process, "drawing")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == ExitCode.INTERRUPTED
    assert not [p for p in (root / "results").rglob("*.part*") if p.is_file()]


def test_two_runs_at_once_do_not_disturb_each_other(root: Path) -> None:
    words = ("run", "toy", "--quick", "--engine", "local", "--dataset", "ones")
    both = [_start(root, *words), _start(root, *words)]
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert len(list((root / "results/runs/toy").iterdir())) == 2


def test_clean_finds_nothing_of_living_launchers(ae: Ae, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("PATH", _path_without("docker"))
    monkeypatch.setattr("ae.daemon.connection.DEFAULT_SOCKET", "unix:///nowhere/docker.sock")
    code, out, err = ae("clean")
    assert code == 0
    assert out == "nothing is left behind\n"
    assert "note: docker was not asked: no Docker daemon runs at" in err


def _bash(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AE_ROOT": str(root), "PYTHONPATH": str(Path.cwd())}
    return subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip


def test_a_reader_that_goes_away_is_no_error(root: Path) -> None:
    process = _bash(root, f"{sys.executable} -m ae show toy | head -1")
    assert process.returncode == 0
    assert process.stderr == ""


def test_a_plan_for_a_gpu_can_be_read_where_there_is_none(ae: Ae) -> None:
    code, out, err = ae("run", "toy", "--experiment", "gpu_only", "--dry-run")
    assert code == 0
    assert "this is the plan for a machine with the GPUs that it needs" in err
    assert "--gpus" in out or "nvidia.com/gpu" in out


def test_two_runs_that_measure_at_once_are_told(root: Path) -> None:
    first = _start(root, "run", "toy", "--engine", "local", "--experiment", "stuck", "-v")
    _wait_for(first, "] stuck")
    second = _start(root, "run", "toy", "--engine", "local", "--experiment", "noop")
    _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    stuck = next((root / "results/runs/toy").glob("*/points/.stuck.tmp")).parents[1]
    assert f"toy {stuck.name} measures on this machine, too" in err
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=60)
    assert "measures on this machine" not in err


def test_a_run_whose_reader_goes_away_ends_and_leaves_nothing(root: Path) -> None:
    words = f"{sys.executable} -m ae run toy --engine local -v --experiment noop --experiment stuck"
    done = _bash(root, f"{words} 2>&1 | head -1; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == 128 + signal.SIGPIPE
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert _processes_of(root) == []
    assert not list((root / "results/runs/toy").glob("*/points/.*"))


def test_a_run_that_never_started_a_point_is_never_the_latest(
    ae: Ae, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ae("run", "toy", "--quick", "--engine", "local", "--dataset", "ones")[0] == 0
    (good,) = (root / "results/runs/toy").iterdir()
    with monkeypatch.context() as without:
        without.delenv("AE_LOCAL_PYTHON")
        code, _, err = ae("run", "toy", "--engine", "local", "--no-build")
    assert code == ExitCode.ENVIRONMENT
    assert "to run the rest" not in err
    assert len(list((root / "results/runs/toy").iterdir())) == 2
    code, out, _ = ae("runs", "--json")
    assert [(run["state"], run["done"]) for run in json.loads(out)] == [
        ("finished", 3), ("never started", 0),
    ]  # fmt: skip
    assert good.name in ae("plot", "toy")[1]
    assert "1 not comparable, 4 not run" in ae("check", "toy")[1]  # quick, and one data set of two
    assert ae("run", "toy", "--resume", "--dry-run")[1] == "# nothing is left to run\n"
    assert "3 of 3 points are done, nothing is left to run" in ae("run", "toy", "--resume")[2]


def test_resume_does_not_follow_other_settings(ae: Ae, root: Path) -> None:
    words = ("run", "toy", "--engine", "local", "--experiment", "noop", "--experiment", "unfit")
    assert ae(*words)[0] == 0
    before = run_points(root)
    for other in (("--size", "5"), ("--quick",), ("--experiment", "apart"), ("--repeat", "2")):
        code, _, err = ae("run", "toy", "--engine", "local", "--resume", *other)
        assert code == ExitCode.USAGE
        assert "was started with other" in err
    assert ae(*words, "--resume")[0] == 0  # the same words are no other settings
    assert run_points(root) == before
    assert len(list((root / "results/runs/toy").iterdir())) == 1


def test_a_latest_run_that_cannot_be_read_is_shown_and_refused(ae: Ae, root: Path) -> None:
    words = ("run", "toy", "--engine", "local", "--experiment", "noop")
    assert ae(*words)[0] == 0
    (older,) = (root / "results/runs/toy").iterdir()
    before = sorted(older.rglob("*"))
    assert ae(*words)[0] == 0
    (newer,) = {*(root / "results/runs/toy").iterdir()} - {older}
    (newer / "run.json").write_text("{\n")
    code, out, err = ae("runs")
    assert code == 0
    states = {line.split()[1]: line for line in out.splitlines()}
    assert "finished" in states[older.name]
    assert "cannot be read" in states[newer.name]
    assert err.startswith(f"warning: {newer.name}/run.json: not a JSON object")
    for asked in (("check", "toy"), ("run", "toy", "--resume"), ("review", newer.name)):
        code, out, err = ae(*asked)
        assert (code, out) == (ExitCode.WORKLOAD, "")
        assert err.count("error: ") == 1
        assert f"  fix: put {newer}/run.json back as it was, or move it elsewhere" in err
    assert ae("run", older.name, "--resume", "--dry-run")[1] == "# nothing is left to run\n"
    assert sorted(older.rglob("*")) == before
    assert ae("oracle", "data", "toy")[0] == 23
    newer.rename(root / "results/damaged")
    assert ae("run", "toy", "--resume", "--dry-run")[1] == "# nothing is left to run\n"


def test_resume_goes_on_with_the_engine_of_the_run(
    ae: Ae, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ae("run", "toy", "--engine", "local", "--experiment", "broken")[0] == ExitCode.WORKLOAD
    code, _, err = ae("run", "toy", "--resume", "--engine", "docker")
    assert code == ExitCode.USAGE
    assert "was started with other settings (engine: local)\n  fix: ae run toy --resume" in err
    assert "docker" not in ae("run", "toy", "--resume", "--dry-run")[1]
    # The engine that a run without --engine asks first, and which would be refused here.
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    assert ae("run", "toy", "--resume")[0] == ExitCode.WORKLOAD
    (path,) = (root / "results/runs/toy").glob("*/run.json")
    (again,) = json.loads(path.read_text())["resumed"]
    assert again["provenance"]["engine"]["name"] == "local"


def test_a_recipes_axes_and_parameters_are_options(ae: Ae, root: Path) -> None:
    _, out, _ = ae("run", "toy", "--help")
    for word in ("--dataset", "--size", "--gpu-name", "which numbers: ones, ramp", "default 20000"):
        assert word in out
    assert "--dataset" not in ae("run", "--help")[1]
    words = ("--dataset", "ones", "--dataset", "ramp", "--samples", "5", "--gpu-name", "G")
    code, out, err = ae("run", "toy", *words, "--dry-run", "--json")
    assert code == 0, err
    points = json.loads(out)["points"]
    assert len(points) == 6
    assert points[0]["argv"][points[0]["argv"].index("--gpu-name") + 1] == "G"
    for words in (("--set", "dataset=ones", "--set", "dataset=ramp"),
                  ("--dataset", "ones", "--set", "dataset=ramp")):  # fmt: skip
        assert len(json.loads(ae("run", "toy", *words, "--dry-run", "--json")[1])["points"]) == 6
    for wrong in ("--datset", "--sample"):
        code, _, err = ae("run", "toy", wrong, "ones")
        assert code == ExitCode.USAGE
        assert f"No such option: {wrong}" in err
        assert "--dataset" in err or "--samples" in err


def test_several_papers_at_once(ae: Ae, root: Path) -> None:
    other = root / "recipes/other"
    shutil.copytree(root / "recipes/toy", other)
    text = (other / "recipe.yaml").read_text().replace("name: toy\n", "name: other\n")
    (other / "recipe.yaml").write_text(
        text.replace("  scale: {", "  factor: {").replace("{scale}", "{factor}")
    )
    _, out, _ = ae("run", "toy", "other", "--help")
    assert "--size" in out  # what both have
    assert "--scale" not in out
    words = ("--engine", "local", "--experiment", "together", "--size", "100", "--dataset", "ones")
    code, out, err = ae("run", "toy", "other", *words, "--json")
    assert code == 0, err
    assert [one["recipe"] for one in json.loads(out)] == ["toy", "other"]
    assert [len(run_points(root, name)) for name in ("toy", "other")] == [1, 1]
    code, _, err = ae("run", "toy", "other", "--engine", "local", "--experiment", "broken")
    assert code == ExitCode.WORKLOAD  # and the second ran all the same
    assert run_points(root, "other") == {"broken": "failed"}


def test_a_reduced_run_is_not_scored(ae: Ae) -> None:
    scored = {}
    for words in ((), ("--quick",)):
        assert ae("run", "toy", "--engine", "local", *words)[0] == 0
        claims = json.loads(ae("check", "toy", "--json")[1])["claims"]
        scored[words] = {claim["id"]: claim["verdict"] for claim in claims}
    assert scored[()]["T1"] == "reproduced"
    assert set(scored[("--quick",)].values()) == {"not comparable", "not run", "not transcribed"}


def test_lines_of_a_dry_run_can_be_pasted(ae: Ae, root: Path, tmp_path: Path) -> None:
    words = ("--experiment", "together", "--gpu-name", "it's a \"G $HOME", "--size", "10")
    code, out, _ = ae("run", "toy", "--engine", "local", *words, "--dry-run")
    assert code == 0
    done = subprocess.run(
        ["bash", "-c", out], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = sorted((root / "results/shell/toy").glob("*/records.jsonl"))
    assert [path.parent.name for path in found] == ["together-ones", "together-ramp"]
    environment = json.loads((found[0].parent / "environment.json").read_text())
    assert environment["gpu"] == "it's a \"G $HOME"


def test_gpus_that_are_not_there_are_not_left_out(ae: Ae, root: Path) -> None:
    for words in (("--experiment", "either"), ()):
        code, _, err = ae("run", "toy", "--engine", "local", "--gpus", "2", *words)
        assert code == ExitCode.ENVIRONMENT, err
    assert not (root / "results").exists()


def test_clean_takes_environments_that_no_source_asks_for(ae: Ae, root: Path) -> None:
    from ae.images import environments
    from ae.images.content import image_ref
    from ae.model import Flavour

    now = environments.folder(image_ref(root, "toy", Flavour.CPU))
    old = now.with_name("toy-cpu-0123456789ab")
    for path in (now, old, Path(f"{now}.cache"), Path(f"{old}.cache")):
        (path / "bin").mkdir(parents=True)
    assert old.name in ae("clean", "--environments", "--dry-run")[1]
    assert old.exists()
    code, out, _ = ae("clean", "--environments")
    assert code == ExitCode.ENVIRONMENT  # DOCKER_HOST is set, and nobody answers there
    assert now.name not in out
    assert sorted(path.name for path in now.parent.iterdir()) == [now.name, f"{now.name}.cache"]


def test_the_shell_completes_recipes_variants_and_their_options(root: Path) -> None:
    for words, found in (
        ("ae run to", ["toy"]),
        ("ae run toy --variant f", ["fast"]),
        ("ae run toy --datas", ["--dataset"]),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ae"],
            env={
                **os.environ, "PYTHONPATH": str(Path.cwd()), "_AE_COMPLETE": "complete_bash",
                "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1),
            },
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.split() == found, done.stderr

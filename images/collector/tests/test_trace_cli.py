"""The command line, with real children that stand for an injected target."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from accel_trace import build, cli, probe
from accel_trace.builds import BuildError
from accel_trace.events import Hot, Note
from accel_trace.log import LogReader
from accel_trace.log_writer import LogWriter
from collector_logs import launch, write

# A target that does what an injected one would: it writes a log where it is told to.
_TARGET = """
import os, sys
print("the target's own words", flush=True)
print("and errors", file=sys.stderr, flush=True)
folder = os.environ.get("ACCEL_TRACE_OUT")
if folder:
    from accel_trace.events import Launch, Stack, Touched, TensorAlloc
    from accel_trace.log_writer import LogWriter
    zeros = dict.fromkeys(("device", "stream", "context", "thread", "grid_y", "grid_z", "block_x",
                           "block_y", "block_z"), 1) | {"grid_x": 4, "operator": "", "region": ""}
    with LogWriter.in_folder(folder) as log:
        log.write(TensorAlloc(address=512, size=1024, allocated=1024, reserved=2048, device=1,
                              stream=0))
        for number in range(10):
            name = "void big<float>(int)" if number == 7 else "small"
            log.write(Launch(launch=number, name=name, analysed=1, **zeros))
            if os.environ["ACCEL_TRACE_MODE"] == "touch":
                log.write(Touched(launch=number, address=512 * (1 + number), what=1, flags=0,
                                  size=9999 if number == 7 else 512))
        if os.environ.get("ACCEL_TRACE_STACK_LAUNCH"):
            log.write(Stack(launch=int(os.environ["ACCEL_TRACE_STACK_LAUNCH"]),
                            text="native:gemm\\npython:train.py:3"))
raise SystemExit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
_TARGET_COMMAND = [sys.executable, "-c", _TARGET]


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """A library that can be preloaded and does nothing."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make a library that can be preloaded")
    folder = tmp_path_factory.mktemp("library")
    (folder / "empty.c").write_text("int accel_trace_test_library;\n")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", folder / "libacceltrace.so", folder / "empty.c"],
        check=True,
    )
    return folder


@pytest.fixture(autouse=True)
def _no_other_tool(monkeypatch):
    for name in ("ACCEL_TRACE_ACTIVE", "CUDA_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)


def accel_trace(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accel_trace", *map(str, words)],
        capture_output=True, text=True, env=os.environ | environment, timeout=120, check=False,
    )  # fmt: skip


def main(*words: object) -> tuple[int, str, str]:
    """Run a command line in this process; its exit code, output and errors."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = cli.main([str(word) for word in words])
    return code, out.getvalue(), errors.getvalue()


def records(folder: Path) -> dict[str, list[float]]:
    lines = (folder / "records.jsonl").read_text().splitlines()
    return {line["metric"]: line["samples"] for line in map(json.loads, lines)}


def test_a_run_leaves_logs_report_and_records_and_the_target_its_own_output(tmp_path, library):
    out = tmp_path / "out"
    done = accel_trace("run", "--tool", "kernel_frequency", "--out", out, "--library", library,
                       "--range", "0:9", "--", *_TARGET_COMMAND, "5")  # fmt: skip
    assert done.returncode == 5
    assert done.stdout == "the target's own words\n"
    assert done.stderr.startswith("and errors\n")
    assert "10 launches of 2 kernels" in done.stderr
    assert (out / "report.txt").read_text() in done.stderr
    assert records(out)["launches_total"] == [10.0]
    run = json.loads((out / "run.json").read_text())
    assert (run["tool"], run["mode"], run["exit_code"]) == ("kernel_frequency", "events", 5)
    assert run["filters"]["range"] == "0:9"
    assert run["elapsed_s"] > 0
    assert len(list(out.glob("trace-*.atl"))) == 1


def test_a_report_is_made_again_from_the_folder_alone(tmp_path, library):
    out = tmp_path / "out"
    accel_trace("run", "--tool", "working_set", "--no-probe", "--out", out, "--library", library,
                "--", *_TARGET_COMMAND)  # fmt: skip
    first = (out / "report.txt").read_text()
    assert records(out)["ws_max"] == [0.0]  # of level object: the tensors lie in no object
    code, text, _ = main("report", out)
    assert (code, text) == (0, first)
    code, text, _ = main("report", out, "--tool", "kernel_frequency", "--set", "top=1")
    assert code == 0
    assert "the first 1 have 90.0%" in text
    assert "big" not in text


def test_a_tool_of_two_passes_runs_the_program_twice_and_joins_them(tmp_path, library):
    out = tmp_path / "out"
    done = accel_trace("run", "--tool", "call_stack", "--no-probe", "--out", out, "--library",
                       library, "--", *_TARGET_COMMAND)  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.count("the target's own words") == 2
    assert "launch 7: void big<float>(int)" in done.stderr
    assert "  python:train.py:3" in done.stderr
    assert [path.name for path in sorted(out.glob("pass-*"))] == ["pass-1", "pass-2"]
    second = json.loads((out / "pass-2" / "run.json").read_text())
    assert second["environment"] == {"ACCEL_TRACE_STACK_LAUNCH": "7"}
    assert main("report", out)[1] == (out / "report.txt").read_text()


def test_a_first_pass_that_fails_is_the_only_one(tmp_path, library):
    done = accel_trace("run", "--tool", "call_stack", "--no-probe", "--out", tmp_path / "out",
                       "--library", library, "--", *_TARGET_COMMAND, "3")  # fmt: skip
    assert done.returncode == 3
    assert done.stdout.count("the target's own words") == 1
    assert "pass 1 ended with 3, so no other is made" in done.stderr


def test_a_target_without_cuda_is_said_and_keeps_its_exit_code(tmp_path, library):
    done = accel_trace("run", "--tool", "kernel_frequency", "--out", tmp_path / "out", "--library",
                       library, "--", "sh", "-c", "echo hello; exit 9")  # fmt: skip
    assert (done.returncode, done.stdout) == (9, "hello\n")
    assert "nothing was recorded: the program made no CUDA call" in done.stderr
    assert records(tmp_path / "out")["launches_recorded"] == [0.0]


def test_a_target_that_cannot_be_started(tmp_path, library):
    for name, code in (("no-such-program", 127), (str(tmp_path), 126)):
        done = accel_trace("run", "--tool", "kernel_frequency", "--out", tmp_path / "out",
                           "--library", library, "--", name)  # fmt: skip
        assert done.returncode == code
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("accel-trace: ")


def test_a_target_that_crashes_keeps_its_code_and_its_log_is_told_to_be_cut(tmp_path, library):
    program = (
        "import os, signal\n"
        "from accel_trace.events import Note\n"
        "from accel_trace.log_writer import LogWriter\n"
        "log = LogWriter.in_folder(os.environ['ACCEL_TRACE_OUT'])\n"
        "log.write(Note(level=2, text='odd'))\n"
        "log.flush()\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    done = accel_trace("run", "--tool", "kernel_frequency", "--out", tmp_path / "out", "--library",
                       library, "--", sys.executable, "-c", program)  # fmt: skip
    assert done.returncode == 128 + signal.SIGSEGV
    assert "not whole: trace-" in done.stderr
    assert "warning: odd" in done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["signal"] == signal.SIGSEGV


def test_a_full_disk_in_the_target_is_told_and_changes_nothing(tmp_path, library):
    program = (
        "import os, resource\n"
        "from accel_trace.events import Hot\n"
        "from accel_trace.log_writer import LogWriter\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "log = LogWriter.in_folder(os.environ['ACCEL_TRACE_OUT'])\n"
        "for n in range(10_000): log.write(Hot(launch=n, block=1, count=1))\n"
        "log.close()\n"
        "print('done')\n"
    )
    done = accel_trace("run", "--tool", "hotness", "--no-probe", "--out", tmp_path / "out",
                       "--library", library, "--", sys.executable, "-c", program)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert re.search(r"dropped: [1-9]\d* events", done.stderr)
    assert "the handler gave up: trace-" in done.stderr


def test_a_report_that_cannot_be_written_leaves_the_exit_code(tmp_path, library):
    """The disk is full for accel-trace itself: RLIMIT_FSIZE 0 stops every write to a file."""
    program = (
        "import resource, sys\n"
        "from accel_trace import cli\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "--tool", "kernel_frequency", "--out",
         tmp_path / "out", "--library", library, "--", "sh", "-c", "exit 4"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert "no report: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["2>/dev/full", "2>&1 >/dev/null | true", ">&-", "2>&-"])
def test_a_report_that_cannot_be_printed_leaves_the_exit_code(tmp_path, library, words):
    command = (
        f"set -o pipefail; {sys.executable} -m accel_trace run --tool kernel_frequency "
        f"--out {tmp_path / 'out'} --library {library} -- sh -c 'exit 4' {words}"
    )
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert "Traceback" not in done.stderr
    assert "nothing was recorded" in (tmp_path / "out" / "report.txt").read_text()


def test_ctrl_c_ends_the_target_and_still_gives_a_report(tmp_path, library):
    wait = "for _ in range(600): time.sleep(0.1)"  # a signal just before a sleep ends no sleep
    program = _TARGET.replace("raise SystemExit", "print('ready', flush=True)\nimport time\n"
                              f"{wait}\nraise SystemExit")  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-m", "accel_trace", "run", "--tool", "kernel_frequency", "--out",
         tmp_path / "out", "--library", library, "--", sys.executable, "-c", program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGINT
    assert "10 launches of 2 kernels" in errors


def test_accel_trace_inside_accel_trace_refuses_before_anything_starts(tmp_path, library):
    inner = [sys.executable, "-m", "accel_trace", "run", "--tool", "kernel_frequency", "--out",
             str(tmp_path / "inner"), "--library", str(library), "--", "echo",
             "started"]  # fmt: skip
    done = accel_trace("run", "--tool", "kernel_frequency", "--out", tmp_path / "out", "--library",
                       library, "--", *inner)  # fmt: skip
    assert done.returncode == 2
    assert "another accel-trace (process " in done.stderr
    assert "started" not in done.stdout
    assert not (tmp_path / "inner").exists()


def test_a_tool_that_fails_is_said_and_changes_no_exit_code(tmp_path, library):
    tool = tmp_path / "broken.py"
    tool.write_text(
        "from accel_trace.tools.base import Tool\n"
        "class Broken(Tool):\n"
        "    name = 'broken'\n"
        "    def run(self, session):\n"
        "        return session.nothing_like_this\n"
    )
    done = accel_trace("run", "--tool", tool, "--out", tmp_path / "out", "--library", library,
                       "--", *_TARGET_COMMAND, "6")  # fmt: skip
    assert done.returncode == 6
    assert "no report: broken: AttributeError" in done.stderr
    assert "broken.py:5)" in done.stderr
    code, _, errors = main("report", tmp_path / "out")
    assert code == 2
    assert "AttributeError" in errors


def test_a_mode_that_patches_is_probed_and_exits_77_without_starting(
    tmp_path, library, monkeypatch
):
    monkeypatch.setattr(probe, "driver_problem", lambda: "no NVIDIA driver: not here")
    words = ("run", "--tool", "working_set", "--out", tmp_path / "out", "--library", library)
    code, _, errors = main(*words, "--", "touch", tmp_path / "started")
    assert (code, errors) == (77, "accel-trace: no NVIDIA driver: not here\n")
    assert not (tmp_path / "started").exists()
    code, _, errors = main(*words, "--pass-through", "--", "touch", tmp_path / "started")
    assert code == 0
    assert (tmp_path / "started").exists()
    assert "the program runs without the tool" in errors
    assert "the program ran without the tool: no NVIDIA driver" in errors
    assert json.loads((tmp_path / "out" / "run.json").read_text())["mode"] == "none"


def test_mode_none_needs_no_library_and_gives_the_elapsed_time(tmp_path):
    done = accel_trace("run", "--tool", "overhead", "--set", "mode=none", "--out", tmp_path / "out",
                       "--", "sleep", "0.3")  # fmt: skip
    assert done.returncode == 0
    assert 0.3 <= records(tmp_path / "out")["elapsed"][0] < 5


def test_the_library_is_built_when_none_is_given(tmp_path, library, monkeypatch):
    asked = []
    monkeypatch.setattr(build, "ensure_built", lambda archs=None: asked.append(archs) or library)
    assert main("build", "--arch", "sm_90")[:2] == (0, f"{library}\n")
    assert main("run", "--tool", "kernel_frequency", "--out", tmp_path / "o", "--", "true")[0] == 0
    assert asked == [[90], None]

    def fails(archs: object = None) -> Path:
        raise BuildError("there is no nvcc; install the CUDA toolkit")

    def knows_no_such(archs: object = None) -> Path:
        raise build.ArchError("nvcc makes no code for sm_13; it knows sm_75")

    monkeypatch.setattr(build, "ensure_built", knows_no_such)
    assert main("build", "--arch", "13")[0] == 2
    monkeypatch.setattr(build, "ensure_built", fails)
    code, _, errors = main(
        "run", "--tool", "kernel_frequency", "--out", tmp_path / "p", "--", "true"
    )
    assert code == 77
    assert errors == (
        "accel-trace: the library cannot be built: there is no nvcc; install the CUDA toolkit\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--tool", "kernel_frequency"], "write the command after --"),
        (["run", "--tool", "kernel_frequency", "--"], "write the command after --"),
        (["run", "--tool", "kernel_frequence", "--", "true"], "did you mean 'kernel_frequency'?"),
        (["run", "--tool", "zzz", "--", "true"], "choose of access_counts, call_stack"),
        (["run", "--tool", "none.py", "--", "true"], "there is no such file"),
        (["run", "--tool", "hotness", "--set", "x=1", "--", "true"], "no option 'x'; it has: by"),
        (["run", "--tool", "hotness", "--set", "window", "--", "true"], "write --set NAME=VALUE"),
        (["run", "--tool", "hotness", "--set", "window=a", "--", "true"], "a whole number is"),
        (["run", "--tool", "hotness", "--set", "by=hour", "--", "true"], "choose of accesses"),
        (["run", "--tool", "hotness", "--range", "3:1", "--", "true"], "is empty"),
        (["run", "--tool", "hotness", "--kernels", "(", "--", "true"], "is no regular expression"),
        (["run", "--tool", "overhead", "--set", "baseline=-1", "--", "true"], "at least 0 is"),
        (["build", "--arch", "foo"], "--arch is 'foo'; it must be numbers such as 80,90"),
        (["run", "--tool", "hotness", "--library", "none", "--", "true"], "no libacceltrace.so"),
        (["run", "--", "true"], "required: --tool"),
        (["report", "none"], "is no folder"),
        (["tools", "--", "true"], "only accel-trace run takes a command"),
        (["log", "none"], "No such file"),
        (["export", "none", "-o", "x"], "is no folder"),
        (["nonsense"], "invalid choice"),
        ([], "required: ACTION"),
    ],
)
def test_bad_arguments_are_one_sentence_and_exit_2(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, errors = main(*words)
    assert (code, out) == (2, "")
    assert message in errors
    assert errors.startswith("accel-trace: ")
    assert errors.count("\n") == 1


def test_a_folder_in_use_is_refused_and_taken_by_force(tmp_path, library):
    out = tmp_path / "out"
    words = ("run", "--tool", "kernel_frequency", "--out", out, "--library", library)
    assert main(*words, "--", "true")[0] == 0
    code, _, errors = main(*words, "--", "true")
    assert code == 2
    assert "is not empty; name another --out, or add --force" in errors
    assert main(*words, "--force", "--", "true")[0] == 0


@pytest.mark.parametrize(
    ("tool", "option", "message"),
    [
        ("kernel_frequency", "--every", "kernel_frequency analyses no launches"),
        ("hotness", "--distinct", "hotness infers nothing"),
        ("working_set", "--within", "--within: is a number above 1, such as 1.5, beside --every"),
    ],
)
def test_iterations_are_told_apart_only_where_it_helps(tmp_path, library, tool, option, message):
    code, _, errors = main(
        "run", "--tool", tool, option, "3", "--out", tmp_path / "out", "--library", library,
        "--no-probe", "--", "true",
    )  # fmt: skip
    assert (code, message in errors) == (2, True), errors


@pytest.mark.parametrize(
    ("words", "name", "value", "filters"),
    [
        (["--distinct", "50"], "DISTINCT", "1", {"distinct": 50, "every": 0}),
        (["--every", "50", "--within", "1.5"], "WITHIN", "150", {"every": 50, "within": 1.5}),
    ],
)
def test_what_iterations_were_sampled_reaches_the_program_and_run_json(
    tmp_path, library, words, name, value, filters
):
    out = tmp_path / "out"
    code = f"import os; print(os.environ['ACCEL_TRACE_EVERY'], os.environ['ACCEL_TRACE_{name}'])"
    done = accel_trace(
        "run", "--tool", "working_set", *words, "--out", out, "--library", library, "--no-probe",
        "--", sys.executable, "-c", code,
    )  # fmt: skip
    assert done.stdout == f"50 {value}\n"
    assert filters.items() <= json.loads((out / "run.json").read_text())["filters"].items()


def test_a_folder_without_a_recorded_run_has_no_report(tmp_path):
    assert "holds no recorded run" in main("report", tmp_path)[2]
    write(tmp_path, 5, [launch(0, "a")])
    assert "does not say its tool; name one" in main("report", tmp_path)[2]
    assert main("report", tmp_path, "--tool", "kernel_frequency")[0] == 0


def test_the_list_of_tools_names_each_with_its_options():
    code, text, _ = main("tools")
    assert code == 0
    for name in ("access_counts", "call_stack", "event_trace", "hints", "hotness",
                 "kernel_frequency", "memory_timeline", "overhead", "working_set"):  # fmt: skip
        assert f"{name}: " in text
    assert "    variant=gpu [gpu, cpu, cpu_mt, args]: " in text
    assert "(2 runs of the program)" in text


def test_a_log_is_printed_with_what_is_wrong_with_it(tmp_path):
    path = write(
        tmp_path, 5, [Note(level=1, text="hi\nthere"), launch(3, "k", stream=0x7F00000000)]
    )
    path.write_bytes(path.read_bytes()[:-1])
    code, text, _ = main("log", path)
    assert code == 0
    assert 'Note level=1 text="hi\\nthere"' in text
    assert "stream=0x7f00000000" in text
    assert "not whole: its last frame" in text
    assert "process 5, status closed" in text


def test_a_closed_pipe_ends_the_printing_quietly(tmp_path):
    with LogWriter(tmp_path / "a.atl") as writer:
        for number in range(20_000):
            writer.write(Hot(launch=number, block=1, count=1))
    done = subprocess.run(
        f"{sys.executable} -m accel_trace log {tmp_path / 'a.atl'} | head -n 2",
        shell=True, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.count("\n") == 2
    assert done.stderr == ""


def test_the_probe_says_why_not(library, monkeypatch):
    monkeypatch.setattr(probe, "driver_problem", lambda: "no NVIDIA driver: not here")
    assert main("probe", "--library", library)[0::2] == (
        77,
        "accel-trace: no NVIDIA driver: not here\n",
    )
    monkeypatch.setattr(probe, "driver_problem", lambda: "")
    monkeypatch.setattr(probe, "probe", lambda folder: "the runtime refuses patching (x)")
    assert main("probe", "--library", library)[0] == 77
    monkeypatch.setattr(probe, "probe", lambda folder: "")
    code, text, _ = main("probe", "--library", library)
    assert code == 0
    assert "kernels can be patched here" in text


def test_a_log_of_the_targets_child_is_read_too(tmp_path, library):
    program = (
        "import subprocess, sys\n"
        f"code = {_TARGET!r}\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
        "exec(code)\n"
    )
    out = tmp_path / "out"
    done = accel_trace("run", "--tool", "kernel_frequency", "--out", out, "--library", library,
                       "--", sys.executable, "-c", program)  # fmt: skip
    assert done.returncode == 0
    assert records(out)["launches_total"] == [20.0]
    assert all(not LogReader(path).damage for path in out.glob("*.atl"))

"""The native hooks: compiled against the PyTorch that is installed, loaded, and really called."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch_support import COMPILER, build_cache, fake_library, lines_of, run_python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from accel_trace.builds import BuildError  # noqa: E402
from accel_trace.handlers import compiling, torch_native  # noqa: E402
from accel_trace.handlers.compiling import cached_build, cuda_headers  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(COMPILER is None, reason="needs g++"),
]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_TRACE_CACHE", str(build_cache()))


@pytest.fixture
def hooks() -> torch_native.Hooks:
    return torch_native.load(torch)


def test_the_command_compiles_ahead_and_keeps_the_result(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "accel_trace.handlers.torch_native"]
    first = subprocess.run(call, capture_output=True, text=True, timeout=300, check=True)
    again = subprocess.run(call, capture_output=True, text=True, timeout=300, check=True)
    path = Path(first.stdout.strip())
    assert again.stdout == first.stdout
    assert path.is_file()
    assert torch.__version__ in path.name
    assert path == torch_native.build(torch_native.describe(torch))


def test_the_outermost_operators_are_heard_with_their_numbers(hooks: torch_native.Hooks) -> None:
    heard: list[tuple[int, str, int]] = []
    hooks.operators()
    hooks.listen(lambda start, name, index: heard.append((start, name.decode(), index)))
    try:
        x = torch.ones(4, 4)
        torch.nn.functional.linear(x, x)
    finally:
        hooks.listen(None)
    torch.ones(3)
    assert [(s, n, i) for s, n, i in heard if n in ("aten::ones", "aten::linear")] == [
        (1, "aten::ones", 0), (0, "aten::ones", 0),
        (1, "aten::linear", 1), (0, "aten::linear", 1),
    ]  # fmt: skip
    assert not any(name == "aten::addmm" for _, name, _ in heard)  # inside of linear


def test_numbers_begin_anew_with_every_listener(hooks: torch_native.Hooks) -> None:
    hooks.operators()
    for _ in range(2):
        heard: list[int] = []
        hooks.listen(lambda start, name, index, to=heard: to.append(index))
        torch.ones(2)
        hooks.listen(None)
        assert heard == [0, 0]


def test_operators_of_a_thread_without_python_are_heard(hooks: torch_native.Hooks) -> None:
    threads: dict[str, int] = {}
    hooks.operators(backward=True)
    x = torch.ones(8, requires_grad=True)
    loss = (x * x).sum()
    hooks.listen(
        lambda start, name, index: threads.setdefault(name.decode(), threading.get_ident())
    )
    try:
        worker = threading.Thread(target=loss.backward)
        worker.start()
        worker.join()
    finally:
        hooks.listen(None)
    assert any("MulBackward0" in name for name in threads), threads
    assert threading.get_ident() not in threads.values()


def test_cuda_that_has_not_started_is_told_from_an_allocator_that_cannot(
    hooks: torch_native.Hooks,
) -> None:
    if torch.cuda.is_available():
        pytest.skip("is about machines without a GPU")
    if hooks.has_cuda:
        assert hooks.allocator() is False
    else:
        with pytest.raises(RuntimeError, match="built without CUDA"):
            hooks.allocator()
    assert hooks.totals() is None


_PROGRAM = """
import torch
x = torch.ones(16, 16, requires_grad=True)
torch.nn.functional.linear(x, x).relu().sum().backward()
"""


def test_operators_reach_the_library_in_order_and_balanced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer,operators"}
    result = run_python(_PROGRAM, out, environ=environ, preload=fake_library(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    told = [line.split(maxsplit=2)[1:] for line in lines_of(out)]
    open_ones: list[str] = []
    for start, name in told:
        if start == "1":
            open_ones.append(name)
        else:
            assert open_ones.pop() == name
    assert not open_ones
    names = [name for start, name in told if start == "1"]
    assert names.index("aten::linear") < names.index("aten::addmm" if "aten::addmm" in names
                                                     else "aten::mm")  # fmt: skip
    assert "aten::threshold_backward" in names


def test_arguments_are_joined_to_the_operators_of_the_library(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer,operators", "ACCEL_TRACE_ARGS": "1"}
    result = run_python(_PROGRAM, out, environ=environ, preload=fake_library(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    started = [line.split(maxsplit=2)[2] for line in lines_of(out) if line.startswith("operator 1")]
    (path,) = out.glob("args-*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines
    for line in lines:
        assert started[line["index"]] == line["operator"]
    assert len({line["index"] for line in lines}) == len(lines)
    relu = next(line for line in lines if line["operator"] == "aten::relu")
    assert relu["bytes"] == 2 * 16 * 16 * 4
    assert "PythonDispatchMode" not in started


def test_a_forked_child_counts_anew(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    code = """
import os, torch
torch.set_num_threads(1)
torch.ones(3).add(1)
child = os.fork()
torch.ones(5).mul(2)
if child:
    os.waitpid(child, 0)
else:
    os._exit(0)
"""
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer,operators", "ACCEL_TRACE_ARGS": "1"}
    result = run_python(code, out, environ=environ, preload=fake_library(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    files = sorted(out.glob("args-*.jsonl"))
    assert len(files) == 2
    for path in files:
        calls = (out / f"calls-{path.stem.split('-')[1]}.txt").read_text().splitlines()
        started = [line.split(maxsplit=2)[2] for line in calls if line.startswith("operator 1")]
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [started[line["index"]] for line in lines] == [line["operator"] for line in lines]
    assert sum("aten::mul" in path.read_text() for path in files) == 2
    assert sum("aten::add" in path.read_text() for path in files) == 1


def test_a_library_that_comes_late_is_found(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    injected = fake_library(tmp_path)
    code = f"""
import ctypes, torch
torch.ones(3)
brought = ctypes.CDLL({str(injected)!r})
for _ in range(600):  # it is looked for once in 256 operators
    torch.ones(3)
"""
    environ = {
        "ACCEL_TRACE_HANDLERS": "sanitizer,operators",
        "CUDA_INJECTION64_PATH": str(injected),
    }
    result = run_python(code, out, environ=environ)
    assert (result.returncode, result.stderr) == (0, "")
    starts = [line for line in lines_of(out) if line == "operator 1 aten::ones"]
    assert 300 < len(starts) <= 601
    assert len(starts) == len([line for line in lines_of(out) if line == "operator 0 aten::ones"])


def test_without_a_compiler_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACCEL_TRACE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match=r"install g\+\+ or set CXX"):
        torch_native.build(torch_native.describe(torch))


def test_what_does_not_compile_is_said_with_the_first_error(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cc"
    source.write_text("int f() { return missing_name; }")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCEL_TRACE_CACHE", str(tmp_path / "cache"))
        with pytest.raises(BuildError, match=r"wrong does not compile: .*missing_name"):
            cached_build("wrong", (source,), "", lambda to, cc: [cc, str(source), "-o", str(to)])
        assert not list((tmp_path / "cache").glob("*.part"))


def test_a_changed_source_is_compiled_anew_and_two_wait_for_one(tmp_path: Path) -> None:
    source = tmp_path / "f.cc"
    calls: list[Path] = []

    def command(output: Path, compiler: str) -> list[str]:
        calls.append(output)
        return [compiler, "-shared", "-fPIC", str(source), "-o", str(output)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCEL_TRACE_CACHE", str(tmp_path / "cache"))
        results = []
        for value in (1, 2):
            source.write_text(f'extern "C" int f() {{ return {value}; }}')
            threads = [
                threading.Thread(
                    target=lambda: results.append(cached_build("f", (source,), "", command))
                )
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(calls) == 2
    assert len(set(results)) == 2
    assert [ctypes.CDLL(str(path)).f() for path in (results[0], results[-1])] == [1, 2]


def test_a_cache_that_cannot_be_written_says_what_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACCEL_TRACE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(BuildError, match="set ACCEL_TRACE_CACHE"):
        cached_build("f", (), "", lambda to, cc: [cc])


def test_headers_of_the_wrong_cuda_are_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    include = tmp_path / "include"
    include.mkdir()
    (include / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  77000\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    assert cuda_headers("77.0")[:2] == ["-isystem", str(include)]
    with pytest.raises(BuildError, match=r"the CUDA 78\.1 headers"):
        cuda_headers("78.1")

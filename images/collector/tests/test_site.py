"""sitecustomize: it acts when torch was imported, never imports it, and never breaks a program."""

from __future__ import annotations

from pathlib import Path

import pytest
from accel_trace.events import Note, OperatorStart, TensorAlloc
from torch_support import SITE, events_of, run_python

# A `torch` that imports at once, for what is about imports only.
_TORCH = """
import sys
assert "accel_trace.handlers.install" not in sys.modules, "too early"
__version__ = "0"
VALUE = 5
"""


@pytest.fixture
def torch_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "torch.py").write_text(_TORCH)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_a_program_without_torch_pays_nothing(out: Path) -> None:
    code = """
import sys
import json, decimal
print([m for m in sys.modules if m.startswith("accel_trace") or m == "torch" or m == "ctypes"])
"""
    result = run_python(code, out, environ={"ACCEL_TRACE_HANDLERS": "sanitizer,torch,operators"})
    assert (result.returncode, result.stdout, result.stderr) == (0, "[]\n", "")
    assert not list(out.iterdir())


def test_without_the_variables_nothing_is_watched(out: Path) -> None:
    code = "import sys; print(any(type(f).__name__ == '_Watch' for f in sys.meta_path))"
    assert run_python(code, out).stdout == "False\n"
    environ = {"ACCEL_TRACE_HANDLERS": "torch"}
    assert run_python(code, out, environ=environ).stdout == "True\n"


def test_handlers_are_installed_after_torch_and_once(torch_folder: Path, out: Path) -> None:
    code = """
import sys
import torch
import accel_trace.handlers.install as install
assert install.names() == {"none"}
print(torch.VALUE, torch.__spec__.name, "exec_module" in vars(torch.__loader__))
del sys.modules["torch"]
import torch
"""
    environ = {"PYTHONPATH": str(torch_folder), "ACCEL_TRACE_HANDLERS": "none"}
    result = run_python(code, out, environ=environ)
    # The second import finds the package loaded, which the module above takes for too early.
    assert result.stdout == "5 torch False\n"
    assert "too early" in result.stderr


def test_a_torch_that_does_not_import_fails_as_without_us(torch_folder: Path, out: Path) -> None:
    (torch_folder / "torch.py").write_text("raise ImportError('libcudart is missing')")
    code = "import torch"
    environ = {"PYTHONPATH": str(torch_folder), "ACCEL_TRACE_HANDLERS": "torch"}
    result = run_python(code, out, environ=environ)
    plain = run_python(code, out, environ={"PYTHONPATH": str(torch_folder)})
    assert result.returncode == plain.returncode == 1
    assert "ImportError: libcudart is missing" in result.stderr
    assert result.stderr == plain.stderr


def test_a_program_without_torch_installed_gets_its_usual_error(out: Path) -> None:
    code = """
import sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p]
try:
    import torch
except ModuleNotFoundError as error:
    print(error.name)
"""
    result = run_python(code, out, environ={"ACCEL_TRACE_HANDLERS": "torch"})
    assert (result.returncode, result.stdout) == (0, "torch\n")


def test_the_users_own_sitecustomize_runs_afterwards(tmp_path: Path, out: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text(
        "import sys; print('mine', __name__); seen = len(sys.meta_path)"
    )
    code = "import sitecustomize; print(sitecustomize.__file__, sitecustomize.seen > 3)"
    environ = {"PYTHONPATH": str(mine), "ACCEL_TRACE_HANDLERS": "torch"}
    result = run_python(code, out, environ=environ)
    assert result.stdout == f"mine sitecustomize\n{mine / 'sitecustomize.py'} True\n"


def test_an_error_in_the_users_sitecustomize_is_reported_as_ever(tmp_path: Path, out: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("1 / 0")
    environ = {"PYTHONPATH": str(mine), "ACCEL_TRACE_HANDLERS": "torch"}
    result = run_python("print('goes on')", out, environ=environ)
    assert (result.returncode, result.stdout) == (0, "goes on\n")
    assert "Error in sitecustomize" in result.stderr
    assert "ZeroDivisionError" in result.stderr


def test_a_handler_that_fails_becomes_a_note(torch_folder: Path, out: Path) -> None:
    # This torch has no `version`, so that the handler of tensors cannot work.
    environ = {"PYTHONPATH": str(torch_folder), "ACCEL_TRACE_HANDLERS": "memory_history"}
    result = run_python("import torch; print(torch.VALUE)", out, environ=environ)
    assert (result.returncode, result.stdout, result.stderr) == (0, "5\n", "")
    (events,) = events_of(out).values()
    assert isinstance(events[0], Note)
    assert events[0].text.startswith("handler memory_history is off: ")


def test_a_package_that_does_not_load_becomes_a_note(tmp_path: Path, torch_folder: Path) -> None:
    out = tmp_path / "gone"  # and a folder that is not there must not matter either
    environ = {"PYTHONPATH": str(torch_folder), "ACCEL_TRACE_HANDLERS": "torch"}
    code = """
import sys
sys.modules["accel_trace"] = None
import torch
print(torch.VALUE)
"""
    result = run_python(code, out, environ=environ)
    assert (result.returncode, result.stdout, result.stderr) == (0, "5\n", "")
    out.mkdir()
    run_python(code, out, environ=environ)
    (note,) = out.glob("notes-*.txt")
    assert note.read_text().startswith("handlers in Python are off: ")


def test_the_package_is_importable_though_it_is_not_on_the_path(out: Path) -> None:
    code = "import accel_trace.region as r; print(r.__file__)"
    result = run_python(code, out, environ={"ACCEL_TRACE_HANDLERS": "torch"})
    assert result.stdout.strip() == str(SITE.parents[1] / "region.py")


_WORK = """
import torch
def work(value):
    return (torch.ones(256) * value).sum().item()
"""


@pytest.mark.torch
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing_have_their_own_logs(
    method: str, tmp_path: Path, out: Path
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "work.py").write_text(_WORK)
    code = f"""
import multiprocessing, os, sys
sys.path.insert(0, {str(tmp_path)!r})
from work import work
if __name__ == "__main__":
    own = work(1)
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(own, pool.map(work, [2, 3]))
        pool.close()
        pool.join()
"""
    # A script, since spawn imports the main module anew.
    script = tmp_path / "main.py"
    script.write_text(code)
    environ = {"ACCEL_TRACE_HANDLERS": "storages", "PYTHONPATH": str(tmp_path)}
    run = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    result = run_python(run, out, environ=environ)
    assert result.stdout == "256.0 [512.0, 768.0]\n", result.stderr
    logs = events_of(out)
    assert len(logs) >= 2  # one worker may have done all the work
    for events in logs.values():
        assert any(isinstance(e, TensorAlloc) and e.size == 1024 for e in events)
        assert any(isinstance(e, OperatorStart) and e.name == "aten::mul" for e in events)


@pytest.mark.torch
def test_a_subprocess_is_followed_too(out: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    code = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import torch; torch.ones(3)"], check=True)
"""
    result = run_python(code, out, environ={"ACCEL_TRACE_HANDLERS": "storages"})
    assert result.returncode == 0
    (events,) = events_of(out).values()  # the parent, which has no torch, has no log
    assert any(isinstance(event, TensorAlloc) and event.size == 512 for event in events)
    (whose,) = (event.value for event in events if getattr(event, "name", "") == "tensors")
    assert "the host's as those of device 0" in whose

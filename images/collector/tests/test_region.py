"""`with region(...)`: nesting, threads, decorators, and nothing at all without a recorder."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from accel_trace.events import RegionEnd, RegionStart
from accel_trace.handlers import library, sink
from accel_trace.region import flush, region
from torch_support import events_of, fake_library, lines_of, run_python


def test_nothing_happens_without_a_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_TRACE_OUT", raising=False)
    with region("a"), region("b"):
        pass

    @region("c")
    def function() -> int:
        return 3

    assert function() == 3
    flush()


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_needed(name: object) -> None:
    with pytest.raises(ValueError, match="give it a name"):
        region(name)  # type: ignore[arg-type]


class _Recorder:
    def __init__(self) -> None:
        self.told: list[tuple[bool, str]] = []

    def region(self, start: bool, name: str) -> None:
        self.told.append((start, name))

    def flush(self) -> None:
        self.told.append((False, "flush"))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Recorder:
    found = _Recorder()
    monkeypatch.setenv("ACCEL_TRACE_OUT", str(tmp_path))
    monkeypatch.setattr(library, "find", lambda: found)
    return found


def test_regions_nest_and_end_when_an_error_passes(recorder: _Recorder) -> None:
    with pytest.raises(KeyError), region("outer"), region("inner"):
        raise KeyError
    assert recorder.told == [(True, "outer"), (True, "inner"), (False, "inner"), (False, "outer")]


def test_a_flush_goes_to_the_recorder(recorder: _Recorder) -> None:
    with region("step"):
        flush()
    assert recorder.told == [(True, "step"), (False, "flush"), (False, "step")]


def test_a_decorated_function_marks_each_call(recorder: _Recorder) -> None:
    @region("step")
    def step(depth: int) -> int:
        return 0 if depth == 0 else 1 + step(depth - 1)

    assert step(1) == 1
    assert recorder.told == [(True, "step"), (True, "step"), (False, "step"), (False, "step")]


def test_threads_share_one_region_object(recorder: _Recorder) -> None:
    shared = region("all")
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            with shared:
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(start for start, _ in recorder.told) == 400
    assert len(recorder.told) == 800


def test_an_open_log_is_told_where_there_is_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACCEL_TRACE_OUT", str(tmp_path))
    monkeypatch.setattr(library, "find", lambda: None)
    monkeypatch.setattr(sink, "_logs", {})
    with region("too early"):  # no handler has a log yet, and a region opens none
        pass
    assert not list(tmp_path.iterdir())
    log = sink.log_sink()
    assert log is not None
    with region("heard"):
        pass
    log.close()
    (events,) = events_of(tmp_path).values()
    assert [type(event) for event in events[:2]] == [RegionStart, RegionEnd]
    assert [event.name for event in events[:2]] == ["heard", "heard"]  # type: ignore[attr-defined]


def test_the_preloaded_library_is_found_and_told(tmp_path: Path) -> None:
    preload = fake_library(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    code = "from accel_trace.region import region\nwith region('größe'): pass"
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer"}
    result = run_python(code, out, environ=environ, preload=preload)
    assert (result.returncode, result.stderr) == (0, "")
    assert lines_of(out) == ["region 1 größe", "region 0 größe"]


@pytest.mark.parametrize("every", ["", "3"])
def test_steps_are_told_where_iterations_are_sampled(tmp_path: Path, every: str) -> None:
    preload = fake_library(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    code = "from accel_trace.region import step\nfor _ in range(2): step()"
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer", "ACCEL_TRACE_EVERY": every}
    result = run_python(code, out, environ=environ, preload=preload)
    assert (result.returncode, result.stderr) == (0, "")
    assert lines_of(out) == (["step"] * 2 if every else [])


def test_a_library_that_the_driver_brought_is_found_by_its_path(tmp_path: Path) -> None:
    injected = fake_library(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    code = f"""
import ctypes
from accel_trace.region import flush, region
with region("before"): pass
brought = ctypes.CDLL({str(injected)!r})  # local names, as dlopen by the driver has them
with region("after"): pass
"""
    environ = {"ACCEL_TRACE_HANDLERS": "sanitizer", "CUDA_INJECTION64_PATH": str(injected)}
    result = run_python(code, out, environ=environ)
    assert (result.returncode, result.stderr) == (0, "")
    assert lines_of(out) == ["region 1 after", "region 0 after"]


def test_a_flush_reaches_the_log_of_the_handlers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACCEL_TRACE_OUT", str(tmp_path))
    monkeypatch.setattr(library, "find", lambda: None)
    own = sink.LogSink(str(tmp_path))
    monkeypatch.setitem(sink._logs, "", own)
    with region("step"):
        flush()
        (path,) = tmp_path.glob("trace-*.atl")
        size = path.stat().st_size
        assert b"step" in path.read_bytes()
    own.close()
    assert path.stat().st_size > size

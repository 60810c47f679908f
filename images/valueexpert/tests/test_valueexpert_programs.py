"""Darknet's own program: what is changed in its source, and what is made of what it says."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from reprokit.errors import Failure
from reprokit.records import RecordWriter
from valueexpert.cli import PROGRAM
from valueexpert.darknet import FOLDER, NETWORK, without_zeros
from valueexpert.experiments import programs

# A program that takes a millisecond an evaluation, and ten once; each level takes twice as long as
# the one before. At the level coarse it uploads zeros once, and one image again and again.
SAID = """#!{python}
import os, pathlib, sys
sys.path[:0] = {path!r}
from accel_trace.events import Alloc, Fact, Memcpy
from accel_trace.log_writer import LogWriter
from accel_trace.moved import Compared
count, mode = int(sys.argv[3]), os.environ.get("ACCEL_TRACE_MODE")
took = {{None: 1, "empty": 2, "copies": 4}}[mode]
if mode == "copies":
    with LogWriter(pathlib.Path(os.environ["ACCEL_TRACE_OUT"], "trace-7.atl"), pid=7) as log:
        log.write(Fact(name="mode", value="copies"))
        for at in (4096, 8192):
            log.write(Alloc(address=at, size=1000, device=0, flags=0, stream=0))
        for at, zeros in [(4096, 1), *[(8192, 0)] * count]:
            log.write(Compared(size=1000, unchanged=1000 * (at == 8192), zeros=zeros))
            log.write(Memcpy(destination=at, source=1, size=1000, direction=2, asynchronous=0,
                             stream=0))
print(f"{{count}} evals, {{(10 + count * took) / 1000}} Seconds")
"""


def test_what_was_cleared_is_not_uploaded() -> None:
    source = (
        "l.output_gpu = cuda_make_array(l.output, n); l->delta_gpu = cuda_make_array(l->delta,n);"
    )
    weights = (
        "cuda_make_array(l.weight_updates, 3); cuda_make_array(l.weights, 3); cuda_make_array(0, 3)"
    )
    changed, count = without_zeros(source + weights)
    assert count == 3
    assert changed.count("cuda_make_array(0,") == 4
    assert "cuda_make_array(l.weights, 3)" in changed


def packed(folder: Path, *names: str) -> bytes:
    """An archive of files of random bytes, which cannot be packed to less."""
    path = folder / "whole.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for name in names:
            file = folder / "content"
            file.write_bytes(os.urandom(100_000))
            archive.add(file, name)
    return path.read_bytes()


@pytest.mark.parametrize(
    "damage", ["cut", "flipped", "cut tar", "empty", "no tar", "none", "other"]
)
def test_a_damaged_archive_is_said_in_a_sentence(damage: str, tmp_path: Path) -> None:
    whole = packed(tmp_path, "darknet/src/a.c", f"darknet/cfg/{NETWORK}")
    middle = len(whole) // 2
    found = {
        "cut": whole[:middle],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :],
        "cut tar": lzma.compress(lzma.decompress(whole)[:150_000]),
        "empty": b"", "no tar": b"<html>not found</html>" * 1000,
        "other": packed(tmp_path, "one/a.c", "two/b.c"),
    }  # fmt: skip
    archive = tmp_path / "darknet.orig.tar.xz"
    if damage in found:
        archive.write_bytes(found[damage])
    done = subprocess.run(
        [sys.executable, "-m", "valueexpert.darknet", archive, tmp_path / "out"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"WARNING: Darknet is not built: {archive} ")
    assert "; fix: get Debian's darknet_*.orig.tar.xz again" in line
    assert not (tmp_path / "out").exists()


def program(folder: Path, text: str) -> None:
    (folder / FOLDER).mkdir()
    (folder / FOLDER / NETWORK).write_text("[net]")
    for variant in programs.VARIANTS:
        path = folder / FOLDER / variant
        path.write_text(text)
        path.chmod(0o755)


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    monkeypatch.setenv("VALUEEXPERT_PROGRAMS", str(tmp_path))
    monkeypatch.setattr(programs, "library", lambda: tmp_path)  # no GPU: its program is made up
    words = ["programs", "--device", "cuda", "--repeats", "2", "--samples", "4"]
    programs.run(PROGRAM.parse(words), RecordWriter(tmp_path))
    return [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]


def test_an_evaluation_is_the_difference_of_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, SAID.format(python=sys.executable, path=[p for p in sys.path if p]))
    found = measured(tmp_path, monkeypatch)
    times = {(r["labels"]["variant"], r["labels"]["level"], r["process"]): r["samples"]
             for r in found if r["metric"] == "run_time"}  # fmt: skip
    assert len(times) == 2 * 3 * 2
    for (_, level, _), (spent,) in times.items():
        assert spent == pytest.approx({"native": 1000, "empty": 2000, "coarse": 4000}[level])
    told = {(r["metric"], r["labels"].get("pattern")): r["samples"] for r in found
            if r["labels"]["variant"] == "before" and r["metric"] != "run_time"}  # fmt: skip
    assert told == {
        ("uploaded", None): [3000], ("uploaded_zeros", None): [1000], ("uncompared", None): [0],
        ("at_stake", "zero_upload"): [1000], ("at_stake", "redundant_upload"): [1000],
    }  # fmt: skip


def test_a_program_that_says_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, f"#!{sys.executable}\n")
    with pytest.raises(Failure, match="darknet before does not say what its evaluations took"):
        measured(tmp_path, monkeypatch)


def test_where_it_was_not_built_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VALUEEXPERT_PROGRAMS", os.fspath(tmp_path))
    with pytest.raises(SystemExit) as left:
        programs.run(PROGRAM.parse(["programs", "--device", "cuda"]), RecordWriter(tmp_path))
    assert left.value.code == 77
    assert "build it with --context darknet=DIR" in capsys.readouterr().err

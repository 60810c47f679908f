"""Machine facts, with an nvidia-smi of our own on PATH: a real program with the real format."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from ae.errors import EnvironmentFault
from ae.host import machine

GPUS = """0, GPU-aa, NVIDIA H200, 143771, 143000, 9.0, 580.159.03
1, GPU-bb, "NVIDIA Odd, Name", 40960, [N/A], 8.0, 580.159.03"""


def put_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")


def answering(gpus: str, apps: str = "") -> str:
    return (
        f"case \"$1\" in --query-gpu=*) cat <<'END'\n{gpus}\nEND\n;;\n"
        f"--query-compute-apps=*) cat <<'END'\n{apps}\nEND\n;; esac"
    )


def test_gpus_as_the_driver_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_smi(tmp_path, monkeypatch, answering(GPUS, "GPU-bb, 4711\nGPU-bb, 4712"))
    first, second = machine.query_gpus()
    assert (first.index, first.uuid, first.name) == (0, "GPU-aa", "NVIDIA H200")
    assert first.memory_gib == pytest.approx(143771 / 1024)
    assert first.compute_capability == (9, 0)
    assert first.driver == "580.159.03"
    assert first.processes == ()
    assert second.name == "NVIDIA Odd, Name"
    assert second.memory_free_gib == 0
    assert second.processes == (4711, 4712)


@pytest.mark.parametrize(
    "script",
    [
        "echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9",
        "echo 'No devices were found'",
        "echo '0, [Unknown Error]'",
        "exit 0",
    ],
)
def test_no_gpu_however_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    put_smi(tmp_path, monkeypatch, script)
    assert machine.query_gpus() == ()


def test_an_nvidia_smi_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_smi(tmp_path, monkeypatch, "sleep 60")
    monkeypatch.setattr(machine, "_ANSWER_S", 0.3)
    started = time.monotonic()
    assert machine.query_gpus() == ()
    assert time.monotonic() - started < 5


def test_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machine.detect()
    assert found.gpus == ()
    assert found.cpus >= 1
    assert 0.1 < found.memory_gib < 1e5


def test_disk(tmp_path: Path) -> None:
    assert machine.free_disk(tmp_path / "not/there/yet") == pytest.approx(
        machine.free_disk(tmp_path), rel=0.1
    )
    machine.require_disk(tmp_path, 1, "a run")
    with pytest.raises(EnvironmentFault, match="a run needs 1e\\+03 TB of disk") as caught:
        machine.require_disk(tmp_path, 10**15, "a run")
    assert "AE_RESULTS" in caught.value.fix


def test_caches_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_dir() == tmp_path / "ae"

"""Programs that are forked from one process that has imported PyTorch (gpu/forks.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "gpu"))

from accel_trace import builds
from forks import Forks, under

pytest.importorskip("torch", reason="PyTorch is not installed")

_WHO = """
import os, sys
assert "torch" in sys.modules and "torch._dynamo" in sys.modules
x = __import__("torch").ones(3).sum()
print(os.getpid(), os.getppid()); print(os.environ.get("ACCEL_TRACE_MODE", "none"), float(x))
"""


def test_each_program_is_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A library with nothing in it: without a GPU nothing of the collector's is called.
    empty = ["gcc", "-shared", "-x", "c", "/dev/null", "-o", tmp_path / builds.LIBRARY]
    subprocess.run(empty, check=True)
    monkeypatch.setenv("ACCEL_TRACE_BUILT", str(tmp_path))
    with Forks() as forks:
        ours = under("working_set", tmp_path / "out", every=10)
        assert (ours["ACCEL_TRACE_EVERY"], ours["ACCEL_TRACE_MODE"]) == ("10", "touch")
        (first, mode), (second, other) = (
            forks.run(tmp_path / "a", _WHO), forks.run(tmp_path / "b", _WHO, ours)
        )  # fmt: skip
        assert first[0] != second[0]
        assert first[1] == second[1]
        assert (mode, other) == (("none", 3.0), ("touch", 3.0))
        with pytest.raises(RuntimeError, match=r"(?s)exit code 1: .*ValueError: of its own"):
            forks.run(tmp_path / "c", "raise ValueError('of its own')")
        assert forks.run(tmp_path / "d", "print('still', 1.5)") == [("still", 1.5)]

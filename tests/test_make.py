"""What `make demo` runs, with and without a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("driver", "words"),
    [(None, "--engine local"), ("exit 9", "--engine local"), ("echo 'GPU 0: H200'", "")],
)
def test_the_demo_needs_no_image_without_a_gpu(
    tmp_path: Path, driver: str | None, words: str
) -> None:
    (tmp_path / "bin").mkdir()
    for name, script in {"python": "", "ae": 'echo "ae $*"', "nvidia-smi": driver}.items():
        if script is not None:
            program = tmp_path / "bin" / name
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
    (tmp_path / ".run").touch()  # ae is installed
    done = subprocess.run(
        [shutil.which("make") or "make", "--silent", "demo", f"VENV={tmp_path}"],
        cwd=ROOT, env={"PATH": f"{tmp_path}/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["ae", "run", "dlrm", "--quick", *words.split()]

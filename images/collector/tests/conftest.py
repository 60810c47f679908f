"""Programs that the tests start find the package where the tests do.

What was compiled on a GPU host for an image (images/airgap/reference_run.sh) serves the tests too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

_BUILT = Path(os.environ.get("AE_EXTRA_DIR", ".")) / "accel_trace_built"
if _BUILT.is_dir():
    os.environ.setdefault("ACCEL_TRACE_BUILT", str(_BUILT.resolve()))


@pytest.fixture(autouse=True)
def _python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))

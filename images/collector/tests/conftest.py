"""Programs that the tests start find the package where the tests do.

In CI nothing that can run there may be left out: what the tests skip without must be there.
What was compiled on a GPU host for an image (images/airgap/reference_run.sh) serves the tests too.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# `.ci/run` installs them.
_PACKAGES = ("torch", "cupti", "cuda")
_PROGRAMS = ("cc", "g++")
_LACKING = [name for name in _PACKAGES if find_spec(name) is None]
_LACKING += [name for name in _PROGRAMS if shutil.which(name) is None]
if os.environ.get("CI") and _LACKING:
    pytest.exit(f"CI must not skip tests of the collector: {', '.join(_LACKING)} is missing", 3)

_BUILT = Path(os.environ.get("AE_EXTRA_DIR", ".")) / "accel_trace_built"
if _BUILT.is_dir():
    os.environ.setdefault("ACCEL_TRACE_BUILT", str(_BUILT.resolve()))


@pytest.fixture(autouse=True)
def _python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))

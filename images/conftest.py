"""What the tests of all images share: programs that they start find what the tests find.

That is the packages, and the collector, where it was compiled on a GPU host for an image
(airgap/reference_run.sh), with the Sanitizer beside it. Records go where a test says, not where a
container's shell does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_BUILT = Path(os.environ.get("AE_EXTRA_DIR", ".")) / "accel_trace_built"
if _BUILT.is_dir():
    os.environ.setdefault("ACCEL_TRACE_BUILT", str(_BUILT.resolve()))
_SANITIZER = Path(os.environ.get("ACCEL_TRACE_BUILT", ".")) / "libsanitizer-public.so"
if _SANITIZER.is_file():
    os.environ.setdefault("ACCEL_TRACE_SANITIZER", str(_SANITIZER))
os.environ.pop("AE_OUT", None)


@pytest.fixture(autouse=True, scope="module")
def _python_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        yield

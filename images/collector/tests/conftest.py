"""In CI nothing may be left out that can run there: what the tests skip without must be there."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import pytest

# `.ci/run` installs them.
_PACKAGES = ("torch", "cupti", "cuda")
_PROGRAMS = ("cc", "g++")
_LACKING = [name for name in _PACKAGES if find_spec(name) is None]
_LACKING += [name for name in _PROGRAMS if shutil.which(name) is None]
if os.environ.get("CI") and _LACKING:
    pytest.exit(f"CI must not skip tests of the collector: {', '.join(_LACKING)} is missing", 3)

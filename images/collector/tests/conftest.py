"""Programs that the tests start find the package where the tests do."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.fixture(autouse=True)
def _python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))

"""Without PyTorch, which is no package of the project's own tests, what needs it is left out."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
# What needs no PyTorch.
_PLAIN = ("test_pasta_breakdown.py", "test_pasta_cli.py", "test_pasta_extrapolate.py")

if os.environ.get("CI") and find_spec("torch") is None:
    pytest.exit("CI must not skip tests of pasta: torch is not installed", 3)

collect_ignore = (
    []
    if find_spec("torch")
    else [path.name for path in _HERE.glob("test_*.py") if path.name not in _PLAIN]
)


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    if not collect_ignore:
        return []
    return [f"pasta: {len(collect_ignore)} test files left out, they need PyTorch"]

"""Without PyTorch, which is no package of the project's own tests, what runs it is left out."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_WANT = ("torch", "autotm_networks", "autotm.executor", "autotm.fitting", "autotm.rivals",
         "autotm.networks.modules", "autotm.compiled")  # fmt: skip

if os.environ.get("CI") and find_spec("torch") is None:
    pytest.exit("CI must not skip tests of autotm: torch is not installed", 3)

collect_ignore = (
    []
    if find_spec("torch")
    else [
        path.name
        for path in sorted(_HERE.glob("test_*.py"))
        if any(
            f"{start} {word}" in path.read_text() for word in _WANT for start in ("import", "from")
        )
    ]
)


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    if not collect_ignore:
        return []
    return [f"autotm: {len(collect_ignore)} test files left out, they need PyTorch"]

"""PyTorch is no package of the project's own tests (docs/usage.md). Without it, what needs it is
left out, and the header says so. In CI nothing that can run there may be left out: all must be
there.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

# What the tests skip without; `.ci/run` installs it.
_IN_CI = ("torch", "triton", "torchrec", "fbgemm_gpu", "gurobipy", "highspy", "pyarrow", "sklearn")
_LACKING = [name for name in _IN_CI if find_spec(name) is None] if os.environ.get("CI") else []
if _LACKING:
    pytest.exit(f"CI must not skip tests of rap: {', '.join(_LACKING)} is not installed", 3)

try:
    import torch
except ModuleNotFoundError:
    torch = None  # type: ignore[assignment]

_HERE = Path(__file__).parent
# What else imports it, with the words that say so.
_WANT = ("torch", "rap_plans", "rap_sessions", "rap_loop", "rap_watch", "rap_training.feed",
         "rap_training.memory", "rap_training.launcher", "rap_training.sharing",
         "rap_training.train", "rap_training.inputs", "rap_training.cli", "rap_training.config",
         "rap_training.sessions", "rap_training.experiments")  # fmt: skip

collect_ignore = (
    []
    if torch
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
    return [f"rap: {len(collect_ignore)} test files left out, they need PyTorch: pip install torch"]

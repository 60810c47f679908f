"""Where tests find the images' sources, and which may run beside which with pytest-xdist."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

IMAGES = Path(__file__).parent / "images"
sys.path += sorted(map(str, [*IMAGES.glob("*/src"), *IMAGES.glob("*/tests")]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker for what shares an engine, tests of launcher and recipes; images' by file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByEngine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::", 1)[0]
            return "launcher" if path.startswith(("tests/", "recipes/")) else path

    return ByEngine(config, log)

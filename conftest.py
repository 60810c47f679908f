"""Which tests may run beside which, where pytest-xdist spreads them (`make test`)."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker for the launcher's tests, which share an engine; the images' tests by file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByEngine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::", 1)[0]
            return "launcher" if path.startswith("tests/") else path

    return ByEngine(config, log)

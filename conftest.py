"""Which tests may run beside which, where pytest-xdist spreads them (`make test`)."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent / "tests"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One worker for the launcher's tests, which share an engine; the images' tests by file."""
    if not getattr(config.option, "loadgroup", False):  # of a worker of xdist
        return
    for item in items:
        group = "launcher" if item.path.is_relative_to(TESTS) else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))

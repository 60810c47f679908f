"""Timings on a GPU are said as they come."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints at once, so that a run that is cut off has said what it knew."""

    def aloud(text: str) -> None:
        with capfd.disabled():
            print(text, flush=True)

    return aloud

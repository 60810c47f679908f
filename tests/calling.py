"""One command line in this process, as a person types it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ae.__main__ import guarded

Ae = Callable[..., tuple[int, str, str]]


def caller(capsys: pytest.CaptureFixture[str]) -> Ae:
    """A function from words to exit code, standard output and standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = guarded(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return call

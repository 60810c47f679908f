"""How a workload says that this hardware cannot run a point: exit code 77 and a reason."""

from __future__ import annotations

import sys
from typing import NoReturn

EXIT_CODE = 77


def cannot_run(reason: str) -> NoReturn:
    """Leave with exit code 77; `reason`, one line, is the last line on standard error."""
    sys.stdout.flush()
    print(" ".join(reason.split()), file=sys.stderr, flush=True)
    sys.exit(EXIT_CODE)

"""The programs that were compiled on a GPU host for the image serve its tests too."""

from __future__ import annotations

import os
from pathlib import Path

_BUILT = Path(os.environ.get("AE_EXTRA_DIR", ".")) / "programs_built"
if _BUILT.is_dir():
    os.environ.setdefault("VALUEEXPERT_PROGRAMS", str(_BUILT.resolve()))

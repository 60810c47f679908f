"""Generated sources: written where a person can open them, and imported from there."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def load(text: str, name: str, folder: Path | None) -> ModuleType:
    """Import `text` from the file <name>.py in `folder`, a temporary one if None.

    The same text is written and imported once a process.
    """
    place = Path(tempfile.mkdtemp(prefix="rap-")) if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    module_name = f"rap_generated_{name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module

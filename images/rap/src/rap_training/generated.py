"""Generated sources: written where a person can open them, and imported from there."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def load(text: str, name: str, folder: Path | None) -> ModuleType:
    """Import `text` from the file <name>.py in `folder`; None: in one that the process takes along.

    The same text is written and imported once a process.
    """
    place = folder or Path(tempfile.mkdtemp(prefix="rap-"))
    if folder is None:
        atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{name}.py"
    # Ranks write the same files at the same time, and Triton reads them: never a part of one.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=place, delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)
    module_name = f"rap_generated_{name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    module = ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module
    # Not through the file: Python would take another of that name and size for it, if as old.
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module

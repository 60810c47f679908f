"""A sixth paper: a whole recipe and image without dependencies, for tests of the launcher.

`ae/` knows nothing of it. What it stands for is in `root/recipes/toy/recipe.yaml`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

FILES = Path(__file__).parent / "root"
BAKE = Path(__file__).resolve().parents[2] / "images/docker-bake.hcl"  # what all images share


def make_toy(root: Path) -> Path:
    """Copy the toy's `recipes/` and `images/` below `root`, which is made, and return `root`."""
    root.mkdir(parents=True, exist_ok=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(FILES, root, dirs_exist_ok=True, ignore=ignore)
    for name in ("base", "common/src"):
        (root / "images" / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(BAKE, root / "images")
    return root

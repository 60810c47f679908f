"""A sixth paper: a whole recipe and image without dependencies, for tests of the launcher.

`ae/` knows nothing of it. What it stands for is in `root/recipes/toy/recipe.yaml`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

FILES = Path(__file__).parent / "root"


def make_toy(root: Path) -> Path:
    """Copy the toy's `recipes/` and `images/` below `root`, which is made, and return `root`."""
    root.mkdir(parents=True, exist_ok=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(FILES, root, dirs_exist_ok=True, ignore=ignore)
    for name in ("base", "common/src"):
        (root / "images" / name).mkdir(parents=True, exist_ok=True)
    return root


def make_checkout(root: Path, name: str = "toy") -> Path:
    """A checkout of its own below `root`: the toy, perhaps under another name, and the launcher."""
    make_toy(root)
    checkout = FILES.parents[2]
    for folder in ("ae", "docs"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(checkout / folder, root / folder, ignore=ignore)
    for file in (
        ".gitignore",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CITATION.cff",
        "Makefile",
    ):
        shutil.copy(checkout / file, root)
    if name != "toy":
        for folder in ("recipes", "images"):
            (root / folder / "toy").rename(root / folder / name)
        for file, old, new in (
            (f"recipes/{name}/recipe.yaml", "name: toy\n", f"name: {name}\n"),
            (f"recipes/{name}/recipe.yaml", "image: toy\n", f"image: {name}\n"),
            (f"images/{name}/Dockerfile", "COPY toy/", f"COPY {name}/"),
            (f"images/{name}/Dockerfile", "COPY --chmod=755 toy/", f"COPY --chmod=755 {name}/"),
        ):
            text = (root / file).read_text()
            assert old in text, (file, old)
            (root / file).write_text(text.replace(old, new))
    return root

"""What `.github/workflows/release.yml` needs beside `make` and `ae`; docs/publishing.md.

python .ci/release.py recipes         the names of the recipes, as JSON
python .ci/release.py notes TAG       what CHANGELOG.md says of this version, if TAG is its tag
python .ci/release.py lock FILE...    take up what other copies of images/lock.yaml have locked
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from ae import __version__
from ae.host.files import write_atomic
from ae.images import lockfile
from ae.images.content import content_hash
from ae.recipe.load import list_recipes
from ae.recipe.yamlfile import read_yaml, validate

ROOT = Path(__file__).resolve().parents[1]


def notes(root: Path, tag: str) -> str:
    """The section of this version. Exits with a sentence for another version's tag, or without."""
    if tag != f"v{__version__}":
        sys.exit(f"the tag is {tag}, and the version v{__version__}: see docs/publishing.md")
    sections = re.split(r"^## ", (root / "CHANGELOG.md").read_text(), flags=re.M)
    own = [text for text in sections if re.match(rf"{re.escape(__version__)}\b", text)]
    if not own:
        sys.exit(f"CHANGELOG.md has no section {__version__}")
    return own[0].partition("\n")[2].strip()


def lock(root: Path, files: Sequence[Path], place: str | None) -> None:
    """Put what is of the present sources into images/lock.yaml, and where it is published."""
    own = lockfile.load(root)
    for path in files:
        for name, flavours in validate(read_yaml(path, path.parent), lockfile.Lock).images.items():
            for flavour, entry in flavours.items():
                if entry.content == content_hash(root, name):
                    own.images.setdefault(name, {})[flavour] = entry
    whole = own.model_dump(by_alias=True, exclude_none=True)
    whole |= {"registry": place} if place else {}
    write_atomic(root / lockfile.PATH, lockfile.HEADER + str(yaml.safe_dump(whole)))


def main(words: Sequence[str]) -> None:
    """One of the three."""
    match list(words):
        case ["recipes"]:
            print(json.dumps(list_recipes(ROOT)))
        case ["notes", tag]:
            print(notes(ROOT, tag))
        case ["lock", *files]:
            lock(ROOT, [Path(file) for file in files], os.environ.get("AE_REGISTRY"))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

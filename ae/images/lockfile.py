"""`images/lock.yaml`: which image of a registry, by digest, belongs to which sources."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from ae.errors import EnvironmentFault
from ae.host.files import write_atomic
from ae.model import Flavour, ImageRef, Part
from ae.recipe.yamlfile import read_yaml, validate

PATH = Path("images", "lock.yaml")  # below a checkout's root
HEADER = """\
# The published images, by digest. `ae push` writes this file, `ae run` and `ae pull` obey it: an
# entry counts as long as `content` is the hash of the sources in this tree. They are in `registry`,
# if a release has named one here; AE_REGISTRY names another, or none where it is empty.
"""
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class Entry(Part):
    """One published image."""

    content: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    digest: Digest  # of the manifest, as a registry names it
    image_id: Digest  # of the configuration, as an engine names it

    def names(self, found: Mapping[str, Any]) -> bool:
        """Whether what an engine says of an image (Id, RepoDigests) means this one.

        An engine with containerd's image store calls an image by its manifest's digest, others by
        that of its configuration. The latter is not locked where the former have pushed it; then
        the name under which it was pulled must do.
        """
        if found["Id"] in (self.image_id, self.digest):
            return True
        digests = [name.rpartition("@")[2] for name in found.get("RepoDigests") or []]
        return self.image_id == self.digest and self.digest in digests


class Lock(Part):
    """The whole file: image name -> flavour -> entry."""

    schema_version: Literal[1] = Field(alias="schema")
    registry: str | None = None  # where everybody pulls from
    images: dict[str, dict[Literal["cpu", "cuda"], Entry]]

    def entry(self, name: str, flavour: Flavour) -> Entry | None:
        """The entry of an image, whatever sources it belongs to."""
        return self.images.get(name, {}).get(flavour.value)


def load(root: Path) -> Lock:
    """Read the lock file. Raises RecipeError with file and line."""
    path = root / PATH
    return validate(read_yaml(path, root), Lock) if path.is_file() else Lock(schema=1, images={})


def locked(image: ImageRef) -> Entry | None:
    """The entry that an image must obey: that of the sources it is of; None: it is not locked."""
    if image.override is not None:
        return None
    entry = load(image.root).entry(image.name, image.flavour)
    return entry if entry is not None and entry.content == image.content else None


def store(root: Path, name: str, flavour: Flavour, entry: Entry) -> None:
    """Put an entry into the lock file, which is replaced as a whole."""
    path = root / PATH
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # two pushes at once must not lose an entry
        whole = load(root).model_dump(by_alias=True, exclude_none=True)
        whole["images"].setdefault(name, {})[flavour.value] = entry.model_dump()
        write_atomic(path, HEADER + str(yaml.safe_dump(whole)))
    except OSError as error:
        raise EnvironmentFault(
            f"{path} cannot be written: {error.strerror}", fix="check the disk, and whose it is"
        ) from error
    finally:
        os.close(handle)

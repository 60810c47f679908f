"""What containers must be given beyond a process and a folder: the models of `needs:`."""

from __future__ import annotations

import re
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BeforeValidator, Field, Strict, model_validator

from ae import units
from ae.model import Part, Text


def _count(value: object) -> object:
    axis = isinstance(value, str) and re.fullmatch(r"\{[A-Za-z_][A-Za-z0-9_]*\}", value)
    if axis or (type(value) is int and value >= 1):
        return value
    raise ValueError(f"{value!r} is neither a number from 1 on nor an axis, as '{{gpus}}'")


def _linux_capability(value: object) -> object:
    if value == "ALL":
        raise ValueError("ALL is not given to anybody; name the capabilities one by one")
    return value.removeprefix("CAP_") if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(lambda value: units.parse_size(str(value)))]  # bytes
Count = Annotated[int | str, BeforeValidator(_count)]
LinuxCapability = Annotated[
    str, BeforeValidator(_linux_capability), Field(pattern=r"^[A-Z][A-Z_]*$")
]  # SYS_ADMIN
T = TypeVar("T")


class GpuNeed(Part):
    """What the GPUs must offer. Memory in bytes.

    `count` is a number, or `{axis}`: as many as the value that a point has on that axis.
    """

    count: Count = 1
    min_memory: Size = 0
    min_compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] = "0.0"
    min_driver: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")] = ""
    why: Text

    @property
    def axis(self) -> str:
        """The axis whose values are counts of GPUs, if it is an axis that says how many."""
        return self.count[1:-1] if isinstance(self.count, str) else ""


class Reasoned(Part, Generic[T]):
    """A value and why a container needs it."""

    value: T
    why: Text


class UlimitNeed(Part):
    """A resource limit; -1 is unlimited."""

    name: Annotated[str, Field(pattern=r"^[a-z]+$")]
    soft: Annotated[int, Field(ge=-1)]
    hard: Annotated[int, Field(ge=-1)]
    why: Text


class VolumeNeed(Part):
    """A host folder seen in the container; a relative source starts at the repository's root."""

    source: Text
    target: Annotated[str, Field(pattern=r"^/.+")]
    read_only: bool = True
    why: Text


class SecretNeed(Part):
    """A file of the person's, such as a licence, that the container sees read-only at `target`."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
    target: Annotated[str, Field(pattern=r"^/[^/].*[^/]$")]
    optional: bool = False
    why: Text

    @model_validator(mode="after")
    def _fits(self) -> SecretNeed:
        if ".." in self.target.split("/") or self.target.startswith("/ae/"):
            raise ValueError(f"a secret cannot be put at {self.target}; use /run/secrets/...")
        return self


class Needs(Part):
    """What containers must be given beyond a process and a folder, each with its reason."""

    gpus: GpuNeed | None = None
    shm_size: Reasoned[Size] | None = None
    cap_add: Annotated[tuple[Reasoned[LinuxCapability], ...], Strict(False)] = ()
    ipc: Reasoned[Literal["host", "private", "shareable", "none"]] | None = None
    ulimits: Annotated[tuple[UlimitNeed, ...], Strict(False)] = ()
    network: Reasoned[Literal["none", "bridge", "host"]] | None = None
    memory: Reasoned[Size] | None = None
    volumes: Annotated[tuple[VolumeNeed, ...], Strict(False)] = ()
    secrets: Annotated[tuple[SecretNeed, ...], Strict(False)] = ()

    @model_validator(mode="after")
    def _secrets_differ(self) -> Needs:
        for word in ("name", "target"):
            values = [getattr(secret, word) for secret in self.secrets]
            if len(set(values)) < len(values):
                raise ValueError(f"two `secrets` have the same {word}")
        return self

    def override(self, other: Needs) -> Needs:
        """These needs with every key that `other` names taken from there (null takes it away)."""
        return self.model_copy(update={key: getattr(other, key) for key in other.model_fields_set})

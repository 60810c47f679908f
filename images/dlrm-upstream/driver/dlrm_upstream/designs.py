"""The artifact's designs: which EmbeddingBag.cu, and which cap on registers.

A name is `<variant>` or `<variant>-cap<registers>`; the variant is the paper's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ARTIFACT_CAP = 42  # registers per thread, README of the artifact: 40 warps on an SM of an A100
_BASELINE = "baseline/EmbeddingBag_timed.cu"
_FILES = {
    "base": _BASELINE,
    "optmt": _BASELINE,  # the same source; the cap alone makes OptMT
    "rpf": "prefetching/EmbeddingBag_regpref.txt",
    "smpf": "prefetching/EmbeddingBag_shmem.txt",
    "l1dpf": "prefetching/EmbeddingBag_l1dpref_rolling.txt",
    "lmpf": "prefetching/EmbeddingBag_pin_lmpref.txt",  # shipped with L2 pinning only
    "l2p": "l2_pinning/EmbeddingBag_timed.cu",
    "rpf_l2p": "combined/EmbeddingBag.cu",
}
PINNING = frozenset({"lmpf", "l2p", "rpf_l2p"})  # sources that read a list of rows to pin
PRINTS_PINNED = frozenset({"lmpf", "rpf_l2p"})  # and say how many; l2p has that line commented out


@dataclass(frozen=True)
class Design:
    """One libtorch: a source file and a cap on registers per thread (None: none)."""

    variant: str
    cap: int | None

    @property
    def name(self) -> str:
        """The folder it is installed in."""
        return self.variant if self.cap is None else f"{self.variant}-cap{self.cap}"

    @property
    def source(self) -> str:
        """The file below the artifact's opt_designs/ that replaces EmbeddingBag.cu."""
        return _FILES[self.variant]

    @property
    def pins(self) -> bool:
        """Whether it reads a list of rows to pin in L2."""
        return self.variant in PINNING


# The five that the artifact's README builds, in its order.
ARTIFACT = (
    Design("base", None),
    *(Design(variant, ARTIFACT_CAP) for variant in ("optmt", "rpf", "l2p", "rpf_l2p")),
)
# Files that the artifact ships and never builds; here with the cap that its README gives others.
UNSCRIPTED = tuple(Design(variant, ARTIFACT_CAP) for variant in ("smpf", "l1dpf", "lmpf"))
# Prefetching and pinning without OptMT, which the paper compares and the artifact has no steps for.
UNCAPPED = tuple(
    Design(variant, None) for variant in ("rpf", "smpf", "l1dpf", "lmpf", "l2p", "rpf_l2p")
)
# Other caps: 32, 48 and 64 warps on an SM.
CAPS = tuple(Design("optmt", cap) for cap in (64, 40, 32))
EVERY = (*ARTIFACT, *UNSCRIPTED, *UNCAPPED, *CAPS)
SETS = {"artifact": ARTIFACT, "all": EVERY}


def design(variant: str, cap: str) -> Design:
    """Return the design of a variant under a cap: `artifact`, `none`, or a number of registers.

    Raises ValueError, one sentence, when the artifact has no such thing.
    """
    if variant not in _FILES:
        raise ValueError(f"the artifact has no design {variant}; it has {', '.join(_FILES)}")
    if cap == "artifact":
        return Design(variant, None if variant == "base" else ARTIFACT_CAP)
    if cap != "none" and not cap.isdigit():
        raise ValueError(f"a cap is artifact, none or a number of registers, not {cap!r}")
    registers = None if cap == "none" else int(cap)
    if (variant == "base") != (registers is None) and variant in ("base", "optmt"):
        raise ValueError("base is the kernel without a cap, and optmt the same one with a cap")
    if registers is not None and not 16 <= registers <= 255:
        raise ValueError(f"a cap of {registers} registers is not between 16 and 255")
    return Design(variant, registers)


def chosen(words: str) -> Sequence[Design]:
    """Return the designs of a comma separated list of names or sets, each once, base first.

    Base comes first because it is the full build that the others take everything but one object
    from. Raises ValueError for a name that nobody knows.
    """
    known = {one.name: one for one in EVERY}
    picked: dict[Design, None] = {known["base"]: None}
    for word in filter(None, (part.strip() for part in words.split(","))):
        if word in SETS:
            picked |= dict.fromkeys(SETS[word])
        elif word in known:
            picked[known[word]] = None
        else:
            raise ValueError(f"there is no design {word}; there are {', '.join([*SETS, *known])}")
    return tuple(picked)

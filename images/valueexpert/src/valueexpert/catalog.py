"""The mini-benchmarks: what each is, how large, and which findings its change removes.

`fixed` are pairs of a pattern and the object it is found on: `before` has them, the variants that
fix them do not. Sizes are the program's SIZE. Source: docs/papers/valueexpert.md, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Fixed = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Mini:
    """A program `kernels/<name>.cu`, before and after."""

    name: str
    title: str
    fixed: Mapping[str, Fixed]  # variant -> what it removes
    replay: int  # SIZE of the recorded trace
    full: int  # SIZE on a GPU
    quick: int
    less: tuple[str, float] = ("", 1.0)  # what falls exactly, and how many times
    why: str = ""  # where nothing is removed: what falls in place of it

    @property
    def variants(self) -> tuple[str, ...]:
        """Before, then its changes; the last is `after`."""
        extra = {"backprop": ("floats",), "srad": ("value", "index")}.get(self.name, ())
        return ("before", *extra, "after")


def _after(*fixed: tuple[str, str]) -> dict[str, Fixed]:
    return {"after": fixed}


_NEIGHBOURS = tuple(("structured", side) for side in ("north", "south", "west", "east"))
_ZEROS = ("front", "next front", "seen")
_OUTPUTS = tuple(f"output {n}" for n in (1, 2, 3, 4))
_ALL = (
    Mini(
        name="backprop", title="backprop, zeros", replay=64, full=65536, quick=4096,
        fixed=_after(
            ("single_zero", "delta"), ("zero_upload", "delta"), ("redundant_write", "weights"),
            ("redundant_write", "last change"),
        ),
    ),
    Mini(
        name="backprop_copy", title="backprop, download", replay=64, full=262144, quick=4096,
        fixed=_after(("redundant_download", "input")),
    ),
    Mini(
        name="srad", title="srad_v1", replay=32, full=2048, quick=256,
        fixed={
            "value": (("redundant_write", "coefficients"),),
            "index": _NEIGHBOURS,
            "after": (("redundant_write", "coefficients"), *_NEIGHBOURS),
        },
    ),
    Mini(
        name="pathfinder", title="pathfinder", replay=64, full=24999999, quick=24100000,
        fixed=_after(*(("heavy_type", name) for name in ("wall", "sums", "other sums"))),
        less=("copied", 4.0),
    ),
    Mini(
        name="hotspot3d", title="hotspot3D", replay=6, full=192, quick=32, fixed={},
        less=("launches", 2.0), why="the pattern is accepted: every second step is skipped",
    ),
    Mini(
        name="darknet", title="Darknet layers", replay=40, full=1048576, quick=4096,
        fixed=_after(
            *((pattern, name) for pattern in ("zero_upload", "redundant_fill") for name in _OUTPUTS)
        ),
    ),
    Mini(
        name="castro", title="Castro slopes", replay=400, full=8388608, quick=65536,
        fixed=_after(("redundant_write", "slopes in x"), ("redundant_write", "slopes in y")),
    ),
    Mini(
        name="barracuda", title="BarraCUDA copies", replay=60, full=1048576, quick=8192,
        fixed=_after(("redundant_upload", "sequences"), ("redundant_write", "alignments"),
                     ("frequent_values", "alignments")),
    ),
    Mini(
        name="replication_pad", title="ReplicationPad backward", replay=24, full=65536, quick=4096,
        fixed=_after(("redundant_fill", "grad input")),
        less=("filled", 2.0),
    ),
    Mini(
        name="embedding", title="BERT embedding", replay=100, full=262144, quick=4096,
        fixed=_after(("redundant_write", "embeddings"), ("single_zero", "embeddings")),
        less=("launches", 3.0),
    ),
    Mini(
        name="resnet_ones", title="ResNet convolution", replay=100, full=802816, quick=8192,
        fixed=_after(("redundant_write", "ones"), ("single_value", "ones"), ("dead_write", "ones")),
        less=("launches", 2.0),
    ),
    Mini(
        name="lammps", title="LAMMPS growth", replay=30, full=4000, quick=400,
        fixed=_after(("growing_copies", "atoms")),
    ),
    Mini(
        name="deepwave", title="Deepwave propagate", replay=40, full=4096, quick=256,
        fixed=_after(("redundant_write", "field"), ("redundant_write", "next field")),
    ),
    Mini(
        name="bfs", title="bfs", replay=400, full=1048576, quick=8192,
        fixed=_after(("heavy_type", "costs"), *(("zero_upload", name) for name in _ZEROS)),
    ),
    Mini(
        name="cfd", title="cfd", replay=120, full=2097152, quick=16384,
        fixed=_after(("frequent_values", "variables"), ("duplicate_objects", "variables")),
    ),
    Mini(
        name="huffman", title="huffman", replay=8, full=16384, quick=256, fixed={},
        why="the zeros stay: fewer atomics add them",
    ),
    Mini(
        name="lavamd", title="lavaMD", replay=500, full=8388608, quick=65536,
        fixed=_after(("frequent_values", "charges")),
    ),
    Mini(
        name="streamcluster", title="streamcluster", replay=48, full=1048576, quick=8192,
        fixed=_after(("redundant_upload", "centres")),
    ),
)  # fmt: skip
# Of managed memory that CPU and GPU share: an experiment of its own, without value patterns.
SHARING = Mini(
    name="sharing", title="page sharing", replay=6, full=512, quick=64, fixed={},
    why="the values stay; false sharing of pages goes",
)  # fmt: skip
ROUNDS = 8  # of its kernel and of the CPU's turn after it; a first turn of the CPU's comes before
KIND_OF = {  # accel_trace.uvm.sharing.KINDS of each object's pages, whatever their size
    "before": {"cells": "false", "factors": "read", "total": "true"},
    "after": {"GPU's cells": "gpu", "CPU's cells": "cpu", "factors": "read", "total": "true"},
}  # fmt: skip
MINIS: Mapping[str, Mini] = {mini.name: mini for mini in _ALL}


VARIANTS = ("before", "floats", "value", "index", "after")


@dataclass(frozen=True)
class Label:
    """A finding that a variant has: pattern, place and object."""

    pattern: str
    place: str
    thing: str


@dataclass(frozen=True)
class Score:
    """Findings against labels."""

    right: int
    false: tuple[Label, ...] = field(default=())
    missed: tuple[Label, ...] = field(default=())

    @property
    def precision(self) -> float:
        """The share of findings that are labelled; 1 of none."""
        found = self.right + len(self.false)
        return self.right / found if found else 1.0

    @property
    def recall(self) -> float:
        """The share of labels that were found; 1 of none."""
        wanted = self.right + len(self.missed)
        return self.right / wanted if wanted else 1.0

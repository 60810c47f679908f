"""`fbgemm`: the field's own kernel, FBGEMM's table-batched embedding forward, as a rival.

Operator `fbgemm::dense_embedding_codegen_forward_unweighted_cuda` of fbgemm-gpu 1.6
(docs/papers/dlrm.md, 9). It needs five of the wheel's libraries, loaded one by one, so neither the
rest of the package nor its Python code is imported. It serves one table a launch or all tables in
one.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import torch

# In order of need: each is linked against the ones before it.
LIBRARIES = (
    "asmjit.so",
    "fbgemm.so",
    "fbgemm_gpu_config.so",
    "fbgemm_gpu_tbe_common.so",
    "fbgemm_gpu_tbe_training_forward.so",
)
OPERATOR = "dense_embedding_codegen_forward_unweighted_cuda"
HOW_TO_FIX = (
    "fix: pip install fbgemm-gpu==1.6.0 (a PyTorch of the CUDA version it was built for), or set "
    "AE_FBGEMM_DIR to a folder with its libraries"
)
FOLDER = Path("/opt/ae/fbgemm")  # where an image may have them
POOLING = {"sum": 0, "mean": 1}  # FBGEMM's PoolingMode
SPARSE_TYPES = {torch.float32: 0, torch.float16: 1}  # FBGEMM's SparseType, of the result
LANES = 4  # rows are read four columns at a time


class FbgemmError(RuntimeError):
    """FBGEMM cannot be used here: one sentence with a fix."""


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """Where FBGEMM finds the tables in one flat tensor, and where it puts their columns.

    weight_starts: int64 (tables,), in elements. column_starts: int32 (tables + 1,), in elements.
    """

    weight_starts: torch.Tensor
    column_starts: torch.Tensor
    columns: int  # of the result: all tables' together
    dim: int  # of the widest table


def find_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with the five libraries: AE_FBGEMM_DIR, else FOLDER, else the installed
    package.

    Raises FbgemmError naming what is missing.
    """
    named = environment.get("AE_FBGEMM_DIR", "")
    if named or FOLDER.is_dir():
        folder = Path(named or FOLDER)
    else:
        spec = importlib.util.find_spec("fbgemm_gpu")  # finds it without importing it
        places = list(spec.submodule_search_locations or []) if spec else []
        if not places:
            raise FbgemmError(f"fbgemm-gpu is not installed; {HOW_TO_FIX}")
        folder = Path(places[0])
    missing = [name for name in LIBRARIES if not (folder / name).is_file()]
    if missing:
        raise FbgemmError(f"{folder} has no {', '.join(missing)}; {HOW_TO_FIX}")
    return folder


@cache
def load_libraries(folder: Path) -> Callable[..., torch.Tensor]:
    """Load the libraries, once a process, and return the operator.

    Raises FbgemmError, e.g. when they were built for another PyTorch or CUDA.
    """
    for name in LIBRARIES:
        try:
            torch.ops.load_library(str(folder / name))
        except OSError as error:
            reason = " ".join(str(error).split())
            raise FbgemmError(f"FBGEMM's {name} does not load: {reason}; {HOW_TO_FIX}") from error
    if not hasattr(torch.ops.fbgemm, OPERATOR):
        raise FbgemmError(f"these FBGEMM libraries have no operator {OPERATOR}; {HOW_TO_FIX}")
    operator: Callable[..., torch.Tensor] = getattr(torch.ops.fbgemm, OPERATOR).default
    return operator


@cache
def _operator() -> Callable[..., torch.Tensor]:
    """The operator, looked for once: to look for files in every call would be FBGEMM's time."""
    return load_libraries(find_folder())


def make_layout(starts: Sequence[int], dims: Sequence[int], device: torch.device) -> TableLayout:
    """Return the layout of tables that begin at `starts`, in elements, and have `dims` columns.

    Raises ValueError for a dim that FBGEMM does not read.
    """
    for dim in dims:
        if reason := why_not_dim(dim):
            raise ValueError(reason)
    columns = torch.tensor([0, *accumulate(dims)], dtype=torch.int32)
    return TableLayout(
        weight_starts=torch.tensor(starts, dtype=torch.int64).to(device),
        column_starts=columns.to(device),
        columns=sum(dims),
        dim=max(dims),
    )


def why_not_dim(dim: int) -> str:
    """Return why tables of `dim` columns cannot be read, "" when they can."""
    if dim % LANES:
        return f"fbgemm reads {LANES} columns at a time; dim {dim} is no multiple of it"
    return ""


def join_offsets(offsets: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one offsets tensor (tables * bags + 1,) for tables whose indices are concatenated.

    Each table's offsets are (bags + 1,), from 0 to its number of indices. All must have the same
    number of bags. Does not synchronise with the host.
    """
    if len({item.numel() for item in offsets}) != 1:
        raise ValueError("all tables must have the same number of bags")
    shifted, base = [], torch.zeros_like(offsets[0][:1])
    for item in offsets:
        shifted.append(item[:-1] + base)
        base = base + item[-1:]
    return torch.cat([*shifted, base])


class Fbgemm:
    """The operator as a variant. It makes its own result, so `out` costs a copy: time without."""

    name = "fbgemm"
    dtypes = tuple(SPARSE_TYPES)

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, int, int, torch.device], TableLayout] = {}

    def why_unsupported(self, dims: Sequence[int] = ()) -> str:
        """Return why FBGEMM cannot serve tables of `dims` here, "" when it can."""
        for dim in dims:
            if reason := why_not_dim(dim):
                return reason
        try:
            load_libraries(find_folder())
        except FbgemmError as error:
            return str(error)
        return ""

    def forward(
        self,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the bags' sums or means (bags, dim) of one table.

        weight (rows, dim) float32 or float16, contiguous, on a GPU; indices (accesses,) int32 or
        int64; offsets (bags + 1,) of the same type, the first 0 and the last the number of
        indices. FBGEMM does not check indices. Raises ValueError for what it does not take.
        """
        return self.forward_tables(weight.unsqueeze(0), indices, offsets, mode=mode, out=out)

    def forward_tables(
        self,
        weights: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        *,
        mode: str = "sum",
        out: torch.Tensor | None = None,
        layout: TableLayout | None = None,
    ) -> torch.Tensor:
        """Return all tables' bags side by side, (bags, all columns), from one launch.

        weights (tables, rows, dim) contiguous, or with a `layout` of any tables in it any
        contiguous tensor; indices: every table's, concatenated; offsets (tables * bags + 1,) into
        them, table after table (`join_offsets`).
        """
        if layout is None and weights.dim() != 3:
            raise ValueError("tables must be (tables, rows, dim)")
        tables = len(weights) if layout is None else len(layout.weight_starts)
        self._check(weights, tables, indices, offsets, mode)
        if layout is None:
            layout = self._layout(weights)
        result = _operator()(
            weights.view(-1),
            layout.weight_starts,
            layout.column_starts,
            layout.columns,
            layout.dim,
            indices,
            offsets,
            POOLING[mode],
            SPARSE_TYPES[weights.dtype],
            False,  # is_experimental: the older kernel; the newer measures the same (section 9)
        )
        return result if out is None else out.copy_(result)

    def _layout(self, weights: torch.Tensor) -> TableLayout:
        tables, rows, dim = weights.shape
        key = (tables, rows, dim, weights.device)
        if key not in self._layouts:
            starts = range(0, tables * rows * dim, rows * dim)
            self._layouts[key] = make_layout(starts, [dim] * tables, weights.device)
        return self._layouts[key]

    def _check(
        self,
        weights: torch.Tensor,
        tables: int,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        mode: str,
    ) -> None:
        if mode not in POOLING:
            raise ValueError(f"fbgemm sums or averages; it has no mode '{mode}'")
        if weights.dtype not in SPARSE_TYPES or not weights.is_contiguous():
            raise ValueError("fbgemm takes contiguous float32 or float16 tables")
        if indices.dtype not in (torch.int32, torch.int64) or offsets.dtype != indices.dtype:
            raise ValueError("fbgemm takes int32 or int64 indices, and offsets of the same type")
        if not (indices.is_contiguous() and offsets.is_contiguous()):
            raise ValueError("fbgemm takes contiguous indices and offsets")
        if not weights.device == indices.device == offsets.device:
            raise ValueError("tables, indices and offsets must be on one device")
        if offsets.numel() < 1 or (offsets.numel() - 1) % tables:
            raise ValueError("offsets must hold tables * bags + 1 entries")

"""The four plans that come with the workload.

Plans 0 and 1 are the paper's: one graph of 105 operators (docs/papers/rap.md, 2.4) on the table
sizes of Criteo Kaggle and Criteo Terabyte. Plans 2 and 3 are OURS: the artifact's definitions of
them contradict each other (docs/papers/rap.md, 2.5). They keep its numbers of columns and tables,
its kinds of operators (one-hot to n-gram to first-x chains among them) and about its numbers of
operators, on ragged lists, in chains of different order, so that a GPU has work to do and fusion
has choices.
"""

from __future__ import annotations

from collections.abc import Sequence

from rap_training.plan.graph import Column, Node, Plan, PlanError, SparseOutput
from rap_training.plan.steps import Step, chain, step

# Rows per table as in facebookresearch/dlrm's Criteo Kaggle benchmark (bench/ and the MLPerf
# inference reference); also in the artifact's run scripts. 33.8 M with the extra table.
KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
# The num_embeddings_per_feature that TorchRec's DLRM example gives for Criteo Terabyte
# (torchrec_dlrm's README). 178.0 M with the extra table.
TERABYTE = (
    45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10, 2209,
    11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35,
)  # fmt: skip
# Shares of empty fields per column of Criteo Kaggle, approximate, from common knowledge of the
# data set. Terabyte's are not published; plan 1 takes the same.
DENSE_NULLS = (
    0.454, 0.0, 0.215, 0.217, 0.026, 0.224, 0.043, 0.0005, 0.043, 0.454, 0.043, 0.765, 0.217,
)  # fmt: skip
SPARSE_NULLS = (
    0.0, 0.0, 0.034, 0.034, 0.0, 0.121, 0.0, 0.0, 0.0, 0.0, 0.0, 0.034, 0.0, 0.0, 0.0, 0.034, 0.0,
    0.0, 0.440, 0.440, 0.034, 0.762, 0.0, 0.034, 0.440, 0.440,
)  # fmt: skip
EXTRA_ROWS = 65_536  # the table of plans 0 and 1 for the bucketised int_0, and all of plans 2, 3
_RAW_IDS = 1_000_000  # distinct ids of each sparse column of plans 2 and 3


def builtin(number: int, *, scale: float = 1.0) -> Plan:
    """Return plan 0, 1, 2 or 3; `scale` multiplies the rows of its tables, for quick runs.

    A table keeps at least 4 rows, or its own number where that is smaller. Raises PlanError for
    another number, and for a scale that is not above 0.
    """
    if number not in range(4):
        raise PlanError(f"there is no plan {number}; fix: 0, 1, 2 or 3, or a plan file")
    if not scale > 0:
        raise PlanError(f"the tables cannot be scaled by {scale}; fix: a scale above 0")
    if number < 2:
        return _criteo(number, (KAGGLE, TERABYTE)[number], scale)
    return _ours(number, 26 * (number - 1), 52 * (number - 1), _scaled(EXTRA_ROWS, scale))


def _scaled(rows: int, scale: float) -> int:
    return max(round(rows * scale), min(rows, 4))


def _criteo(number: int, tables: Sequence[int], scale: float) -> Plan:
    columns = [
        Column(name=f"int_{i}", kind="dense", null_rate=rate) for i, rate in enumerate(DENSE_NULLS)
    ]
    nodes: list[Node] = []
    dense: list[str] = []
    for column in columns:
        nodes += chain(column.name, [step("fill_null", value=0), step("logit", eps=1e-5)])
        dense.append(nodes[-1].name)
    sparse: list[SparseOutput] = []
    for i, (ids, rate) in enumerate(zip(tables, SPARSE_NULLS, strict=True)):
        columns.append(Column(name=f"cat_{i}", kind="sparse", null_rate=rate, ids=ids))
        rows = _scaled(ids, scale)
        hashed = step("sigrid_hash", salt=0, modulus=rows)
        nodes += chain(f"cat_{i}", [step("fill_null", value=0), hashed, step("first_x", x=1)])
        sparse.append(SparseOutput(node=nodes[-1].name, rows=rows))
    borders = {"borders": (0.5, 1.0, 1.5)}
    nodes.append(Node(name="cat_26", op="bucketize", input="int_0_0_fill_null", parameters=borders))
    sparse.append(SparseOutput(node="cat_26", rows=_scaled(EXTRA_ROWS, scale)))
    return Plan(
        name=f"plan{number}", columns=tuple(columns), nodes=tuple(nodes), dense=tuple(dense),
        sparse=tuple(sparse),
    )  # fmt: skip


# What is discrete (bucketize, one_hot, cast to ids) stands before what is rounded (logit, boxcox),
# or a last bit that differs between two libraries would become another id. A rounded value is kept
# away from where the next function is steep: eps 0.05, and clamp before a second boxcox.


def _dense_steps(i: int) -> tuple[Step, ...]:
    """Six kinds of dense chain by turns, 4 to 8 operators; float32 of width 1 to 16."""
    lam = (0.5, 0.25, 2.0)[i % 3]
    low, bins = (0.0, 1.0)[i % 2], (8, 16)[i // 2 % 2]
    kinds = (
        (step("clamp", lo=low, hi=1e6), step("boxcox", lam=lam), step("logit", eps=0.05)),
        (
            step("clamp", lo=0.0, hi=64.0), step("one_hot", lo=0.0, hi=64.0, k=bins),
            step("first_x", x=bins // 2), step("clamp", lo=0.25, hi=2.0), step("boxcox", lam=lam),
        ),
        (
            step("cast", dtype="int64"), step("sigrid_hash", salt=i, modulus=4096),
            step("map_id", size=4096, seed=i % 4), step("cast", dtype="float32"),
            step("boxcox", lam=0.5), step("clamp", lo=0.25, hi=64.0), step("boxcox", lam=lam),
        ),
        (
            step("bucketize", borders=tuple(float(2**b) for b in range(12))),
            step("cast", dtype="float32"), step("boxcox", lam=lam), step("logit", eps=0.05),
        ),
        (
            step("one_hot", lo=low, hi=40.0, k=bins), step("ngram", n=3),
            step("first_x", x=12), step("clamp", lo=0.1, hi=0.9), step("logit", eps=1e-5),
        ),
        (
            step("boxcox", lam=lam), step("clamp", lo=0.25, hi=64.0), step("boxcox", lam=0),
            step("logit", eps=0.05), step("clamp", lo=-2.5, hi=2.5),
        ),
    )  # fmt: skip
    return (step("fill_null", value=(0, 1)[i // 6 % 2]), *kinds[i % 6])


def _sparse_steps(i: int, rows: int) -> tuple[Step, ...]:
    """Eight kinds of sparse chain by turns, 5 to 8 operators; ids in [0, rows), width 1 to 8."""
    x, salt = (1, 2, 4, 8)[i // 8 % 4], i
    last: tuple[Step, ...] = (step("sigrid_hash", salt=salt, modulus=rows), step("first_x", x=x))
    mapped: tuple[Step, ...] = (step("map_id", size=rows, seed=i % 8), step("first_x", x=x))
    wide = step("sigrid_hash", salt=salt + 1000, modulus=rows + rows // 8)  # some beyond the map
    kinds = (
        (step("first_x", x=16), step("ngram", n=3), *last),
        (step("clamp", lo=-(2**61), hi=2**61), wide, *mapped),
        (step("ngram", n=2), step("sigrid_hash", salt=7, modulus=2**20), wide, *mapped),
        (wide, step("clamp", lo=0, hi=rows - 1), step("ngram", n=8), *mapped),
        (
            step("first_x", x=2), step("cast", dtype="float32"),
            step("one_hot", lo=-(2.0**63), hi=2.0**63, k=8),
            step("cast", dtype="int64"), step("ngram", n=5), *last,
        ),
        (
            step("sigrid_hash", salt=3, modulus=4096), step("cast", dtype="float32"),
            step("bucketize", borders=tuple(64.0 * b for b in range(1, 64))), *last,
        ),
        (step("ngram", n=4), wide, step("clamp", lo=1, hi=rows), step("ngram", n=2), *mapped),
        (
            step("sigrid_hash", salt=salt, modulus=2**24), step("cast", dtype="float32"),
            step("clamp", lo=0.0, hi=2.0**23), step("cast", dtype="int64"), *last,
        ),
    )  # fmt: skip
    return (step("fill_null", value=(0, -1, 2**40)[i % 3]), *kinds[i % 8])


def _ours(number: int, dense_count: int, sparse_count: int, rows: int) -> Plan:
    """Half of the sparse columns are ragged, of up to 20 ids; the others have 1 or 4."""
    dense_columns = [
        Column(name=f"int_{i}", kind="dense", null_rate=DENSE_NULLS[i % 13])
        for i in range(dense_count)
    ]
    sparse_columns = [
        Column(
            name=f"cat_{i}", kind="sparse", ids=_RAW_IDS, null_rate=SPARSE_NULLS[i % 26],
            width=(20, 1, 12, 4, 20, 4, 8, 1)[place], ragged=place % 2 == 0,
        )
        for i in range(sparse_count)
        for place in ((i + i // 8) % 8,)  # so that every kind of chain meets every width
    ]  # fmt: skip
    chains = [chain(f"int_{i}", _dense_steps(i)) for i in range(dense_count)]
    hashed = [chain(f"cat_{i}", _sparse_steps(i, rows)) for i in range(sparse_count)]
    return Plan(
        name=f"plan{number}",
        columns=(*dense_columns, *sparse_columns),
        nodes=tuple(node for nodes in (*chains, *hashed) for node in nodes),
        dense=tuple(nodes[-1].name for nodes in chains),
        sparse=tuple(SparseOutput(node=nodes[-1].name, rows=rows) for nodes in hashed),
    )

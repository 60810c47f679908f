"""A small plan with every operator, over dense, fixed and ragged columns; batches for it."""

from __future__ import annotations

import numpy as np
from rap_training.data.columns import RawBatch
from rap_training.plan.graph import Column, Node, Plan, SparseOutput

ROWS = 40


def every_operator() -> Plan:
    """Every operator on every type it takes, ragged lists among them."""
    return Plan(
        name="every",
        columns=(
            Column(name="d0", kind="dense"),
            Column(name="d1", kind="dense"),
            Column(name="s0", kind="sparse", ids=1000),
            Column(name="s1", kind="sparse", width=5, ragged=True, ids=1000),
            Column(name="s2", kind="sparse", width=3, ids=50),
        ),
        nodes=(
            Node(name="d0.fill", op="fill_null", input="d0", parameters={"value": 0.25}),
            Node(name="d0.logit", op="logit", input="d0.fill", parameters={"eps": 1e-5}),
            Node(name="d0.bucket", op="bucketize", input="d0.fill",
                 parameters={"borders": (0.5, 1.0, 1.5)}),
            Node(name="d1.fill", op="fill_null", input="d1", parameters={"value": 1}),
            Node(name="d1.clamp", op="clamp", input="d1.fill", parameters={"lo": -2.0, "hi": 3.0}),
            Node(name="d1.box", op="boxcox", input="d1.clamp", parameters={"lam": 0.5}),
            Node(name="d1.log", op="boxcox", input="d1.clamp", parameters={"lam": 0.0}),
            Node(name="d1.hot", op="one_hot", input="d1.clamp",
                 parameters={"lo": -2.0, "hi": 3.0, "k": 5}),
            Node(name="d1.int", op="cast", input="d1.clamp", parameters={"dtype": "int64"}),
            Node(name="d1.map", op="map_id", input="d1.int", parameters={"size": 3, "seed": 4}),
            Node(name="s0.fill", op="fill_null", input="s0", parameters={"value": 7}),
            Node(name="s0.hash", op="sigrid_hash", input="s0.fill",
                 parameters={"salt": 3, "modulus": 97}),
            Node(name="s0.first", op="first_x", input="s0.hash", parameters={"x": 1}),
            Node(name="s1.fill", op="fill_null", input="s1", parameters={"value": 0}),
            Node(name="s1.gram", op="ngram", input="s1.fill", parameters={"n": 2}),
            Node(name="s1.clamp", op="clamp", input="s1.gram",
                 parameters={"lo": -(10**9), "hi": 10**9}),
            Node(name="s1.first", op="first_x", input="s1.clamp", parameters={"x": 3}),
            Node(name="s1.hash", op="sigrid_hash", input="s1.first",
                 parameters={"salt": 0, "modulus": 11}),
            Node(name="s1.raw", op="sigrid_hash", input="s1.fill",
                 parameters={"salt": 1, "modulus": 11}),
            Node(name="s2.fill", op="fill_null", input="s2", parameters={"value": 2}),
            Node(name="s2.float", op="cast", input="s2.fill", parameters={"dtype": "float32"}),
            Node(name="s2.hot", op="one_hot", input="s2.float",
                 parameters={"lo": 0, "hi": 50, "k": 4}),
            Node(name="s2.gram", op="ngram", input="s2.float", parameters={"n": 2}),
            Node(name="s2.int", op="cast", input="s2.gram", parameters={"dtype": "int64"}),
            Node(name="s2.hash", op="sigrid_hash", input="s2.int",
                 parameters={"salt": 2, "modulus": 13}),
        ),
        dense=("d0.logit", "d1.box", "d1.log", "d1.hot", "s2.hot"),
        sparse=(
            SparseOutput(node="d0.bucket", rows=4),
            SparseOutput(node="d1.map", rows=3),
            SparseOutput(node="s0.first", rows=97),
            SparseOutput(node="s1.hash", rows=11),
            SparseOutput(node="s1.raw", rows=11),
            SparseOutput(node="s2.hash", rows=13),
        ),
        over_arch=(16, 1),
    )  # fmt: skip


def batch(rows: int = ROWS, seed: int = 0) -> RawBatch:
    """A batch of `every_operator`: nulls with garbage, empty lists, negative and huge ids."""
    draw = np.random.default_rng(seed)
    dense = {}
    for name in ("d0", "d1"):
        values = draw.normal(0.5, 1.5, rows).astype(np.float32)
        valid = (draw.random(rows) < 0.8).astype(np.uint8)
        values[valid == 0] = np.nan
        dense[name] = (values, valid)
    sparse = {}
    for name, width, ragged in (("s0", 1, False), ("s1", 5, True), ("s2", 3, False)):
        values = (
            draw.integers(0, 50, (rows, width))
            if name == "s2"
            else draw.integers(-(2**63), 2**63 - 1, (rows, width))
        )
        valid = (draw.random((rows, width)) < 0.8).astype(np.uint8)
        values[valid == 0] = -(2**62)
        lengths = draw.integers(0, width + 1, rows).astype(np.int32) if ragged else None
        sparse[name] = (values, valid, lengths)
    labels = draw.integers(0, 2, rows).astype(np.float32)
    return RawBatch(dense=dense, sparse=sparse, labels=labels)

"""Pooling and ratios of record tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ae.figures.summary import in_order, pool, ratio_interval


def table(*rows: dict[str, object]) -> pd.DataFrame:
    own = {"metric": "t", "unit": "us", "evidence": "measured", "experiment": "e", "point": "p",
           "repeat": 0}  # fmt: skip
    return pd.DataFrame([{**own, **row} for row in rows])


def test_repeats_of_a_point_are_put_together_as_processes() -> None:
    frame = table(
        {"samples": [1.0, 2.0], "variant": "base", "repeat": 0},
        {"samples": [3.0], "variant": "base", "repeat": 1},
        {"samples": [9.0], "variant": "rpf", "repeat": 0},
    )
    found = pool(frame, "t", ["variant"])
    assert list(found["variant"]) == ["base", "rpf"]
    assert found["samples"][0] == {("", ""): [1.0, 2.0], ("", "1"): [3.0]}
    assert list(found["n"]) == [3, 1]
    assert list(found["processes"]) == [2, 1]
    assert list(found["median"]) == [2.25, 9.0]  # of the processes: 1.5 and 3


def test_labels_that_a_record_lacks_are_empty_and_evidence_is_joined() -> None:
    frame = table(
        {"samples": [1.0], "variant": "base"},
        {"samples": [2.0], "variant": "l2p", "l2_mode": "hint"},
        {"samples": [3.0], "variant": "l2p", "l2_mode": "hint", "evidence": "emulated"},
    )
    found = pool(frame, "t", ["variant", "l2_mode", "never_there"])
    assert list(found["l2_mode"]) == ["", "hint"]
    assert list(found["never_there"]) == ["", ""]
    assert list(found["evidence"]) == ["measured", "emulated+measured"]


def test_an_unknown_metric_and_an_empty_table_give_no_rows() -> None:
    assert pool(table({"samples": [1.0]}), "other", ["variant"]).empty
    empty = pool(pd.DataFrame(), "t", ["variant"])
    assert empty.empty
    assert "median" in empty.columns


def test_ratio_interval_holds_the_ratio_of_medians() -> None:
    rng = np.random.default_rng(0)
    top, bottom = (
        {("h", str(process)): list(rng.normal(mean, mean / 20, 80)) for process in range(6)}
        for mean in (20, 10)
    )
    found = ratio_interval(top, bottom)
    assert found.value == pytest.approx(2.0, abs=0.03)
    assert found.low < found.value < found.high
    assert found.high - found.low < 0.1
    assert found.spread == "ci95"
    assert ratio_interval(top, {("h", "1"): [10.0] * 9}).spread == "none"


def test_order() -> None:
    assert in_order(["c", "a", "b", "a"], ["b", "x", "a"]) == ["b", "a", "c"]

"""The terminal tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import pytest

from ae.report.tables import (
    cells,
    grid,
    number,
    result_table,
    result_tables,
    result_text,
    skip_groups,
    verdict_text,
)


@dataclass(frozen=True)
class Skipped:
    labels: Mapping[str, str]
    reason: str


@dataclass(frozen=True)
class Judged:
    id: str
    verdict: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


def record(samples: list[float], **columns: object) -> dict[str, object]:
    own = {"metric": "kernel_time", "unit": "us", "evidence": "measured", "experiment": "embedding",
           "point": "p", "repeat": 0}  # fmt: skip
    return {**own, "samples": samples, "n": len(samples), **columns}


FRAME = pd.DataFrame(
    [
        record([40.0, 41.0, 42.0], dataset="random", variant="stock", launch="one_table"),
        record([100.0, 101.0, 99.0], dataset="random", variant="base", launch="one_table"),
        record([50.0, 50.0, 50.0], dataset="random", variant="rpf", launch="one_table"),
        record([20.0, 20.5, 21.0], dataset="random", variant="best", launch="one_table"),
        record([18.0, 18.0, 18.0], dataset="random", variant="best", launch="all_tables"),
        record([60.0, 60.0, 60.0], dataset="one_item", variant="base", launch="one_table"),
    ]
)
ORDER = {"dataset": ["one_item", "random"], "variant": ["base", "rpf", "stock", "best"]}


def result(**options: object) -> str:
    table = result_table(
        FRAME, metric="kernel_time", keys=["dataset", "variant"], baseline="base",
        baselines={"best": "stock"}, order=ORDER,
    )  # fmt: skip
    return result_text(table, **options)  # type: ignore[arg-type]


def test_a_rate_is_compared_the_other_way_round() -> None:
    rates = FRAME.assign(metric="throughput", unit="samples/s")
    table = result_table(rates, metric="throughput", keys=["dataset", "variant"], baseline="base")
    speedups = {row.keys: row.speedup for row in table.rows}
    assert speedups["random", "rpf", "one_table"] == pytest.approx(0.5)
    assert speedups["random", "base", "one_table"] is None
    shares = FRAME.assign(metric="share", unit="%")
    table = result_table(shares, metric="share", keys=["dataset", "variant"], baseline="base")
    assert {row.speedup for row in table.rows} == {None}


def test_result_table_by_values() -> None:
    table = result_table(
        FRAME, metric="kernel_time", keys=["dataset", "variant"], baseline="base",
        baselines={"best": "stock"}, order=ORDER,
    )  # fmt: skip
    # `launch` tells the two records of `best` apart, so it became a key.
    assert table.keys == ("dataset", "variant", "launch")
    assert [row.keys for row in table.rows] == [
        ("one_item", "base", "one_table"),
        ("random", "base", "one_table"),
        ("random", "rpf", "one_table"),
        ("random", "stock", "one_table"),
        ("random", "best", "one_table"),
        ("random", "best", "all_tables"),
    ]
    speedups = [row.speedup for row in table.rows]
    assert speedups[:2] == [None, None]  # the baseline itself
    assert speedups[2] == pytest.approx(2.0)
    assert speedups[3] == pytest.approx(100 / 41)
    assert speedups[4] == pytest.approx(41 / 20.5)
    assert table.rows[4].baseline == "stock"
    assert speedups[5] is None  # nothing to compare one launch for all tables with


@pytest.mark.parametrize("width", [80, 100, 120])
def test_result_text_fits_and_says_everything(width: int) -> None:
    text = result(width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "kernel_time [us]" in text
    assert "99 to 101" in text
    assert "2.00x over base" in text
    assert "2.00x over stock" in text
    assert "n: 3, evidence: measured" in text


def test_samples_and_evidence_are_columns_where_they_differ() -> None:
    frame = pd.DataFrame(
        [record([1.0], variant="a"), record([1.0, 2.0], variant="b", evidence="emulated")]
    )
    text = result_text(result_table(frame, metric="kernel_time", keys=["variant"]))
    assert text.splitlines()[0].split()[-3:] == ["n", "evidence", "speed-up"]
    assert "emulated" in text.splitlines()[3]


def test_skips_of_one_reason_are_one_line_with_its_reason() -> None:
    skips = [
        Skipped({"dataset": dataset, "variant": variant, "launch": launch}, "no counterpart")
        for launch in ("one_table", "all_tables")
        for variant in ("smpf", "lmpf")
        for dataset in ("random", "one_item")
    ] + [Skipped({"dataset": "random", "device": "cpu"}, "too small")]
    frame = FRAME.assign(device="cpu")
    assert skip_groups(skips, frame, ["dataset", "variant"], ORDER) == [
        ("variant smpf, lmpf; every dataset; launch one_table, all_tables", "no counterpart"),
        ("dataset random", "too small"),  # every record is of device cpu: nothing to say
    ]
    (table,) = result_tables(
        frame, metric="kernel_time", keys=["dataset", "variant"], order=ORDER, skipped=skips
    )
    assert "skipped variant smpf, lmpf; every dataset; launch" in result_text(table, width=120)


def test_one_table_per_experiment_with_its_own_metric() -> None:
    others = [
        record([5.0], metric=metric, unit=unit, experiment="endtoend", **labels)
        for metric, unit, labels in (
            ("pin_time", "us", {}),
            ("embedding_share", "%", {"variant": "base"}),
            ("endtoend_time", "us", {"variant": "base"}),
        )
    ]
    frame = pd.concat([FRAME, pd.DataFrame(others)])
    tables = result_tables(frame, metric="kernel_time", keys=["dataset", "variant"])
    assert [(t.experiment, t.metric) for t in tables] == [
        ("embedding", "kernel_time"), ("endtoend", "endtoend_time"),
    ]  # fmt: skip
    assert tables[1].keys == ("variant",)  # endtoend has no dataset here: no empty column


def test_only_times_have_a_speed_up() -> None:
    frame = pd.DataFrame(
        [record([74.0], variant="base", metric="registers", unit="registers"),
         record([37.0], variant="optmt", metric="registers", unit="registers")]
    )  # fmt: skip
    table = result_table(frame, metric="registers", keys=["variant"], baseline="base")
    assert [row.speedup for row in table.rows] == [None, None]


def test_nothing_measured_still_shows_what_was_skipped() -> None:
    (table,) = result_tables(
        pd.DataFrame(), metric="kernel_time", keys=["variant"],
        skipped=[Skipped({"variant": "l2p"}, "needs a GPU")],
    )  # fmt: skip
    assert result_text(table) == (
        "no records of metric kernel_time\nskipped variant l2p: needs a GPU"
    )


def test_verdict_table_wraps_reasons_and_counts() -> None:
    long = "the record of variant stock21 is not there because the wheel could not be had " * 2
    text = verdict_text(
        [Judged("D1", "reproduced", 3.2, 3.1, 3.3), Judged("D2", "not run", reason=long)], width=80
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "3.200 (3.100 to 3.300)" in text
    assert " ".join(long.split()[-4:]) in " ".join(text.split())
    assert text.endswith("2 claims: 1 reproduced, 1 not run")


def test_grid_lines_up_wide_and_combining_characters() -> None:
    text = grid(["name", "x"], [["電池", "1"], ["e\u0301te\u0301", "2"], ["ab", "3"]])
    ends = [line[: line.rindex(line[-1])] for line in text.splitlines()[2:]]
    assert [cells(end) for end in ends] == [6, 6, 6]


def test_control_characters_cannot_reach_the_terminal() -> None:
    text = grid(["a", "b"], [["\x1b[31mred\x07", "line\nbreak\x9b"]])
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "?[31mred?" in text
    assert "line break" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (74, "74"), (37.5, "37.50"), (1.534, "1.534"), (229434, "229,434"),
        (123.44, "123.4"), (0.00012, "0.00012"), (3e9, "3e+09"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_number(value: float, text: str) -> None:
    assert number(value) == text

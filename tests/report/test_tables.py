"""The terminal tables."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from ae.claims.judge import Claim, Judgement, Verdict
from ae.records.files import Skip
from ae.report import tables as tabling
from ae.report.tables import ResultTable, Row, Shape, skip_groups
from ae.report.text import (
    grid,
    number,
    result_csv,
    result_latex,
    result_text,
    short_reason,
    skip_text,
    span,
    verdict_text,
)


def judged(name: str, verdict: Verdict, reason: str = "", **facts: Any) -> Judgement:
    claim = Claim.model_validate(
        {
            "id": name, "figure": "f", "sentence": "s", "tag": "magnitude", "unit": "x",
            "reference": facts.pop("reference", None), "paper_hardware": "", "scored_on": ["any"],
            "source": facts.pop("source", "paper"),
        }
    )  # fmt: skip
    return Judgement(claim=claim, verdict=verdict, reason=reason, **facts)


def record(samples: list[float], **columns: object) -> Row:
    own = {"metric": "kernel_time", "unit": "us", "evidence": "measured", "experiment": "embedding",
           "point": "p", "repeat": 0}  # fmt: skip
    return {**own, "samples": samples, "n": len(samples), **columns}


def processes(samples: list[float], **columns: object) -> list[Row]:
    """One sample a process."""
    return [record([x], process=str(i), **columns) for i, x in enumerate(samples)]


FRAME = [
    *processes(
        [40.0, 41.0, 42.0, 41.0, 41.0], dataset="random", variant="stock", launch="one_table"
    ),
    *processes(
        [100.0, 101.0, 99.0, 100.0, 100.0], dataset="random", variant="base", launch="one_table"
    ),
    *processes([50.0, 50.0, 50.0, 50.0, 50.0], dataset="random", variant="rpf", launch="one_table"),
    *processes(
        [20.0, 20.5, 21.0, 20.5, 20.5], dataset="random", variant="best", launch="one_table"
    ),
    *processes(
        [18.0, 18.0, 18.0, 18.0, 18.0], dataset="random", variant="best", launch="all_tables"
    ),
    *processes(
        [60.0, 60.0, 60.0, 60.0, 60.0], dataset="one_item", variant="base", launch="one_table"
    ),
]
ORDER = {"dataset": ["one_item", "random"], "variant": ["base", "rpf", "stock", "best"]}


def result_tables(rows: list[Row], **shape: Any) -> list[ResultTable]:
    return tabling.result_tables(rows, Shape(**shape))


def result_table(rows: list[Row], **shape: Any) -> ResultTable:
    (table,) = result_tables(rows, **shape)
    return table


def keys_of(table: ResultTable) -> list[tuple[str, ...]]:
    return [tuple(row[key] for key in table.keys) for row in table.rows]


def result(**options: object) -> str:
    table: ResultTable = result_table(
        FRAME, metrics=["kernel_time"], keys=["dataset", "variant"], baseline="base",
        baselines={"best": "stock"}, order=ORDER,
    )  # fmt: skip
    return result_text(table, **options)  # type: ignore[arg-type]


def test_a_rate_is_compared_the_other_way_round() -> None:
    rates = [row | {"metric": "throughput", "unit": "samples/s"} for row in FRAME]
    table = result_table(
        rates, metrics=["throughput"], keys=["dataset", "variant"], baseline="base"
    )
    speedups = dict(zip(keys_of(table), [row["speedup"] for row in table.rows], strict=True))
    assert speedups["random", "rpf", "one_table"] == pytest.approx(0.5)
    assert speedups["random", "base", "one_table"] is None
    shares = [row | {"metric": "share", "unit": "%"} for row in FRAME]
    table = result_table(shares, metrics=["share"], keys=["dataset", "variant"], baseline="base")
    assert {row["speedup"] for row in table.rows} == {None}


def test_result_table_by_values() -> None:
    table = result_table(
        FRAME, metrics=["kernel_time"], keys=["dataset", "variant"], baseline="base",
        baselines={"best": "stock"}, order=ORDER,
    )  # fmt: skip
    # `launch` tells the two records of `best` apart, so it became a key.
    assert table.keys == ("dataset", "variant", "launch")
    assert keys_of(table) == [
        ("one_item", "base", "one_table"),
        ("random", "base", "one_table"),
        ("random", "rpf", "one_table"),
        ("random", "stock", "one_table"),
        ("random", "best", "one_table"),
        ("random", "best", "all_tables"),
    ]
    speedups = [row["speedup"] for row in table.rows]
    assert speedups[:2] == [None, None]  # the baseline itself
    assert speedups[2] == pytest.approx(2.0)
    assert speedups[3] == pytest.approx(100 / 41)
    assert speedups[4] == pytest.approx(41 / 20.5)
    assert table.rows[4]["baseline"] == "stock"
    assert speedups[5] is None  # nothing to compare one launch for all tables with


@pytest.mark.parametrize("width", [80, 100, 120])
def test_result_text_fits_and_says_everything(width: int) -> None:
    text = result(width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "kernel_time [us]" in text
    assert "99 to 101" in text
    assert "2.00x over base" in text
    assert "2.00x over stock" in text
    assert " ".join(text.split()).endswith(
        "median and 95 % interval over processes, n: 5, processes: 5, devices: 1, "
        "evidence: measured"
    )


def test_samples_and_evidence_are_columns_where_they_differ() -> None:
    frame = [record([1.0], variant="a"), record([1.0, 2.0], variant="b", evidence="emulated")]
    text = result_text(result_table(frame, metrics=["kernel_time"], keys=["variant"]))
    assert text.splitlines()[1].split()[-3:] == ["n", "evidence", "speed-up"]
    assert "emulated" in text.splitlines()[4]
    assert text.splitlines()[-1] == "median, processes: 1, devices: 1"


def test_skips_of_one_reason_are_one_line_with_its_reason() -> None:
    skips = [
        Skip(
            labels={"dataset": dataset, "variant": variant, "launch": launch},
            reason="no counterpart",
        )
        for launch in ("one_table", "all_tables")
        for variant in ("smpf", "lmpf")
        for dataset in ("random", "one_item")
    ] + [Skip(labels={"dataset": "random", "device": "cpu"}, reason="too small")]
    frame = [row | {"device": "cpu"} for row in FRAME]
    groups = skip_groups(skips, frame, Shape(keys=["dataset", "variant"], order=ORDER))
    assert groups == [
        ("variant smpf, lmpf; every dataset; launch one_table, all_tables", "no counterpart"),
        ("dataset random", "too small"),  # every record is of device cpu: nothing to say
    ]
    assert "skipped variant smpf, lmpf; every dataset; launch" in skip_text(groups, width=120)
    assert skip_text(groups, most=1).splitlines()[-1] == "skipped for 1 more reasons"


def test_one_table_per_experiment_with_its_own_metric() -> None:
    others = [
        record([5.0], metric=metric, unit=unit, experiment="endtoend", **labels)
        for metric, unit, labels in (
            ("pin_time", "us", {}),
            ("embedding_share", "%", {"variant": "base"}),
            ("endtoend_time", "us", {"variant": "base"}),
        )
    ]
    frame = [*FRAME, *others]
    tables = result_tables(frame, metrics=["kernel_time"], keys=["dataset", "variant"])
    assert [(t.experiment, t.metric) for t in tables] == [
        ("embedding", "kernel_time"), ("endtoend", "endtoend_time"),
    ]  # fmt: skip
    assert tables[1].keys == ("variant",)  # endtoend has no dataset here: no empty column


def test_of_an_experiment_the_first_named_metric_is_shown() -> None:
    """Before any other time that has as many keys, such as those of a tuner's trials."""
    frame = [
        record([5.0], metric=metric, experiment="endtoend", variant="base")
        for metric in ("tuning_time", "endtoend_time")
    ]
    tables = result_tables(
        [*FRAME, *frame], metrics=["kernel_time", "endtoend_time"], keys=["variant"]
    )
    assert [t.metric for t in tables] == ["kernel_time", "endtoend_time"]
    (unnamed,) = result_tables(frame, metrics=["kernel_time"], keys=["variant"])
    assert unnamed.metric == "tuning_time"


def test_cells_of_several_units_say_theirs() -> None:
    frame = [record([8.0], counter="bytes", unit="B"), record([2.0], counter="reads", unit="reads")]
    text = result_text(result_table(frame, metrics=["kernel_time"], keys=["counter"]))
    assert [line.split()[1:3] for line in text.splitlines()[3:5]] == [["8", "B"], ["2", "reads"]]
    assert "[" not in text


def test_only_times_have_a_speed_up() -> None:
    frame = [
        record([74.0], variant="base", metric="registers", unit="registers"),
        record([37.0], variant="optmt", metric="registers", unit="registers"),
    ]
    table = result_table(frame, metrics=["registers"], keys=["variant"], baseline="base")
    assert [row["speedup"] for row in table.rows] == [None, None]


def test_nothing_measured_still_shows_what_was_skipped() -> None:
    assert result_tables([], metrics=["kernel_time"], keys=["variant"]) == []
    groups = skip_groups([Skip(labels={"variant": "l2p"}, reason="needs a GPU")], [], Shape())
    assert skip_text(groups) == "skipped variant l2p: needs a GPU"
    groups = skip_groups([Skip(labels={"variant": "a\x1bb"}, reason="no")], [], Shape())
    assert groups == [("variant a?b", "no")]


def test_a_spread_is_named_and_one_process_has_none() -> None:
    frame = [
        record([9.0, 11.0] * 9, variant="one"), *processes([10.0] * 5, variant="same"),
        *processes([9.0, 10.0, 11.0] * 2, variant="six"),
        *(processes([9.0, 10.0, 11.0], variant="three") * 2),
    ]  # fmt: skip
    table = result_table(frame, metrics=["kernel_time"], keys=["variant"])
    one, same, six, three = result_text(table).splitlines()[3:7]
    assert one.split() == ["one", "10", "18", "1", "-"]
    assert same.split() == ["same", "10", "5", "5", "-"]
    assert six.split() == ["six", "10", "9", "to", "11", "6", "6", "-"]
    assert three.split() == ["three", "10", "range", "9", "to", "11", "6", "3", "-"]
    text = result_text(result_table(frame[-6:], metrics=["kernel_time"], keys=["variant"]))
    assert text.splitlines()[-1].startswith("median and range over processes, n: 6, processes: 3")
    text = result_text(result_table(frame[:1], metrics=["kernel_time"], keys=["variant"]))
    assert "interval" not in text
    assert span(10.001, 10.004) == ""
    assert span(10.0, 10.1) == "10 to 10.10"


def test_a_screen_of_a_table_says_how_much_is_missing() -> None:
    frame = [record([float(i)] * 3, variant=f"v{i}") for i in range(1, 31)]
    table = result_table(frame, metrics=["kernel_time"], keys=["variant"])
    text = result_text(table, most=5)
    assert len(text.splitlines()) == 5 + 4
    assert text.endswith("25 more rows")
    assert "v30" in result_text(table)
    assert "more rows" not in result_text(table, most=30)


def test_csv_holds_every_row_and_its_spread() -> None:
    frame = [
        record([10.0, 12.0], dataset="a", variant="base"),
        *processes([5.0, 6.0, 7.0, 6.0, 6.0], dataset="a", variant="rpf"),
        record([1.0], experiment="other", metric="t", batch="8"),
    ]
    tables = result_tables(
        frame, metrics=["kernel_time"], keys=["dataset", "variant"], baseline="base"
    )
    rows = list(csv.DictReader(io.StringIO(result_csv(tables))))
    assert [row["experiment"] for row in rows] == ["embedding", "embedding", "other"]
    assert (rows[0]["low"], rows[0]["n"]) == ("", "2")
    assert (rows[0]["spread"], rows[1]["spread"], rows[1]["processes"]) == ("none", "ci95", "5")
    assert float(rows[1]["low"]) < 6.0 < float(rows[1]["high"])
    assert float(rows[1]["speedup"]) == pytest.approx(11 / 6)
    assert rows[1]["baseline"] == "base"
    assert rows[0]["speedup"] == ""
    assert rows[2]["unit"] == "us"
    assert rows[2]["dataset"] == ""


def test_csv_of_a_label_that_is_called_as_a_part_of_a_table() -> None:
    frame = [record([1.0], rows="64"), record([1.0], experiment="other")]
    tables = result_tables(frame, metrics=["kernel_time"], keys=["rows"])
    assert [row["rows"] for row in csv.DictReader(io.StringIO(result_csv(tables)))] == ["64", ""]


def test_latex_is_escaped_and_has_a_row_a_value() -> None:
    tables = result_tables(
        [*processes([1.0, 2.0, 3.0, 2.0, 2.0], variant=r"50 % & a_b \x~^{<>}")],
        metrics=["kernel_time"], keys=["variant"],
    )  # fmt: skip
    text = result_latex(tables)
    assert text.startswith("% embedding\n\\begin{tabular}{lrrrrrll}\n\\toprule\n")
    assert (
        r"variant & kernel\_time [us] & 95 \% interval & n & processes & devices & evidence & "
        r"speed-up \\" in text
    )
    assert (
        r"50 \% \& a\_b \textbackslash x\textasciitilde \textasciicircum \{<>\}"
        r" & 2 & 1 to 3 & 5 & 5 & 1 & measured & - \\"
    ) in text
    assert text.endswith("\\end{tabular}\n")


def test_check_says_the_scoreboard_then_what_fails_then_what_is_undecided() -> None:
    long = "the direction of this one is not what the paper says it is on that GPU " * 2
    several = [
        judged("D1", Verdict.REPRODUCED, "2 to 4 x expected", value=3.2, low=3.1, high=3.3,
               reference=3.0, spread="ci95"),
        judged("D9", Verdict.REPRODUCED, value=2.0, reference=1.0, source="ours", processes=1),
        judged("D3", Verdict.UNDECIDED, "crosses", value=1.0, low=0.9, high=1.1, spread="range"),
        judged("D2", Verdict.NOT_REPRODUCED, long, value=1.0),
    ]  # fmt: skip
    text = verdict_text(several, width=100)
    assert max(map(len, text.splitlines())) <= 100
    board, failed, undecided, rest, counts = text.split("\n\n")
    assert board.startswith("facts ")
    assert board.splitlines()[2].split() == ["magnitude", "1", "1", "2"]
    assert failed.partition("\n")[0].split() == ["claim", "paper", "ours", "verdict", "why"]
    assert failed.splitlines()[2].startswith("D2")
    assert long.split(maxsplit=1)[0] in failed
    assert "1 x (range 0.900 to 1.100)" in undecided
    assert rest.splitlines()[2].startswith("D1     3 x             3.200 x (3.100 to 3.300)")
    assert "1 x (our goal)  2 x (1 process)" in rest
    assert counts == "4 claims: 1 not reproduced, 1 undecided, 2 reproduced"


def test_claims_of_one_reason_are_one_line() -> None:
    several = [
        judged("U1", Verdict.NOT_TRANSCRIBED, "nobody could read it"),
        judged("D5", Verdict.NOT_RUN, "no records of x"),
        judged("D6", Verdict.NOT_RUN, "no records of x"),
        judged("D7", Verdict.REPRODUCED, "holds"),
    ]
    assert verdict_text(several).split("\n\n")[1:] == [
        "D7: reproduced, holds", "D5, D6: not run, no records of x",
        "U1: not transcribed, nobody could read it",
        "4 claims: 1 reproduced, 2 not run, 1 not transcribed",
    ]  # fmt: skip
    assert verdict_text([]) == "no claims"


def test_a_count_of_cells_is_left_whole_before_what_is_missing() -> None:
    why = "no records of kernel_time (model=a, experiment times, gpus=2)"
    short = "no records of kernel_time in times"
    for told, said in (
        (f"5 of 5 cells: 15 of 45 cells: {why}", f"5 of 5 cells: 15 of 45 cells: {short}"),
        (f"35 of 45 cells: {why}", f"35 of 45 cells: {short}"),
        (f"5 of 5 cells: 45 of 45 cells: {why}", short),
        (f"4 of 5 cells: 45 of 45 cells: {why}", f"4 of 5 cells: {short}"),
    ):
        assert short_reason(judged("D5", Verdict.NOT_RUN, told)) == said


def test_every_verdict_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs/claims.md").read_text()
    table = page.partition("| verdict | when |\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([a-z ]+) \|", table, re.M)) == {str(word) for word in Verdict}


def test_every_verdict_is_counted() -> None:
    text = verdict_text([judged(word.name, word) for word in Verdict])
    assert text.splitlines()[-1] == "7 claims: " + ", ".join(
        f"1 {word}" for word in (
            "not reproduced", "undecided", "reproduced", "direction holds", "not comparable",
            "not run", "not transcribed",
        )
    )  # fmt: skip


def test_a_value_is_never_cut_and_brackets_are_text() -> None:
    text = grid(["a", "b"], [["x" * 90, "[bold]y[/bold]"]], width=80)
    assert "x" * 90 in text
    assert "[bold]y[/bold]" in text.replace("\n", "").replace(" ", "")


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

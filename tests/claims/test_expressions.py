"""The language of claims: what parses, what does not, and what it evaluates to."""

from __future__ import annotations

import numpy as np
import pytest

from ae.claims.evaluate import NoAnswer, NoRecords, Records, WrongEvidence, evaluate
from ae.claims.expressions import parse_expression
from ae.records.files import Row


def row(metric: str, *samples: float, evidence: str = "measured", **labels: str) -> Row:
    experiment = labels.pop("experiment", "embedding")
    process = labels.pop("process", "")
    return Row(
        metric=metric, unit="us", evidence=evidence, samples=samples or (1.0,), labels=labels,
        experiment=experiment, point=experiment, process=process,
    )  # fmt: skip


ROWS = [
    row("time", 8.0, 10.0, 30.0, variant="base", dataset="hot"),
    row("time", 5.0, variant="fast", dataset="hot"),
    row("time", 40.0, variant="base", dataset="cold"),
    row("time", 10.0, variant="fast", dataset="cold"),
    row("time", 60.0, variant="base", dataset="lone"),
    row("regs", 74.0, evidence="static", variant="base", arch="sm_80", experiment="static"),
    row("energy", 3.0, evidence="emulated", variant="base", dataset="hot"),
]


def value(text: str, *evidence: str, rows: list[Row] | None = None) -> float | bool:
    records = Records(ROWS if rows is None else rows)
    answer = evaluate(parse_expression(text), records, evidence or ("measured", "static"))
    found: float | bool = answer.values[0].item()
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("median(time, variant=base, dataset=hot) > 9", "10 > 9"),
        ("1 < 2 <= median(time, variant=base, dataset=hot) < 7", "not 10 < 7"),
        ("not 2 > 1", "2 > 1"),
        ("not (2 > 1 and 1.25 > 1)", "1.25 > 1"),
        ("not 1 > 2 and not 1 > 1.25", "not 1 > 1.25"),
        ("2 > 1 or 1.25 > 1", "2 > 1"),
        ("1 > 2 or 1 > 1.25", "not 1 > 1.25"),
        ("0 == 0 and 2 == 2", "0 == 0"),
        ("1 > 4 or median(nothing, variant=base) > 1 or 2 > 1", "2 > 1"),
        (
            "every_over(ratio(time, variant=base/fast) >= 2, dataset=[hot, cold])",
            "2 >= 2 for dataset hot",
        ),
        (
            "every_over(ratio(time, variant=base/fast) > 4, dataset=[hot, cold])",
            "not 2 > 4 for dataset hot",
        ),
        (
            "any_over(ratio(time, variant=base/fast) > 1, dataset=[hot, cold])",
            "4 > 1 for dataset cold",
        ),
        ("every_over(dataset, median(time, variant=base) > 1) and 2 > 1", "2 > 1"),
        ("median(time, variant=base, dataset=hot)", ""),
    ],
)
def test_the_comparison_that_decides(text: str, expected: str) -> None:
    answer = evaluate(parse_expression(text), Records(ROWS), ("measured",))
    assert answer.closest == expected


def test_what_all_records_share_is_not_told_with_a_comparison() -> None:
    expression = parse_expression("every_over(median(time) > 9, variant=[base, fast])")
    answer = evaluate(expression, Records(ROWS), ("measured",), {"dataset": "hot"})
    assert answer.closest == "not 5 > 9 for variant fast"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("median(time, variant=base, dataset=hot)", 10.0),
        ("mean(time, variant=base, dataset=hot)", 16.0),
        ("minimum(time, variant=base, dataset=hot)", 8.0),
        ("maximum(time, variant=base, dataset=hot)", 30.0),
        ("ratio(time, variant=base/fast, dataset=hot)", 2.0),
        ("ratio(time, variant=fast/base, dataset=cold/hot)", 1.0),
        ("mean_over(ratio(time, variant=base/fast), dataset=[hot, cold])", 3.0),
        ("median_over(median(time, dataset=hot), variant=[base, fast])", 7.5),
        ("geomean_over(ratio(time, variant=base/fast), dataset=[hot, cold])", 8**0.5),
        ("median(time, variant=base, dataset=hot) - minimum(time, variant=base, dataset=hot)", 2.0),
        ("2 + 3 * 4 - 6 / 4", 12.5),
        ("-(1 + 1)", -2.0),
        ("best_over(dataset, median(time, variant=base) / median(time, variant=fast))", 4.0),
        ("worst_over(dataset, median(time, variant=base) / median(time, variant=fast))", 2.0),
        ("best_over(dataset, median(time, variant=base))", 60.0),
        ("median(time, variant='base', dataset=\"hot\")", 10.0),
        ("median(time, experiment=embedding, variant=base, dataset=hot)", 10.0),
        ("best_over(dataset, median(time, variant=fast, dataset=cold))", 10.0),
        ("best_over(variant, worst_over(dataset, median(time)))", 10.0),
    ],
)
def test_numbers(text: str, expected: float) -> None:
    assert parse_expression(text).kind == "number"
    assert value(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 < 2 < 3", True),
        ("1 < 2 > 3", False),
        ("1 <= 1 and not 2 >= 3 or 1 != 1", True),
        ("1 < 2 and 1 > 2", False),
        ("1 < 2 or 1 > 2", True),
        ("1 == 1 + 0.0000000000001", True),
        ("1 == 1.000001", False),
        ("1 != 1.000001", True),
        ("1 != 1 + 0.0000000000001", False),
        ("1 + 0.0000000000001 <= 1 and 1 >= 1 + 0.0000000000001", True),
        ("1 < 1 + 0.0000000000001 or 1 + 0.0000000000001 > 1", False),
        ("median(regs, arch=sm_80) == 74", True),
        ("every_over(dataset, median(time, variant=fast) < median(time, variant=base))", True),
        ("every_over(dataset, median(time, variant=fast) <= 5)", False),
        ("any_over(dataset, median(time, variant=fast) <= 5)", True),
    ],
)
def test_booleans(text: str, expected: bool) -> None:
    assert parse_expression(text).kind == "boolean"
    assert value(text) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an expression"),
        ("median(time", "not an expression"),
        ("a = 1", "not an expression"),
        ("1) + (2", "not an expression"),
        ("time", "'time' is not in the language"),
        ("'text'", "is not in the language"),
        ("True", "is not in the language"),
        ("1j", "is not in the language"),
        ("2 ** 9", "'2 ** 9' is not in the language"),
        ("7 // 2", "is not in the language"),
        ("+1", "is not in the language"),
        ("[1, 2]", "is not in the language"),
        ("1 if 1 < 2 else 3", "is not in the language"),
        ("(lambda: 1)()", "is not in the language"),
        ("median(time).real", "is not in the language"),
        ("__import__('os')", "there is no function '__import__'"),
        ("medain(time)", "there is no function 'medain'; did you mean 'median'?"),
        ("().__class__", "is not in the language"),
        ("1 in 2", "is not in the language"),
        ("1 is 1", "is not in the language"),
        ("median()", "write median(metric, label=value, ...)"),
        ("median(time, base)", "write median(metric, label=value, ...)"),
        ("median(time, **x)", "must be a word|write median"),
        ("median(*time)", "must be a word"),
        ("median(time, variant=a.b)", "'a.b' must be a word; put other text in quotes"),
        ("median(time, variant=True)", "'True' must be a word"),
        ("median(median(time))", "must be a word"),
        ("best_over(dataset)", "write best_over(label, ..., expression"),
        ("best_over('dataset', 1)", "write best_over(label, ..., expression"),
        ("best_over(1)", "write best_over(label, ..., expression"),
        ("best_over(dataset, 1, **x)", "write best_over(label, ..., expression"),
        ("median(time, variant=a/b)", "write median(metric, label=value"),
        ("median(time, variant=[a, b])", "write median(metric, label=value"),
        ("median(time, variant=[a])", "write median(metric, label=value"),
        ("ratio(time, variant=a)", "write ratio(metric, label=this/that"),
        ("ratio(time)", "write ratio(metric, label=this/that"),
        ("best_over(dataset, 1 < 2)", "'1 < 2' must be a number"),
        ("every_over(dataset, 1)", "'1' must be a boolean"),
        ("1 and 2", "'1' must be a boolean"),
        ("not 1", "'1' must be a boolean"),
        ("(1 < 2) + 1", "'1 < 2' must be a number"),
        ("(1 < 2) < 3", "'1 < 2' must be a number"),
        ("1" * 400, "a number is too large"),
        ("-" * 3000 + "1", "nested too deeply|not in the language|not an expression"),
        ("1 + " * 1500 + "1", "longer than"),
    ],
)  # fmt: skip
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_expression(text)
    assert any(part in str(caught.value) for part in message.split("|")), str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("median(tim, variant=base)", NoRecords, "no records of tim (variant base)"),
        ("median(time, variant=slow)", NoRecords, "no records of time (variant slow)"),
        ("median(time, variant=base)", NoAnswer,
         "several records match time (variant base): dataset is cold, hot, lone"),
        ("best_over(dataset, median(nothing))", NoRecords, "no records of nothing (dataset "),
        ("best_over(colour, median(time))", NoRecords, "no records with a colour"),
        ("median(energy, variant=base)", WrongEvidence,
         "the records of energy (variant base) are emulated"),
        ("best_over(dataset, median(energy, variant=base))", WrongEvidence, "are emulated"),
        ("1 / (2 - 2)", NoAnswer, "'2 - 2' is 0"),
    ],
)  # fmt: skip
def test_no_answer(text: str, kind: type[NoAnswer], message: str) -> None:
    with pytest.raises(kind) as caught:
        value(text)
    assert message in str(caught.value)


def test_experiments_are_kept_apart_and_repeats_are_put_together() -> None:
    repeats = [row("time", 1.0, variant="a"), row("time", 3.0, variant="a")]
    assert value("median(time)", rows=repeats) == 2.0
    others = [row("time", 1.0), row("time", 3.0, experiment="pin_cost")]
    with pytest.raises(NoAnswer, match="experiment is embedding, pin_cost"):
        value("median(time)", rows=others)
    assert value("median(time, experiment=pin_cost)", rows=others) == 3.0


def test_a_label_that_only_some_records_have_tells_them_apart() -> None:
    rows = [row("time", 1.0, variant="a"), row("time", 3.0, variant="a", mode="x")]
    with pytest.raises(NoAnswer, match="mode is none, x"):
        value("median(time)", rows=rows)


def test_different_units_are_refused() -> None:
    other = Row(metric="time", unit="ms", evidence="measured", samples=(1.0,), labels={},
                experiment="embedding", point="p")  # fmt: skip
    with pytest.raises(NoAnswer, match="several units: ms, us"):
        value("median(time)", rows=[row("time", 1.0), other])


def test_the_interval_follows_the_samples() -> None:
    rng = np.random.default_rng(0)
    rows = [
        row("time", *rng.normal(mean, 1, 60), variant=variant, process=str(process))
        for variant, mean in (("base", 20), ("fast", 10))
        for process in range(6)
    ]
    text = "median(time, variant=base) / median(time, variant=fast)"
    records = Records(rows)
    answer = evaluate(parse_expression(text), records, ["measured"])
    values = answer.values
    assert answer.basis == ("ci95", 6, 1)
    low, high = np.percentile(values[1:], [2.5, 97.5])
    assert low < 2.0 < high
    assert 0.01 < high - low < 0.2
    same = parse_expression("median(time, variant=base) / median(time, variant=base)")
    assert set(evaluate(same, records, ["measured"]).values) == {1.0}  # one record, drawn once


def test_expressions_over_the_same_records_leave_each_other_alone() -> None:
    records = Records([*ROWS, *(row("many", n, n + 1.0, process=str(n)) for n in range(5))])
    asked = [
        (parse_expression(f"{name}({metric})"), [evidence])
        for name in ("median", "minimum", "mean")
        for metric in ("many", "time, variant=base, dataset=hot", "regs")
        for evidence in ("measured", "static")
    ]

    def told(shared: Records | None) -> list[object]:
        found: list[object] = []
        for text, evidence in asked:
            try:
                answer = evaluate(text, shared or Records(records.rows), evidence)
                found.append((answer.values.tolist(), answer.rows, answer.basis))
            except WrongEvidence as wrong:
                found.append(str(wrong))
        return found

    assert told(records) == told(records) == told(None)


def test_the_records_used_are_told() -> None:
    answer = evaluate(
        parse_expression("median(time, variant=fast, dataset=hot)"), Records(ROWS), ["measured"]
    )
    assert answer.rows == (ROWS[1],)


def test_labels_are_listed() -> None:
    text = "best_over(dataset, median(time, variant=base) / median(time, variant=2, arch=sm_80))"
    assert sorted(parse_expression(text).labels()) == [
        ("arch", "sm_80"), ("variant", "2"), ("variant", "base"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("every_over(median(time, variant=fast) > 0, dataset=[hot, cold, lone])",
         "1 of 3 cells: no records of time (dataset lone, variant fast)"),
        ("any_over(median(time, variant=fast) > 0, dataset=[hot, lone])", "1 of 2 cells"),
        ("best_over(median(time), dataset=[hot, cold], variant=[base, fast, slow])",
         "2 of 6 cells: no records of time (dataset hot, variant slow)"),
        ("mean_over(median(time, variant=fast), dataset=[lone])", "1 of 1 cells"),
        ("best_over(median(time, dataset=lone), variant=[base, fast])", "1 of 2 cells"),
        # A value that is found counts with all its cells.
        ("worst_over(median(time), dataset=found, variant=[base, fast])", "1 of 6 cells"),
    ],
)  # fmt: skip
def test_a_missing_cell_is_no_answer_and_counted(text: str, message: str) -> None:
    with pytest.raises(NoRecords) as caught:
        value(text)
    assert message in str(caught.value)


def test_a_cell_that_breaks_a_rule_of_every_cell_is_enough() -> None:
    """Else a failure could be hidden by leaving out another cell."""
    text = "every_over(median(time, variant=fast) > 7, dataset=[hot, cold, lone])"
    assert value(text) is False


def test_one_side_that_decides_in_every_draw_needs_no_other() -> None:
    """Of `or` one that holds; of `and` one that does not: else leaving out a cell hides it."""
    rows = [*ROWS, *(row("spread", each, process=str(each)) for each in (1.0, 2.0, 3.0, 4.0, 5.0))]
    lone = "median(time, variant=fast, dataset=lone) > 1"
    assert value("median(spread) > 2", rows=rows)
    assert value(f"median(time, variant=fast, dataset=hot) > 1 or {lone}")
    assert value(f"{lone} or median(time, variant=fast, dataset=hot) > 1")
    assert value("median(energy) == 3 or median(time, variant=fast, dataset=hot) > 1")
    assert value(f"median(time, variant=fast, dataset=hot) > 6 and {lone}") is False
    assert value(f"{lone} and median(time, variant=fast, dataset=hot) > 6") is False
    for text in (
        f"median(time, variant=fast, dataset=hot) > 6 or {lone}",
        f"median(spread) > 2 or {lone}",  # not so in every draw
        f"median(spread) < 2 and {lone}",
        f"median(time, variant=fast, dataset=hot) > 1 and {lone}",
        f"{lone} or {lone}",
    ):
        with pytest.raises(NoRecords, match="dataset lone"):
            value(text, rows=rows)


def test_values_that_are_found_may_belong_to_something_else() -> None:
    rows = [*ROWS, row("other", 1.0, dataset="unknown")]
    text = "worst_over(median(time, variant=base), dataset=found)"
    assert value(text, rows=rows) == 10.0


def test_each_cell_that_is_found_counts_once() -> None:
    assert value("mean_over(median(time), dataset=found, variant=found)") == 25.0


def test_cells_are_written_out_from_what_is_known() -> None:
    asked: list[tuple[str, frozenset[str]]] = []

    def values(label: str, experiments: frozenset[str]) -> list[str]:
        asked.append((label, experiments))
        return ["hot", "cold"] if label == "dataset" else ["base"]

    text = "every_over(dataset, variant, median(time, experiment=embedding) > 0) and 1 < 2"
    written = parse_expression(text).with_cells(values)
    assert asked == [(label, frozenset({"embedding"})) for label in ("dataset", "variant")]
    assert parse_expression(written.text) == written
    assert "dataset=['hot', 'cold'], variant=['base']" in written.text
    assert evaluate(written, Records(ROWS), ["measured"]).values[0]


def test_labels_of_where_are_shared_and_overridden() -> None:
    text = parse_expression(
        "ratio(time, variant=base/fast) + median(time, variant=base, dataset=lone)"
    )
    assert evaluate(text, Records(ROWS), ["measured"], {"dataset": "cold"}).values[0] == 64.0


def test_a_share_is_of_ones() -> None:
    rows = [row("hit", *[1.0] * 60, 0.0, 0.0)]
    answer = evaluate(parse_expression("100 * share(hit)"), Records(rows), ["measured"])
    assert answer.values[0] == pytest.approx(100 * 60 / 62)
    assert answer.basis.spread == "ci95"
    with pytest.raises(NoAnswer, match="0 or 1"):
        evaluate(parse_expression("share(time, dataset=lone)"), Records(ROWS), ["measured"])

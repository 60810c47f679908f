"""claims.yaml written out: defaults, tables, bands, and the cells that the recipe has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ae.claims.judge import Claim, Verdict, judge
from ae.claims.tables import load_claims
from ae.errors import RecipeError
from ae.records.files import Row
from tests.toy import make_toy

HEAD = """
schema: 2
defaults: {figure: Table V, paper_hardware: A100, scored_on: [any], source: paper, tag: magnitude}
claims:
"""
TABLE = """
  - table: T5
    band: 5 %
    rows:
      "1": {name: AlexNet inference, where: {dataset: ones}, paper: {launches: 1428, max: 876.12}}
      "2": {name: AlexNet training, where: {dataset: ramp}, paper: {launches: 4000}}
    columns:
      launches: {sentence: "{name} launches kernels.", expression: median(kernels), unit: launches}
      max: {sentence: "{name}: {dataset}.", expression: median(set), lower: 800, tag: arithmetic}
      oracle: {paper: max, sentence: s, expression: "median(oracle, dataset={dataset})", band: 0.5}
      "": {paper: 1, sentence: s, expression: median(ratio), band: [10 %, null], fact: "T5.{row}"}
      order: {paper: null, sentence: s, expression: "median(set) > 0", band: null, tag: order}
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return make_toy(tmp_path / "toy")


def load(toy: Path, text: str) -> dict[str, Claim]:
    (toy / "recipes/toy/claims.yaml").write_text(HEAD.lstrip() + text.lstrip("\n"))
    return {claim.id: claim for claim in load_claims(toy, "toy")}


def test_a_table_is_one_claim_for_every_cell_that_the_paper_prints(toy: Path) -> None:
    found = load(toy, TABLE)
    assert list(found) == [
        "T5.1-launches", "T5.2-launches", "T5.1-max", "T5.1-oracle", "T5.1", "T5.2",
        "T5.1-order", "T5.2-order",
    ]  # fmt: skip
    launches = found["T5.2-launches"]
    assert launches.sentence == "AlexNet training launches kernels."
    assert (launches.reference, launches.lower, launches.upper) == (4000, 3800, 4200)
    assert launches.where == {"dataset": "ramp"}
    assert (launches.tag, launches.source) == ("magnitude", "paper")
    largest = found["T5.1-max"]
    assert (largest.lower, largest.upper, largest.tag) == (800, None, "arithmetic")
    assert largest.sentence == "AlexNet inference: ones."
    assert (found["T5.1-oracle"].lower, found["T5.1-oracle"].upper) == (875.62, 876.62)
    assert found["T5.1-oracle"].expression == "median(oracle, dataset=ones)"
    assert (found["T5.2"].reference, found["T5.2"].lower, found["T5.2"].upper) == (1, 0.9, None)
    assert found["T5.2"].fact == "T5.2"
    assert found["T5.1-order"].reference is None


def test_labels_of_a_row_are_added_to_those_of_the_table(toy: Path) -> None:
    where = "    band: 5 %\n    where: {dataset: ramp, variant: fast}\n"
    found = load(toy, TABLE.replace("    band: 5 %\n", where))
    assert found["T5.1-launches"].where == {"dataset": "ones", "variant": "fast"}
    assert found["T5.2-launches"].where == {"dataset": "ramp", "variant": "fast"}


def test_a_cell_is_judged_on_its_row(toy: Path) -> None:
    rows = [
        Row(metric="kernels", unit="", evidence="static", samples=(value,),
            labels={"dataset": name}, experiment="e", point="p")
        for name, value in (("ones", 1400.0), ("ramp", 1400.0))
    ]  # fmt: skip
    claims = load(toy, TABLE.replace("source: paper", ""))
    static = [claims[f"T5.{row}-launches"].model_copy(update={"evidence": ("static",)})
              for row in (1, 2)]  # fmt: skip
    assert [one.verdict for one in judge(static, rows)] == [
        Verdict.REPRODUCED, Verdict.NOT_REPRODUCED,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("{name}: {dataset}.", "{name}: {colour}.", 11, "T5.1-max: sentence has a placeholder"),
        ("unit: launches", "unti: launches", 10, "unknown key 'unti'"),
        ("max: 876.12", "max: much", 7, "claims[0].rows.1.paper.max: must be a number"),
        ("band: 0.5", "band: -1", 12, "a band is a number or a share"),
        ("median(set), lower", "medain(set), lower", 11, "there is no function 'medain'"),
        ("where: {dataset: ramp}", "where: {dataset: rmp}", 8, "unknown dataset 'rmp'"),
        ("columns:", "colums:", 4, "the table T5 has no cells"),
        (
            "paper: null, sentence: s",
            "sentence: s",
            14,
            "no row has a value of the paper for 'order'",
        ),
    ],
)
def test_a_fault_in_a_table_has_its_line(
    toy: Path, old: str, new: str, line: int, message: str
) -> None:
    assert old in TABLE
    with pytest.raises(RecipeError) as caught:
        load(toy, TABLE.replace(old, new))
    assert message in caught.value.message
    assert caught.value.message.startswith(f"recipes/toy/claims.yaml:{line}:")


CELLS = """
  - {id: C, sentence: s, tag: order,
     expression: "every_over(dataset, ratio(t, EXPERIMENT variant=slow/fast) > 1)"}
"""


def test_every_means_every_cell_of_the_recipe(toy: Path) -> None:
    """Passed today with whatever cells a run had."""
    rows = [
        Row(metric="t", unit="us", evidence="measured", samples=(value,), experiment="together",
            labels={"dataset": dataset, "variant": variant}, point="p")
        for dataset in ("ones", "ramp") for variant, value in (("slow", 2.0), ("fast", 1.0))
    ]  # fmt: skip
    (claim,) = load(toy, CELLS.replace("EXPERIMENT", "experiment=together,")).values()
    assert claim.expression is not None
    assert "dataset=['ones', 'ramp']" in claim.expression
    assert judge([claim], rows)[0].verdict is Verdict.REPRODUCED
    found = judge([claim], rows[:2])[0]
    assert found.verdict is Verdict.NOT_RUN
    assert found.reason.startswith("1 of 2 cells: no records of t (dataset ramp")


def cells(toy: Path, label: str, inner: str) -> list[str]:
    """The values that a quantifier over a label has, once they are written out."""
    head, _, tail = CELLS.partition("every_over(")
    text = head + f"every_over({label}, {inner} > 1)" + tail.partition("> 1)")[2]
    (claim,) = load(toy, text).values()
    found = re.search(rf"{label}=\[(.*?)\]", claim.expression or "")
    assert found
    return [word.strip("' ") for word in found[1].split(",")]


def change(toy: Path, old: str, new: str, count: int = -1) -> None:
    path = toy / "recipes/toy/recipe.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, count))


AXIS = "    axes: [dataset]\n"
ONLY = AXIS + "    only: {dataset: [ramp]}\n"


def test_an_axis_has_its_default_values_and_those_of_the_experiment(toy: Path) -> None:
    change(toy, AXIS, ONLY, 1)  # of `together` alone
    together, apart = (f"median(t, experiment={name})" for name in ("together", "apart"))
    assert cells(toy, "dataset", together) == ["ramp"]
    assert cells(toy, "dataset", apart) == ["ones", "ramp"]
    assert cells(toy, "dataset", f"{together} - {apart}") == ["ramp"]  # what both have
    assert cells(toy, "dataset", f"{together} - median(t, experiment=noop)") == ["ramp"]
    assert cells(toy, "dataset", "median(t)") == ["ones", "ramp"]  # what any experiment has
    change(toy, AXIS + "    variants: [slow", ONLY + "    variants: [slow")
    assert cells(toy, "dataset", "median(t)") == ["ramp"]


def test_every_quantifier_has_the_cells_of_its_own_experiment(toy: Path) -> None:
    change(toy, AXIS, ONLY, 1)
    each = [f"every_over(dataset, median(t, experiment={name}) > 1)"
            for name in ("together", "apart")]  # fmt: skip
    claim = load(toy, TABLE.replace("median(set) > 0", " and ".join(each)))["T5.1-order"]
    assert re.findall(r"dataset=\[(.*?)\]", claim.expression or "") == ["'ramp'", "'ones', 'ramp'"]


def test_found_is_no_value_of_the_recipe(toy: Path) -> None:
    order = "every_over(median(t, experiment=together) > 1, dataset=found)"
    claim = load(toy, TABLE.replace("median(set) > 0", order))["T5.1-order"]
    assert claim.expression == order


def test_variants_are_those_that_the_experiment_measures(toy: Path) -> None:
    change(toy, "variants: [slow, fast]", "variants: [fast]")
    assert cells(toy, "variant", "median(t, experiment=apart)") == ["fast"]
    assert cells(toy, "variant", "median(t, experiment=together)") == ["slow", "fast"]

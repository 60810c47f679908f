"""The native lane of valueexpert: it fits the workload; figures and claims say what records say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from reprokit.records import RecordWriter
from valueexpert.catalog import MINIS, VARIANTS
from valueexpert.cli import PROGRAM
from valueexpert.experiments.mechanism import run
from valueexpert.operators import CHANGED, OPERATORS

from ae.claims.tables import load_claims
from ae.figures.draw import STYLE, NoData
from ae.model import Gpu, Machine
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.code import load_code
from ae.recipe.load import load_recipe
from ae.records.files import Row, frame
from tests.judged import judge

ROOT = Path(__file__).resolve().parents[3]
RECIPE = load_recipe(ROOT, "valueexpert")
FIGURES = load_code(ROOT / "recipes/valueexpert", "figures")
H200 = Gpu(
    index=0, uuid="GPU-0", name="NVIDIA H200", memory_gib=139.0, memory_free_gib=138.0,
    compute_capability=(9, 0), driver="580.159.03",
)  # fmt: skip
FOUND = {f"VE.{row:02d}-found" for row in (1, 2, 3, 5, 6, 7, 8, 9, 10, 11)}
EXACT = {"VE-03-bytes", "VE-04-steps", "VE-04-error", "VE-labels"}


def row(experiment: str, record: dict[str, Any], mini: str) -> Row:
    own = {"mini": mini} if mini else {}
    return Row(
        metric=record["metric"], unit=record["unit"], evidence=record["evidence"],
        samples=tuple(record["samples"]), experiment=experiment, point=f"{experiment}-{mini}",
        repeat=1, labels=own | record["labels"], process=record.get("process", ""),
    )  # fmt: skip


@cache
def mechanism() -> tuple[Row, ...]:
    """What the workload itself writes."""
    import tempfile

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for mini in MINIS:
            out = RecordWriter(Path(folder) / mini)
            run(PROGRAM.parse(["mechanism", "--minis", mini]), out)
            lines = (Path(folder) / mini / "records.jsonl").read_text().splitlines()
            rows += [row("mechanism", json.loads(line), mini) for line in lines]
    return tuple(rows)


def gains(kernel: float = 1.5, memory: float = 1.1, bits: float = 1) -> list[Row]:
    """Five processes of every mini, made up: before takes so many times as long as after."""
    rows = []
    for mini, variant in product(MINIS, ("before", "after")):
        labels = {"mini": mini, "variant": variant}
        first = {"metric": "same_bits", "unit": "1", "evidence": "measured", "samples": [bits]}
        rows.append(row("gains", first | {"labels": labels}, mini))
        for metric, over in (("kernel_time", kernel), ("memory_time", memory)):
            base = 100 * (over if variant == "before" else 1)
            for process in range(5):
                samples = [base * (1 + 0.001 * n + 0.0005 * process) for n in range(5)]
                record = {
                    "metric": metric, "unit": "us", "evidence": "measured", "samples": samples,
                    "labels": labels, "process": str(process),
                }  # fmt: skip
                rows.append(row("gains", record, mini))
        copied = 4000 if (mini, variant) == ("pathfinder", "before") else 1000
        exact = {"metric": "gpu_copied", "unit": "B", "evidence": "measured", "samples": [copied]}
        rows.append(row("gains", exact | {"labels": labels, "process": "0"}, mini))
    return [*rows, *foretold(min(kernel, memory))]


def foretold(gain: float) -> list[Row]:
    """The gain of all time, made up, and promises that are 10 % larger, or 20 % of some."""
    rows = []
    for number, mini in enumerate(MINIS):
        off = 0.1 if number % 3 else 0.2
        for metric, value, evidence in (
            ("gain", gain, "measured"), ("gain_promised", gain * (1 + off), "simulated"),
            ("gain_off", off, "measured"),
        ):  # fmt: skip
            for process in range(5):
                record = {"metric": metric, "unit": "x", "evidence": evidence, "samples": [value],
                          "labels": {"mini": mini, "variant": "after"},
                          "process": str(process)}  # fmt: skip
                rows.append(row("gains", record, mini))
    return rows


def slowdowns(
    coarse: float = 1.2, every: float = 2.5, fine: float = 40, full: float = 1.1
) -> list[Row]:
    """Five processes of every mini, at both sizes, and of the training step, made up."""
    times = {"native": 1.0, "empty": 9.0, "coarse": coarse, "every": every, "blocks": 12.0}
    rows = []
    for mini in (*MINIS, ""):
        experiment = "slowdown" if mini else "slowdown_training"
        for level, times_as_long in (times | {"fine": fine}).items():
            for process in range(5):
                record = {
                    "metric": "run_time", "unit": "us", "evidence": "measured",
                    "samples": [100 * times_as_long * (1 + 0.001 * process)],
                    "labels": {"level": level}, "process": str(process),
                }  # fmt: skip
                rows.append(row(experiment, record, mini))
        for level, process in product(("native", "empty", "coarse"), range(5) if mini else ()):
            spent = {"native": 1.0, "empty": 1.5, "coarse": full}[level]
            record = {"metric": "run_time", "unit": "us", "evidence": "measured",
                      "samples": [9000 * spent * (1 + 0.001 * process)],
                      "labels": {"level": level}, "process": str(process)}  # fmt: skip
            rows.append(row("slowdown_full", record, mini))
        whole = {"metric": "whole", "unit": "share", "evidence": "measured"}
        rows.append(
            row(
                experiment,
                whole | {"samples": [1], "labels": {"level": "fine"}, "process": "0"},
                mini,
            )
        )
    return rows


def looked_at(gain: float = 1.4, found: float = 1) -> list[Row]:
    """Five processes of the operators, made up; of the last ones nothing is changed."""
    rows = []
    for number, name in enumerate(OPERATORS):
        told = {
            "metric": "found",
            "unit": "1",
            "evidence": "measured",
            "process": "0",
            "samples": [found if name != "embedding" else 0],
            "labels": {"operator": name},
        }
        rows.append(row("operators", told, ""))
        if found and number % 3:
            promise = {"metric": "promised", "unit": "x", "evidence": "simulated",
                       "samples": [1.5], "labels": {"operator": name}}  # fmt: skip
            rows.append(row("operators", promise, ""))
        for variant, process in product(("before", "after"), range(5)):
            if variant == "before" or name in CHANGED:
                time = {"metric": "run_time", "unit": "us", "evidence": "measured",
                        "samples": [100 * (gain if variant == "before" else 1)] * 5,
                        "labels": {"operator": name, "variant": variant},
                        "process": str(process)}  # fmt: skip
                rows.append(row("operators", time, ""))
    return rows


def verdicts(rows: Sequence[Row], gpu: str | None = None) -> dict[str, str]:
    found = judge(load_claims(ROOT, "valueexpert"), rows, {"gpu": gpu} if gpu else {})
    return {one.id: str(one.verdict) for one in found}


@pytest.mark.parametrize(("gpus", "quick"), list(product([(), (H200,)], [False, True])))
def test_every_command_line_is_one_of_the_workload(gpus: tuple[Gpu, ...], quick: bool) -> None:
    chosen = Selection(quick=quick)
    plan = make_plan(RECIPE, chosen, Machine(gpus=gpus), ROOT, {"valueexpert": "1"})
    single = {"slowdown_training", "operators", "programs"}
    measured = {"gains", "slowdown", "slowdown_full", *single}
    kinds = {"mechanism"} | (measured if gpus else set())
    assert {point.experiment for point in plan.points} == kinds | {"sharing"}
    for point in plan.points:
        assert point.argv[:3] == ("python", "-m", "valueexpert")
        config = PROGRAM.parse(point.argv[3:])
        assert config.experiment == point.experiment
        if "mini" in point.labels:
            assert config.minis == (point.labels["mini"],)
        if "variants" in point.labels or point.experiment in ("mechanism", "gains"):
            assert config.variants == VARIANTS
    alone = 1 + len(kinds & single)  # points of no mini: sharing is one
    assert quick or len(plan.points) == len(MINIS) * len(kinds - single) + alone


def test_the_axis_is_the_catalogue() -> None:
    assert tuple(RECIPE.axes["mini"].values) == tuple(MINIS)
    assert tuple(RECIPE.variants) == VARIANTS


def test_a_cpu_shows_the_mechanism_and_nothing_else() -> None:
    found = verdicts(mechanism())
    assert {name for name, verdict in found.items() if verdict == "reproduced"} == FOUND | EXACT
    assert {v for name, v in found.items() if name not in FOUND | EXACT} == {"not run"}
    assert {r.evidence for r in mechanism()} == {"static", "simulated"}


def test_a_finding_too_many_or_one_that_stays_is_not_reproduced() -> None:
    def spoilt(metric: str) -> dict[str, str]:
        rows = []
        for one in mechanism():
            hit = one.metric == metric and one.labels["mini"] == "darknet"
            rows.append(
                row(
                    "mechanism",
                    {"metric": one.metric, "unit": one.unit, "evidence": one.evidence,
                     "samples": [0.5] if hit else one.samples, "labels": dict(one.labels)},
                    one.labels["mini"],
                )
            )  # fmt: skip
        return verdicts(rows)

    assert spoilt("precision")["VE-labels"] == "not reproduced"
    found = spoilt("fixed")
    assert found["VE.05-found"] == "not reproduced"
    assert found["VE.03-found"] == "reproduced"


def test_magnitudes_are_judged_on_the_papers_gpus_alone() -> None:
    rows = [*mechanism(), *gains(kernel=1.55, memory=4.0)]
    a100 = verdicts(rows, "NVIDIA A100-SXM4-40GB")
    assert a100["VE.01-kernel-A"] == "reproduced"
    assert a100["VE.04-kernel-A"] == "not reproduced"
    assert a100["VE.03-memory-A"] == "not reproduced"
    assert a100["VE.01-kernel-T"] == "direction holds"
    turing = verdicts(rows, "NVIDIA GeForce RTX 2080 Ti")
    assert turing["VE.03-memory-T"] == "reproduced"
    assert turing["VE.01-kernel-T"] == "not reproduced"
    h200 = verdicts(rows, "NVIDIA H200")
    assert {h200[f"VE.{n:02d}-kernel-A"] for n in (1, 2, 3, 4)} == {"direction holds"}
    ours = ("VE-bits", "VE-no-loss", "VE-as-fast", "VE-bound", "VE-03-bytes-measured")
    assert {h200[name] for name in ours} == {"reproduced"}
    worse = verdicts([*mechanism(), *gains(kernel=0.9, bits=0)], "NVIDIA H200")
    assert {worse[name] for name in ours[:3]} == {"not reproduced"}
    assert worse["VE.01-kernel-A"] != "direction holds"


def test_slowdowns_are_judged_against_their_bounds() -> None:
    found = verdicts(slowdowns(), "NVIDIA H200")
    mine = {name: verdict for name, verdict in found.items() if name.startswith("VE-slowdown")}
    assert mine == {
        "VE-slowdown-whole": "reproduced", "VE-slowdown-full": "reproduced",
        **{f"VE-slowdown.{level}-{column}": "not reproduced" if level == "fine" else "reproduced"
           for level in ("coarse", "every", "fine") for column in ("minis", "training")},
    }  # fmt: skip
    assert verdicts(slowdowns(coarse=1.6), "NVIDIA H200")["VE-slowdown.coarse-minis"] == (
        "not reproduced"
    )
    assert verdicts(slowdowns(full=1.6), "NVIDIA H200")["VE-slowdown-full"] == "not reproduced"


@pytest.mark.parametrize(("zeros", "coarse", "wanted"),
                         [(1e6, 1.2, "reproduced"), (9e6, 1.6, "not reproduced")])  # fmt: skip
def test_a_real_program_is_judged(zeros: float, coarse: float, wanted: str) -> None:
    """`zeros` that are uploaded after the change; 9 MB before."""

    def told(metric: str, unit: str, value: float, variant: str, **labels: str) -> Row:
        record = {"metric": metric, "unit": unit, "evidence": "measured", "samples": [value],
                  "labels": {"program": "darknet", "variant": variant, **labels}}  # fmt: skip
        return row("programs", record, "")

    rows = [told("uploaded_zeros", "B", 9e6, "before"), told("uploaded_zeros", "B", zeros, "after"),
            told("at_stake", "B", 9e6, "before", pattern="zero_upload"),
            told("run_time", "us", 4000 * coarse, "before", level="coarse"),
            told("run_time", "us", 4000, "before", level="native")]  # fmt: skip
    found = verdicts(rows, "NVIDIA H200")
    assert (found["VE-05-program"], found["VE-05-program-slowdown"]) == (wanted, wanted)


def test_half_of_the_promises_are_close() -> None:
    def judged(close: int) -> str:
        promised = [mini for mini in MINIS.values() if mini.fixed]
        rows = [
            row("gains", {"metric": "gain_off", "unit": "share", "evidence": "measured",
                          "samples": [0.1 if n < close else 0.5],
                          "labels": {"mini": mini.name, "variant": "after"}}, mini.name)
            for n, mini in enumerate(promised)
        ]  # fmt: skip
        return verdicts(rows, "NVIDIA H200")["VE-bound"]

    assert (judged(9), judged(7)) == ("reproduced", "not reproduced")


def test_a_new_redundancy_is_found_and_worth_something() -> None:
    def judged(**made_up: float) -> tuple[str, str]:
        found = verdicts(looked_at(**made_up), "NVIDIA H200")
        return found["VE-new"], found["VE-new-control"]

    assert judged() == ("reproduced", "reproduced")
    assert judged(gain=1.05) == ("not reproduced", "reproduced")
    assert judged(found=0) == ("not reproduced", "not reproduced")


@pytest.mark.parametrize(
    "name", ["promises", "values", "flow", "gains", "slowdown", "foretold", "operators"]
)
def test_figures_draw_what_the_records_say(name: str) -> None:
    with mpl.rc_context(STYLE):
        plot = getattr(FIGURES, name)(frame([*mechanism(), *gains(), *slowdowns(), *looked_at()]))
    assert {"n", "evidence"} <= set(plot.table)
    plot.figure.canvas.draw()
    if name == "gains":
        own = plot.table[plot.table["part"] == "kernel"].set_index("mini")
        assert own.loc["castro", "gain"] == pytest.approx(1.5)
        assert own.loc["backprop", ["rtx_2080_ti", "a100"]].tolist() == [8.18, 1.67]
        assert own["low"].le(own["gain"]).all()
        kernels, copies = (axis.get_xlim()[1] for axis in plot.figure.axes)
        assert kernels > copies > 6.03, "a panel reaches as far as its own values"
    if name == "slowdown":
        own = plot.table.set_index(["over", "program", "level"])["slowdown"]
        assert own["native", "Castro slopes", "fine"] == pytest.approx(40)
        assert own["native", "training step", "coarse"] == pytest.approx(1.2)
        assert own["empty", "median of the minis", "fine"] == pytest.approx(40 / 9)
        assert own["native", "Castro slopes", "coarse_full"] == pytest.approx(1.1)
        assert len(own) == (len(MINIS) + 2) * (5 + 4) + (len(MINIS) + 1) * 2
    if name == "operators":
        own = plot.table.set_index("operator")
        assert own.loc["kv_cache", "gain"] == pytest.approx(1.4)
        assert set(own.index) == set(OPERATORS)
        assert not own.loc["embedding", "found"]
        assert set(own["evidence"][own["promised"].notna()]) == {"measured+simulated"}
        assert set(own["evidence"][own["promised"].isna()]) == {"measured"}
    if name == "foretold":
        assert plot.table.set_index("mini").loc["castro", "off"] == pytest.approx(0.2)
        assert len(plot.table) == len(MINIS)
        assert set(plot.table["evidence"]) == {"measured+simulated"}
    if name == "promises":
        assert all(axis.get_xlabel() for axis in plot.figure.axes)
        mine = plot.table[plot.table["mini"] == "pathfinder"].set_index(["what", "part"])["value"]
        assert mine["promised", "memory"] == mine["fewer", "memory"] == 4
        assert mine["measured", "kernel"] == pytest.approx(1.5)
    if name == "values":
        wall = plot.table[plot.table["mini"] == "pathfinder"]
        assert wall["median"].sum() == pytest.approx(1)
        assert set(wall["value"]) == set(map(str, range(10)))
        limiter = plot.table[plot.table["mini"] == "castro"].set_index("value")["median"]
        assert list(limiter.index) == ["1.0", "all others"]
        assert limiter.sum() == pytest.approx(1)
    if name == "flow":
        assert plot.table["redundancy"].eq(1).sum() == 4, "the fill of every layer"
        again = plot.table[plot.table["redundancy"].eq(1)]
        assert list(again["source"] + ", " + again["target"]) == [
            f"zeros to {layer}, fill {layer}" for layer in range(1, 5)
        ], "places have names"


def test_a_figure_without_data_says_so() -> None:
    for name in ("promises", "values", "flow", "gains", "slowdown", "foretold", "operators"):
        with pytest.raises(NoData):
            getattr(FIGURES, name)(frame([]))


def test_the_paper_values_of_the_figure_are_those_of_the_claims() -> None:
    claims = {claim.id: claim.reference for claim in load_claims(ROOT, "valueexpert")}
    paper = load_code(ROOT / "recipes/valueexpert", "native").PAPER
    rows = dict(
        zip(paper, ("01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11"), strict=True)
    )
    shown = 0
    for mini, pairs in paper.items():
        for part, values in zip(("kernel", "memory"), pairs, strict=True):
            for gpu, value in zip("TA", values, strict=True):
                name = f"VE.{rows[mini]}-{part}-{gpu}"
                if name in claims:
                    assert claims[name] == value, name
                    shown += 1
    assert shown == 28

"""PASTA's lane upstream: the recipe fits the driver, logs become records and claims.

The authors' code is not here: the logs are short ones of ours in the same form.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ae.claims.tables import load_claims
from ae.errors import EnvironmentFault
from ae.model import Gpu, Machine, Plan
from ae.plan.planner import make_plan
from ae.plan.selection import Selection
from ae.recipe.load import load_recipe
from ae.recipe.models import Recipe
from ae.records.files import Row, frame
from ae.report.chapter import draw
from tests.judged import judge
from tests.upstream import load

ROOT = Path(__file__).resolve().parents[3]
LOGS = Path(__file__).parent / "logs"
IMAGE = ROOT / "images" / "pasta-upstream"
EXPERIMENTS = ("working_sets", "memory", "hotness", "overhead", "breakdown", "parallel")
MODELS = ("alexnet", "resnet18", "resnet34", "bert", "gpt2", "whisper")
A100 = "NVIDIA A100-SXM4-80GB"


def gpu(index: int = 0, driver: str = "570.86.10") -> Gpu:
    return Gpu(
        index=index, uuid=f"GPU-{index}", name=A100, memory_gib=80.0, memory_free_gib=79.0,
        compute_capability=(8, 0), driver=driver,
    )  # fmt: skip


TWO = Machine(gpus=(gpu(0), gpu(1)), cpus=16, memory_gib=128)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(ROOT, "pasta")


@pytest.fixture(scope="module")
def parse() -> ModuleType:
    return load(ROOT / "recipes" / "pasta" / "parse.py")


@pytest.fixture(scope="module")
def driver() -> ModuleType:
    return load(IMAGE / "driver" / "pasta_driver.py")


def plan(recipe: Recipe, machine: Machine = TWO, **selection: Any) -> Plan:
    chosen = Selection(**({"lane": "upstream"} | selection))
    return make_plan(recipe, chosen, machine, ROOT, {"pasta-upstream": "0" * 64})


# The recipe


def test_every_command_line_parses_with_the_driver(recipe: Recipe, driver: ModuleType) -> None:
    points = plan(recipe, experiments=EXPERIMENTS).points
    assert len(points) == 6 + 1 + 1 + 18 + 18 + 3
    for point in points:
        assert point.argv[:3] == ("python3", "-m", "pasta_driver")
        args = driver.parse(point.argv[3:])
        assert args.experiment.replace("-", "_") == point.experiment
        assert args.model == point.labels["model"] if "model" in point.labels else True
        assert driver.steps_of(args)
        assert point.parser == point.experiment


def test_a_plain_run_is_the_upstream_lane_and_nothing_that_takes_days(recipe: Recipe) -> None:
    whole = plan(recipe)
    assert {point.experiment for point in whole.points} == {"working_sets", "memory", "hotness"}
    assert any("never built by us" in note for note in whole.notes)
    assert {name for name, e in recipe.experiments.items() if e.lane == "upstream"} == set(
        EXPERIMENTS
    )
    with pytest.raises(EnvironmentFault, match=r"parallel cannot run here"):
        plan(recipe, Machine(gpus=(gpu(),)), experiments=("parallel",))


def test_sampling_rates_are_the_papers_and_the_artifacts(driver: ModuleType) -> None:
    for name, factor in (("paper", 1), ("readme", 2), ("early", 5)):
        rates = [driver.overhead(model, "cs_cpu", name)[-1].sampling for model in MODELS]
        assert rates == [factor * rate for rate in (30, 30, 50, 10, 10, 10)]
    assert driver.overhead("bert", "cs_gpu", "paper")[-1].sampling == 1


# Logs


def point_folder(tmp_path: Path, *names: str, **facts: object) -> Path:
    for name in names or [path.name for path in LOGS.iterdir()]:
        shutil.copy(LOGS / name, tmp_path / name)
    about = {"sampling": "readme", "sampling_rate": 20, "blocks": "as-is"} | facts
    (tmp_path / "point.json").write_text(json.dumps(about))
    return tmp_path


def values(records: list[dict[str, Any]], metric: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(record["labels"].values()): record["samples"][0]
        for record in records
        if record["metric"] == metric
    }


def test_working_sets(parse: ModuleType, tmp_path: Path) -> None:
    records = parse.working_sets(point_folder(tmp_path), {"model": "alexnet"})
    sets = values(records, "working_set")
    # 40, 20, 40, 20, 80 MiB: numpy's percentiles, linear between the sorted values
    assert [
        sets["test", stat] for stat in ("max", "min", "mean", "median", "p90")
    ] == pytest.approx([80, 20, 40, 40, 64])
    assert values(records, "kernels") == {("train",): 4, ("test",): 5}
    # the mean over launches of what the driver had handed out, not the largest
    assert values(records, "footprint")["test",] == pytest.approx((100 + 100 + 110 + 110 + 130) / 5)
    launches = values(records, "kernel_launches")
    assert launches["test", "at::native::im2col_kernel"] == 2
    assert launches["train", "gemm"] == 1
    assert values(records, "top5_share")["test",] == 100


def test_overhead_as_the_authors_count_it_and_soundly(parse: ModuleType, tmp_path: Path) -> None:
    folder = point_folder(tmp_path)
    labels = {"model": "bert", "variant": "cs_cpu"}
    records = parse.overhead(folder, labels)
    assert values(records, "elapsed") == {("untooled",): 20, ("tooled",): 3620}
    slow = values(records, "slowdown")
    assert slow["readme", "authors"] == pytest.approx(3620 * 20 / 20)
    # 2 of 50 launches were profiled, so what profiling added is multiplied by 25, and no more
    assert slow["readme", "sound"] == pytest.approx((20 + 3600 * 25) / 20)
    assert {r["evidence"] for r in records if r["metric"] == "slowdown"} == {"scaled"}
    fast = parse.overhead(folder, labels | {"variant": "cs_gpu"})
    assert values(fast, "slowdown") == {("none",): 2.5}
    assert {r["evidence"] for r in fast} == {"measured"}


def test_breakdown(parse: ModuleType, tmp_path: Path) -> None:
    folder = point_folder(tmp_path)
    gpu_times = parse.breakdown(folder, {"model": "bert", "variant": "cs_gpu"})
    assert values(gpu_times, "tool_time") == {
        ("execution",): 20, ("collection",): 12.5, ("transfer",): 0.5, ("analysis",): 0.25,
    }  # fmt: skip
    cpu = values(parse.breakdown(folder, {"model": "bert", "variant": "cs_cpu"}), "tool_time")
    assert cpu["readme", "analysis"] == 2000
    assert cpu["readme", "execution"] == 20


def test_hotness(parse: ModuleType, tmp_path: Path) -> None:
    records = parse.hotness(point_folder(tmp_path), {})
    assert values(records, "hot_windows") == {("as-is",): 10}
    assert values(records, "hot_blocks") == {("as-is",): 3}  # the fourth is never touched
    share = values(records, "block_share")
    assert share["as-is", "always"] == pytest.approx(100 / 3)
    assert share["as-is", "burst"] == pytest.approx(100 / 3)
    assert sum(values(records, "accesses").values()) == 900 * 10 + 5 + 7 * 5


def test_memory_and_parallel(parse: ModuleType, tmp_path: Path) -> None:
    folder = point_folder(tmp_path)
    records = parse.memory(folder, {})
    assert values(records, "peak_allocated") == {(): 800}
    assert values(records, "tensor_events") == {("malloc",): 3, ("free",): 2}
    curve = values(records, "allocated")
    assert len(curve) == 101
    assert (curve["0",], curve["50",], curve["100",]) == (100, 800, 200)
    both = parse.parallel(folder, {"parallelism": "dp"})
    assert values(both, "peak_allocated") == {("0",): 600, ("1",): 605}


SETS = "test_alexnet_app_analysis.log"
PLAIN, TOOLED = "run_bert.accelprof.log", "test_cpu_bert.accelprof.log"
HOT, EVENTS = "bert_time_hotness_cpu.log", "gpt2_app_analysis.accelprof.log"
BROKEN: list[tuple[str, str, Callable[[str], str], str]] = [
    ("working_sets", SETS,
     lambda t: t[: t.rindex("  Memory Footprint")], "cut off within a kernel"),
    ("working_sets", SETS,
     lambda t: t.replace("Kernel ID: 3", "Kernel ID: 4"), "kernel 3 is missing"),
    ("working_sets", SETS,
     lambda t: t.replace("Access Count: 1000", "Access Count: nan"), "no whole number"),
    ("working_sets", "test_alexnet.accelprof.log",
     lambda t: t.replace("Time taken", "Error"), "measured nothing"),
    ("overhead", PLAIN,
     lambda t: t.replace("00:00:20", "00:00:00"), "by a clock of 1 s"),
    ("overhead", "point.json",
     lambda _: '{"sampling_rate": 0}\n', "at which rate"),
    ("breakdown", TOOLED,
     lambda t: t.replace("Trace transfer", "trace"), "no time for transfer"),
    ("hotness", HOT,
     lambda t: t[:-5] + "\n", "different numbers of blocks"),
    ("memory", EVENTS,
     lambda t: t.replace(", allocated", ", was"), "of another form"),
    ("parallel", "dp.accelprof.log",
     lambda t: t.replace("device 1", "device 0"), "of 1 GPUs, expected 2"),
]  # fmt: skip
BROKEN_LABELS = {"model": "bert", "variant": "cs_cpu", "parallelism": "dp"}


@pytest.mark.parametrize(("function", "name", "harm", "words"), BROKEN)
def test_a_broken_log_is_one_sentence(
    parse: ModuleType,
    tmp_path: Path,
    function: str,
    name: str,
    harm: Callable[[str], str],
    words: str,
) -> None:
    folder = point_folder(tmp_path)
    path = folder / name
    before = path.read_text()
    path.write_text(harm(before))
    assert path.read_text() != before
    model = {"model": "alexnet"} if function == "working_sets" else {}
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        getattr(parse, function)(folder, BROKEN_LABELS | model)
    assert "\n" not in str(caught.value)


# Claims and figures, from a table with the paper's own values


STATS = ("max", "min", "mean", "median", "p90")


class Table:
    """A made-up record table."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, experiment: str, metric: str, value: float, evidence: str = "measured",
            unit: str = "MiB", **labels: str) -> None:  # fmt: skip
        self.rows.append(
            Row(metric=metric, unit=unit, evidence=evidence, samples=(value,), labels=labels,
                experiment=experiment, point=experiment)
        )  # fmt: skip


def table_v() -> dict[tuple[str, str], tuple[float, ...]]:
    """The claims' own references: launches, footprint, and the working sets by STATS."""
    claims = {claim.id: claim for claim in load_claims(ROOT, "pasta")}
    order = [(m, "test") for m in MODELS] + [None] + [(m, "train") for m in MODELS]
    found = {}
    for number, place in enumerate(order, start=1):
        if place is not None:
            names = ("launches", "footprint", *STATS)
            row = [claims[f"T5.{number}-{name}"].reference for name in names]
            found[place] = tuple(value for value in row if value is not None)
    return found


def everything() -> Table:
    table = Table()
    add_working_sets(table)
    add_times(table)
    add_memory(table)
    return table


def add_working_sets(table: Table) -> None:
    for (model, mode), (count, footprint, *sets) in table_v().items():
        where = {"model": model, "mode": mode}
        table.add("working_sets", "kernels", count, unit="launches", **where)
        table.add("working_sets", "footprint", footprint, **where)
        table.add("working_sets", "top5_share", 80, unit="%", **where)
        for stat, value in zip(STATS, sets, strict=True):
            table.add("working_sets", "working_set", value, stat=stat, **where)
        im2col = {"alexnet": 640, "resnet18": 640, "resnet34": 1152}.get(model)
        for kernel, launches in (("at::native::im2col_kernel", im2col), ("ampere_sgemm", 300)):
            if launches:
                table.add("working_sets", "kernel_launches", launches, unit="launches",
                          kernel=kernel, **where)  # fmt: skip


def add_times(table: Table) -> None:
    for model in MODELS:
        table.add(
            "overhead", "slowdown", 2, unit="x", model=model, variant="cs_gpu", scaling="none"
        )
        for variant, factor in (("cs_cpu", 941), ("nvbit_cpu", 13006)):
            for scaling in ("authors", "sound"):
                table.add("overhead", "slowdown", 2 * factor, "scaled", "x", model=model,
                          variant=variant, scaling=scaling, sampling="paper")  # fmt: skip
        for variant in ("cs_gpu", "cs_cpu", "nvbit_cpu"):
            parts = (10, 30, 1, 1) if variant == "cs_gpu" else (10, 30, 5, 900)
            for part, value in zip(
                ("execution", "collection", "transfer", "analysis"), parts, strict=True
            ):
                table.add("breakdown", "tool_time", value, unit="s", model=model, variant=variant,
                          part=part)  # fmt: skip


def add_memory(table: Table) -> None:
    for activity in ("always", "burst"):
        table.add("hotness", "block_share", 20, unit="%", blocks="as-is", activity=activity)
    for window in range(5):
        for block in range(4):
            table.add("hotness", "accesses", window * block * 100, unit="accesses", blocks="as-is",
                      window=str(window), block=str(block))  # fmt: skip
    runs = [("memory", {}), *(("parallel", {"parallelism": mode, "device": device})
            for mode in ("dp", "tp", "pp") for device in "01")]  # fmt: skip
    for experiment, where in runs:
        peak = 4000 if where.get("parallelism") == "tp" else 8000
        table.add(experiment, "peak_allocated", peak, **where)
        events = 1200 if where.get("device") == "1" else 1000
        table.add(experiment, "tensor_events", events, unit="events", kind="malloc", **where)
        for percent in range(101):
            size = peak * (1 - abs(percent - 60) / 70)
            table.add(experiment, "allocated", size, progress=str(percent), **where)


# The native lane's: its oracle, its own experiments, what nothing here can decide.
NO_RECORDS_HERE = (
    r"T5\.\d+|T5\.\d+-oracle-.*|F9\.[136]|F9\.5-(cs|small)|F10\.[12]|F1[12]\..*|U\d|F14\.[12]|"
    r"F15\.\d|O\.1|C1|G\d|T5\.\d+-paper-.*|.*-mt"
)
AVERAGES = ("T5.7", "T5.14", "T5.15", "T5.16", "T5.17", "T5.18")


def verdicts(rows: list[Row], name: str | None) -> dict[str, str]:
    return {v.id: str(v.verdict) for v in judge(load_claims(ROOT, "pasta"), rows, {"gpu": name})}


def test_the_papers_own_values_reproduce_every_claim_on_its_gpu() -> None:
    found = verdicts(everything().rows, A100)
    others = {name: verdict for name, verdict in found.items() if verdict != "reproduced"}
    not_run = {name for name, verdict in others.items() if verdict == "not run"}
    assert not_run == {
        name for name in found if re.fullmatch(NO_RECORDS_HERE, name) and name not in AVERAGES
    }
    assert {name: others[name] for name in set(others) - not_run} == {
        "T5.14-printed-launches": "not reproduced",  # does not follow from the paper's rows
        "F9.3-upstream": "direction holds", "F9.4": "direction holds",  # judged on an RTX 3060
    }  # fmt: skip
    assert {"F14.1-upstream", "F15.2-upstream", "T5.7", "F10.1-upstream"} <= set(found) - not_run


def test_on_another_gpu_only_shapes_and_orders_are_judged() -> None:
    found = verdicts(everything().rows, "NVIDIA H200")
    assert found["T5.1-max"] == found["T5.17"] == found["F9.5-cs-upstream"] == "reproduced"
    assert found["T5.15"] == found["F9.1-upstream"] == "direction holds"
    assert found["T5.1-launches"] == found["T5.1-footprint"] == "not comparable"
    assert set(verdicts([], "NVIDIA H200").values()) == {"not run"}


def test_wrong_values_do_not_pass() -> None:
    table = everything()
    wrong = [
        Row(metric=r.metric, unit=r.unit, evidence=r.evidence, samples=(r.samples[0] * 1.3,),
            labels=r.labels, experiment=r.experiment, point=r.point)
        if r.metric in ("working_set", "kernels") else r
        for r in table.rows
    ]  # fmt: skip
    found = verdicts(wrong, A100)
    assert found["T5.1-max"] == found["T5.8-launches"] == found["F7.2"] == "not reproduced"
    slow = [r for r in table.rows if r.labels.get("variant") != "cs_gpu"]
    slow += [Row(metric="slowdown", unit="x", evidence="measured", samples=(1e6,),
                 labels={"model": m, "variant": "cs_gpu", "scaling": "none"},
                 experiment="overhead", point="x") for m in MODELS]  # fmt: skip
    assert verdicts(slow, A100)["F9.5-cs-upstream"] == "not reproduced"


def test_every_figure_draws(recipe: Recipe) -> None:
    table = frame(everything().rows)
    drawn = draw(ROOT / "recipes" / "pasta", recipe.figures, table, {"gpu": A100}, None)
    without = {one.name: one.reason for one in drawn if one.reason}
    assert set(without) == {"overhead_small", "uvm"}  # the native lane's alone
    assert all(reason.startswith("no record of metric") for reason in without.values())
    tables = {one.name: one.table for one in drawn}
    assert len(tables["working_sets"]) == 12 * 4
    top = tables["kernels"]
    assert top["kernel"][0] == "at::native::im2col_kernel"
    assert top["launches"].sum() == 2 * (640 + 640 + 1152) + 12 * 300

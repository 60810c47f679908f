"""RAP's claims: judged as the records say, on GPUs of any number and kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rap_records import (
    FIG9,
    HEAVY,
    HEAVY_PLANS,
    OVER_SEQUENTIAL,
    PLANS,
    Records,
    everything,
    fusion,
    predictor,
    ratio,
    training,
)

from ae.claims.tables import load_claims
from ae.records.files import Row
from tests.judged import judge

ROOT = Path(__file__).resolve().parents[3]


def verdicts(
    rows: Sequence[Row], gpu: str | None = "NVIDIA H200", **options: Any
) -> dict[str, str]:
    found = judge(load_claims(ROOT, "rap"), rows, {"gpu": gpu}, **options)
    return {one.id: str(one.verdict) for one in found}


MAGNITUDES = {"R1", "R2", "R2-plus", "R4"}
GOALS = {
    "G1", "G2", "G3-stream", "G3-mps", "G3-heavy", "G4-order", "G4-heavy", "P1", "P2", "F1", "F2",
    "F3", "F4",
}  # fmt: skip


def test_every_claim_of_the_brief_is_there_and_none_unread_is_scored() -> None:
    claims = {claim.id: claim for claim in load_claims(ROOT, "rap")}
    assert {f"R{number}" for number in range(1, 14)} | GOALS | {"R-order"} <= set(claims)
    unread = {name for name, claim in claims.items() if not claim.transcribed}
    native = {f"R{number}" for number in range(6, 14)}
    assert unread == native | {f"R{number}-upstream" for number in range(6, 12)}
    for name in MAGNITUDES | {"R3", "R1-upstream", "R2-upstream"}:
        assert claims[name].scored_on == ("A100",), name
        assert claims[name].direction, name
    references = {name: claims[name].reference for name in ("R1", "R2", "R3", "R4")}
    assert references == {"R1": 1.99, "R2": 3.24, "R3": 78.3, "R4": 2.04}


def test_magnitudes_are_scored_on_an_a100_and_their_direction_elsewhere() -> None:
    rows = everything().rows
    a100, h200 = verdicts(rows, "NVIDIA A100-SXM4-40GB"), verdicts(rows)
    assert {a100[name] for name in MAGNITUDES} == {"reproduced"}
    assert a100["R1-artifact"] == "reproduced"  # 1.86 / 0.8 = 2.3
    assert a100["R3"] == "not reproduced"  # 1.86 / 0.2 = 9.3, a fair baseline on the CPU
    assert {h200[name] for name in MAGNITUDES | {"R3", "R1-artifact"}} == {"direction holds"}
    assert (a100["R5"], h200["R5"]) == ("reproduced", "not comparable")
    assert a100["R-order"] == h200["R-order"] == "reproduced"
    assert {h200[name] for name in GOALS} == {"reproduced"}
    assert (a100["G1"], a100["G3-mps"]) == ("not comparable", "reproduced")
    assert {h200[f"R{number}-upstream"] for number in (1, 2)} == {"not run"}


@pytest.mark.parametrize("gpus", [(1,), (2,), (1, 2, 4, 8)])
def test_claims_are_judged_with_whatever_gpus_there_were(gpus: tuple[int, ...]) -> None:
    found = verdicts(everything(gpus).rows)
    assert {found[name] for name in GOALS | {"R-order"}} == {"reproduced"}
    assert found["R1"] == "direction holds"


def test_one_number_of_gpus_without_every_cell_is_not_averaged() -> None:
    records = everything((2,))
    short = Records()
    training(short, "fig10", OVER_SEQUENTIAL | {"rap": 0.5, "rap_plus": 0.5}, (1,), ("0",))
    found = verdicts([*records.rows, *short.rows])
    assert (found["R1"], found["G1"]) == ("direction holds", "reproduced")
    assert found["R-order"] == "not reproduced"  # a cell breaks it, whatever is missing
    kept = Records()
    training(kept, "fig10", OVER_SEQUENTIAL, (1,), ("0",))
    assert verdicts([*records.rows, *kept.rows])["R-order"] == "not run"  # 2 of 4 cells of one GPU
    only = [row for row in short.rows if row.experiment == "fig10"]
    assert verdicts(only)["R1"] == "not run"


def test_either_of_ours_may_reach_the_goal() -> None:
    records = Records()
    training(records, "fig10", OVER_SEQUENTIAL | {"rap": 1.5})
    training(records, "fig9", FIG9 | {"rap": 1.2})
    training(records, "heavy", HEAVY | {"rap": 1.2}, plans=HEAVY_PLANS)
    found = verdicts(records.rows)
    reached = ("G1", "G3-stream", "G3-mps", "G3-heavy", "G4-heavy")
    assert {found[name] for name in reached} == {"reproduced"}
    assert found["R2"] == "direction holds"
    assert verdicts(records.rows, "NVIDIA A100-SXM4-40GB")["R2"] == "not reproduced"


def test_what_is_too_slow_fails_the_claims_about_it() -> None:
    records = Records()
    slow = {"rap": 1.3, "rap_plus": 1.3}
    training(records, "fig10", OVER_SEQUENTIAL | slow)
    training(records, "fig9", FIG9 | slow)
    training(records, "heavy", HEAVY | {"rap": 1.2, "rap_plus": 1.2}, plans=HEAVY_PLANS)
    ratio(records, rap=0.7)
    predictor(records, spread=0.3)
    fusion(records, optimum=2300, seconds=1.5)
    found = verdicts(records.rows)
    failed = {"G1", "G2", "G3-stream", "G3-mps", "G3-heavy", "P1", "P2", "F1", "F2"}
    assert {found[name] for name in failed} == {"not reproduced"}
    assert (found["R1"], found["G4-heavy"]) == ("direction holds", "reproduced")
    for wrong in ({"rap": 0.9}, {"rap": 2.2}, {"rap_plus": 0.9}, {"rap_plus": 2.2}):
        backwards = Records()
        training(backwards, "heavy", HEAVY | wrong, plans=HEAVY_PLANS)
        assert verdicts(backwards.rows)["G4-heavy"] == "not reproduced"
    backwards = Records()
    training(backwards, "fig10", OVER_SEQUENTIAL | {"rap": 0.9, "rap_plus": 2.2})
    found = verdicts(backwards.rows)
    assert {found[name] for name in ("R1", "R2", "R-order", "G4-order")} == {"not reproduced"}


def test_every_claim_finds_the_records_of_a_whole_run() -> None:
    found = verdicts(everything().rows)
    native = {name: verdict for name, verdict in found.items() if "upstream" not in name}
    assert [name for name, verdict in native.items() if verdict in ("not run", "undecided")] == []


def test_captured_baselines_and_the_gain_by_part_are_judged() -> None:
    found = verdicts(everything().rows)
    assert found["R1-graph"] == found["R1-heavy"] == "direction holds"
    held = ["fig9.stream_graph-rap", "fig10.sequential_graph-rap_graph", "gain.mapping-fig10",
            "heavy.stream_fused_graph-rap_plus", "load.2", "load.3", "baseline.stream_sync",
            "G3.stream_fused_graph-heavy", "cpu-best", "F5", "capacity", "R10-order"]  # fmt: skip
    assert {found[name] for name in held} == {"reproduced"}
    worse = Records()
    training(worse, "fig9", FIG9 | {"stream_graph": 2.0, "cpu": 2.0, "stream_sync": 1.4})
    training(worse, "fig10", OVER_SEQUENTIAL | {"sequential_graph": 2.0, "rap_graph": 1.6})
    training(worse, "heavy", HEAVY | {"stream_fused_graph": 2.0}, plans=HEAVY_PLANS)
    rows = [
        replace(row, samples=(1.4,)) if row.metric == "busy_ratio" else row for row in worse.rows
    ]
    rows = [
        replace(row, samples=tuple(1.3 * one for one in row.samples))
        if row.metric == "workers_throughput"
        else row
        for row in rows
    ]
    found = verdicts(rows)
    failed = {*held, "R1-graph", "fig9.cpu-rap", "gain.fusion-fig10"} - {"F5", "capacity"}
    assert {found[name] for name in failed - {"R10-order"}} == {"not reproduced"}


@pytest.mark.parametrize("name", ["fig9", "fig10", "heavy"])
def test_rap_plus_must_reach_ideal_where_at_most_half_of_the_idle_capacity_is_used(
    name: str,
) -> None:
    over, plans = {"fig9": (FIG9, PLANS), "fig10": (OVER_SEQUENTIAL, PLANS),
                   "heavy": (HEAVY, HEAVY_PLANS)}[name]  # fmt: skip

    def judged(share: float, used: float | None, first: float | None = None) -> str:
        """first: the share of ideal that is reached with the first plan."""
        records = Records()
        for plan in plans:
            reached = first if first is not None and plan == plans[0] else share
            training(records, name, over | {"rap_plus": reached * over["ideal"]}, plans=[plan])
        rows = [
            replace(row, samples=(400.0 * (used or 0.0),)) if row.metric == "gpu_work" else row
            for row in records.rows
            if used is not None or row.metric != "gpu_work"
        ]
        return verdicts(rows)[f"G5.{name}"]

    assert judged(0.95, 0.5) == "not reproduced"
    assert judged(0.95, 0.51) == "not reproduced"  # no cell counts, and none reaches it
    assert judged(0.999, 0.1) == judged(0.999, None) == "reproduced"
    assert judged(0.95, None, first=0.999) == "not run"  # which cells count is not known
    assert judged(0.95, None) == "not reproduced"  # whichever do, none reaches it


def test_a_ratio_counts_up_to_half_of_the_idle_capacity() -> None:
    for missed, verdict in ((1.0, "not reproduced"), (1.01, "reproduced")):  # 1.0 is half
        records = Records()
        ratio(records, rap=0.99)
        below = [
            replace(row, samples=tuple(0.9 * one for one in row.samples))
            if row.metric == "throughput" and row.labels["variant"] == "rap_plus"
            and float(row.labels["ratio"]) >= missed
            else row
            for row in records.rows
        ]  # fmt: skip
        assert verdicts(below)["G5.ratio"] == verdict


def test_a_gap_too_wide_or_a_search_too_long_is_no_goal_reached() -> None:
    for metric, sample in (("gap", 60.0), ("solve_time", 45.0)):
        rows = [
            replace(row, samples=(sample,))
            if row.metric == metric and row.labels["graph"] == "random_26x6"
            else row
            for row in everything((1,)).rows
            if row.experiment == "fusion"
        ]
        assert verdicts(rows)["F3"] == "not reproduced"


def test_where_mps_is_missing_only_its_claims_are_not_run() -> None:
    rows = [row for row in everything().rows if row.labels.get("variant") != "mps"]
    found = verdicts(rows)
    assert found["G3-mps"] == "not run"
    assert {found[name] for name in GOALS - {"G3-mps"}} == {"reproduced"}


def test_a_cpu_or_a_small_run_proves_nothing_about_gpus() -> None:
    rows = everything().rows
    static = {"F1", "F4"}
    solved = {"F2", "F3"}  # by the CPU on any machine
    on_cpu = verdicts(rows, None)
    assert {on_cpu[name] for name in static | solved} == {"reproduced"}
    others = GOALS | MAGNITUDES | {"R3", "R5", "R-order"}
    assert {on_cpu[name] for name in others - static - solved} == {"not comparable"}
    quick = verdicts(rows, reduced=["--quick"])
    assert {quick[name] for name in static} == {"reproduced"}
    assert {quick[name] for name in others - static} == {"not comparable"}

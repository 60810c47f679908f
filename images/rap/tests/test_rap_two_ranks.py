"""Every experiment ends on two ranks, with a number or a reason for each variant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rap_plans import every_operator
from rap_ranks import needs_two_gpus
from rap_training.cli import main
from rap_training.plan.files import dump
from rap_training.planner.capacity import STAGES
from rap_training.sharing.variants import VARIANTS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SMALL = (
    "--gpus", "2", "--batch", "32", "--iterations", "4", "--warmup", "1", "--batches", "3",
    "--repeats", "2", "--workers", "1", "--solver-seconds", "3",
)  # fmt: skip
HEAVY = ("--load", "0.5", "--variants", "sequential,stream_graph,rap,rap_graph,rap_plus,ideal")
GPU = [pytest.mark.gpu, needs_two_gpus]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        pytest.param("cpu", ("heavy", *HEAVY), marks=pytest.mark.slow),
        ("cpu", ("capacity",)),
        pytest.param("cuda", ("fig9", "--variants", "cpu,stream_graph,rap,ideal"), marks=GPU),
        pytest.param("cuda", ("fig10", "--variants", ",".join(VARIANTS)), marks=GPU),
        pytest.param("cuda", ("heavy", *HEAVY), marks=GPU),
        pytest.param("cuda", ("capacity",), marks=GPU),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_every_variant_has_a_number_or_a_reason(
    device: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AE_OUT", str(tmp_path))
    (tmp_path / "every.json").write_text(dump(every_operator()))
    plan = ("--plan-file", str(tmp_path / "every.json"))
    assert main([*words, "--device", device, *SMALL, *plan]) == 0

    def labels(name: str, file: str, metric: str | None = None) -> set[str]:
        path = tmp_path / file
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return {row["labels"].get(name) for row in rows if metric in (None, row.get("metric"))}

    if words[0] == "capacity":
        assert labels("stage", "records.jsonl", "capacity") == set(STAGES)
    else:
        measured = labels("variant", "records.jsonl", "throughput")
        skipped = labels("variant", "skipped.jsonl")
        assert measured | skipped == set(words[words.index("--variants") + 1].split(","))
        assert {"rap", "ideal"} <= measured - skipped

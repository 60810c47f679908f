"""Judged claims as a program reads them: claims.json, verdicts.txt, an exit code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ae.claims.judge import Judgement, Verdict
from ae.errors import ExitCode
from ae.host.files import write_atomic

_SHOWN = {
    "id", "figure", "sentence", "kind", "unit", "reference", "lower", "upper", "source",
    "paper_hardware", "scored_on",
}  # fmt: skip


def exit_code(judgements: Iterable[Judgement]) -> ExitCode:
    """1 when a claim was not reproduced, else 0."""
    failed = any(one.verdict is Verdict.NOT_REPRODUCED for one in judgements)
    return ExitCode.CLAIM if failed else ExitCode.OK


def to_json(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The contents of claims.json: how many of each verdict, then every claim."""
    words = [one.verdict for one in judgements]
    return {
        "schema": 1,
        "counts": {str(word): words.count(word) for word in Verdict},
        "claims": [
            one.claim.model_dump(mode="json", include=_SHOWN)
            | {name: value for name, value in vars(one).items() if name != "claim"}
            for one in judgements
        ],
    }


def verdict_lines(judgements: Iterable[Judgement]) -> str:
    """The contents of verdicts.txt: a claim's id and its verdict a line."""
    return "".join(f"{one.id} {one.verdict}\n" for one in judgements)


def write_claims(run_dir: Path, judgements: Sequence[Judgement]) -> Path:
    """Write `claims.json` into a run's folder, atomically. Raises OSError."""
    path = run_dir / "claims.json"
    write_atomic(path, json.dumps(to_json(judgements), indent=2) + "\n")
    return path

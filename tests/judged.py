"""Claims judged on records that say neither where they were taken nor how much was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ae.claims import judge as judging
from ae.claims.judge import Claim, Judgement
from ae.records.files import Environment, Row


def judge(
    claims: Sequence[Claim],
    rows: Sequence[Row],
    environment: Mapping[str, Any],
    *,
    reduced: Sequence[str] = (),
) -> list[Judgement]:
    """All rows are as `reduced` as this, and those without an environment were taken in this."""
    known = Environment.model_validate(environment)
    rows = [
        replace(row, environment=row.environment or known, reduced=(*reduced, *row.reduced))
        for row in rows
    ]
    return judging.judge(claims, rows)

"""Bands are committed before the run that they judge: held against git's history.

The claims at the revision that a reference run was made from are compared with today's, where they
read records of what ran then. An id that
was not there, or a number with other bounds, was judged by a band that could know the result. An
ordering has its bound in the expression, of which the wording may change: only its id is compared.
Bounds once written out with six digits may since be given as a band: they are compared to as many.
"""

from __future__ import annotations

import re
from math import isclose
from pathlib import Path
from typing import Any

import yaml

from ae.claims.judge import Claim, Verdict
from ae.claims.tables import load_claims, written_out
from ae.host.git import git
from ae.recipe.yamlfile import read_yaml
from ae.records.results import load_reference

ROOT = Path(__file__).resolve().parents[1]
# Claims added after the run; a new run takes them off.
LATER = {("h200x2", "rap", "G1-fig9")} | {
    ("h200", "pasta", f"T5.{row}-oracle-{column}")
    for column, rows in {
        "mean": (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13),
        "min": (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13),
        "median": (2, 6, 8, 11, 12, 13),
        "p90": (5, 6, 12, 13),
        "launches": (4, 5, 6, 11, 12, 13),
    }.items()
    for row in rows
}
LATER |= {
    (*run, name)  # a table's name stands for all of its claims
    for run, names in {
        ("h200x2", "rap"): "fig9 fig10 gain stream G3 G5 R10-order cpu-best baseline",
        ("h200", "rap"): "fig10 heavy stream G5 R9-order capacity",
        ("cpu", "rap"): "F5",
        ("h200", "dlrm"): "D3-order D3-best D4-order D6-sm_90 D9-local D10-low D12-order cap "
        "prefetch pin inference share occupancy stalls-order stalls-optmt stalls-rpf B6-eager B7 "
        "B7-eager B8 B11 B11-all fbgemm versus",
        ("h200", "valueexpert"): "VE.08-kernel-T VE.08-kernel-A",
        # before the run it was one claim for all rivals
        ("h200", "autotm"): "R-front R-error-median",
    }.items()
    for name in names.split()
}
SCORED = {Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED}
Bounds = dict[str, tuple[float | None, float | None]]


def bounds_at(revision: str, recipe: str, folder: Path) -> Bounds | None:
    """The bounds of every claim of a revision; None where this clone does not have it."""
    text = git(ROOT, "show", f"{revision}:recipes/{recipe}/claims.yaml")
    if text is None:
        return None
    path = folder / "claims.yaml"
    path.write_text(text)
    claims: list[dict[str, Any]] = yaml.safe_load(text)["claims"]
    if yaml.safe_load(text)["schema"] == 1:
        return {str(one["id"]): (one.get("lower"), one.get("upper")) for one in claims}
    found = map(Claim.model_validate, written_out(read_yaml(path, folder)).data["claims"])
    return {one.id: (one.lower, one.upper) for one in found}


def same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return isclose(one, other, rel_tol=5e-6)


def judges(claim: Claim, experiments: set[str]) -> bool:
    """Whether a claim may read records of these experiments; one that names none reads all."""
    where = claim.where.get("experiment", "")
    text = f"experiment={where} {claim.expression or ''}"
    named = {
        name
        for one, several in re.findall(r"experiment=(?:(\w+)|\[([^]]*)\])", text)
        for name in (one, *re.split(r"\W+", several))
        if name
    }
    return not named or bool(named & experiments)


def test_bands_are_older_than_the_runs_that_they_judge(tmp_path: Path) -> None:
    later = set()
    for folder in sorted(path.parent for path in ROOT.glob("results/reference/*/*/runs")):
        if not (ROOT / "recipes" / folder.name).is_dir():
            continue
        verdicts = dict(
            line.split(" ", 1) for line in (folder / "verdicts.txt").read_text().splitlines()
        )
        claims = load_claims(ROOT, folder.name)
        made: dict[str, set[str]] = {}  # revision to the experiments that ran at it
        for point in load_reference(folder).points:
            revision = str(point.origin.provenance.source.revision)
            made.setdefault(revision, set()).add(point.status.experiment)
        for revision, experiments in made.items():
            known = bounds_at(revision, folder.name, tmp_path)
            later |= {
                (folder.parent.name, folder.name, one.id)
                for one in claims
                if known is not None and verdicts[one.id] in SCORED and judges(one, experiments)
                and not (one.id in known and all(map(same, known[one.id], (one.lower, one.upper))))
            }  # fmt: skip
    assert {
        (machine, recipe, name)
        for machine, recipe, name in later
        if not {(machine, recipe, name), (machine, recipe, name.split(".")[0])} & LATER
    } == set()

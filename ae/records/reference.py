"""Reference sets: one evolving set of points a machine and recipe, committed with their origins.

`results/reference/<machine>/<recipe>/` holds `points/<id>/{records.jsonl,status.json,
environment.json}` (and skipped.jsonl), `runs/<name>.json` (the run that points came from) and
`verdicts.txt` (a claim's id and its verdict a line).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ae.errors import UsageError
from ae.records.files import read_object
from ae.records.models import Provenance, Source
from ae.records.results import Origin, PointResult, Results, assemble

_KEPT = ("records.jsonl", "skipped.jsonl", "status.json", "environment.json")


def reference_sets(results: Path, recipe: str) -> list[Path]:
    """The folders of a recipe's reference sets, by machine."""
    return sorted(path.parent for path in results.glob(f"reference/*/{recipe}/runs"))


def load_reference(folder: Path) -> Results:
    """Read a reference set. Raises RecordsFault."""
    origins = [read_object(path, Origin) for path in sorted((folder / "runs").glob("*.json"))]
    origins.sort(key=lambda origin: origin.created)
    return assemble(folder, folder.parent.name, folder.name, origins)


def find_set(results: Path, recipe: str, name: str) -> Path | None:
    """The recipe's set called `name`: a folder, or a machine; None where there is none."""
    for path in (Path(name).resolve(), results / "reference" / name / recipe):
        if path.name == recipe and (path / "runs").is_dir() and (path / "points").is_dir():
            return path
    return None


def machine_of(run: Results) -> str:
    """What a set is called: the GPU's model and how many a point was given; `cpu` without."""
    gpu = run.environment.gpu_name
    if gpu is None:
        return "cpu"
    word = re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia")).strip("-")
    count = run.origins[0].gpus
    return f"{word}x{count}" if count > 1 else word


def keep(run: Results, folder: Path) -> list[str]:
    """Add a run's done points to the set in `folder`; return the ids of points they replace.

    A point replaces an older one of its key, and one of its id unless that has measured variants
    that the new one has not: then both stay, and `Results.rows` says what counts. Raises
    UsageError where the run has no done point, or was not made from a clean revision.
    """
    done = [point for point in run.points if point.done]
    if not done:
        raise UsageError(f"{run.name} has no finished point", fix="ae run --resume finishes it")
    origin = run.origins[0].model_copy(
        update={
            "points": {point.status.key: point.status.id for point in done},
            "provenance": _clean(run.origins[0].provenance, run.name),
        }
    )
    old = load_reference(folder) if folder.is_dir() else None
    gone = [
        point for point in (old.points if old else ())
        if any(_replaces(new, point) for new in done)
    ]  # fmt: skip
    for point in gone:
        shutil.rmtree(point.folder)
    for point in done:
        _copy(point, folder / "points")
    (folder / "runs").mkdir(exist_ok=True)
    left = {point.status.key for point in gone}
    for earlier in old.origins if old else ():
        points = {key: name for key, name in earlier.points.items() if key not in left}
        _write_origin(earlier.model_copy(update={"points": points}), folder)
    _write_origin(origin, folder)
    return [point.status.id for point in gone]


def _replaces(new: PointResult, old: PointResult) -> bool:
    one, two = new.status, old.status
    covered = one.id == two.id and set(two.variants) <= set(one.variants)
    return covered or one.key == two.key


def _clean(provenance: Provenance, run: str) -> Provenance:
    """A run's provenance with its revision, and without what a local change left there."""
    source = provenance.source
    revision = source.stated_revision or source.revision
    if not revision or (source.dirty and not source.stated_revision):
        raise UsageError(
            f"{run} was not made from a clean revision, so nobody could make it again",
            fix="commit what differs and run again; where there is only a copy of a revision, "
            "set AE_REVISION to it before the run",
        )
    return provenance.model_copy(update={"source": Source(revision=revision)})


def _copy(point: PointResult, points: Path) -> None:
    target = points / point.status.id
    if target.exists():  # an older one with other variants
        target = points / f"{point.status.id}-{point.status.key[:8]}"
    part = points / f".{target.name}.tmp"
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(point.folder, part, ignore=lambda _, names: set(names) - set(_KEPT))
    part.rename(target)


def _write_origin(origin: Origin, folder: Path) -> None:
    """Write runs/<name>.json; that of a run of which no point is left goes."""
    path = folder / "runs" / f"{origin.run}.json"
    if origin.points:
        text = origin.model_dump_json(indent=1, exclude_none=True)
        path.write_text(text + "\n", encoding="utf-8")
    else:
        path.unlink(missing_ok=True)

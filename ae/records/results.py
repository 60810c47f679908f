"""What a run, or a reference set, has measured: read once, then shown, drawn and judged.

A reference set is one evolving set of points of a machine and recipe, committed with their origins:
`results/reference/<machine>/<recipe>/` holds `points/<id>/{records.jsonl,status.json,
environment.json}` (and skipped.jsonl), `runs/<name>.json` (the run that points came from) and
`verdicts.txt` (a claim's id and its verdict a line).
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import Field

from ae.errors import UsageError
from ae.host.files import sha256_of
from ae.model import Status
from ae.records.files import (
    Environment,
    PointRecords,
    Record,
    RecordsFault,
    Row,
    Skip,
    read_object,
    read_point,
)
from ae.records.folder import results_dir
from ae.records.models import Kept, PlannedPoint, Provenance, RunRecord, Source, StatusRecord

_KEPT = ("records.jsonl", "skipped.jsonl", "status.json", "environment.json")


class Origin(Kept):
    """A run that points came from. `runs/<when>.json` of a reference set holds one."""

    recipe: str
    run: str  # its name
    created: str
    reduced: tuple[str, ...] = ()  # in what it is smaller than the paper's
    notes: tuple[str, ...] = ()
    gpus: int = 0  # the most that a point was given
    images: dict[str, str] = Field(default_factory=dict)  # reference -> hash of its sources
    points: dict[str, str] = Field(default_factory=dict)  # key -> digest, "" of a run, as planned
    provenance: Provenance = Provenance()


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One ended point: how it ended, what it wrote, and the run that it came from."""

    status: StatusRecord
    found: PointRecords
    origin: Origin
    folder: Path

    @property
    def done(self) -> bool:
        return self.status.status is Status.DONE and not self.found.empty


@dataclass(frozen=True, kw_only=True)
class Results:
    """The ended points of a run, or of a reference set, and the runs that they came from."""

    path: Path
    name: str  # a run's, or a machine's
    recipe: str
    points: tuple[PointResult, ...]  # by run, oldest first, in the order of its plan
    origins: tuple[Origin, ...]
    missing: tuple[PlannedPoint, ...] = ()  # of a run: neither done nor skipped, so far

    @cached_property
    def rows(self) -> list[Row]:
        """The records of all done points.

        Where two points of one id have a record of the same labels, the newer run's counts.
        """
        known: set[tuple[object, ...]] = set()
        found: list[Row] = []
        for point in reversed([point for point in self.points if point.done]):
            new = [one for one in point.found.records if _place(point, one) not in known]
            known.update(_place(point, record) for record in new)
            found = [self._row(point, record) for record in new] + found
        return found

    @cached_property
    def skips(self) -> list[Skip]:
        """What points skipped, in part (skipped.jsonl) or as a whole (exit code 77)."""
        skips = []
        for point in self.points:
            labels = {"experiment": point.status.experiment, **point.status.labels}
            if point.status.status is Status.SKIPPED:
                skips.append(Skip(labels=labels, reason=point.status.reason or "no reason given"))
            for skip in point.found.skipped:  # of a done point
                skips.append(Skip(labels={**labels, **skip.labels}, reason=skip.reason))
        return skips

    @cached_property
    def environment(self) -> Environment:
        """That of the first done point with a GPU, else of the first that wrote one.

        Where points differ in driver, CUDA or PyTorch, all of them are named.
        """
        written = [one for p in self.points if p.done and (one := p.found.environment)]
        with_gpu = [one for one in written if one.gpu]
        if not (shown := with_gpu or written):
            return Environment()
        words = {
            key: ", ".join(dict.fromkeys(v for one in shown if (v := getattr(one, key))))
            for key in ("driver", "cuda", "torch")
        }
        return shown[0].model_copy(update={key: word for key, word in words.items() if word})

    def lacks(self, what: str) -> UsageError:
        """The error that it has none of what is asked for."""
        other = f"other experiments may have: ae show {self.recipe}"
        fix = f"ae run {self.name} --resume" if self.missing else other
        return UsageError(f"{self.name} has no {what}", fix=fix)

    def _row(self, point: PointResult, record: Record) -> Row:
        status, found = point.status, point.found.environment
        return Row(
            metric=record.metric,
            unit=record.unit,
            evidence=record.evidence,
            samples=record.samples,
            labels={**status.labels, **record.labels},
            experiment=status.experiment,
            point=status.id,
            repeat=status.repeat,
            uuid=" ".join(found.gpu_uuid if found else ()) or point.origin.provenance.host.name,
            process="/".join(filter(None, (point.origin.run, point.folder.name, record.process))),
            note=record.note or "",
            environment=found or self.environment,
            reduced=point.origin.reduced,
            argv=status.argv,
        )


def load_run(folder: Path) -> Results:
    """Read a run's folder. Raises RecordsFault, and OSError where there is no run.json."""
    record = read_object(folder / "run.json", RunRecord)
    plan = record.plan
    quick = ("run with --quick: small sizes, for a look at the mechanism only",)
    origin = Origin(
        recipe=record.recipe,
        run=record.name,
        created=record.created,
        reduced=plan.reduced,
        notes=(*(quick if plan.quick else ()), *plan.notes),
        gpus=max((p.needs.gpus.count for p in plan.points if p.needs.gpus), default=0),
        images={point.image.reference: point.image.content for point in plan.points},
        points={point.key: "" for point in plan.points},
        provenance=record.provenance,
    )
    results = assemble(folder, origin.run, origin.recipe, (origin,), origin)
    ended = {p.status.key for p in results.points if p.done or p.status.status is Status.SKIPPED}
    return replace(results, missing=tuple(one for one in plan.points if one.key not in ended))


def assemble(
    folder: Path, name: str, recipe: str, origins: Sequence[Origin], stray: Origin
) -> Results:
    """The ended points below `folder/points` with the origin that has their key, else `stray`.

    A point that is neither done nor skipped is not read further: its files may be cut off.
    """
    by_key = {key: origin for origin in origins for key in origin.points}
    order = {key: rank for rank, key in enumerate(key for one in origins for key in one.points)}
    points = []
    for path in sorted((folder / "points").glob("[!.]*/status.json")):
        status = read_object(path, StatusRecord)
        found = read_point(path.parent) if status.status is Status.DONE else PointRecords()
        origin = by_key.get(status.key, stray)
        points.append(PointResult(status=status, found=found, origin=origin, folder=path.parent))
    ranked = tuple(sorted(points, key=lambda point: order.get(point.status.key, len(order))))
    return Results(path=folder, name=name, recipe=recipe, points=ranked, origins=tuple(origins))


def _place(point: PointResult, record: Record) -> tuple[object, ...]:
    return point.status.id, record.metric, frozenset(record.labels.items())


def reference_sets(root: Path, recipe: str) -> dict[str, Path]:
    """A recipe's reference sets by machine, those below $AE_RESULTS before those of `root`."""
    places = (root / "results", results_dir(root))
    found = [path for place in places for path in place.glob(f"reference/*/{recipe}/runs")]
    return {path.parts[-3]: path.parent for path in sorted(found, key=lambda one: one.parts[-3])}


def load_reference(folder: Path) -> Results:
    """Read a reference set. Raises RecordsFault, also where a point is not what was kept."""
    origins = [read_object(path, Origin) for path in sorted((folder / "runs").glob("*.json"))]
    origins.sort(key=lambda origin: origin.created)
    nobody = Origin(recipe=folder.name, run="", created="")
    found = assemble(folder, folder.parent.name, folder.name, origins, nobody)
    kept = dict(item for origin in origins for item in origin.points.items())
    folders = {point.status.key: point.folder for point in found.points}
    here = {key: digest(path, *_KEPT) for key, path in folders.items()}
    for key, _ in here.items() ^ kept.items():
        raise RecordsFault(
            f"{folders.get(key) or folder / key} is not what a run in {folder / 'runs'} left there",
            fix=f"git checkout {folder}, or `ae keep` its run again",
        )
    return found


def digest(folder: Path, *files: str) -> str:
    """The sha256 of the lines of `sha256sum FILES | LC_ALL=C sort` in a folder; globs are files."""
    found = [path for name in files for path in folder.glob(name)]
    lines = sorted(f"{sha256_of(path)}  {path.relative_to(folder)}\n" for path in found)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def find_set(root: Path, recipe: str, name: str) -> Path | None:
    """The recipe's set called `name`: a machine, or a folder; None where there is none."""
    path = Path(name).resolve()
    is_set = path.name == recipe and (path / "runs").is_dir() and (path / "points").is_dir()
    return reference_sets(root, recipe).get(name, path if is_set else None)


def machine_of(run: Results) -> str:
    """What a set is called: the GPU's model and how many a point was given; `cpu` without."""
    if (gpu := run.environment.gpu_name) is None:
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
    if not (done := [point for point in run.points if point.done]):
        raise run.lacks("finished point")
    digests = {point.status.key: digest(point.folder, *_KEPT) for point in done}
    origin = run.origins[0]
    clean = _clean(origin.provenance, run.name)
    origin = origin.model_copy(update={"points": digests, "provenance": clean})
    old = load_reference(folder)  # of a new set: nothing
    gone = [point for point in old.points if any(_replaces(new, point) for new in done)]
    for point in gone:
        shutil.rmtree(point.folder)
    for point in done:
        _copy(point, folder / "points")
    (folder / "runs").mkdir(exist_ok=True)
    left = {point.status.key for point in gone}
    for earlier in old.origins:
        points = {key: word for key, word in earlier.points.items() if key not in left}
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
    revision = source.stated_revision or source.revision or ""
    if not re.fullmatch("[0-9a-f]{40}", revision) or (source.dirty and not source.stated_revision):
        raise UsageError(
            f"{run} was not made from a clean revision, so nobody could make it again",
            fix="commit what differs and run again; where there is only a copy of a revision, "
            "set AE_REVISION to it, all 40 digits, before the run",
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

"""What a run, or a reference set, has measured: read once, then shown, drawn and judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from ae.model import Status
from ae.records.files import (
    Environment,
    PointRecords,
    Record,
    RecordsFault,
    Row,
    Skip,
    frame,
    read_object,
    read_point,
)
from ae.records.models import Kept, Provenance, RunRecord, StatusRecord

if TYPE_CHECKING:
    import pandas as pd


class Origin(Kept):
    """A run that points came from. `runs/<when>.json` of a reference set holds one."""

    recipe: str
    run: str  # its name
    created: str
    reduced: tuple[str, ...] = ()  # in what it is smaller than the paper's
    notes: tuple[str, ...] = ()
    gpus: int = 0  # the most that a point was given
    images: dict[str, str] = Field(default_factory=dict)  # reference -> hash of its sources
    points: dict[str, str] = Field(default_factory=dict)  # key -> point, in the order of the plan
    about: tuple[str, ...] = ()  # what else a reader must know, a sentence each
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
        return self.status.status is Status.DONE


@dataclass(frozen=True, kw_only=True)
class Results:
    """The ended points of a run, or of a reference set, and the runs that they came from."""

    path: Path
    name: str  # a run's, or a machine's
    recipe: str
    points: tuple[PointResult, ...]  # by run, oldest first, in the order of its plan
    origins: tuple[Origin, ...]

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
    def frame(self) -> pd.DataFrame:
        """The record table that figures are drawn from."""
        return frame(self.rows)

    @cached_property
    def skips(self) -> list[Skip]:
        """What points skipped, in part (skipped.jsonl) or as a whole (exit code 77)."""
        skips = []
        for point in self.points:
            labels = {"experiment": point.status.experiment, **point.status.labels}
            if point.status.status is Status.SKIPPED:
                skips.append(Skip(labels=labels, reason=point.status.reason or "no reason given"))
            elif point.done:
                skips += [
                    Skip(labels={**labels, **skip.labels}, reason=skip.reason)
                    for skip in point.found.skipped
                ]
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

    def _row(self, point: PointResult, record: Record) -> Row:
        status = point.status
        return Row(
            metric=record.metric,
            unit=record.unit,
            evidence=record.evidence,
            samples=record.samples,
            labels={**status.labels, **record.labels},
            experiment=status.experiment,
            point=status.id,
            repeat=status.repeat,
            host=point.origin.provenance.host.name,
            process="/".join(filter(None, (point.origin.run, point.folder.name, record.process))),
            note=record.note or "",
            environment=point.found.environment or self.environment,
            reduced=point.origin.reduced,
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
        points={point.key: point.id for point in plan.points},
        provenance=record.provenance,
    )
    return assemble(folder, origin.run, origin.recipe, (origin,), stray=origin)


def assemble(
    folder: Path, name: str, recipe: str, origins: Sequence[Origin], stray: Origin | None = None
) -> Results:
    """The ended points below `folder/points` with the origin that has their key, else `stray`.

    A point that is neither done nor skipped is not read further: its files may be cut off.
    """
    by_key = {key: origin for origin in origins for key in origin.points}
    order = {key: rank for rank, key in enumerate(key for one in origins for key in one.points)}
    points = []
    for path in sorted((folder / "points").glob("[!.]*/status.json")):
        status = read_object(path, StatusRecord)
        origin = by_key.get(status.key, stray)
        if origin is None:
            raise RecordsFault(
                f"{path.parent.name}: no file in {folder / 'runs'} says which run it is of",
                fix="take the point away, and `ae keep` its run again",
            )
        done = status.status is Status.DONE
        found = read_point(path.parent) if done else PointRecords()
        points.append(PointResult(status=status, found=found, origin=origin, folder=path.parent))
    points.sort(key=lambda point: order.get(point.status.key, len(order)))
    return Results(
        path=folder, name=name, recipe=recipe, points=tuple(points), origins=tuple(origins)
    )


def _place(point: PointResult, record: Record) -> tuple[object, ...]:
    return point.status.id, record.metric, frozenset(record.labels.items())

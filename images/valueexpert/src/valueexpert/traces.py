"""The recorded traces of the mini-benchmarks, and the labels that they are judged by."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from accel_trace.session import Process, Session
from accel_trace.values.findings import Finding, coarse, ranked
from accel_trace.values.recorded import Replay, fine, replay

from valueexpert import build
from valueexpert.catalog import MINIS, SHARING, Label, Mini, Score
from valueexpert.replay import run

RECORDED = Path(__file__).with_name("recorded")
LABELS = Path(__file__).with_name("labels.json")
SAID = "said.json"
# Patterns that the level coarse can see: those of copies and fills alone.
COARSE = {
    "redundant_upload", "redundant_download", "redundant_copy", "redundant_fill", "zero_upload",
    "growing_copies",
}  # fmt: skip


def record(mini: Mini, target: Path = RECORDED) -> Path:
    """Replay all variants of a mini and keep what they did in `target`/NAME.tar.xz."""
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{mini.name}.tar.xz"
    with tempfile.TemporaryDirectory() as work:
        program = build.replay_program(mini.name, Path(work) / "bin")
        with tarfile.open(path, "w:xz", preset=9) as archive:
            for variant in mini.variants:
                folder = Path(work) / variant
                said = run(program, variant, mini.replay, folder)
                (folder / SAID).write_text(json.dumps(said, sort_keys=True) + "\n")
                for file in sorted(folder.iterdir()):
                    info = tarfile.TarInfo(f"{variant}/{file.name}")
                    info.size = file.stat().st_size
                    with file.open("rb") as stream:
                        archive.addfile(info, stream)
    return path


@contextmanager
def opened(mini: Mini, source: Path = RECORDED) -> Iterator[dict[str, Path]]:
    """A folder for each variant, as accel-trace reads it, as long as this lasts."""
    with tempfile.TemporaryDirectory() as work:
        with tarfile.open(source / f"{mini.name}.tar.xz") as archive:
            for member in archive:  # our own; Python 3.11.2 has no filter for extractall
                stream = archive.extractfile(member)
                target = Path(work) / member.name
                target.parent.mkdir(exist_ok=True)
                if stream is not None:
                    target.write_bytes(stream.read())
        yield {variant: Path(work) / variant for variant in mini.variants}


def said(folder: Path) -> dict[str, Any]:
    """What the program printed of itself when it was recorded."""
    found: dict[str, Any] = json.loads((folder / SAID).read_text())
    return found


def process(folder: Path) -> Process:
    """The one process of a recorded variant."""
    (found,) = Session(folder).processes
    return found


def findings(folder: Path) -> tuple[Replay, list[Finding]]:
    """All that the detectors find in a recorded variant, the largest stake first."""
    found = replay(process(folder))
    return found, ranked([*coarse(found.shadow.effects), *fine(found)])


def labels() -> dict[str, dict[str, list[Label]]]:
    """The labels of every variant of every mini: findings that were looked through one by one."""
    read = json.loads(LABELS.read_text())
    return {
        name: {v: [Label(*one) for one in rows] for v, rows in variants.items()}
        for name, variants in read.items()
    }


def coarse_labels(name: str, variant: str) -> set[tuple[str, str, str]]:
    """Those of a variant's labels that need no look into a kernel."""
    return {astuple(one) for one in labels()[name][variant] if one.pattern in COARSE}


def label_of(finding: Finding) -> Label:
    """A finding as a label."""
    return Label(finding.name, finding.context, finding.thing)


def score(found: Iterable[Finding], wanted: Iterable[Label]) -> Score:
    """Compare findings with labels."""
    have, want = {label_of(one) for one in found}, set(wanted)
    key = astuple
    return Score(
        len(have & want), tuple(sorted(have - want, key=key)), tuple(sorted(want - have, key=key))
    )


def fixed(mini: Mini, found: dict[str, list[Finding]]) -> bool:
    """Whether `before` has all that the variants promise to remove, and each variant has none."""
    have = {name: {(one.name, one.thing) for one in rows} for name, rows in found.items()}
    return all(
        set(gone) <= have["before"] and not set(gone) & have[variant]
        for variant, gone in mini.fixed.items()
    )


def main() -> None:
    """Record all traces again: python -m valueexpert.traces."""
    for mini in (*MINIS.values(), SHARING):
        path = record(mini)
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

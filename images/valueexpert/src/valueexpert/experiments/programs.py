"""Darknet's own program at the level coarse: what it copies for nothing, and what looking costs.

Debian's source, with the weights that Darknet gives a network that nobody trained. `after` clears
arrays on the GPU in place of uploading zeros. A process evaluates one image again and again
(`darknet speed`) and says how long all took; what one evaluation takes is the difference of two
processes, so what happens once is in neither.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from pathlib import Path

from accel_trace.session import Session
from accel_trace.values.compared import compared
from accel_trace.values.findings import coarse
from accel_trace.values.shadow import UPLOAD
from reprokit.errors import Failure
from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from valueexpert.cli import Config
from valueexpert.darknet import FOLDER, NETWORK
from valueexpert.levels import LARGE, LEVELS, library, said_by

VARIANTS = ("before", "after")
EVALUATIONS = 25  # for each of --samples


def run(config: Config, out: RecordWriter) -> None:
    """Both programs in turns. Raises Failure where one does not say what it took."""
    if config.device != "cuda":
        cannot_run("Darknet is run on a GPU")
    folder = Path(os.environ.get("VALUEEXPERT_PROGRAMS", "/nowhere")) / FOLDER
    if not (folder / NETWORK).is_file():
        cannot_run(
            "Darknet's own program is not here: its source could not be fetched or compiled when "
            "the image was built; fix: build it with --context darknet=DIR, a folder with Debian's "
            "darknet_*.orig.tar.xz"
        )
    built, progress = library(), Progress(config.repeats)
    variants = [variant for variant in VARIANTS if variant in config.variants]
    for number in range(config.repeats):
        for variant in reversed(variants) if number % 2 else variants:
            own = {"program": "darknet", "variant": variant}
            for level in LARGE:
                few, many = 1, 1 + EVALUATIONS * config.samples
                spent = [_spent(folder, variant, level, count, built) for count in (few, many)]
                labels = own | {"level": level}
                mean = 1e6 * (spent[1] - spent[0]) / (many - few)
                out.write("run_time", "us", [mean], labels, warmup=few, process=str(number))
            if number == 0:
                _look(folder, variant, built, own, out)
        progress.step(f"process {number}")


def _said(folder: Path, variant: str, level: str, count: int, built: Path, logs: Path) -> str:
    command: list[str | Path] = [folder / variant, "speed", folder / NETWORK, str(count)]
    return said_by(command, LEVELS[level], logs, built, {})


def _spent(folder: Path, variant: str, level: str, count: int, built: Path) -> float:
    """Seconds that `count` evaluations took, as the program says."""
    with tempfile.TemporaryDirectory() as logs:
        said = _said(folder, variant, level, count, built, Path(logs))
    found = re.search(r"evals, ([0-9.]+) Seconds", said)
    if not found:
        raise Failure(f"darknet {variant} does not say what its evaluations took")
    return float(found[1])


def _look(folder: Path, variant: str, built: Path, own: dict[str, str], out: RecordWriter) -> None:
    """What is found of two evaluations: uploads, those of zeros, and bytes at stake by pattern."""
    with tempfile.TemporaryDirectory() as logs:
        _said(folder, variant, "coarse", 2, built, Path(logs))
        (process,) = Session(Path(logs)).processes
        found = compared(process)
    uploads = [one for one in found.shadow.effects if one.kind == UPLOAD]
    out.write("uploaded", "B", [sum(one.written for one in uploads)], own)
    out.write("uploaded_zeros", "B", [sum(one.written for one in uploads if one.zeros)], own)
    out.write("uncompared", "count", [found.uncompared], own)
    stakes: Counter[str] = Counter()
    for finding in coarse(found.shadow.effects):
        stakes[finding.name] += finding.at_stake
    for pattern, at_stake in sorted(stakes.items()):
        out.write("at_stake", "B", [at_stake], own | {"pattern": pattern})

"""Redundancy in PyTorch of today: what the tool finds in operators, and what removing it is worth.

The operators run once under the tool at small sizes, each tensor an allocation of its own. Then
both variants of each are timed at full size, in turns in one process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from accel_trace.session import Session
from accel_trace.tools.value_patterns import NODES
from accel_trace.values.findings import Finding, coarse, ranked
from accel_trace.values.flow import build, prune
from accel_trace.values.picture import page
from accel_trace.values.recorded import Replay, fine, replay
from accel_trace.values.shadow import COPY, FILL
from reprokit.errors import Failure
from reprokit.progress import Progress
from reprokit.records import RecordWriter
from reprokit.skip import cannot_run

from valueexpert.cli import Config
from valueexpert.levels import LEVELS, library, lines_of
from valueexpert.operators import OPERATORS

# Without PyTorch's own allocator every tensor is an object.
ALLOCATOR = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def run(config: Config, out: RecordWriter) -> None:
    """Raises Failure where two variants of an operator give other results."""
    if config.device != "cuda":
        cannot_run("redundancy in operators is looked for on a GPU")
    if importlib.util.find_spec("torch") is None:
        cannot_run("PyTorch is not here; fix: use the cuda image, or install torch")
    names = [name for name in config.operators if OPERATORS[name].here]
    progress = Progress(1 + config.repeats)
    look(names, library(), out)
    progress.step("looked at")
    for number in range(config.repeats):
        measure(names, config, number, out)
        progress.step(f"process {number}")


def _command(names: Sequence[str], size: str, runs: int) -> list[str]:
    return [sys.executable, "-m", "valueexpert.turns", ",".join(names), size, str(runs)]


def look(names: Sequence[str], built: Path, out: RecordWriter) -> None:
    """What the tool finds at the level fine, by operator, and the pages that show it."""
    with tempfile.TemporaryDirectory() as folder:
        lines_of(_command(names, "quick", 1), LEVELS["fine"], Path(folder), built, ALLOCATOR)
        (process,) = Session(Path(folder)).processes
        found = replay(process)
    findings = ranked([*coarse(found.shadow.effects), *fine(found)])
    graph = build(found.shadow.effects)
    drawn = graph if len(graph.nodes) <= NODES else prune(graph)
    html = Path(out.out_dir) / "value-flow-operators.html"
    html.write_text(page(drawn, findings, "PyTorch's operators, one after the other"))
    for name in names:
        tell(name, found, [one for one in findings if belongs(one.context, name)], out)


def belongs(context: str, name: str) -> bool:
    """Whether a place is of an operator's region: `kernel in NAME, read`, or NAME itself."""
    return re.search(rf"(?:^| in ){re.escape(name)}(?:, (?:read|write))?$", context) is not None


def tell(name: str, found: Replay, findings: Sequence[Finding], out: RecordWriter) -> None:
    """Write what was found of one operator, and the gain if the suspected bytes go."""
    own = {"operator": name}
    suspects = [one for one in findings if one.name in OPERATORS[name].suspects]
    out.write("found", "1", [float(bool(suspects))], own)
    for pattern, count in sorted(Counter(one.name for one in findings).items()):
        out.write("findings", "count", [count], own | {"pattern": pattern})
    for one in findings:
        where = own | {"pattern": one.name, "place": one.context}
        out.write("at_stake", "B", [one.at_stake], where, note=one.sentence())
    moved = sum(size for context, size in found.moved.items() if belongs(context, name))
    moved += sum(
        effect.written for effect in found.shadow.effects
        if effect.context == name and effect.kind in (FILL, COPY)
    )  # fmt: skip
    stakes: dict[str, int] = {}
    for one in suspects:
        place = one.context.removesuffix(", write")
        stakes[place] = max(stakes.get(place, 0), one.at_stake)
    left = moved - sum(stakes.values())
    if suspects and left > 0:
        out.write("promised", "x", [moved / left], own, evidence="simulated")


def measure(names: Sequence[str], config: Config, number: int, out: RecordWriter) -> None:
    """One process: times of both variants of all operators."""
    with tempfile.TemporaryDirectory() as folder:
        command = _command(names, config.size, config.samples + 1)
        lines = lines_of(command, LEVELS["native"], Path(folder), Path(os.devnull), {})
    times: dict[tuple[str, str], list[float]] = {}
    for line in map(json.loads, lines):
        if not line["same"]:
            raise Failure(f"{line['operator']}: without the redundancy it gives another result")
        times.setdefault((line["operator"], line["variant"]), []).append(float(line["us"]))
    for (name, variant), samples in times.items():
        labels = {"operator": name, "variant": variant}
        out.write("run_time", "us", samples[1:], labels, warmup=1, process=str(number))

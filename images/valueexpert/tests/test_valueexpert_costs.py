"""What is measured of a program at the tool's levels, and what is promised of a change's gain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from accel_trace.events import Event, Launch, Memcpy, Memset
from accel_trace.moved import Compared
from accel_trace.values.compared import Copies
from accel_trace.values.findings import coarse
from accel_trace.values.recorded import ON_DEVICE, TO_HOST, apply, calls, values_of
from accel_trace.values.shadow import Shadow
from reprokit.errors import Failure
from reprokit.records import RecordWriter
from valueexpert import traces
from valueexpert.bounds import foretold
from valueexpert.catalog import MINIS
from valueexpert.cli import PROGRAM
from valueexpert.experiments import gains, slowdown, slowdown_training
from valueexpert.levels import EVERY, LEVELS, measure

SAID = """
import json, os, pathlib, sys
from accel_trace.events import Fact, Launch
from accel_trace.log_writer import LogWriter
from accel_trace.moved import Recorded
mode, out = os.environ.get("ACCEL_TRACE_MODE"), os.environ.get("ACCEL_TRACE_OUT")
every = os.environ.get("ACCEL_TRACE_EVERY")
assert sys.argv[1:] == (["201"] if every else ["11"])
took = {None: 1, "empty": 2, "copies": 3, "values": 40}[mode]
if mode == "values":
    with LogWriter(pathlib.Path(out, "trace-7.atl"), pid=7) as log:
        for number in range(4):
            log.write(Launch(launch=number, name="k", device=0, stream=0, context=1, grid_x=1,
                             grid_y=1, grid_z=1, block_x=1, block_y=1, block_z=1, analysed=1,
                             thread=7, operator="", region=""))
        for number, kept in enumerate((10, 20, 5)):
            log.write(Recorded(launch=number, accesses=10 * (number + 1), kept=kept, reads=0,
                               writes=0, blocks=1))
        if every:
            assert os.environ["ACCEL_TRACE_WITHIN"] == "200"
            log.write(Fact(name="iterations", value="200"))
            log.write(Fact(name="iterations_analysed", value="8"))
took = 5 if every else 20 if os.environ.get("ACCEL_TRACE_BLOCKS") == "10" else took
for time in (1000, took, took + 2):
    print(json.dumps({"kernel_us": time, "memory_us": 1}))
"""


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_every_level_is_a_process_and_the_first_run_does_not_count(tmp_path: Path) -> None:
    library = tmp_path / "library"  # there is none: the program says what it was asked for
    measure([sys.executable, "-c", SAID], 10, 2, library, {"mini": "x"}, RecordWriter(tmp_path))
    found = records(tmp_path)
    times = {(r["labels"]["level"], r["process"]): r["samples"] for r in found
             if r["metric"] == "run_time"}  # fmt: skip
    wanted = {"native": 3, "empty": 4, "coarse": 5, "fine": 42, "blocks": 22, "every": 7}
    assert times == {(name, n): [took] for name, took in wanted.items() for n in "01"}
    assert [r["labels"]["level"] for r in found if r["metric"] == "run_time"] == [
        *LEVELS, *list(LEVELS)[1:], "native",
    ]  # fmt: skip
    told = [(r["metric"], r["samples"]) for r in found if r["metric"] in ("values", "whole")]
    assert told == [("values", [35]), ("whole", [0.5])] * 2, "one was cut, one not recorded"
    assert [r["samples"] for r in found if r["metric"] == "analysed"] == [[0.04]] * 2


@pytest.mark.parametrize(
    ("code", "words"),
    [("import sys; print('no', file=sys.stderr); sys.exit(3)", "ended with 3: no"),
     ("print('{\"kernel_us\": 1, \"memory_us\": 0}')", "printed 1 runs; two are needed")],
)  # fmt: skip
def test_a_program_that_fails_is_said_to(code: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(Failure, match=words):
        measure([sys.executable, "-c", code], 1, 1, tmp_path, {}, RecordWriter(tmp_path))


def test_levels_are_what_their_names_say() -> None:
    modes = {name: level.needs.mode for name, level in LEVELS.items()}
    assert modes == {"native": "none", "empty": "empty", "coarse": "copies", "fine": "values",
                     "blocks": "values", "every": "values"}  # fmt: skip
    assert LEVELS["blocks"].needs.environment["ACCEL_TRACE_BLOCKS"] == str(EVERY)


@pytest.mark.parametrize("module", [slowdown, slowdown_training])
def test_without_a_gpu_nothing_is_measured(module: object, tmp_path: Path) -> None:
    name = module.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
    with pytest.raises(SystemExit) as left:
        module.run(PROGRAM.parse([name]), RecordWriter(tmp_path))  # type: ignore[attr-defined]
    assert left.value.code == 77


def test_the_training_step_trains() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", "valueexpert.steps", "3", "cpu"], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 3
    assert all(line["kernel_us"] > 0 for line in lines)
    assert lines[2]["loss"] < lines[0]["loss"]


def test_a_promise_is_of_the_time_that_was_measured() -> None:
    assert foretold({"kernel": 60, "memory": 40}, {"kernel": 0.5}) == 100 / 70
    assert foretold({"kernel": 60, "memory": 40}, {"kernel": 1, "memory": 1}) is None


def test_promise_and_gain_are_written_side_by_side(tmp_path: Path) -> None:
    """All bytes of pathfinder fall four times: so a gain of 4 is promised, whatever takes long."""
    mini = MINIS["pathfinder"]
    out = RecordWriter(tmp_path)
    spent = {
        "before": {"kernel": 300.0, "memory": 700.0},
        "after": {"kernel": 100.0, "memory": 160},
    }
    gains._judge(mini, gains._promises(mini), spent, 0, out)
    spent["after"]["memory"] = 400
    gains._judge(mini, gains._promises(mini), spent, 1, out)
    found = [(r["metric"], r["process"], r["samples"][0]) for r in records(tmp_path)]
    assert found == [
        ("gain", "0", pytest.approx(1000 / 260)), ("gain_promised", "0", pytest.approx(4.0)),
        ("gain_off", "0", pytest.approx(0.04)), ("gain", "1", 2.0),
        ("gain_promised", "1", pytest.approx(4.0)), ("gain_off", "1", pytest.approx(1.0)),
    ]  # fmt: skip


def coarsely(folder: Path) -> set[tuple[str, str, str]]:
    """What the level coarse finds where copies are compared as on a GPU, in memory of zeros."""
    accesses, contents = values_of(traces.process(folder))
    memory, copies, told = Shadow(), Copies(), None
    for event, context, number in calls(traces.process(folder)):
        told = compare(memory, event, contents.of(number))
        apply(memory, event, context, contents, number)
        if isinstance(event, Launch):
            memory.kernel(accesses.take(accesses.launch == event.launch), context)
        copies.take(event, context, told)
    return {(f.name, f.context, f.thing) for f in coarse(copies.found.shadow.effects)}


def compare(memory: Shadow, event: Event, data: np.ndarray) -> Compared | None:
    if isinstance(event, Memset):
        data = np.full(event.size, event.value, np.uint8)
        held = memory.peek(event.address, event.size)
    elif isinstance(event, Memcpy) and event.direction == TO_HOST:
        data, held = memory.peek(event.source, event.size), data
    elif isinstance(event, Memcpy):
        held = memory.peek(event.destination, event.size)
        data = memory.peek(event.source, event.size) if event.direction == ON_DEVICE else data
    else:
        return None
    same = int((held == data).sum())
    return Compared(size=event.size, unchanged=same, zeros=int(not data.any()))


# What the atomics of huffman leave is not in its trace.
@pytest.mark.parametrize("name", [name for name in MINIS if name != "huffman"])
def test_coarse_finds_the_copies_and_fills_that_fine_finds(name: str) -> None:
    with traces.opened(MINIS[name]) as folders:
        for variant, folder in folders.items():
            assert coarsely(folder) == traces.coarse_labels(name, variant), variant

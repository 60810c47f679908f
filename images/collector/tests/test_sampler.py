"""One iteration in N is analysed, and between them no module is patched."""

from __future__ import annotations

import itertools
import random
import subprocess
from pathlib import Path

import pytest
from accel_trace import events as ev
from native_support import START, Log, launch, play, program, touched

A = 0x7F0000000000
BEGIN = [*START, f"alloc 1 {A:#x} 512"]


def found(*sequences: list[int]) -> list[tuple[list[int], int, int]]:
    """Where iterations end, the length that is found at last, and how often it was lost."""
    done = subprocess.run(
        [program("check_repeats", ("repeats",), "address,undefined")], text=True, check=True,
        input="".join(" ".join(map(str, one)) + "\n" for one in sequences), capture_output=True,
    )  # fmt: skip
    out = []
    for line in done.stdout.splitlines():
        *ends, _, length, _, lost = line.split()
        out.append(([int(end) for end in ends], int(length), int(lost)))
    return out


def test_iterations_are_found_in_the_sequence_of_launches() -> None:
    step = [1, 2, 3, 4, 5, 2, 6]
    layers = [9, *[1, 2, 3] * 12, 8, 7, *[4, 5] * 12, 6]
    warm = list(range(100, 160))
    chance = random.Random(3)
    noise = [chance.randrange(10**9) for _ in range(3000)]
    plain, nested, none, changing = found(
        step * 9, warm + layers * 8, noise, step * 12 + warm + [7, *step] * 40
    )
    assert plain == ([42, 49, 56, 63], 7, 0)
    ends, length, lost = nested
    assert (length, len(layers)) == (len(layers), len(layers))
    whole = [b - a for a, b in itertools.pairwise(ends) if b - a == length]
    assert len(whole) >= 4
    assert lost <= 4
    assert none == ([], 0, 0)
    assert (changing[1] % 8, changing[2]) == (0, 1), "several of them may be taken for one"
    assert changing[1] > 0


def work(address: int = A, way: str = "call") -> list[str]:
    return [*launch(f"global 1 4 {address:#x} 4 9")[:-1], way]


def analysed(log: Log) -> list[int]:
    return [event.analysed for event in log.of(ev.Launch)]


def iterations(log: Log) -> list[tuple[int, int, int]]:
    return [(i.iteration, i.began, i.analysed) for i in log.of(ev.Iteration)]


@pytest.mark.parametrize("mode", ["touch", "trace"])
def test_steps(tmp_path: Path, mode: str) -> None:
    script = [*BEGIN, *work(), *(["step", *work(), "call"] * 7)]
    log = play(script, tmp_path, mode, every=3).log
    # Iterations 2 and 5 are not watched: no launch of theirs is told.
    assert analysed(log) == [0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
    assert [i for i in range(11) if touched(log, i)] == [3, 4, 7, 8]
    assert all(touched(log, i) == [(A, 512)] for i in (3, 4, 7, 8))
    assert [i for i in iterations(log) if i[1]] == [(i, 1, int(i % 3 == 1)) for i in range(7)]
    facts = log.facts()
    assert (facts["iterations"], facts["iterations_analysed"]) == ("7", "2")
    assert (facts["iterations_by"], facts["iterations_unwatched"]) == ("steps", "2")
    assert log.of(ev.Module)[0].patched == 0


def told(script: list[str], folder: Path, **settings: object) -> list[int]:
    """How many callbacks came between every first and second line `told` of a script."""
    lines = play(script, folder, **settings).stdout.splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("told")][1::2]


@pytest.mark.parametrize("mark", ["steps", "regions"])
def test_between_samples_nothing_is_told(mark: str, tmp_path: Path) -> None:
    """No callback comes of launches, copies, fills, waits or graphs; memory is followed on."""
    one = [*work(), "graph 1", "node 1 k", "go", f"copy 1 {A:#x} {A + 256:#x} 64 4 1",
           f"set 1 {A:#x} 16 1 4 0", "sync 1", "sync_context 1"]  # fmt: skip
    extra = [f"alloc 1 {A + 0x10000:#x} 512", f"tensor {A + 0x10000:#x} 512"]
    script = [*BEGIN]
    for i in range(12):
        more = extra if i == 3 else []
        last = [*launch(f"global 1 4 {A + 0x10000:#x} 4 9")[:-1], "call"] if i == 6 else []
        parts = [*more, *one, *last, "told"]
        begin, end = (["step"], []) if mark == "steps" else (["region start r"], ["region end r"])
        script += [*begin, "told", *parts, *end]
    settings = {"region": "r"} if mark == "regions" else {}
    counts = told(script, tmp_path, every=5, **settings)
    assert [bool(count) for count in counts] == [i % 5 in (0, 1) for i in range(12)]
    counts = told(script, tmp_path, every=5, between="all", **settings)
    assert all(count > 10 for count in counts)
    log = play(script, tmp_path, every=5, **settings).log
    # What came in iteration 3 is known in iteration 6.
    assert [(A + 0x10000, 512)] in [touched(log, x.launch, 1) for x in log.of(ev.Launch)]


def test_of_iterations_found_by_launches_only_their_beginnings_are_told(tmp_path: Path) -> None:
    one = [*work(), *launch(name="b")[:-1], "call", *launch(name="c")[:-1], "call", "sync 1"]
    counts = told([*BEGIN, *["told", *one, "told"] * 60], tmp_path, every=10)
    assert counts.count(3) > 25, "one callback for each launch"
    log = play([*BEGIN, *one * 60], tmp_path, every=10).log
    facts = log.facts()
    assert int(facts["iterations_unwatched"]) >= 25
    assert int(facts["iterations_analysed"]) >= 3
    assert {len([x for x in log.of(ev.Launch) if x.analysed]) % 3} == {0}
    assert not log.of(ev.Lost)


def test_iterations_that_end_while_they_are_not_watched(tmp_path: Path) -> None:
    """What was found does not go on: all is watched again, until something else is found."""
    one = [*work(), *launch(name="b")[:-1], "call", *launch(name="c")[:-1], "call"]
    other = [*launch(name="d")[:-1], "call", *work()]
    log = play([*BEGIN, *one * 30, *other * 1500], tmp_path, every=8).log
    assert "did not go on" in log.notes()
    names = {log_name.name for log_name in log.of(ev.Launch) if log_name.analysed}
    assert {"b", "c", "d"} <= names


def test_a_capture_is_watched_and_the_next_iteration_is_not(tmp_path: Path) -> None:
    capture = ["begin_capture 1 4", *launch(name="k")[:-1], "call capture", "end_capture 4",
               "instantiate 4"]  # fmt: skip
    script = [*BEGIN]
    for i in range(8):
        script += ["step", "told", *(capture if i == 3 else []), *work(), "told"]
    counts = told(script, tmp_path, every=7)
    assert [bool(count) for count in counts] == [True, True, False, True, False, False, False, True]


def test_modules_that_are_loaded_on_the_way(tmp_path: Path) -> None:
    """Those of a sampled iteration are patched when they come, the others where one begins."""
    second, third = ([*launch(f"global 1 4 {A:#x} 4 9", module=m)[:-1], "call"] for m in (2, 3))
    script = [
        *BEGIN, "step", *work(), "module 2 1", *second, "step", *second, "module 3 1", *third,
        "step", *third, "unload 3", "step", *second, "step", *work(), *second,
    ]  # fmt: skip
    log = play(script, tmp_path, every=3).log
    assert analysed(log) == [0, 0, 1, 1, 0, 1, 1]  # iteration 2 is not watched
    assert [bool(touched(log, i)) for i in range(7)] == [
        False,
        False,
        True,
        True,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("mark", ["steps", "regions", "launches"])
def test_as_many_iterations_as_may_take_the_time(mark: str, tmp_path: Path) -> None:
    """Patching takes 300 ms a module, an iteration 200: one in two would take 1.75 times."""
    kernels = [x for name in "bcd" for x in (*launch(name=name)[:-1], "call")]
    one = [*work(), *kernels, "skip 200"]
    begin, end = {"steps": (["step"], []), "launches": ([], []),
                  "regions": (["region start r"], ["region end r"])}[mark]  # fmt: skip
    script = [*BEGIN, *([*begin, *one, *end] * 80)]
    settings = {"region": "r"} if mark == "regions" else {}
    played = play(script, tmp_path, every=2, within=150, SYNTHETIC_PATCHES_TAKE="300", **settings)
    log = played.log
    every, enough = (
        play(script, tmp_path, every=2, within=most, SYNTHETIC_PATCHES_TAKE="300", **settings).log
        for most in ("", 10**6)
    )
    few, many, all_ = (int(one.facts()["iterations_analysed"]) for one in (log, every, enough))
    assert all_ == many
    began = {i.iteration: i for i in log.of(ev.Iteration) if i.began}
    ended = {i.iteration: i.ns for i in log.of(ev.Iteration) if not i.began}
    took = {n: ended[n] - began[n].ns for n in sorted(ended) if n}
    plain = [ns for n, ns in took.items() if not began[n].analysed]
    most = max(ns for n, ns in took.items() if began[n].analysed)
    assert abs(few - len(took) / 3) < 2 < many - few  # 2/3 of 200 ms and 1/3 of 500 are 1.5 of 200
    assert sum(took.values()) <= 1.5 * len(took) * sum(plain) / len(plain) + most
    assert touched(log, next(x.launch for x in log.of(ev.Launch) if x.analysed)) == [(A, 512)]


def test_regions(tmp_path: Path) -> None:
    script = [*BEGIN]
    for _ in range(5):
        script += [*work(), "region start step", *work(), "region start inner", "call",
                   "region end inner", "region end step"]  # fmt: skip
    log = play(script, tmp_path, every=2, region="step").log
    assert analysed(log) == [0, 0, 0, 0, 1, 1] * 2 + [0, 0, 0]
    assert len(iterations(log)) == 10
    assert log.facts()["iterations_by"] == "regions"


def test_iterations_of_launches_alone(tmp_path: Path) -> None:
    step = [*work(), *launch(name="b")[:-1], "call", *launch(name="c")[:-1], "call"]
    log = play([*BEGIN, *step * 24], tmp_path, every=2).log
    assert log.facts()["iterations_by"] == "launches"
    assert analysed(log) == [0] * 36 + [0, 0, 0, 1, 1, 1] * 6
    assert touched(log, 39) == [(A, 512)]


def test_that_no_iteration_was_found_is_said(tmp_path: Path) -> None:
    script = [*BEGIN]
    for i in range(40):
        script += [*launch(name=f"k{i}")[:-1], "call"]
    log = play(script, tmp_path, every=2).log
    assert "no iteration was found" in log.notes()
    assert set(analysed(log)) == {0}


def test_graphs_are_instantiated_patched(tmp_path: Path) -> None:
    node = ["graph 1", "node 1 k", f"access global 1 4 {A:#x} 4 9", "go"]
    script = [*BEGIN, "instantiate 4", *(["step", *node] * 5), *work()]
    log = play(script, tmp_path, every=2).log
    assert analysed(log) == [3, 2, 3, 2, 3, 0]
    assert [bool(touched(log, i)) for i in range(5)] == [False, True, False, True, False]
    assert not log.of(ev.Lost)


def test_a_graph_that_is_instantiated_while_less_is_watched_is_patched(tmp_path: Path) -> None:
    """By another thread, just when an iteration begins that is not watched."""
    node = ["graph 1", "node 1 k", f"access global 1 4 {A:#x} 4 9", "go"]
    script = [*BEGIN, *(["step", *work()] * 6), "step", *node, "sync 1", *node]
    log = play(script, tmp_path, every=5, SYNTHETIC_INSTANTIATES="7").log
    assert analysed(log)[-2:] == [2, 2]
    assert not log.of(ev.Lost)


@pytest.mark.parametrize("sanitize", ["", "thread"])
def test_a_second_thread_is_refused_in_a_sentence(sanitize: str, tmp_path: Path) -> None:
    """Its launches wait while modules are patched: none runs into code that is half changed."""
    script = [*BEGIN, *launch(f"global 1 4 {A:#x} 4 9")[:-1], "steps_beside 60"]
    run = play(script, tmp_path, every=2, sanitize=sanitize, SYNTHETIC_SLOW_PATCHES="1")
    log = run.log
    assert "no more iterations are analysed: a second thread launched kernels" in log.notes()
    assert not log.of(ev.Lost)
    assert 0 < sum(analysed(log)) < len(analysed(log))
    assert iterations(log)[-1][2] == 0


@pytest.mark.parametrize(("name", "value"), [("every", "often"), ("within", "100")])
def test_settings_must_be_numbers(tmp_path: Path, name: str, value: str) -> None:
    run = play([*BEGIN], tmp_path, **{"every": 2, name: value}, ok=False)
    assert f"ACCEL_TRACE_{name.upper()}" in (run.folder / next(
        path.name for path in run.folder.iterdir() if path.suffix == ".status"
    )).read_text()  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_memory_that_changes_between_samples_is_known_then(tmp_path: Path, seed: int) -> None:
    """Tensors and objects come, go and come again with other sizes; each run touches the same."""
    chance = random.Random(seed)
    size = 1 << 24
    script = [*START, f"alloc 1 {A:#x} {size}"]
    live: dict[int, int] = {}
    other = False
    for _ in range(40):
        script.append("step")
        for _ in range(chance.randrange(12)):
            at = A + 512 * chance.randrange(chance.choice([64, size // 512]))
            end = min(at + 512 * chance.choice([1, 2, 7, 4096, 5000]), A + size)
            for old in [a for a, n in live.items() if a < end and a + n > at]:
                script.append(f"untensor {old:#x}")
                del live[old]
            if chance.random() < 0.8:
                live[at] = end - at
                script.append(f"tensor {at:#x} {end - at}")
        if chance.random() < 0.3:
            verb = f"free 1 {A + 2 * size:#x}" if other else f"alloc 1 {A + 2 * size:#x} 70000"
            script.append(verb)
            other = not other
        places = [*live, *(a + n - 4 for a, n in live.items()), A + 2 * size, A + size - 4]
        for _ in range(3):
            script += work(chance.choice(places))
    exact = play(script, tmp_path).log
    sampled = play(script, tmp_path, every=4).log
    which = [i for i, was in enumerate(analysed(sampled)) if was]
    same = [3 * step + i for step in range(1, 40, 4) for i in range(3)]  # without sampling
    assert len(which) == len(same) == 30
    assert [touched(sampled, i) for i in which] == [touched(exact, i) for i in same]
    assert sum(len(touched(exact, i)) for i in same) >= 30

"""The page table against a model, the ring with slow and dead consumers, and runs under g++'s
sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from accel_trace import events as ev
from native_support import START, launch, play, program, touched
from test_native_process import WORK
from test_native_touch import A, scenario

RING = ("consumer", "log", "pieces", "page_table", "slots")


def output(*command: object, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("first", [0, 100])
def test_the_page_table_equals_a_map_of_bytes(first: int) -> None:
    check = program("check_page_table", ("page_table",), "address,undefined")
    assert output(check, first, first + 100) == "100 seeds\n"


@pytest.mark.parametrize("sanitize", ["", "thread"])
def test_memory_that_the_program_closes_meanwhile_is_compared(sanitize: str) -> None:
    """Its own handlers let in who touches it, and only its own threads' faults come to them."""
    check = program("check_equal", ("equal",), sanitize)
    assert output(check, 64, 20) == f"{64 << 20} 1\n"


def ring(*arguments: object, sanitize: str = "") -> tuple[int, int, int, int, int, int]:
    """(written, dropped, counted, lost, outside, milliseconds)"""
    written, dropped, counted, lost, outside, ms = map(
        int, output(program("check_ring", RING, sanitize), *arguments).split()
    )
    return written, dropped, counted, lost, outside, ms


@pytest.mark.parametrize("sanitize", ["", "thread"])
def test_waiting_loses_nothing(sanitize: str) -> None:
    written, dropped, counted, lost, outside, _ = ring(
        "wait", 64, 4, 4000, 3, 300, sanitize=sanitize
    )
    assert (written, dropped, counted, lost, outside) == (16_000, 0, 16_000, 0, 4000)


def test_waiting_waits_for_a_slow_consumer() -> None:
    """2000 records through a ring of 16, with 5 ms for each batch of at most 16."""
    written, dropped, counted, _, _, ms = ring("wait", 16, 2, 1000, 1, 5000)
    assert (written, dropped, counted) == (2000, 0, 2000)
    assert ms >= 2000 / 16 * 5


@pytest.mark.parametrize("sanitize", ["", "thread"])
def test_a_batch_is_waited_for_though_later_ones_are_done(sanitize: str) -> None:
    """The first launch's 64 records take 0.2 s; another thread has looked at the next by then."""
    _, _, counted, lost, outside, ms = ring("behind", 4096, 4, 64, 2, 200_000, sanitize=sanitize)
    assert (counted, lost, outside) == (64, 0, 16)
    assert ms >= 200


@pytest.mark.parametrize("sanitize", ["", "thread"])
def test_warps_that_fill_a_buffer_of_values_at_once(sanitize: str) -> None:
    """Rounds with room for 0 to all of the 4 x 12 accesses, and for parts of one."""
    said = output(program("check_values", (), sanitize), 3000, 4, 12)
    wrong, kept, lost = map(int, said.split())
    assert wrong == 0
    assert kept + lost == 3000 * 4 * 12
    assert min(kept, lost) > 50_000


@pytest.mark.parametrize("sanitize", ["", "thread"])
def test_dropping_counts_what_it_drops(sanitize: str) -> None:
    written, dropped, counted, lost, _, _ = ring("drop", 64, 4, 20_000, 2, 2000, sanitize=sanitize)
    assert written + dropped == 80_000
    assert written == counted
    assert dropped > 0
    assert lost == 0


def test_dropping_drops_nothing_while_there_is_room() -> None:
    assert ring("drop", 4096, 4, 1000, 1, 0)[:3] == (4000, 0, 4000)


def test_a_dead_consumer_does_not_hold_the_gpu() -> None:
    written, dropped, _, _, _, ms = ring("dead", 64, 4, 5000, 1, 0)
    assert (written, dropped) == (64, 20_000 - 64)
    assert 100 <= ms < 5000


def test_drops_of_a_run_are_counted_in_log_and_status(tmp_path: Path) -> None:
    count = 200_000
    script = [*START, f"alloc 1 {A:#x} 4096", *launch(f"global 1 4 {A:#x} 0 {count}")]
    log = play(script, tmp_path, "trace", analysis="count", policy="drop", buffer=2).log
    (counts,) = log.of(ev.Counts)
    drops = log.of(ev.Dropped)
    assert drops, "a ring of two records is too small for a kernel that never waits"
    assert counts.global_reads + drops[-1].count == count
    assert log.status["dropped_accesses"] == drops[-1].count
    assert drops[-1].what == "accesses"


@pytest.mark.parametrize("mode", ["events", "touch", "count", "hot", "trace"])
def test_clean_under_address_and_undefined_behaviour_sanitizers(tmp_path: Path, mode: str) -> None:
    for script in (
        WORK,
        scenario(77),
        [*START, "destroy 1", "context 2 0", "stream 2 2", *launch(stream=2)],
        [*START, f"alloc 1 {A:#x} 512", *launch(f"global 1 4 {A:#x} 4 9"), "break 1", *launch()],
    ):
        run = play(script, tmp_path, mode, sanitize="address,undefined", workers=2)
        assert run.stderr == ""
        assert run.log.whole


@pytest.mark.parametrize("mode", ["touch", "trace"])
def test_clean_under_the_thread_sanitizer(tmp_path: Path, mode: str) -> None:
    run = play([*START, "threads 3 60"], tmp_path, mode, sanitize="thread", workers=2, buffer=64)
    assert run.stderr == ""
    assert all(touched(run.log, i) for i in range(180))

"""What no patch sees: cubins of the real compiler, and tensor maps found among parameters."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest
from accel_trace import events as ev
from accel_trace import unpatched
from native_support import (
    TESTING,
    Log,
    built,
    launch,
    need_tools,
    play,
    program,
    touched,
)

A = 0x7F0000000000
BF16 = 9
LOADS, STORES, REDUCES, TEXTURES, SURFACES = unpatched.USES.values()


@cache
def cubin(arch: str) -> Path:
    tools = need_tools()
    defines = ["-DTENSOR_MAPS"] if int(arch.rstrip("a")) >= 90 else []

    def make(folder: Path) -> None:
        subprocess.run(
            [str(tools.nvcc), "-cubin", "-std=c++17", f"-arch=sm_{arch}", f"-ccbin={tools.cxx}",
             *defines, *tools.includes(), str(TESTING / "unpatched.cu"),
             "-o", str(folder / "unpatched.cubin")],
            check=True, timeout=300, capture_output=True,
        )  # fmt: skip

    return built(f"cubin-{arch}", make, tools, arch) / "unpatched.cubin"


@pytest.mark.parametrize("arch", ["75", "80", "90a", "100a", "120a"])
def test_a_cubin_says_what_its_kernels_use(arch: str) -> None:
    check = program("check_cubin", ("cubin",), "address,undefined")
    done = subprocess.run([check, cubin(arch)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = {
        line.split()[0]: (int(line.split()[1]), line.split()[2:])
        for line in done.stdout.splitlines()
    }
    maps = {
        "loads": (LOADS, ["1:128"]), "stores": (STORES, ["0:512"]), "reduces": (REDUCES, ["0:512"]),
    }  # fmt: skip
    assert found == (maps if int(arch.rstrip("a")) >= 90 else {}) | {
        "textures": (TEXTURES, []), "layers": (TEXTURES, []), "surfaces": (SURFACES, []),
        "large": (0, ["0:20000"]),
    }  # fmt: skip


def begin(extra: str = "") -> list[str]:
    return ["context 1 0", f"module 1 1 - {cubin('90a')}", "stream 1 1", extra]


def maps(log: Log) -> list[tuple[int, int, int, int]]:
    return [(m.launch, m.address, m.span, m.size) for m in log.of(ev.TensorMap)]


def uses(log: Log) -> dict[int, int]:
    return {event.launch: event.what for event in log.of(ev.Uses)}


# 1024 rows of 512 numbers of two bytes, 2048 bytes from each other.
MATRIX = f"map 1 {BF16} {A:#x} 2 512 1024 2048"
SPAN, SIZE = 1023 * 2048 + 1024, 1 << 20


@pytest.mark.parametrize("way", ["", "buffer", "runtime"])
def test_tensor_maps_among_the_parameters(tmp_path: Path, way: str) -> None:
    script = [
        *begin(MATRIX), f"map 2 {BF16} {A + (1 << 24):#x} 1 64",
        "launch 1 1 loads", "argument 8", "argument 128 0 1", f"call {way}",
        "launch 1 1 stores", "argument 512 128 1 256 2", f"call {way}",
        "launch 1 1 stores", "argument 512 128 2 256 2", f"call {way}",
        "launch 1 1 loads", "argument 8", "argument 128", f"call {way}",
        "launch 1 1 plain", "argument 8", f"call {way}",
    ]  # fmt: skip
    log = play(script, tmp_path).log
    second = (A + (1 << 24), 128, 128)
    assert maps(log) == [(0, A, SPAN, SIZE), (1, A, SPAN, SIZE), (1, *second), (2, *second)]
    assert uses(log) == {0: LOADS, 1: STORES, 2: STORES, 3: LOADS}
    (first, *_) = log.of(ev.TensorMap)
    assert (first.type, first.rank, first.extent_0, first.extent_1, first.stride_1) == (
        BF16, 2, 512, 1024, 2048,
    )  # fmt: skip
    assert log.facts()["tensor_maps"] == "2"


def test_of_a_map_that_nobody_saw_being_made_the_address_is_known(tmp_path: Path) -> None:
    """Made before the tool came, say. The kernel's code copies by tensor map, so it has one."""
    other = A + (1 << 24)
    script = [
        *begin(), f"alloc 1 {A:#x} 4096", f"alloc 1 {other:#x} 512", "launch 1 1 stores",
        f"pointer 512 {A + 64:#x}", "call", "launch 1 1 loads", "argument 8",
        f"pointer 128 {other:#x}", "call",
        "launch 1 1 loads", "argument 8", "pointer 128 0x1234", "call",
        "launch 1 1 large", f"pointer 20000 {A:#x}", "call",
    ]  # fmt: skip
    log = play(script, tmp_path).log
    assert [(launch, at, span) for launch, at, span, _ in maps(log)] == [
        (0, A + 64, 1), (1, other, 1),
    ]  # fmt: skip
    assert {m.type for m in log.of(ev.TensorMap)} == {unpatched.ADDRESS_ALONE}


def test_a_map_that_moves_keeps_its_shape(tmp_path: Path) -> None:
    script = [
        *begin(MATRIX), f"move_map 1 {A + 4096:#x}", f"move_map 7 {A:#x}",
        "launch 1 1 loads", "argument 8", "argument 128 0 1", "call",
        "launch 1 1 loads", "argument 8", "argument 128 0 7", "call",
    ]  # fmt: skip
    log = play(script, tmp_path).log
    assert maps(log) == [(0, A + 4096, SPAN, SIZE)]
    assert uses(log) == {0: LOADS, 1: LOADS}, "the second's map was made where nobody looks"


def test_maps_of_captured_launches_are_told_of_the_graph(tmp_path: Path) -> None:
    capture = ["launch 1 1 loads", "argument 8", "argument 128 0 1", "call capture"]
    script = [
        *begin(MATRIX), *capture, "end_capture 5", "instantiate 5", "instantiate 6",
        *["instantiate 5", "graph 1", "node 1 plain", "node 1 loads", "go"] * 2,
        "instantiate 6", "graph 1", "node 1 loads", "go",
    ]  # fmt: skip
    log = play(script, tmp_path).log
    assert [x.analysed for x in log.of(ev.Launch)] == [2, 4, 2, 4, 2]
    assert maps(log) == [(0, A, SPAN, SIZE), (2, A, SPAN, SIZE)]
    assert [(u.launch, u.what) for u in log.of(ev.Uses)] == [(0, LOADS), (2, LOADS), (4, LOADS)]


def test_nothing_is_watched_where_nothing_is_analysed(tmp_path: Path) -> None:
    script = [*begin(MATRIX), "launch 1 1 loads", "argument 8", "argument 128 0 1", "call"]
    log = play(script, tmp_path, "events").log
    assert (maps(log), uses(log), len(log.of(ev.Launch))) == ([], {}, 1)


def touching(address: int, stream: int = 1) -> list[str]:
    return launch(f"global 1 4 {address:#x} 4 9", stream=stream)


def test_what_the_program_waited_for_is_kept_when_it_is_killed(tmp_path: Path) -> None:
    script = [
        *begin("stream 2 1"), f"alloc 1 {A:#x} 512", *touching(A), *touching(A, 2), *touching(A),
        "sync 1", *launch(stream=2), "sync_context 1", *touching(A), "kill",
    ]  # fmt: skip
    run = play(script[:-3], tmp_path, ok=False)
    assert [touched(run.log, i) for i in range(4)] == [[(A, 512)]] * 3 + [[]]
    run = play(script, tmp_path, ok=False)
    assert not run.log.whole
    assert [touched(run.log, i) for i in range(5)] == [[(A, 512)]] * 3 + [[], []]
    assert [event.launch for event in run.log.of(ev.Nothing)] == [3]
    stream_alone = play([*script[: script.index("sync 1") + 1], "kill"], tmp_path, ok=False)
    assert [len(touched(stream_alone.log, i)) for i in range(3)] == [1, 0, 1]


def test_a_quick_exit_keeps_all(tmp_path: Path) -> None:
    script = [*begin(), f"alloc 1 {A:#x} 512", *touching(A), "quick_exit 4"]
    run = play(script, tmp_path, ok=False)
    assert (run.returncode, run.log.whole) == (4, True)
    assert touched(run.log, 0) == [(A, 512)]


def test_what_goes_with_the_context_is_said_to_be_lost(tmp_path: Path) -> None:
    script = [*begin(), f"alloc 1 {A:#x} 512", *touching(A), "sync 1", *touching(A), "break 1"]
    log = play(script, tmp_path).log
    assert (touched(log, 0), touched(log, 1)) == ([(A, 512)], [])
    assert [event.launch for event in log.of(ev.Lost)] == [1]


def test_clean_under_the_sanitizers(tmp_path: Path) -> None:
    script = [
        *begin(MATRIX), "launch 1 1 stores", "argument 512 128 1", "call", "call buffer",
        "call capture", "end_capture 3", "instantiate 3", "graph 1", "node 1 stores", "go",
        "unload 1", "module 2 1", "launch 1 2 loads", "argument 8", "argument 128", "call",
    ]  # fmt: skip
    run = play(script, tmp_path, sanitize="address,undefined")
    assert (run.stderr, len(maps(run.log))) == ("", 3)

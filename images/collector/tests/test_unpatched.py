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
    bench,
    built,
    launch,
    need_tools,
    play,
    program,
    touched,
)

A = 0x7F0000000000
LOADS, STORES, REDUCES, TEXTURES, SURFACES = unpatched.USES.values()
UNSEEN = "global"  # classes without copies: no Sanitizer patches those


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


def words(image: str, address: int = A) -> str:
    """A real image, of a tensor elsewhere."""
    return " ".join([hex(address), *(f"0x{word}" for word in image.split()[1:])])


# As an H200's driver (580.159.04) encoded it, 128 bytes: fp16, 128 rows of 64, 1024 bytes from each
# other.
ENCODED = "7f1234567000 4000000310 0 0 7f0000003f 0 1f00000000000000 f 400 10 0 0 0 0 0 0"
MATRIX = f"tensor_map 1 {words(ENCODED)}"
SPAN, SIZE = 127 * 1024 + 128, 64 * 128 * 2
MEMORY = f"alloc 1 {A:#x} {1 << 34}"
# As libraries made them that ask no driver, 64 bytes: cuBLAS for bf16, 1024 rows of 512; cuDNN for
# an attention's input of 4 batches, 16 heads, 1024 rows and 64 columns.
CUBLAS = "7fe953e00000 4000046522 1000000000000000 0 3ff000001ff 0 3f00000000000000 1f"
CUDNN = "7fe941400000 8000060b2 2000000002000 0 3ff0000003f 30000000f 3f000e0000000000 7f"
# Other formats of the driver, rank and type in the second word, a large stride.
FIVE = "7f1234567000 bcdef01200000340 10000000010000 a01000000 3f 0 1f00000000000000 1010f"
TYPES = {
    0x0: (0, 8), 0x80: (1, 16), 0x100: (2, 32), 0x180: (3, 32), 0x200: (4, 64), 0x280: (5, 64),
    0x300: (6, 16), 0x380: (7, 32), 0x480: (8, 64), 0x500: (9, 16), 0x400: (10, 32),
    0x10380: (11, 32), 0x10400: (12, 32),
}  # fmt: skip


def test_images_of_tensor_maps_are_read(tmp_path: Path) -> None:
    """What the driver and two libraries write is what their arguments were."""
    images = [ENCODED, CUBLAS, CUDNN, FIVE]
    images += [ENCODED.replace("310", f"{0x10 | bits:x}") for bits in TYPES]
    call = ["launch 1 1 stores", "argument 512 128 1", "call"]
    script = [*begin(MEMORY)]
    for image in images:
        script += [f"tensor_map 1 {words(image)}", *call]
    found = play(script, tmp_path).log.of(ev.TensorMap)
    first, cublas, cudnn, five, *types = found
    assert (first.type, first.rank, first.extent_0, first.extent_1, first.stride_1) == (
        6, 2, 64, 128, 1024,
    )  # fmt: skip
    assert (first.address, first.span, first.size) == (A, SPAN, SIZE)
    assert (cublas.type, cublas.extent_0, cublas.extent_1, cublas.span) == (9, 512, 1024, 1 << 20)
    assert (cudnn.rank, cudnn.span, cudnn.size) == (4, 8 << 20, 8 << 20)
    assert (cudnn.extent_2, cudnn.extent_3, cudnn.stride_3) == (16, 4, 2 << 20)
    assert (five.rank, five.stride_1, five.stride_2) == (5, 737894400288, 1 << 20)
    assert [(m.type, m.size) for m in types] == [
        (number, 64 * 128 * bits // 8) for number, bits in TYPES.values()
    ]


@pytest.mark.parametrize("way", ["", "buffer"])
def test_tensor_maps_among_the_parameters(tmp_path: Path, way: str) -> None:
    other = A + (1 << 24)
    script = [
        *begin(MATRIX), MEMORY, f"tensor_map 2 {words(CUBLAS, other)}",
        "launch 1 1 loads", "argument 16", "argument 128 0 1", f"call {way}",
        "launch 1 1 stores", "argument 512 128 1 256 2 320 1", f"call {way}",
        "launch 1 1 stores", "argument 512 112 2", f"call {way}",
        "launch 1 1 loads", "argument 16", "argument 128", f"call {way}",
        "launch 1 1 plain", "argument 8", f"call {way}",
    ]  # fmt: skip
    log = play(script, tmp_path, classes=UNSEEN).log
    second = (other, 1 << 20, 1 << 20)
    assert maps(log) == [(0, A, SPAN, SIZE), (1, A, SPAN, SIZE), (1, *second), (2, *second)]
    assert uses(log) == {0: LOADS, 1: STORES, 2: STORES, 3: LOADS}
    assert (log.facts()["tensor_maps"], log.facts()["parameters_read"]) == ("4", "4")


@pytest.mark.parametrize("oldest", [False, True])
def test_loads_by_tensor_map_are_seen_where_the_headers_have_them(
    tmp_path: Path, oldest: bool
) -> None:
    """By the map that a copy used, wherever it lies; what a kernel may store, by descriptor."""
    there = bench(oldest=oldest).features["AT_TENSOR"]
    other, third = A + (1 << 24), A + (1 << 25)
    script = [
        *begin(MATRIX), *(f"alloc 1 {at:#x} {1 << 20}" for at in (A, other, third)),
        f"tensor_map 2 {words(CUBLAS, other)}", f"tensor_map 3 {words(CUBLAS, third)}",
        "launch 1 1 loads", "access tensor_load 0 0 1 0 4", "access tensor_load 0 0 3 0 1",
        "argument 16", "argument 128 0 2", "call",
        "launch 1 1 stores", "access tensor_load 0 0 3 0 1", "access tensor_store 0 0 0 0 1",
        "argument 512 128 1 256 2", "call",
    ]  # fmt: skip
    log = play(script, tmp_path, oldest=oldest).log
    first, second = (A, SPAN, SIZE), (other, 1 << 20, 1 << 20)
    stores = [(1, *first), (1, *second)]
    assert maps(log) == ([] if there else [(0, *second)]) + stores
    assert uses(log) == ({} if there else {0: LOADS}) | {1: STORES}
    whole = [(at, 1 << 20) for at in (A, third)]
    assert touched(log, 0) == (whole if there else [])
    assert touched(log, 1) == (whole[1:] if there else [])
    assert ("copy in by tensor map (TMA) is seen by patches" in log.notes()) == there
    assert ("known by descriptor alone" in log.notes()) == there


def test_what_is_no_tensor_map_is_not_taken_for_one(tmp_path: Path) -> None:
    """Pointers, maps of memory that nobody allocated, maps in kernels that do not copy by them."""
    pointer, rank_8 = "0 0 0 0 0 0 0 0", ENCODED.replace("310", "370")
    longer = ENCODED.replace("7f0000003f", "7f0000003f 5")
    script = [
        *begin(f"alloc 1 {A:#x} {SPAN - 1}"), MATRIX,
        "launch 1 1 stores", "argument 512 128 1", "call",
        f"alloc 1 {A + (1 << 30):#x} 4096",
    ]  # fmt: skip
    for image in (pointer, rank_8, longer):
        script += [f"tensor_map 1 {words(image, A + (1 << 30))}"]
        script += ["launch 1 1 stores", "argument 512 128 1", "call"]
    log = play([*script, "launch 1 1 large", "argument 20000 0 1", "call"], tmp_path).log
    assert maps(log) == []
    assert uses(log) == dict.fromkeys(range(4), STORES)


def captured(graph: int, argument: str) -> list[str]:
    """A graph of one kernel with this argument."""
    return [
        f"begin_capture 1 {graph}", "launch 1 1 loads", "argument 8", f"argument {argument}",
        "call capture", f"end_capture {graph}",
    ]  # fmt: skip


def test_maps_of_captured_launches_are_told_of_the_graph(tmp_path: Path) -> None:
    script = [
        *begin(MATRIX), MEMORY, *captured(5, "128 0 1"), "instantiate 5", "instantiate 6",
        *["instantiate 5", "graph 1", "node 1 plain", "node 1 loads", "go"] * 2,
        "instantiate 6", "graph 1", "node 1 loads", "go",
    ]  # fmt: skip
    log = play(script, tmp_path, classes=UNSEEN).log
    assert [x.analysed for x in log.of(ev.Launch)] == [2, 4, 2, 4, 2]
    assert maps(log) == [(0, A, SPAN, SIZE), (2, A, SPAN, SIZE)]
    assert [(u.launch, u.what) for u in log.of(ev.Uses)] == [(0, LOADS), (2, LOADS), (4, LOADS)]


def test_maps_of_a_capture_that_failed_are_of_no_graph(tmp_path: Path) -> None:
    """Its kernels are captured anew, often: the next graph has their names, and its handle."""
    script = [
        *begin(MATRIX), MEMORY, *captured(5, "128 0 1"), *captured(5, "128"),
        "instantiate 5", "graph 1", "node 1 loads", "go",
    ]  # fmt: skip
    log = play(script, tmp_path, classes=UNSEEN).log
    assert maps(log) == []
    assert [(u.launch, u.what) for u in log.of(ev.Uses)] == [(0, LOADS)]


def test_maps_of_graphs_that_are_captured_at_once(tmp_path: Path) -> None:
    """Each in a stream of its own, one in two, and with kernels of one name."""
    other, third = A + (1 << 24), A + (1 << 25)

    def node(stream: int, number: int) -> list[str]:
        return [
            f"launch {stream} 1 loads", "argument 8", f"argument 128 0 {number}", "call capture",
        ]  # fmt: skip

    script = [
        *begin("stream 2 1"), "stream 3 1", MEMORY, MATRIX, f"tensor_map 2 {words(CUBLAS, other)}",
        f"tensor_map 3 {words(CUBLAS, third)}", "begin_capture 1 5", "begin_capture 2 6",
        "begin_capture 3 6", *node(1, 1), *node(2, 2), *node(3, 3), "end_capture 5",
        "end_capture 6",
    ]  # fmt: skip
    for graph in (5, 6):
        script += [f"instantiate {graph}", "graph 1", "node 1 loads", "go"]
    log = play(script, tmp_path, classes=UNSEEN).log
    assert [m[:2] for m in maps(log)] == [(0, A), (1, other), (1, third)]


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
        *begin(MATRIX), MEMORY, "launch 1 1 stores", "argument 512 128 1", "call", "call buffer",
        "begin_capture 1 3", "call capture", "end_capture 3", "instantiate 3", "graph 1",
        "node 1 stores", "go",
        "unload 1", "module 2 1", "launch 1 2 loads", "argument 8", "argument 128", "call",
    ]  # fmt: skip
    run = play(script, tmp_path, sanitize="address,undefined")
    assert (run.stderr, len(maps(run.log))) == ("", 3)

"""What kernels leave as it was: snapshots of what they get, compared and hashed without a patch."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from accel_trace import events as ev
from accel_trace.session import Session
from accel_trace.tools.base import ToolError
from accel_trace.tools.unchanged_writes import UnchangedWrites
from accel_trace.tools.value_patterns import ValuePatterns
from native_support import START, Log, built, need_tools, play, program
from test_unpatched import cubin

A = 0x7D0000000000
MASK = (1 << 64) - 1
TYPED = "_Z5typedPfPKf4Pair"  # typed(float*, float const*, Pair)
STORES = 0x100


def mixed(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
    return word ^ word >> 31


def sums(now: bytes, before: bytes) -> tuple[int, int, int, int]:
    """The same once more, as the definition has it: unchanged bytes, other words, hash."""
    low = high = others = 0
    for number in range(-(-len(now) // 8)):
        word = int.from_bytes(now[8 * number : 8 * number + 8], "little")
        others += word != 0
        low += mixed((word + mixed(number + 1)) & MASK)
        high += mixed(word ^ mixed(~number & MASK))
    unchanged = sum(a == b for a, b in zip(now, before, strict=True))
    return unchanged, others, low & MASK, high & MASK


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4096, 4099])
def test_the_arithmetic_is_as_defined(size: int, tmp_path: Path) -> None:
    chance = random.Random(size)
    before = bytes(chance.choice([0, 0, 1, 255]) for _ in range(size))
    now = bytes(b if chance.random() < 0.7 else chance.randrange(256) for b in before)
    (tmp_path / "now").write_bytes(now)
    (tmp_path / "before").write_bytes(before)
    check = program("check_compare", (), "address,undefined")
    said = subprocess.run(
        [check, tmp_path / "now", tmp_path / "before"], capture_output=True, text=True, check=True
    ).stdout
    assert tuple(map(int, said.split())) == sums(now, before)


def memory(*values: int) -> list[str]:
    """Objects of 4 KiB, all bytes of a value, one after another."""
    lines = ["context 1 0", f"module 1 1 - {cubin('90a')}", *START[2:]]
    for i, value in enumerate(values):
        at = A + i * 0x10000
        lines += [f"memory {at:#x} 4096 {value}", f"alloc 1 {at:#x} 4096"]
    return lines


def typed(out: int, into: int, pair: int, stores: str = "") -> list[str]:
    """A launch of typed(out, into, {pair, null}); `stores`: BASE STRIDE COUNT VALUE, of bytes."""
    lines = [f"launch 1 1 {TYPED}"]
    if stores:
        base, stride, count, value = stores.split()
        lines.append(f"access global {STORES | 2 | int(value) << 16} 1 {base} {stride} {count}")
    return [*lines, f"pointer 8 {out:#x}", f"pointer 8 {into:#x}", f"pointer 16 {pair:#x}", "call"]


def kept(log: Log) -> list[tuple[int, int, int, int]]:
    return [(k.launch, (k.address - A) >> 16, k.writes, k.unchanged) for k in log.of(ev.Kept)]


def test_what_a_kernel_leaves_as_it_was(tmp_path: Path) -> None:
    a, b, c = (A + i * 0x10000 for i in range(3))
    script = [
        *memory(5, 6, 7), *typed(a, b, c),
        *typed(a + 40, b, c, f"{a:#x} 1 96 9"),  # 96 bytes become 9, in the middle of the piece too
        *typed(a, b, c, f"{c:#x} 1 4096 7"),  # written again
        *typed(b, b, c, f"{b:#x} 1 4096 7"),  # const for one parameter, and not for another
    ]  # fmt: skip
    log = play(script, tmp_path, "copies", snapshot=1).log
    whole = 4096
    assert kept(log) == [
        (0, 0, 1, whole), (0, 1, 0, whole), (0, 2, 2, whole),
        (1, 0, 1, whole - 96), (1, 1, 0, whole), (1, 2, 2, whole),
        (2, 0, 1, whole), (2, 1, 0, whole), (2, 2, 2, whole),
        (3, 1, 1, 0), (3, 2, 2, whole),
    ]  # fmt: skip
    got = {(k.launch, k.address): (k.hash_low, k.hash_high) for k in log.of(ev.Kept)}
    five = bytes([9] * 96 + [5] * (whole - 96))
    assert got[1, a] == sums(five, five)[2:]
    assert got[3, b] == got[3, c] == sums(bytes([7] * whole), bytes(whole))[2:]
    assert {x.analysed for x in log.of(ev.Launch)} == {0}
    assert log.of(ev.Module)[0].patched == 0
    assert log.facts()["snapshots"] == "4"


def test_a_launch_that_the_driver_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    """What was copied for it would come upon the copies for the next one, in another stream."""
    a, b, c = (A + i * 0x10000 for i in range(3))
    refused = [*typed(a, b, c)[:-1], "call refused"]
    other = typed(b, a, c, f"{b:#x} 1 96 9")
    other[0] = other[0].replace("launch 1", "launch 2")
    log = play(
        [*memory(5, 6, 7), "stream 2 1", *refused, *other], tmp_path, "copies", snapshot=1
    ).log
    assert kept(log) == [(0, 0, 0, 4096), (0, 1, 1, 4096 - 96), (0, 2, 2, 4096)]


def test_copies_and_fills_are_neither_compared_nor_waited_for(tmp_path: Path) -> None:
    """No report of snapshots needs that; the driver's functions that make them are not watched."""
    a, b = A, A + 0x10000
    script = [*memory(5, 6), "told", f"move 1 {a:#x} {b:#x} 4096 4 called",
              f"fill 1 {a:#x} 4096 1 7 called", "told"]  # fmt: skip
    run = play(script, tmp_path, "copies", snapshot=1)
    assert run.stdout == "told 0\ntold 2\n"
    kinds = [type(one) for one in run.log.events]
    assert kinds.count(ev.Memcpy) == kinds.count(ev.Memset) == 1
    assert ev.Compared not in kinds
    assert run.log.facts()["device_bytes"] == "0"
    with pytest.raises(ToolError, match="no value was recorded"):
        ValuePatterns({"level": "coarse"}, tmp_path).run(Session(run.folder))


def test_a_sanitizer_that_does_not_report_launches_is_told_of_as_that(tmp_path: Path) -> None:
    log = play(memory(5), tmp_path, "copies", snapshot=1, SYNTHETIC_LACKS="1").log
    assert "what such launches leave as it was is not known" in log.notes()


def test_tensors_are_looked_at_rather_than_their_objects(tmp_path: Path) -> None:
    script = [*memory(0, 1, 2), f"tensor {A + 512:#x} 520", *typed(A + 600, A + 0x10000, 0)]
    log = play(script, tmp_path, "copies", snapshot=1).log
    (first, second) = log.of(ev.Kept)
    assert (first.address, first.size, first.zeros) == (A + 512, 520, 1)
    assert (second.address, second.size, second.zeros) == (A + 0x10000, 4096, 0)


def test_a_calling_context_is_looked_at_once_in_so_many(tmp_path: Path) -> None:
    script = [*memory(0, 1, 2)]
    for _ in range(3):
        for operator in ("aten::one", "aten::two"):
            script += [f"operator start {operator}", *typed(A, A + 0x10000, 0), "operator end"]
    log = play(script, tmp_path, "copies", snapshot=1, contexts=2).log
    assert sorted({k.launch for k in log.of(ev.Kept)}) == [0, 1, 4, 5]


def test_the_first_launch_of_a_librarys_kernel_is_looked_at(tmp_path: Path) -> None:
    """The driver loads its module inside of that launch; the second finds it loaded."""
    a, b, c = (A + i * 0x10000 for i in range(3))
    lines = [line for line in memory(5, 6, 7) if not line.startswith("module")]
    first = typed(a, b, c, f"{c:#x} 1 96 9")
    first[-1] = f"call lazily {cubin('90a')}"
    log = play([*lines, *first, *typed(a, b, c)], tmp_path, "copies", snapshot=1).log
    assert kept(log) == [
        (launch, piece, writes, 4096 - (96 if launch == 0 and piece == 2 else 0))
        for launch in (0, 1) for piece, writes in ((0, 1), (1, 0), (2, 2))
    ]  # fmt: skip
    assert "not known" not in log.notes()


def test_a_launch_whose_arguments_are_not_known_leaves_its_turn(tmp_path: Path) -> None:
    """Of a kernel that is found in no module, and that the driver cannot tell of."""
    launch = typed(A, A + 0x10000, 0)
    lines = [line for line in memory(0, 1) if not line.startswith("module")]
    load = f"module 1 1 - {cubin('90a')}"
    script = [*lines, "module 1 1", *launch, load, *launch, *launch]
    log = play(script, tmp_path, "copies", snapshot=1, contexts=2, SYNTHETIC_OLD="1").log
    assert sorted({k.launch for k in log.of(ev.Kept)}) == [1]
    assert "1 launches were not compared: what they get was not known" in log.notes()


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    large = A + 0x1000000
    script = [
        *memory(0, 1), f"memory {large:#x} {3 << 20} 4", f"alloc 1 {large:#x} {3 << 20}",
        *typed(large, A, A + 0x10000),
    ]  # fmt: skip
    log = play(script, tmp_path, "copies", snapshot=2).log
    assert [k[1] for k in kept(log)] == [0, 1]
    assert f"{3 << 20} bytes that kernels got were not compared" in log.notes()
    captured = play(script, tmp_path, "copies", snapshot=2, SYNTHETIC_CAPTURES="1").log
    assert not captured.of(ev.Kept)
    assert "1 launches were not compared: they went into a CUDA graph" in captured.notes()
    refused = play(script, tmp_path, "copies", snapshot="much", ok=False)
    assert not refused.logs


@pytest.mark.parametrize("when", ["before", "behind"])
def test_what_another_thread_frees_meanwhile_is_left_out(tmp_path: Path, when: str) -> None:
    """Just before it is compared, where no kernel may read it any more, and just behind."""
    a, b, c = (A + i * 0x10000 for i in range(3))
    script = [*memory(5, 6, 7), *typed(a, b, c), *typed(a, b, a, f"{a:#x} 1 96 9")]
    frees = {f"SYNTHETIC_FREES_{when.upper()}": f"{c:#x}"}
    log = play(script, tmp_path, "copies", snapshot=1, **frees).log
    assert kept(log) == [(0, 0, 1, 4096), (0, 1, 0, 4096), (1, 0, 1, 4000), (1, 1, 0, 4096)]
    assert [free.address for free in log.of(ev.Free)] == [c]
    assert log.facts()["snapshot_freed"] == "4096"
    assert log.facts()["snapshot_refused"] == "0"
    assert "not compared" not in log.notes()


@pytest.mark.parametrize(("piece", "kernel"), [(1, "hashed"), (2, "copied")])
def test_what_the_driver_refuses_to_read_is_counted_and_said(
    piece: int, kernel: str, tmp_path: Path
) -> None:
    """Nobody is seen to free it: before the launch, or where what is const is hashed behind it."""
    a, b, c = (A + i * 0x10000 for i in range(3))
    script = [*memory(5, 6, 7), *typed(a, b, c), *typed(a, b, c)]
    refuses = {"SYNTHETIC_REFUSES": f"{(a, b, c)[piece]:#x}"}
    run = play(script, tmp_path, "copies", snapshot=1, **refuses)
    assert {one[1] for one in kept(run.log)} == {0, 1, 2} - {piece}
    assert (run.log.facts()["snapshot_freed"], run.log.facts()["snapshot_refused"]) == ("0", "8192")
    report = UnchangedWrites({}, tmp_path).run(Session(run.folder))
    lines = report.text.splitlines()
    assert lines[1] == (
        "  not seen: 8.00 KiB of what kernels got, that the driver refused to read, though nobody "
        "was seen to free them"
    ), kernel
    counts = {r.labels["why"]: r.samples for r in report.records if r.metric == "not_seen"}
    assert counts == {"freed": (0,), "refused": (8192,)}


def test_launches_with_one_buffer_of_arguments_are_counted(tmp_path: Path) -> None:
    """As PyCUDA makes them: where the arguments lie in it is not looked up."""
    one = [*typed(A, A + 0x10000, 0)[:-1], "call buffer"]
    log = play([*memory(0, 1), *one, *one], tmp_path, "copies", snapshot=1).log
    assert not log.of(ev.Kept)
    assert "2 launches were not compared: what they get was not known" in log.notes()


def same_named(parameters: str, name: str = "same") -> Path:
    """A cubin of a kernel of a name with these parameters."""
    tools = need_tools()
    source = f'extern "C" __global__ void {name}({parameters}) {{}}'

    def make(folder: Path) -> None:
        (folder / "same.cu").write_text(source)
        subprocess.run(
            [tools.nvcc, "-cubin", "-arch=sm_90a", f"-ccbin={tools.cxx}", *tools.includes(),
             folder / "same.cu", "-o", folder / "same.cubin"],
            check=True, timeout=300, capture_output=True,
        )  # fmt: skip

    return built("cubin-same", make, source, tools) / "same.cubin"


@pytest.mark.parametrize(("how", "old"), [("", False), ("", True), ("module", True)])
@pytest.mark.parametrize(
    ("parameters", "argument", "first"),
    [("float* p", f"pointer 8 {A:#x}", [(0, 0)]), ("int n", "argument 4", [])],
)
def test_kernels_of_one_name_with_other_parameters_are_not_mixed_up(
    parameters: str, argument: str, first: list[tuple[int, int]], how: str, old: bool,
    tmp_path: Path,
) -> None:  # fmt: skip
    """As compilers for Python make them; no pointer is read that a launch does not have."""
    lines = [line for line in memory(5, 6, 7) if not line.startswith("module")]
    three = (f"pointer 8 {A + i * 0x10000:#x}" for i in range(3))
    lines += [
        f"module 1 1 - {same_named(parameters)}",
        f"module 2 1 - {same_named('float* p, float* q, float* r')}",
        "launch 1 1 same", argument, f"call {how}", "launch 1 2 same", *three, f"call {how}",
    ]  # fmt: skip
    settings = {"SYNTHETIC_OLD": "1"} if old else {}
    log = play(lines, tmp_path, "copies", sanitize="address", snapshot=1, **settings).log
    known = how or not old  # by the module, or by the driver
    assert [one[:2] for one in kept(log)] == ([*first, (1, 0), (1, 1), (1, 2)] if known else [])
    said = "2 launches were not compared: what they get was not known" in log.notes()
    assert said == (not known)


def test_a_captured_kernel_is_not_taken_for_one_of_its_name_that_gets_tensor_maps(
    tmp_path: Path,
) -> None:
    lines = [
        "context 1 0", f"module 1 1 - {cubin('90a')}",
        f"module 2 1 - {same_named('float* p', 'loads')}", "stream 1 1",
        "begin_capture 1 1", "launch 1 2 loads", f"pointer 8 {A:#x}", "call module-capture",
        "end_capture 1",
    ]  # fmt: skip
    log = play(lines, tmp_path, sanitize="address").log
    assert "parameters_read" not in log.facts()


def test_memory_that_is_not_enough_is_given_back(tmp_path: Path) -> None:
    script = [*memory(5, 6, 7), *typed(A, A, A), "taken"]
    run = play(script, tmp_path, "copies", snapshot=1, SYNTHETIC_SMALL="1")
    assert run.stdout == "taken 0\n"
    assert "not compared any more: taking memory failed with error 2" in run.log.notes()
    assert run.log.facts()["device_bytes"] == "0"


def test_a_large_piece_is_compared_part_by_part(tmp_path: Path) -> None:
    """Its hash and its counts are those of the whole."""
    size, at = (40 << 20) + 3, A + 0x1000000
    script = [
        *memory(0, 1), f"memory {at:#x} {size} 4", f"alloc 1 {at:#x} {size}",
        *typed(at, A, A + 0x10000, f"{at + size - 5:#x} 1 5 9"),
    ]  # fmt: skip
    log = play(script, tmp_path, "copies", snapshot=64).log
    (large,) = (k for k in log.of(ev.Kept) if k.size == size)
    (tmp_path / "now").write_bytes(bytes([4]) * (size - 5) + bytes([9]) * 5)
    (tmp_path / "before").write_bytes(bytes([4]) * size)
    said = subprocess.run(
        [program("check_compare", ()), tmp_path / "now", tmp_path / "before"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    unchanged, _, low, high = map(int, said.split())
    assert (large.unchanged, large.hash_low, large.hash_high) == (unchanged, low, high)
    assert unchanged == size - 5


def test_a_context_that_ends_takes_our_memory_with_it(tmp_path: Path) -> None:
    """As cudaDeviceReset has it: the next one has the same handle, and others get the memory."""
    script = [*memory(5, 6, 7), *typed(A, A + 0x10000, A + 0x20000, f"{A:#x} 1 96 9")]
    run = play([*script, "destroy 1", *script], tmp_path, "copies", sanitize="address", snapshot=1)
    (first, *_), (again, *_) = kept(run.log)[:3], kept(run.log)[3:]
    assert (first[3], again[3], len(kept(run.log))) == (4000, 4000, 6)
    assert run.log.facts()["device_bytes"] == str((1 << 20) + (16 << 20))


def test_nothing_is_looked_at_unless_it_is_asked_for(tmp_path: Path) -> None:
    log = play([*memory(5, 6, 7), *typed(A, A, A)], tmp_path, "copies").log
    assert not log.of(ev.Kept)
    assert "snapshot" not in log.facts()


def test_the_report_names_what_is_written_for_nothing(tmp_path: Path) -> None:
    a, b = (A + i * 0x10000 for i in range(2))
    script = [*memory(5, 6, 6), "operator start aten::copy_",
              *typed(a, b, 0, f"{a:#x} 1 4096 6"), *typed(a, b, 0, f"{a:#x} 1 4096 6"),
              "operator end"]  # fmt: skip
    run = play(script, tmp_path, "copies", snapshot=1)
    tool = UnchangedWrites({}, tmp_path)
    report = tool.run(Session(run.folder))
    assert "2 of 2 launches were looked at, with 1048576 bytes for snapshots" in report.text
    assert (
        "at most 4.00 KiB of 8.00 KiB are written for nothing, in 2 launches of typed"
        in report.text
    )
    assert "of all 8.00 KiB, 8.00 KiB may be written by their type" in report.text
    assert "8.00 KiB hold the same as another piece that the launch got" in report.text
    values = {r.metric: r.samples for r in report.records}
    assert values["unchanged"] == (4096,)
    assert len((tmp_path / "unchanged-writes.csv").read_text().splitlines()) == 5
    other = play([*memory(5)], tmp_path, "copies")
    with pytest.raises(ToolError, match="holds no snapshots"):
        tool.run(Session(other.folder))
    needs = UnchangedWrites({"budget": 64, "contexts": 8}).needs_of(0, [])
    assert needs.environment == {"ACCEL_TRACE_SNAPSHOT": "64", "ACCEL_TRACE_CONTEXTS": "8"}

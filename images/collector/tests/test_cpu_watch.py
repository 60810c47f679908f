"""Accesses of the CPU by page protection: real faults, in real programs, against what they did."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from accel_trace.cpu.operands import operand_bytes
from accel_trace.cpu.recorded import CpuAccesses, CpuError, read
from accel_trace.cpu.watch import build

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="steps x86-64 only")
BASE = 0x200000000000
WORDS = {"r": 1, "w": 2, "add": 2}


@dataclass(frozen=True)
class Ran:
    returncode: int
    lines: list[str]
    seen: CpuAccesses | None

    @property
    def accesses(self) -> list[tuple[int, int, int]]:
        """(flags, size, offset) in order."""
        assert self.seen is not None
        found = zip(self.seen.flags, self.seen.size, self.seen.address, strict=True)
        return [(int(f), int(s), int(a) - BASE) for f, s, a in found]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cpu") / "accesses"
    source = Path(__file__).with_name("cpu_accesses.cc")
    subprocess.run(["g++", "-std=c++17", "-O1", "-pthread", source, "-o", path, "-ldl"], check=True)
    return path


def play(program: Path, script: str, folder: Path, mode: str = "bytes") -> Ran:
    """Do the script's commands under the recorder; mode "" for without it."""
    folder.mkdir(exist_ok=True)
    env = dict(os.environ)
    if mode:
        env |= {"ACCEL_TRACE_OUT": str(folder), "ACCEL_TRACE_CPU": mode, "LD_PRELOAD": str(build())}
    done = subprocess.run(
        [program], input=script.replace(";", "\n"), capture_output=True, text=True, env=env,
        timeout=60, check=False,
    )  # fmt: skip
    files = sorted(folder.glob("cpu-*.records"))
    seen = read(folder, int(files[0].stem.removeprefix("cpu-"))) if files else None
    return Ran(done.returncode, done.stdout.splitlines(), seen)


def test_every_access_is_seen_with_its_address_and_size(program: Path, tmp_path: Path) -> None:
    """Of 400 chosen at random, across pages too; the program itself is the oracle."""
    chosen = random.Random(5)
    script, wanted = ["watch 0 65536"], []
    for _ in range(400):
        what = chosen.choice(("r", "w", "add"))
        size = chosen.choice((1, 4, 8) if what == "add" else (1, 2, 4, 8, 16))
        at = chosen.choice((chosen.randrange(65536 - 16), 4096 * chosen.randrange(1, 15) - 3))
        script.append(f"{what} {size} {at}")
        wanted.append((WORDS[what], size, at))
    ran = play(program, "\n".join(script), tmp_path)
    assert (ran.returncode, ran.lines) == (7, ["done"])
    assert ran.accesses == wanted
    assert ran.seen is not None
    assert (ran.seen.gaps(), ran.seen.facts["threads"]) == ([], "1")
    assert (ran.seen.ns[1:] >= ran.seen.ns[:-1]).all()


def test_only_what_is_watched_and_when_it_is(program: Path, tmp_path: Path) -> None:
    script = """watch 4096 4096;w 4 0;w 4 4096;pause;w 4 4100;resume;w 4 4104;unwatch 4096;w 4 4108;
watch 8192 8;watch 8200 8;unwatch 8192;r 8 8200;w 4 8300"""
    ran = play(program, script, tmp_path)
    # The page is the unit of protection, so what else lies on it is seen too.
    assert ran.accesses == [(2, 4, 4096), (2, 4, 4104), (1, 8, 8200), (2, 4, 8300)]


def test_both_operands_of_a_copy(program: Path, tmp_path: Path) -> None:
    """In one allocation, and from one into another."""
    ran = play(program, "watch 0 8192;copy 100 200 3", tmp_path / "one")
    wanted = [one for k in range(3) for one in ((1, 1, 200 + k), (2, 1, 100 + k))]
    assert sorted(ran.accesses) == sorted(wanted)
    ran = play(program, "watch 0 4096;watch 8192 4096;copy 8192 8 2", tmp_path / "two")
    assert sorted(ran.accesses) == [(1, 1, 8), (1, 1, 9), (2, 1, 8192), (2, 1, 8193)]


@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="needs AVX2")
def test_one_instruction_reaches_many_allocations(program: Path, tmp_path: Path) -> None:
    """Eight loads of a gather, each of an allocation of its own: one access of each is seen."""
    stores = ";".join(f"w 4 {4096 * k}" for k in range(8))
    watched = ";".join(f"watch {4096 * k} 4096" for k in range(8))
    alone = play(program, f"{stores};gather 4096", tmp_path / "alone", "")
    ran = play(program, f"{stores};{watched};gather 4096;w 4 8", tmp_path / "seen")
    assert (ran.returncode, ran.lines) == (7, alone.lines)
    assert ran.lines[0] != "sum 0"
    assert sorted((flags, at) for flags, _, at in ran.accesses) == [
        *((1, 4096 * k) for k in range(8)), (2, 8),
    ]  # fmt: skip


@pytest.mark.parametrize("call", ["write", "read", "fwrite", "fread"])
def test_the_kernel_reaches_memory_that_is_watched(
    call: str, program: Path, tmp_path: Path
) -> None:
    ran = play(program, f"watch 0 16384;file {call} 100 9000;w 1 5", tmp_path)
    assert ran.lines == ["done"]
    assert ran.accesses == [(1 if "write" in call else 2, 9000, 100), (2, 1, 5)]


def test_mode_pages_tells_first_accesses(program: Path, tmp_path: Path) -> None:
    script = """watch 0 16384;r 4 8;r 4 12;w 4 16;r 4 20;w 4 4096;w 4 4100;window;w 4 8;r 4 12;
file write 8192 10;r 4 8200"""
    ran = play(program, script, tmp_path, "pages")
    starts = [(flags, at) for flags, _, at in ran.accesses]
    assert starts == [(1, 8), (2, 16), (2, 4096), (2, 8), (1, 8192), (1, 8200)]
    assert ran.seen is not None
    assert ran.seen.facts["mode"] == "pages"


def test_mode_faults_tells_what_the_kernel_counts(program: Path, tmp_path: Path) -> None:
    """Of memory that is new: a fault a page, two where it is read first; threads are told, too."""
    script = """watch 0 65536;w 4 0;w 4 8;r 4 4096;w 4 4100;window;thread 4 20000 3;fork 4096;
unwatch 0;w 4 60000"""
    ran = play(program, script, tmp_path, "faults")
    if "not watched" in ran.lines:
        pytest.skip("perf's page faults are forbidden here")
    assert ran.lines == ["child 9", "parent 0 5", "done"]
    assert ran.seen is not None
    places = [at for _, _, at in ran.accesses]
    assert places[:4] == [0, 4096, 4100, 20000]
    # After a fork pages are copied when they are written or, as here, only read in the parent.
    assert set(places[4:]) <= {4096}
    assert {flags for flags, _, _ in ran.accesses} == {3}
    assert len(set(ran.seen.thread[:4].tolist())) == 2
    assert ran.seen.facts["lost"] == "0"


def test_the_programs_own_handlers_are_its_own(program: Path, tmp_path: Path) -> None:
    script = """{}handler jump;handler trap;watch 0 4096;w 4 0;null;w 4 4;trap;w 4 8;handler jump;
null;w 4 12;trap"""
    for number, before in enumerate(
        ("", "watch 8192 8;")
    ):  # installed before the recorder's, after
        alone = play(program, script.format(before), tmp_path / f"alone-{number}", "")
        ran = play(program, script.format(before), tmp_path / f"seen-{number}")
        assert ran.lines == alone.lines == ["jumped", "jumped", "traps 2", "done"]
        assert ran.returncode == alone.returncode == 7
        assert ran.accesses == [(2, 4, at) for at in (0, 4, 8, 12)]


@pytest.mark.parametrize(("last", "number"), [("null", signal.SIGSEGV), ("trap", signal.SIGTRAP)])
def test_a_program_that_dies_dies_as_without(
    last: str, number: int, program: Path, tmp_path: Path
) -> None:
    ran = play(program, f"watch 0 4096;w 4 0;{last}", tmp_path)
    assert (ran.returncode, ran.lines) == (-number, [])
    assert ran.seen is not None
    (gap,) = ran.seen.gaps()
    assert gap.startswith("the process did not end in order")
    assert ran.seen.facts["mode"] == "bytes"


def test_signals_between_and_signals_blocked(program: Path, tmp_path: Path) -> None:
    """A timer's handler that stores, while accesses are stepped; then all signals are blocked."""
    script = "watch 0 65536;handler alarm;" + ";".join(f"w 4 {4 * k}" for k in range(500))
    ran = play(program, script + ";block;r 4 8", tmp_path)
    assert (ran.returncode, ran.lines) == (7, ["alarms", "done"])
    stores = [one for one in ran.accesses if one[2] != 65535]
    assert stores == [(2, 4, 4 * k) for k in range(500)] + [(1, 4, 8)]
    first = play(program, "block;watch 0 4096;w 4 0", tmp_path / "first")
    assert (first.returncode, first.accesses) == (7, [(2, 4, 0)])


def test_a_forked_child_is_left_alone(program: Path, tmp_path: Path) -> None:
    ran = play(program, "watch 0 4096;w 1 3;fork 3;w 4 8", tmp_path)
    assert ran.lines == ["child 9", "parent 7 5", "done"]
    assert ran.accesses == [(2, 1, 3), (1, 1, 3), (2, 4, 8)]
    assert len(list(tmp_path.glob("cpu-*.records"))) == 1


def test_a_cut_file_is_said(program: Path, tmp_path: Path) -> None:
    """Between two accesses, and within one."""
    play(program, "watch 0 4096;" + ";".join(f"w 4 {4 * k}" for k in range(9)), tmp_path)
    (file,) = tmp_path.glob("cpu-*.records")
    pid, whole = int(file.stem.removeprefix("cpu-")), file.read_bytes()
    assert read(tmp_path, pid).gaps() == []
    for cut, missing in ((4 * len(whole) // 9, 5), (len(whole) - 1, 1)):
        file.write_bytes(whole[:cut])
        (gap,) = read(tmp_path, pid).gaps()
        assert gap.startswith(f"{missing} of 9 accesses are not in the file")


def test_a_mode_that_is_not_known_is_refused(tmp_path: Path) -> None:
    code = "import sys; from accel_trace.cpu.watch import Watch; Watch().start(sys.argv[1], 'nope')"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False
    )
    words = "ValueError: mode 'nope' is not known; choose of pages, bytes, faults"
    assert done.stderr.splitlines()[-1] == words


def test_threads_are_told_apart_and_a_gap_is_said(program: Path, tmp_path: Path) -> None:
    ran = play(program, "watch 0 4096;w 4 0;thread 4 8 50;thread 8 16 1;w 4 4", tmp_path)
    assert ran.accesses == [(2, 4, 0), *[(2, 4, 8)] * 50, (2, 8, 16), (2, 4, 4)]
    assert ran.seen is not None
    assert len(set(ran.seen.thread.tolist())) == 3
    (gap,) = ran.seen.gaps()
    assert gap.startswith("3 threads made accesses")


@pytest.mark.parametrize("mode", ["bytes", "pages"])
def test_threads_at_once_compute_what_they_did(mode: str, program: Path, tmp_path: Path) -> None:
    """Of four on one page; what is seen is what they did, and some of it is missed."""
    ran = play(program, "watch 0 4096;threads 4 2000", tmp_path, mode)
    assert (ran.returncode, ran.lines) == (7, ["done"])
    assert {(flags, size) for flags, size, _ in ran.accesses} <= {(2, 4), (1, 4)}
    assert {at for _, _, at in ran.accesses} <= {0, 8, 16, 24}
    assert ran.seen is not None
    assert ran.seen.facts["failed"] == ran.seen.facts["lost"] == "0"
    if mode == "bytes":
        # A thread that is stepped lets the others through, so nothing says how many are seen.
        assert 1 <= len(ran.accesses) <= 4 * 2000 + 4
        assert bool(ran.seen.gaps()) == (int(ran.seen.facts["threads"]) > 1)
    else:
        assert 1 <= len(ran.accesses) <= 4


@pytest.mark.parametrize("mode", ["bytes", "pages"])
def test_memory_is_watched_and_left_while_a_thread_uses_it(
    mode: str, program: Path, tmp_path: Path
) -> None:
    ran = play(program, "churn 3000;watch 0 4096;w 4 8", tmp_path, mode)
    assert (ran.returncode, ran.lines) == (7, ["done"])
    assert ran.accesses[-1] == (2, 4, 8)
    assert {at for _, _, at in ran.accesses} <= {0, 8}


def test_memory_that_is_not_there_is_refused(program: Path, tmp_path: Path) -> None:
    ran = play(program, "watch 0 70000000;w 4 0", tmp_path)
    assert (ran.lines, ran.accesses) == (["not watched", "done"], [])


def test_a_process_without_such_memory_leaves_no_file(program: Path, tmp_path: Path) -> None:
    ran = play(program, "w 4 0", tmp_path)
    assert (ran.returncode, ran.seen, list(tmp_path.iterdir())) == (7, None, [])


def test_python_frames_stand_in_the_stack(tmp_path: Path) -> None:
    """Also where the recorder is loaded late, by the program itself."""
    path = tmp_path / "reads.py"
    path.write_text(
        """import mmap, sys
from pathlib import Path
import numpy as np
from accel_trace.cpu.watch import Watch
memory = np.frombuffer(mmap.mmap(-1, 8192), np.int32)
watch = Watch()
watch.start(Path(sys.argv[1]))
def store():
    memory[3] = 4
watch.watch(memory.ctypes.data, memory.nbytes)
store()
print(watch.count)
found = watch.finish(Path(sys.argv[1]))
print(found.address[0] - memory.ctypes.data, found.size[0], found.flags[0])
print(*found.stacks[found.stack[0]], sep="\\n")
memory[4] = 1
"""
    )
    for preload in ("", str(build())):
        done = subprocess.run(
            [sys.executable, path, tmp_path], capture_output=True, text=True, check=True,
            env=os.environ | {"LD_PRELOAD": preload},
        )  # fmt: skip
        lines = done.stdout.splitlines()
        assert lines[:2] == ["1", "12 4 2"]
        assert lines[2:4] == [f"python: <module> {path}:11", f"python: store {path}:9"]
        assert all(line.startswith("native: ") for line in lines[4:])
        assert "umath" in lines[4]


def test_pythons_own_fault_handler_still_prints(tmp_path: Path) -> None:
    """Installed before and after the first fault of ours, on a stack of its own."""
    path = tmp_path / "dies.py"
    path.write_text(
        """import ctypes, faulthandler, mmap
early = {early}
early and faulthandler.enable()
watch = getattr(ctypes.CDLL(None), "accel_trace_cpu_watch", None)
memory = mmap.mmap(-1, 8192)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
watch and watch(ctypes.c_uint64(at), ctypes.c_uint64(8192))
memory[5] = 1
early or faulthandler.enable()
memory[6] = 1
ctypes.string_at(0)
"""
    )
    text = path.read_text()
    for early in ("True", "False"):
        path.write_text(text.replace("{early}", early))
        said = []
        for env in ({}, {"ACCEL_TRACE_OUT": str(tmp_path), "ACCEL_TRACE_CPU": "bytes",
                         "LD_PRELOAD": str(build())}):  # fmt: skip
            done = subprocess.run(
                [sys.executable, path], capture_output=True, text=True, check=False,
                env=os.environ | env,
            )  # fmt: skip
            assert done.returncode == -signal.SIGSEGV
            said.append(done.stderr)
        assert "Segmentation fault" in said[0]
        first, second = (text.splitlines() for text in said)
        assert first[:2] + first[3:6] == second[:2] + second[3:6]  # the other names the thread


@pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils are not here")
def test_operand_sizes_are_those_that_binutils_prints() -> None:
    """Of every instruction of the C library that names memory, against another disassembler."""
    library = next(p for p in Path("/lib").rglob("libc.so.6") if "x86_64" in str(p))
    said = subprocess.run(
        ["objdump", "-d", "-w", "-M", "intel", library], capture_output=True, text=True, check=True
    ).stdout
    sizes = {"BYTE": 1, "WORD": 2, "DWORD": 4, "QWORD": 8, "TBYTE": 10, "XMMWORD": 16,
             "YMMWORD": 32, "ZMMWORD": 64}  # fmt: skip
    silent = ("nop", "prefetch")  # they name memory and do not touch it
    right = wrong = 0
    for code, words in re.findall(r"^ +[0-9a-f]+:\t([0-9a-f ]+)\t(.*)$", said, re.MULTILINE):
        found = re.search(r"(\w+) (?:PTR|BCST) ", words)
        if found is None or found[1] not in sizes or any(name in words for name in silent):
            continue
        same = operand_bytes(bytes.fromhex(code)[:15]) == sizes[found[1]]
        right, wrong = right + same, wrong + (not same)
    assert right > 50_000
    assert wrong <= right // 10_000


def test_words_for_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CpuError, match=r"cpu-3\.records: cannot be read"):
        read(tmp_path, 3)
    (tmp_path / "cpu-3.records").write_bytes(b"x" * 80)
    with pytest.raises(CpuError, match="holds no accesses"):
        read(tmp_path, 3)

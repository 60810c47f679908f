"""Accesses of the CPU, as record.cc writes them: `cpu-<pid>.records`, .code, .stacks, .facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accel_trace.cpu.operands import operand_bytes
from accel_trace.handlers.stacks import native_lines

READ, WRITE = 1, 2  # both: a page fault, of which nobody tells
ACCESS = np.dtype([
    ("ns", "<u8"), ("address", "<u8"), ("code", "<u8"), ("size", "<u4"), ("stack", "<u4"),
    ("thread", "<u4"), ("flags", "<u4"),
])  # fmt: skip
CODE = np.dtype([("address", "<u8"), ("count", "u1"), ("bytes", "u1", (15,))])


class CpuError(ValueError):
    """Files of accesses that are none, or that are damaged; one sentence."""


@dataclass(frozen=True, eq=False)
class CpuAccesses:
    """Columns of equal length in the order of time, and their call stacks, outermost frame first.

    `size` is in bytes, 0 where the instruction is not one whose size is known. `stack` is a place
    in `stacks`. `facts` is what the recorder said; of a process that was killed, its mode alone.
    """

    ns: NDArray[np.uint64]
    address: NDArray[np.uint64]
    size: NDArray[np.uint32]
    flags: NDArray[np.uint32]
    thread: NDArray[np.uint32]
    stack: NDArray[np.uint32]
    stacks: tuple[tuple[str, ...], ...] = ((),)
    facts: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ns)

    @property
    def writes(self) -> NDArray[np.bool_]:
        """Stores, and what may be one; an instruction that reads and writes counts as one."""
        return (self.flags & WRITE) != 0

    def gaps(self) -> list[str]:
        """What is not in the record, a sentence each."""
        lines = []
        if "accesses" not in self.facts:
            lines.append("the process did not end in order, so call stacks and counts are missing")
        elif len(self) < int(self.facts["accesses"]):
            missing = int(self.facts["accesses"]) - len(self)
            lines.append(f"{missing} of {self.facts['accesses']} accesses are not in the file: it "
                         "was cut, or the disk was full")  # fmt: skip
        for name, words in (
            ("lost", "accesses found no room"),
            ("failed", "changes of permissions failed, so accesses after them may be missing"),
            ("unknown_stacks", "accesses have no call stack: there were too many"),
        ):
            if self.facts.get(name, "0") != "0":
                lines.append(f"{self.facts[name]} {words}")
        if int(self.facts.get("threads", "0")) > 1 and self.facts.get("mode") == "bytes":
            lines.append(
                f"{self.facts['threads']} threads made accesses: while one of them is stepped, "
                "what the others do in the same allocation is not seen; take cpu=pages"
            )
        if self.facts.get("mode") == "faults":
            lines.append("the CPU's accesses to pages that it had: perf tells page faults alone")
        elif self.facts.get("opens") == "1":
            lines.append("while the GPU worked memory was open, and the CPU's accesses not seen")
        unknown = int((self.size == 0).sum())
        if unknown and self.facts.get("mode") == "bytes":
            lines.append(f"{unknown} accesses of unknown size are taken as one byte")
        return lines


def stem(folder: Path, pid: int) -> Path:
    """The files of a process, less their endings."""
    return folder / f"cpu-{pid}"


def has_cpu(folder: Path, pid: int) -> bool:
    """Whether a process' accesses were recorded."""
    return Path(f"{stem(folder, pid)}.records").is_file()


def read(folder: Path, pid: int) -> CpuAccesses:
    """Read a process' accesses. Raises CpuError."""
    base = stem(folder, pid)
    records = _file(Path(f"{base}.records"), ACCESS)
    if len(records) and not np.isin(records["flags"], (READ, WRITE, READ | WRITE)).all():
        raise CpuError(f"{base}.records: holds no accesses; record it again")
    records = records[np.argsort(records["ns"], kind="stable")]
    told = bool((records["size"] != 0).all())  # all by calls, or by a replay
    sizes = {} if told else _sizes(_file(Path(f"{base}.code"), CODE))
    stacks = _stacks(Path(f"{base}.stacks"))
    size = records["size"].copy()
    for place in np.flatnonzero(size == 0):
        size[place] = sizes.get(int(records["code"][place]), 0)
    return CpuAccesses(
        ns=records["ns"], address=records["address"], size=size, flags=records["flags"],
        thread=records["thread"],
        stack=np.where(records["stack"] < len(stacks), records["stack"], 0).astype(np.uint32),
        stacks=stacks, facts=_facts(Path(f"{base}.facts")),
    )  # fmt: skip


def _file(path: Path, kind: np.dtype[np.void]) -> NDArray[np.void]:
    """All whole records of a file; a last one that is cut is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CpuError(f"{path}: cannot be read: {error.strerror or error}") from error
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)


def _sizes(codes: NDArray[np.void]) -> dict[int, int]:
    return {
        int(one["address"]): operand_bytes(bytes(one["bytes"][: int(one["count"])]))
        for one in codes
    }


def _stacks(path: Path) -> tuple[tuple[str, ...], ...]:
    """By number; number 0 is an access without a stack."""
    found: list[list[str]] = [[]]
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("stack "):
                found.append([])
            else:
                found[-1].append(line)
    return tuple(tuple(_frames(lines)) for lines in found)


def _frames(lines: list[str]) -> list[str]:
    """Python's frames, then the native ones inside of them; as `handlers.stacks` writes frames."""
    python = [_python(line) for line in lines if line.startswith("  File ")]
    native = [line for line in lines if not line.startswith("  ")]
    interpreter = next((line for line in native if _is_interpreter(line)), "") if python else ""
    inner = native_lines(native, interpreter.split("(")[0] if interpreter else "\0")
    return [*reversed(python), *reversed(inner)]


def _is_interpreter(line: str) -> bool:
    file, _, symbol = line.partition("(")
    name = file.rsplit("/", maxsplit=1)[-1]
    return name.startswith(("python", "libpython")) or symbol.startswith(("_PyEval", "Py_"))


def _python(line: str) -> str:
    """`  File "a.py", line 3 in f` as `python: f a.py:3`."""
    file, _, rest = line.removeprefix('  File "').partition('", line ')
    number, _, function = rest.partition(" in ")
    return f"python: {function} {file}:{number}"


def _facts(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    pairs = (line.partition(" ") for line in path.read_text().splitlines())
    return {name: value for name, _, value in pairs}

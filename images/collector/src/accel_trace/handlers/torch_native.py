"""Compiles torch_hooks.cc against the installed PyTorch, loads it, starts it.

The result is kept by PyTorch's version and a hash of the sources, so that a machine compiles once
(some 10 s). `python -m accel_trace.handlers.torch_native` compiles ahead, with the Python of the
target; `accel-trace run` may do that before it starts the target.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from accel_trace.builds import BuildError
from accel_trace.handlers.compiling import SHIM, cached_build, cuda_headers

_HERE = Path(__file__).parent
SOURCE = _HERE / "torch_hooks.cc"
_SOURCES = (SOURCE, _HERE / "blocks.h", SHIM / "crt" / "host_defines.h")
Listener = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64)


@dataclass(frozen=True)
class Torch:
    """The installed PyTorch: folder, version, CUDA version ("" for none), C++ ABI flag."""

    folder: Path
    version: str
    cuda: str
    cxx11_abi: bool

    @property
    def follows_cuda(self) -> bool:
        """Whether there is a CUDA allocator to follow."""
        return (self.folder / "lib" / "libc10_cuda.so").is_file()


def describe(torch: ModuleType | None = None) -> Torch:
    """What is installed; with `torch` given, what is loaded. Raises BuildError without one."""
    if torch is not None:
        return Torch(
            folder=Path(str(torch.__file__)).parent,
            version=str(torch.__version__),
            cuda=str(torch.version.cuda or ""),
            cxx11_abi=bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        )
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError(f"{sys.executable} has no PyTorch; run this with the target's Python")
    code = "import torch;print(torch.__version__, torch.version.cuda or '-',"
    code += " int(torch._C._GLIBCXX_USE_CXX11_ABI))"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    words = said.stdout.split()
    if said.returncode or len(words) != 3:
        raise BuildError(f"PyTorch does not load here: {said.stderr.strip()[-300:]}")
    cuda = "" if words[1] == "-" else words[1]
    return Torch(Path(spec.origin).parent, words[0], cuda, words[2] == "1")


def command(torch: Torch, output: Path, compiler: str) -> list[str]:
    """The compiler's call. Raises BuildError where CUDA's headers are missing."""
    call = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-Wall"]
    call += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}"]
    call += ["-isystem", str(torch.folder / "include")]
    libraries = ["-lc10", "-ltorch_cpu"]
    if torch.follows_cuda:
        call += cuda_headers(torch.cuda)
        libraries.append("-lc10_cuda")
    else:
        call.append("-DACCEL_TRACE_NO_CUDA")
    call += [str(SOURCE), "-o", str(output), f"-L{torch.folder / 'lib'}", *libraries]
    return [*call, f"-Wl,-rpath,{torch.folder / 'lib'}"]


def build(torch: Torch | None = None) -> Path:
    """The compiled hooks for a PyTorch, compiled if need be; one process compiles, others wait.

    Raises BuildError with one sentence.
    """
    found = torch or describe()
    return cached_build(
        f"torch_hooks-{found.version}",
        _SOURCES,
        repr(found),
        lambda output, compiler: command(found, output, compiler),
    )


@dataclass(frozen=True)
class Totals:
    """What the hooks saw on a device: counts of blocks, and bytes."""

    allocs: int
    frees: int
    allocated: int
    reserved: int
    surprises: int
    requested: int


class Hooks:
    """The loaded hooks. Calls that fail raise RuntimeError with PyTorch's words."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.accel_trace_torch_error.restype = ctypes.c_char_p
        self.library.accel_trace_torch_pieces.restype = ctypes.c_uint64
        self.library.accel_trace_torch_operator.restype = ctypes.c_int64
        self.library.accel_trace_torch_operator_name.restype = ctypes.c_char_p
        self.library.accel_trace_torch_piece.argtypes = [ctypes.c_uint64, *[_pointer] * 2]
        self.library.accel_trace_torch_totals.argtypes = [ctypes.c_int, _pointer]
        self.library.accel_trace_torch_number.argtypes = [ctypes.c_void_p]
        self.library.accel_trace_torch_listen.argtypes = [ctypes.c_void_p]
        self._listener: Any = None

    @property
    def has_cuda(self) -> bool:
        """Whether the allocator can be followed."""
        return bool(self.library.accel_trace_torch_has_cuda())

    def operators(self, *, backward: bool = True) -> None:
        """Report operators from now on; again: nothing."""
        if self.library.accel_trace_torch_operators(int(backward)):
            raise RuntimeError(self._error())

    def open_operator(self) -> tuple[int, str] | None:
        """Index (as in OperatorStart) and name of the innermost operator open on this thread."""
        number = int(self.library.accel_trace_torch_operator())
        if number < 0:
            return None
        return number, self.library.accel_trace_torch_operator_name().decode("utf-8", "replace")

    def allocator(self) -> bool:
        """Report the allocator's blocks from now on; False: CUDA has not started, call again."""
        result = int(self.library.accel_trace_torch_allocator())
        if result == 2:
            raise RuntimeError(self._error())
        return result == 0

    def totals(self, device: int = 0) -> Totals | None:
        """What was seen on a device, None before anything was."""
        numbers = (ctypes.c_uint64 * 6)()
        if self.library.accel_trace_torch_totals(device, numbers):
            return None
        return Totals(*(int(number) for number in numbers))

    def listen(self, call: Any) -> None:
        """Have `call(start, name, index)` called at outermost operators, counted from 0."""
        self._listener = None if call is None else Listener(call)
        self.library.accel_trace_torch_listen(
            None if call is None else ctypes.cast(self._listener, ctypes.c_void_p)
        )

    def number(self, inside: int | None) -> None:
        """Number tensors above 1 MiB for which the C function at `inside` says 1; None: stop."""
        self.library.accel_trace_torch_number(inside)

    def pieces(self) -> int:
        """Tensors numbered so far."""
        return int(self.library.accel_trace_torch_pieces())

    def piece(self, number: int) -> tuple[int, int] | None:
        """Address and bytes of a numbered tensor, None when it is gone."""
        address, size = ctypes.c_uint64(), ctypes.c_uint64()
        alive = self.library.accel_trace_torch_piece(
            number, ctypes.byref(address), ctypes.byref(size)
        )
        return (int(address.value), int(size.value)) if alive else None

    def _error(self) -> str:
        return str(self.library.accel_trace_torch_error().decode("utf-8", "replace"))


_pointer = ctypes.c_void_p
_hooks: Hooks | None = None


def load(torch: ModuleType) -> Hooks:
    """The hooks for the loaded PyTorch, compiled and loaded once. Raises BuildError."""
    global _hooks  # noqa: PLW0603  # one per process: the callbacks are the process' own
    if _hooks is None:
        path = build(describe(torch))
        try:
            _hooks = Hooks(path)
        except OSError as error:
            raise BuildError(f"{path} does not load: {error}") from error
    return _hooks


def loaded() -> Hooks | None:
    """The hooks, if this process has loaded them."""
    return _hooks


def when_cuda_starts(torch: ModuleType, call: Any) -> None:
    """Call `call()` as soon as PyTorch's CUDA has started, now if it has.

    Before that there is no allocator to attach to. PyTorch's queue for such calls is older than
    all versions that this supports; without it the call is made at once.
    """
    later = getattr(torch.cuda, "_lazy_call", None)
    if later is None:
        call()
    else:
        later(call)


def main() -> int:
    """Compile for this Python's PyTorch, print the path; 1 with one sentence where that fails."""
    try:
        sys.stdout.write(f"{build()}\n")
    except BuildError as error:
        sys.stderr.write(f"accel-trace: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

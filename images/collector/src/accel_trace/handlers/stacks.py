"""The call stack of a launch, across Python and C++, at the launch that the library asks for.

The library calls back inside the launch, on the launching thread, which may not hold the GIL:
PyTorch gives it up around its kernels, and autograd's threads never had it. The callback is made by
ctypes, which takes the GIL first (PyGILState_Ensure) and gives it back after. So the library must
call it without a lock that a thread with the GIL may wait for. Source: PASTA, section 3.4.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from functools import cache
from types import FrameType

from accel_trace.handlers.library import Library, StackCallback

_MOST = 256
# How glibc's backtrace_symbols writes a frame: library(symbol+0xoffset) [0xaddress]
_FRAME = re.compile(r"^(?P<file>.*?)\((?P<symbol>[^()+]*)\+?(?P<offset>0x[0-9a-f]+)?\) \[")
# Frames of the callback itself, from the innermost one on.
_BRIDGE = re.compile(r"(libffi[.-]|_ctypes\.|libgcc_s\.|libc[.-])")
_TOOL = re.compile(r"(lib)?(accel[_-]?trace|sanitizer)")


class _Info(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _interpreter() -> str:
    """The file that holds the interpreter: the program itself, or libpython."""
    info = _Info()
    process = ctypes.CDLL(None)
    process.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Info)]
    address = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)
    if not process.dladdr(address, ctypes.byref(info)) or not info.file:
        return sys.executable
    return str(info.file.decode("utf-8", "replace"))


def native_frames() -> list[str]:
    """The calling thread's native frames, innermost first, as backtrace_symbols writes them."""
    process = ctypes.CDLL(None)
    addresses = (ctypes.c_void_p * _MOST)()
    count = process.backtrace(addresses, _MOST)
    process.backtrace_symbols.restype = ctypes.POINTER(ctypes.c_char_p)
    symbols = process.backtrace_symbols(addresses, count)
    if not symbols:
        return []
    try:
        return [symbols[i].decode("utf-8", "replace") for i in range(count)]
    finally:
        process.free(symbols)


@cache
def demangled(symbol: str) -> str:
    """A C++ name in words; other names as they are. The names of a program are few."""
    if not symbol.startswith("_Z"):
        return symbol
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return symbol
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    result = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not result:
        return symbol
    try:
        return ctypes.string_at(result).decode("utf-8", "replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(result))


def python_frames(frame: FrameType | None) -> list[str]:
    """`python: function file:line` of a frame and its callers, innermost first."""
    lines: list[str] = []
    while frame is not None and len(lines) < _MOST:
        code = frame.f_code
        lines.append(f"python: {code.co_qualname} {code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return lines


def native_lines(raw: Sequence[str], interpreter: str) -> list[str]:
    """`native: symbol file` of the frames between the launch and the Python that made it.

    Left out: the frames of the callback and of the tools that called it, and everything from the
    interpreter outwards, for which the Python frames stand.
    """
    parsed = []
    for line in raw:
        match = _FRAME.match(line)
        file = match["file"] if match else line.split(" [")[0]
        parsed.append((file, match["symbol"] if match else "", (match and match["offset"]) or ""))
    at = 0
    while at < len(parsed) and (
        parsed[at][0] == interpreter or _BRIDGE.match(_base(parsed[at][0]))
    ):
        at += 1
    while at < len(parsed) and _TOOL.match(_base(parsed[at][0])):
        at += 1
    lines: list[str] = []
    for file, symbol, offset in parsed[at:]:
        if file == interpreter:
            break
        name = demangled(symbol) if symbol else f"?{offset}"
        lines.append(f"native: {name} {file}")
    return lines


def _base(file: str) -> str:
    return file.rsplit("/", maxsplit=1)[-1]


def here(frame: FrameType | None) -> str:
    """The stack of the calling thread, native frames first, one frame a line."""
    return "\n".join(native_lines(native_frames(), _interpreter()) + python_frames(frame))


_kept: list[object] = []  # ctypes must not collect a callback that C still has


def install(found: Library) -> None:
    """Answer the library's requests from now on."""

    def answer(launch: int) -> None:
        try:
            # One frame out: the code that launched, where this thread runs Python at all.
            text = here(sys._getframe().f_back)
        except Exception as error:  # noqa: BLE001  # nothing may be raised into a launch
            text = f"native: no stack could be taken: {error!r}"
        found.stack(launch, text)

    callback = StackCallback(answer)
    _kept.append(callback)
    found.set_stack_callback(callback)

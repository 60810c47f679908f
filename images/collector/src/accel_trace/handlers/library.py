"""The injection library's C functions, from Python. They are found, never loaded, here."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_u64 = ctypes.c_uint64
_text = ctypes.c_char_p
StackCallback = ctypes.CFUNCTYPE(None, _u64)
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "ready": (ctypes.c_int, []),
    "tensor": (None, [ctypes.c_int, _u64, _u64, _u64, _u64, ctypes.c_int, _u64]),
    "operator": (None, [ctypes.c_int, _text]),
    "region": (None, [ctypes.c_int, _text]),
    "step": (None, []),
    "stack": (None, [_u64, _text]),
    "note": (None, [ctypes.c_int, _text]),
    "fact": (None, [_text, _text]),
    "launches": (_u64, []),
    "flush": (None, []),
    "set_stack_callback": (None, [StackCallback]),
}


class Library:
    """The library that is loaded in this process; every call is one C call."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(handle, f"accel_trace_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, f"_{name}", function)

    _tensor: Callable[..., None]
    _operator: Callable[..., None]
    _region: Callable[..., None]
    _step: Callable[..., None]
    _stack: Callable[..., None]
    _note: Callable[..., None]
    _fact: Callable[..., None]
    _flush: Callable[..., None]
    _ready: Callable[[], int]
    _launches: Callable[[], int]
    _set_stack_callback: Callable[..., None]

    def ready(self) -> bool:
        """Whether it is active in this process."""
        return bool(self._ready())

    def tensor(
        self,
        alloc: bool,
        address: int,
        size: int,
        *,
        allocated: int,
        reserved: int,
        device: int = 0,
        stream: int = 0,
    ) -> None:
        """A block was handed out or taken back; bytes, totals after it."""
        self._tensor(int(alloc), address, size, allocated, reserved, device, stream)

    def operator(self, start: bool, name: str) -> None:
        """An operator began or ended on this thread."""
        self._operator(int(start), _bytes(name))

    def region(self, start: bool, name: str) -> None:
        """A region was entered or left."""
        self._region(int(start), _bytes(name))

    def step(self) -> None:
        """An iteration ends here, and the next one begins."""
        self._step()

    def stack(self, launch: int, text: str) -> None:
        """The call stack of a launch."""
        self._stack(launch, _bytes(text))

    def note(self, level: int, text: str) -> None:
        """Something a person should know: 1 remark, 2 warning, 3 the handler gave up."""
        self._note(level, _bytes(text))

    def fact(self, name: str, value: str) -> None:
        """A fact about the process."""
        self._fact(_bytes(name), _bytes(value))

    def launches(self) -> int:
        """Launches of this process so far."""
        return int(self._launches())

    def flush(self) -> None:
        """Drain what the GPU holds, flush the log. Not from inside a callback."""
        self._flush()

    def set_stack_callback(self, callback: object) -> None:
        """Have a StackCallback called; the caller keeps it alive."""
        self._set_stack_callback(callback)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace").replace(b"\0", b"?")


_found: Library | None = None


def find() -> Library | None:
    """The library, where it is loaded in this process. It may come late, with the first CUDA call.

    Preloaded, its names are global; brought by the driver (CUDA_INJECTION64_PATH) they are not.
    """
    global _found  # noqa: PLW0603  # one per process, like the library
    if _found is None and os.environ.get("ACCEL_TRACE_OUT"):
        handle = _handle()
        _found = Library(handle) if handle is not None else None
    return _found


def _handle() -> ctypes.CDLL | None:
    every = ctypes.CDLL(None)
    if hasattr(every, "accel_trace_ready"):
        return every
    path = os.environ.get("CUDA_INJECTION64_PATH")
    if not path:
        return None
    try:
        handle = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:  # not loaded, at least not yet
        return None
    return handle if hasattr(handle, "accel_trace_ready") else None

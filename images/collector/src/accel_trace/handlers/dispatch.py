"""The cheap bound on an operator's working set: the storages among its arguments and results.

This is the estimator that PASTA argues against (section 2): it needs no GPU access, and counts
whole storages whether a kernel touches them or not. One line per ATen operator goes to
`args-<pid>.jsonl`: {"operator": name, "index": n, "bytes": n}. Works on CPU, CUDA and meta tensors.

`index` is that of the OperatorStart around it where the native hooks report operators, so that
launches can be joined; else ATen operators are counted from 0 in the order in which they end.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accel_trace.handlers import torch_native
from accel_trace.handlers.storages import operator_name, storage_of, tensors_in


def argument_bytes(*values: Any) -> int:
    """Bytes of the distinct storages among the tensors in `values`, each counted whole."""
    sizes: dict[torch.UntypedStorage, int] = {}
    for tensor in tensors_in(values):
        storage = storage_of(tensor)
        if storage is not None:
            sizes[storage] = storage.nbytes()
    return sum(sizes.values())


class ArgumentBytes(TorchDispatchMode):
    """While entered, writes the bound of every operator to `path`; `bytes` holds them too."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.bytes: list[int] = []
        self._file: IO[str] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def for_process(cls, folder: str) -> ArgumentBytes:
        """The mode of this process, writing into a run's folder; a forked child writes its own."""
        mode = cls(Path(folder) / f"args-{os.getpid()}.jsonl")
        os.register_at_fork(after_in_child=mode._begin_anew)
        return mode

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._write(operator_name(func), argument_bytes(args, kwargs or {}, result))
        return result

    def close(self) -> None:
        """Write out what is held."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __exit__(self, *arguments: Any) -> None:
        super().__exit__(*arguments)
        self.close()

    def _begin_anew(self) -> None:
        """In a forked child: another file, counts from 0, and a lock that nobody holds."""
        self.path = self.path.with_name(f"args-{os.getpid()}.jsonl")
        self.bytes = []
        self._file = None  # every line was written whole, so nothing of the parent's is held
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def _write(self, operator: str, size: int) -> None:
        hooks = torch_native.loaded()
        around = hooks.open_operator() if hooks is not None else None
        with self._lock:
            self.bytes.append(size)
            if around is None:
                self._write_line(operator, len(self.bytes) - 1, size)
            elif around[1] == operator:  # else PyTorch called it without announcing it: a view
                self._write_line(operator, around[0], size)

    def _write_line(self, operator: str, index: int, size: int) -> None:
        if os.getpid() != self._owner:
            return  # a forked child: the file is its parent's
        try:
            if self._file is None:  # closed and entered again: append
                self._file = self.path.open("a", encoding="utf-8", buffering=1)
                atexit.register(self.close)
            line = {"operator": operator, "index": index, "bytes": size}
            self._file.write(json.dumps(line) + "\n")
        except OSError:  # a full disk must not end the program
            self._owner = -1

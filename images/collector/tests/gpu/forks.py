"""Programs with PyTorch, each in a process of its own, forked from one that has imported it.

To import PyTorch takes longer than the steps that are timed. CUDA starts in the children alone.
As a script: each line of JSON on standard input is a program; what it exits with is printed.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from accel_trace import build, tools
from accel_trace.launch import Filters, environment


def under(
    tool: str, out: Path, settings: Mapping[str, str] | None = None, **filters: int
) -> dict[str, str]:
    """The environment in which `accel-trace run` starts a program; makes its folder."""
    cls = tools.find(tool)
    needs = cls(cls.read_settings(dict(settings or {})), out).needs_of(0, [])
    out.mkdir(parents=True)
    return environment(os.environ, needs, Filters(**filters), out, build.ensure_built())


class Forks:
    """The process that has imported PyTorch; every `run` is a child of it."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._parent.kill()
        self._parent.communicate()

    def run(
        self, folder: Path, code: str, environ: Mapping[str, str] | None = None
    ) -> list[tuple[str, float]]:
        """Run a program; returns the value and the seconds of each line that it prints.

        `environ` is its environment; None is ours, without the collector. Raises RuntimeError with
        the end of its errors where it fails.
        """
        folder.mkdir(parents=True, exist_ok=True)
        plain = {k: v for k, v in os.environ.items() if not k.startswith("ACCEL_TRACE_")}
        job = {"folder": str(folder), "code": code, "environ": dict(environ or plain)}
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        print(json.dumps(job), file=self._parent.stdin, flush=True)
        ended = self._parent.stdout.readline().strip()
        if ended != "0":
            errors = folder / "errors.txt"
            said = errors.read_text() if errors.exists() else "the process that forks has ended"
            raise RuntimeError(f"exit code {ended}: {said[-2000:]}")
        lines = [line.split() for line in (folder / "said.txt").read_text().splitlines()]
        return [(value, float(seconds)) for value, seconds in lines]


Variant = tuple[str, Callable[[Path], Mapping[str, str]] | None]


def by_turns(
    folder: Path,
    turns: int,
    variants: Mapping[str, Variant],
    time_of: Callable[[Sequence[float]], float],
    say: Callable[[str], None] = print,
) -> dict[str, list[float]]:
    """Run programs by turns, a process each, each turn in another order; returns by name the
    seconds of each turn.

    A variant is a program, and what makes an environment of the folder `NAME-TURN/out`; None runs
    it without the collector. `time_of` makes one number of a process's seconds. Each time is said
    as it comes.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    with Forks() as forks:
        for turn in range(turns):
            shift = turn % len(variants)
            names = list(variants)
            for name in (*names[shift:], *names[:shift]):
                code, environ = variants[name]
                at, start = folder / f"{name}-{turn}", time.perf_counter()
                steps = forks.run(at, code, environ and environ(at / "out"))
                times[name].append(time_of([seconds for _, seconds in steps]))
                took = time.perf_counter() - start
                say(f"turn {turn} {name}: {times[name][-1] * 1e3:.4f} ms, in {took:.1f} s")
    return times


def _child(folder: str, code: str, environ: Mapping[str, str]) -> int:
    """Run the program in this process as Python does with the collector preloaded."""
    for number, name in ((1, "said.txt"), (2, "errors.txt")):
        os.dup2(os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(environ)
    if "ACCEL_TRACE_OUT" in environ:
        from accel_trace.handlers import install

        ctypes.CDLL(environ["CUDA_INJECTION64_PATH"], mode=ctypes.RTLD_GLOBAL)
        install.after_torch()
    exec(compile(code, "program", "exec"), {"__name__": "__main__"})
    return 0


def main() -> int:
    """Import PyTorch, with what an optimizer imports, and serve."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # whoever asks for a GPU starts no CUDA
    import torch

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            return _child(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

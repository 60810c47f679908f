"""A recipe whose points do what the command line tells them, run by a real `ae run`.

Three points, `first`, `middle` and `last`; only the middle one performs the acts. Every point that
gets to its end writes a record.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
NAME = f"acting{os.getpid()}"  # of these tests: others may run on the same machine

PROGRAM = """
import json, os, signal, sys, time
out = os.environ["AE_OUT"]
for act in [word for word in sys.argv[1].split("|") if word]:
    name, _, rest = act.partition(":")
    if name == "print": print(rest, flush=True)
    elif name == "error": print(rest, file=sys.stderr, flush=True)
    elif name == "sleep": time.sleep(float(rest))
    elif name == "until":
        while not os.path.exists(os.path.join(out, rest)): time.sleep(0.1)
    elif name == "deaf": signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif name == "exit": sys.exit(int(rest))
    elif name == "eat": hoard = bytearray(int(rest)); hoard[::4096] = b"x" * len(hoard[::4096])
    elif name == "write":
        file, _, text = rest.partition(":")
        open(os.path.join(out, file), "w").write(text)
    elif name == "fill":
        with open(os.path.join(out, "filler"), "wb", buffering=0) as filler:
            for _ in range(int(rest)): filler.write(bytes(2**20))
    elif name == "lines":
        block = (("x" * 99 + chr(10)) * 10000).encode()
        for _ in range(int(rest)): os.write(1, block)
    elif name == "noise":
        for _ in range(int(rest)): os.write(1, os.urandom(2**20))
    elif name == "read": print(open(rest).read(), flush=True)
    elif name == "copy": open(os.path.join(out, "copy"), "w").write("x" * 5 + open(rest).read())
with open(os.path.join(out, "records.jsonl"), "a") as file:
    record = dict(metric="m", unit="s", samples=[1.0], labels=dict(), evidence="measured")
    file.write(json.dumps(record) + chr(10))
"""

EXPERIMENT = """
  {name}:
    title: {name}
    summary: a point
    gpu: none
    command: [python3, -c, {program}, "{acts}"]
    time: {{full: 1s, quick: 1s}}
    timeout: {{full: {timeout}, quick: {timeout}}}
    disk: {disk}
    needs: {needs}
"""


def make_root(
    folder: Path, *, needs: str = "{}", disk: str = "100MB", timeout: str = "10m"
) -> Path:
    """Write the recipe below `folder`; `needs` are the middle point's, as YAML."""
    recipe, image = folder / "recipes" / NAME, folder / "images" / NAME
    recipe.mkdir(parents=True)
    image.mkdir(parents=True)
    (image / "Dockerfile").write_text("FROM scratch\n")
    program = json.dumps(PROGRAM.replace("{", "{{").replace("}", "}}"))
    points = [
        EXPERIMENT.format(
            name=name,
            program=program,
            acts="{acts}" if name == "middle" else "print:" + name,
            needs=needs if name == "middle" else "{}",
            disk=disk if name == "middle" else "10MB",
            timeout=timeout,
        )
        for name in ("first", "middle", "last")
    ]
    (recipe / "recipe.yaml").write_text(
        f"schema: 1\nname: {NAME}\ntitle: Acting\n"
        "paper: {title: Acting, venue: TOY 2000, url: 'https://example.org'}\n"
        f"image: {NAME}\nlanes: {{native: {{summary: acts}}}}\n"
        "parameters: {acts: {type: str, default: 'print:middle', help: what to do}}\n"
        "experiments:" + "".join(points)
    )
    (recipe / "claims.yaml").write_text("schema: 2\nclaims: []\n")
    return folder


class Launch:
    """An `ae` command as a process of its own."""

    started: ClassVar[list[Launch]] = []  # by this test; what it leaves, conftest.py ends

    def __init__(self, root: Path, *words: str, results: Path, **environment: str) -> None:
        self.results = results
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ae", *words],
            cwd=root,
            env={
                **os.environ, "PYTHONPATH": str(ROOT), "AE_ROOT": str(root),
                "AE_RESULTS": str(results), **environment,
            },
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.started.append(self)

    def until(self, word: str) -> None:
        """Read its output until a line that holds `word`."""
        assert self.process.stdout is not None
        seen = []
        while word not in (line := self.process.stdout.readline()):
            seen.append(line)
            assert line, "".join(seen)

    def end(self, timeout: float = 120) -> tuple[int, str]:
        """Its exit code and the rest of its output."""
        said, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, said

    def kill(self) -> None:
        """End it as the system does when memory is short."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)

    def close(self) -> None:
        """End it if it still runs, and close its output."""
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.kill()

    def run_folder(self) -> Path:
        """Its run."""
        (found,) = (self.results / "runs" / NAME).iterdir()
        return found

    def statuses(self) -> dict[str, dict[str, Any]]:
        """What every point's status.json says."""
        paths = self.run_folder().glob("points/[!.]*/status.json")
        return {path.parent.name: json.loads(path.read_text()) for path in paths}

    def words(self) -> dict[str, str]:
        """How every point ended."""
        return {name: status["status"] for name, status in self.statuses().items()}


def ae_run(
    root: Path, results: Path, acts: str, *words: str, verbose: bool = True, **environment: str
) -> Launch:
    """Start `ae run` of the recipe in the base image."""
    argv = ("run", NAME, "--engine", "docker", "--no-build", "--image", "ae/base:cpu")
    words = (*words, "-v") if verbose else words
    return Launch(root, *argv, "--set", f"acts={acts}", *words, results=results, **environment)


def ae_resume(root: Path, results: Path, acts: str, **environment: str) -> Launch:
    """Take the latest run up again, with a middle point whose recipe now says `acts`."""
    recipe = root / "recipes" / NAME / "recipe.yaml"
    text = recipe.read_text()
    assert '"{acts}"' in text
    recipe.write_text(text.replace('"{acts}"', json.dumps(acts) + ', "{acts}"'))
    argv = ("run", NAME, "--engine", "docker", "--no-build", "--resume", "-v")
    return Launch(root, *argv, results=results, **environment)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def gone(found: Any, seconds: float = 20) -> list[str]:
    """Wait until `found()` gives nothing; return what it gave last."""
    end = time.monotonic() + seconds
    while (left := found()) and time.monotonic() < end:
        time.sleep(0.1)
    return list(left)

"""The folder of a job: what the job writes there, and what a launcher takes from it.

A file `closed` says that nobody is to take the job up again: its outcome is kept, it was cancelled,
or it was given up. Whatever such a job still writes counts for nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from ae.host.processes import LineCutter
from ae.model import Sink


def read_end(folder: Path) -> dict[str, Any] | None:
    """What the job says of its end; None: it has not ended."""
    try:
        if "end.json" not in os.listdir(folder):  # asks a network disk anew
            return None
        end: dict[str, Any] = json.loads((folder / "end.json").read_text())
    except (OSError, ValueError):
        return None
    return end


def sign_of_life(folder: Path) -> tuple[int, float]:
    """The time of the job's latest heartbeat, by the disk's clock, and their pace in seconds."""
    try:
        path = folder / "heartbeat"
        return path.stat().st_mtime_ns, float(path.read_text())
    except (OSError, ValueError):
        return 0, 0


def close(folder: Path, why: str) -> None:
    """Nobody is to take this job up again."""
    (folder / "closed").write_text(why + "\n")


def is_closed(folder: Path) -> bool:
    return (folder / "closed").exists()


def fetch(folder: Path, out: Path) -> None:
    """Put what the job has made into the point's folder, too; the job keeps it until `drop`."""
    if (made := folder / "out").is_dir():
        shutil.copytree(made, out, symlinks=True, copy_function=_second, dirs_exist_ok=True)


def _second(source: str, target: str) -> None:
    """A file a second time. It costs no disk, except for what the launcher may append to."""
    if not source.endswith("records.jsonl"):
        with suppress(OSError):  # a file system without links
            os.link(source, target)
            return
    shutil.copy2(source, target)


def drop(folder: Path) -> None:
    """Keep the script, the end and Slurm's log."""
    close(folder, "taken")
    shutil.rmtree(folder / "out", ignore_errors=True)
    for name in ("stdout", "stderr"):
        (folder / name).unlink(missing_ok=True)


def gpus(folder: Path) -> dict[str, str]:
    """The names of the job's GPUs by UUID."""
    path = folder / "gpus"
    rows = path.read_text().splitlines() if path.is_file() else []
    return {uuid: name.strip() for uuid, _, name in (row.partition(",") for row in rows)}


class Tail:
    """Passes on what the job prints, line by line."""

    def __init__(self, folder: Path, sink: Sink) -> None:
        self._folder, self._sink = folder, sink
        self._read: dict[Literal["stdout", "stderr"], int] = {"stdout": 0, "stderr": 0}
        self._cutters = {name: LineCutter() for name in self._read}

    def pump(self, *, last: bool = False) -> None:
        """Pass on what is new."""
        for name, done in list(self._read.items()):
            path = self._folder / name
            if not path.is_file():
                continue
            with path.open("rb") as file:
                # Smaller than before: the job was started again.
                file.seek(done if path.stat().st_size >= done else 0)
                while chunk := file.read(1 << 20):
                    self._pass(name, chunk)
                    self._read[name] = file.tell()
            if last:
                self._pass(name, b"", last=True)

    def _pass(self, name: Literal["stdout", "stderr"], chunk: bytes, *, last: bool = False) -> None:
        for line in self._cutters[name].feed(chunk, last=last):
            self._sink.line(name, line)

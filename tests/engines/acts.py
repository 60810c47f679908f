"""A workload made of small acts, written on its command line: what contract tests let engines run.

`python -c PROGRAM print:hello write:file:text exit:3`. The fake engine performs the same acts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ae.engines.base import Job
from ae.model import Flavour, ImageRef, Point, RuntimeNeeds

RUN = f"contract-{os.getpid()}"  # of these tests: others may run on the same machine
PROGRAM = """
import os, signal, sys, time
def clean_up(*_):
    open(os.path.join(os.environ["AE_OUT"], "cleaned"), "w").close()
    sys.exit(9)
for act in sys.argv[1:]:
    name, _, rest = act.partition(":")
    if name == "print": print(rest, flush=True)
    elif name == "error": print(rest, file=sys.stderr, flush=True)
    elif name == "noise": os.write(1, bytes(range(256)) * 8 + b"\\n")
    elif name == "write":
        file, _, text = rest.partition(":")
        open(os.path.join(os.environ["AE_OUT"], file), "w").write(text)
    elif name == "env": print(os.environ.get(rest, "unset"), flush=True)
    elif name == "home": open(os.path.expanduser("~/probe"), "w").close(); print("home ok")
    elif name == "sleep": time.sleep(float(rest))
    elif name == "listen": signal.signal(signal.SIGTERM, clean_up)
    elif name == "deaf": signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif name == "eat": hoard = bytearray(int(rest)); hoard[::4096] = b"x" * len(hoard[::4096])
    elif name == "signal": os.kill(os.getpid(), int(rest))
    elif name == "exit": sys.exit(int(rest))
"""


def command(*acts: str) -> tuple[str, ...]:
    """The argv that performs `acts`."""
    return ("python3", "-c", PROGRAM, *acts)


def make_job(
    out: Path,
    *acts: str,
    argv: tuple[str, ...] | None = None,
    image: ImageRef | None = None,
    needs: RuntimeNeeds | None = None,
    env: Mapping[str, str] | None = None,
    disk_bytes: int = 0,
    run: str = RUN,
) -> Job:
    """A job that performs `acts` (or runs `argv`) with its outputs in `out`, which is made."""
    out.mkdir(parents=True, exist_ok=True)
    return Job(
        point=Point(
            id="point",
            recipe="contract",
            experiment="acts",
            labels={},
            variants=(),
            argv=argv or command(*acts),
            env=env or {},
            image=image or base_image(out),
            needs=needs or RuntimeNeeds(),
            timeout_s=60,
            expected_s=1,
            disk_bytes=disk_bytes,
        ),
        out=out,
        labels={"ae.run": run, "ae.recipe": "contract"},
    )


def base_image(folder: Path) -> ImageRef:
    """The base image as it is, under its own tag."""
    return ImageRef(
        name="base",
        flavour=Flavour.CPU,
        content="c" * 64,
        source=folder / "images" / "base",
        override=os.environ.get("AE_TEST_IMAGE", "ae/base:cpu"),
    )


class Lines:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []

    def line(self, stream: str, text: str) -> None:
        self.got.append((stream, text))

    def of(self, stream: str) -> list[str]:
        return [text for name, text in self.got if name == stream]

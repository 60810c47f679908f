"""The program on managed memory, with a made-up GPU and collector: the order of things."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from pasta_workloads import managed
from pasta_workloads.managed import Managed, run_managed

HOST = -1


class Refused(RuntimeError):
    """What the collector raises when managed memory cannot be had."""


@dataclass
class Report:
    policy: str = "object"
    driver_prefetch: int = 1
    asked_bytes: int = 40


class Memory:
    """Two pieces, of which the second is gone."""

    def pieces(self) -> int:
        return 2

    def piece(self, number: int) -> tuple[int, int] | None:
        return (4096, 1000) if number == 0 else None


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happened, in its order; `refuse` in it makes managed memory refuse."""
    log: list[Any] = []

    @contextmanager
    def managed_pool() -> Iterator[Memory]:
        if "refuse" in log:
            raise Refused("2 bytes were asked for where 1 is free")
        log.append("pool")
        yield Memory()

    class Replay:
        def __init__(self, memory: Memory, advice: Any, policy: str) -> None:
            log.append(("replay", advice, policy))

        def __enter__(self) -> Replay:
            return self

        def __exit__(self, *what: object) -> None:
            log.append("end")

        @contextmanager
        def active(self) -> Iterator[Report]:
            log.append("active")
            yield Report()

    class Runtime:
        def stream(self) -> str:
            return "stream"

        def prefetch(self, *what: Any) -> None:
            log.append(("prefetch", *what))

        def destroy(self, stream: str) -> None:
            assert stream == "stream"

        def synchronize(self) -> None:
            log.append("synchronize")

    class Advice:
        @staticmethod
        def load(path: Path) -> str:
            return f"advice of {path.name}"

    class Counters:
        def __init__(self) -> None:
            log.append("count")

        def finish(self, begin_ns: int) -> dict[str, int]:
            assert begin_ns > 0
            return {"moved_in": 7}

    def ballast(leave: int) -> str:
        log.append(("ballast", leave))
        return "weight"

    def made(name: str, **content: Any) -> None:
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)

    made("accel_trace.uvm")
    made("accel_trace.uvm.advice", Advice=Advice)
    made("accel_trace.uvm.managed", ManagedError=Refused, ballast=ballast,
         managed_pool=managed_pool)  # fmt: skip
    made("accel_trace.uvm.replay", Replay=Replay, ReplayError=Refused)
    made("accel_trace.uvm.runtime", HOST=HOST, Runtime=Runtime, RuntimeMissing=Refused)
    build = managed.build
    monkeypatch.setattr(managed, "build", lambda *a: build(*a[:3], "cpu", a[4]))
    monkeypatch.setattr(managed, "_Counters", Counters)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return log


def job(**more: Any) -> Managed:
    return Managed(model="bert", mode="test", size="tiny", policy="object", **more)


def test_everything_is_on_the_host_before_the_clock_starts(
    done: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_managed(job(advice="x/advice.json", leave=5))
    assert done == [
        "count", ("ballast", 5), "pool", ("replay", "advice of advice.json", "object"),
        ("prefetch", 4096, 1000, HOST, "stream"), "synchronize", "active", "end",
    ]  # fmt: skip
    assert found["footprint"] == 1000
    assert found["moved_in"] == 7
    assert found["seconds"] > 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line.removeprefix("managed ")) == found


def test_the_profiling_run_counts_nothing_and_fills_nothing(done: list[Any]) -> None:
    found = run_managed(job())
    assert "count" not in done
    assert ("replay", None, "object") in done
    assert not [step for step in done if step[0] == "ballast"]
    assert "moved_in" not in found


def test_refused_memory_cannot_run(done: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    done.append("refuse")
    with pytest.raises(SystemExit) as left:
        run_managed(job())
    assert left.value.code == 77
    assert "2 bytes were asked for" in capsys.readouterr().err.splitlines()[-1]


def test_counters_count_from_a_moment_on_or_say_why_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from accel_trace.events import ManagedCounter
    from accel_trace.handlers import cupti

    class Collector:
        def __init__(self, *, managed: bool) -> None:
            assert managed

        def start(self) -> None:
            pass

        def finish(self) -> list[ManagedCounter]:
            return [
                ManagedCounter(
                    what="BYTES_TRANSFER_HTOD", value=value, start_ns=0, end_ns=0, address=0,
                    device=0, ns=ns,
                )
                for ns, value in ((10, 4096), (20, 8192))
            ]  # fmt: skip

    monkeypatch.setattr(cupti, "Collector", Collector)
    assert managed._Counters().finish(20)["moved_in"] == 8192
    assert managed._Counters().finish(21) == {}
    assert "CUPTI told of none" in capsys.readouterr().err

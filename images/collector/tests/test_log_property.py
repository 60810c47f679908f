"""The log's reader on anything: events, and in words why a log is not whole; nothing else."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accel_trace.events import EVENTS, End, Event
from accel_trace.layouts import FRAME, HEADER, LAYOUTS, MAGIC, VERSION
from accel_trace.log import LogError, LogReader, read_status
from accel_trace.log_writer import LogWriter
from hypothesis import example, given
from hypothesis import strategies as st

HEAD = struct.pack(HEADER, MAGIC, VERSION, struct.calcsize(HEADER), 1, 2, 3)


@st.composite
def events(draw: st.DrawFn) -> Event:
    """An event of any kind but the end, with any values that its fields hold."""
    layout = LAYOUTS[draw(st.sampled_from([cls.kind for cls in EVENTS if cls is not End]))]
    values: dict[str, Any] = {}
    for index, (name, code) in enumerate(
        zip(layout.names, layout.struct.format.lstrip("<"), strict=True)
    ):
        bits = 8 * struct.calcsize(code)
        if index in layout.texts:
            values[name] = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
        elif code == "i":
            values[name] = draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        else:
            values[name] = draw(st.integers(0, 2**bits - 1))
    return layout.cls(clock=draw(st.integers(1, 2**63)), ns=draw(st.integers(1, 2**63)), **values)


@contextmanager
def log(content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.atl"
        path.write_bytes(content)
        yield path


def written(given: list[Event]) -> bytes:
    with log(b"") as path:
        with LogWriter(path, pid=1) as writer:
            for event in given:
                assert writer.write(event)
        return path.read_bytes()


def frames(content: bytes) -> list[bytes]:
    """The frames of a whole log, its header first."""
    at = struct.calcsize(HEADER)
    found = [content[:at]]
    while at < len(content):
        size = struct.unpack_from(FRAME, content, at)[2]
        end = at + struct.calcsize(FRAME) + size
        found.append(content[at:end])
        at = end
    return found


def read(content: bytes) -> tuple[list[Event], str]:
    """Events and damage; LogError is damage too."""
    with log(content) as path:
        try:
            reader = LogReader(path)
        except LogError as error:
            return [], str(error)
        return list(reader), reader.damage


@given(st.lists(events(), max_size=8))
def test_what_was_written_is_read(given: list[Event]) -> None:
    *found, end = read(written(given))[0]
    assert found == given
    assert isinstance(end, End)
    assert not read(written(given))[1]


@given(st.binary() | st.binary().map(HEAD.__add__))
def test_any_bytes(content: bytes) -> None:
    found, damage = read(content)
    assert damage
    assert "\n" not in damage
    assert len(found) <= len(content)


@given(st.lists(events(), min_size=1, max_size=6), st.data())
def test_a_log_that_lost_frames_is_not_whole(given: list[Event], data: st.DataObject) -> None:
    parts = frames(written(given))
    lost = data.draw(st.sets(st.integers(1, len(parts) - 1), min_size=1))
    assert read(b"".join(part for at, part in enumerate(parts) if at not in lost))[1]


@given(st.lists(events(), min_size=1, max_size=6), st.data())
def test_a_log_that_is_cut_keeps_what_is_whole(given: list[Event], data: st.DataObject) -> None:
    content = written(given)
    cut = data.draw(st.integers(0, len(content) - 1))
    found, damage = read(content[:cut])
    assert damage
    assert found == given[: len(found)]


@given(st.lists(events(), min_size=1, max_size=4), st.data())
def test_a_byte_that_changed_ends_in_events_or_in_words(
    given: list[Event], data: st.DataObject
) -> None:
    content = bytearray(written(given))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    found, damage = read(bytes(content))
    assert len(found) <= len(given) + 1
    assert "\n" not in damage


@given(st.binary())
@example(b"[" * 100_000)
@example(b'{"dropped_events": Infinity}')
def test_any_status_file(content: bytes) -> None:
    with log(content) as path:
        status = read_status(path)
    assert isinstance(status.state, str)
    assert isinstance(status.dropped_events, int)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=4))
def test_a_status_file_with_other_values(value: object) -> None:
    text = json.dumps({"state": value, "dropped_events": value, "dropped_accesses": value})
    with log(text.encode()) as path:
        assert isinstance(read_status(path).dropped_accesses, int)

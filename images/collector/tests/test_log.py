"""The log: what is written is read, however the file was cut, and a full disk harms nobody."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from dataclasses import fields
from pathlib import Path

import pytest
from accel_trace.events import EVENTS, End, Event, Hot, Launch, Note, Touched
from accel_trace.layouts import FRAME, HEADER, LAYOUTS, MAGIC
from accel_trace.log import LogError, LogReader, Status, read_status
from accel_trace.log_writer import LogWriter

_FULL_DISK = """
import resource, sys
from accel_trace.events import Hot
from accel_trace.log_writer import LogWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
writer = LogWriter(sys.argv[1])
kept = sum(writer.write(Hot(launch=n, block=n, count=1)) for n in range(20_000))
writer.close()
print(writer.dropped_events, writer.gave_up)
"""


def _example(cls: type[Event], chance: random.Random) -> Event:
    """Return an event with values at and near the bounds of every field."""
    layout = LAYOUTS[cls.kind]
    codes = layout.struct.format.lstrip("<")
    values: dict[str, object] = {}
    for index, (name, code) in enumerate(zip(layout.names, codes, strict=True)):
        if index in layout.texts:
            values[name] = chance.choice(["", "void k<int>()", "größe", "a\nb", "x" * 5000])
        elif code == "i":
            values[name] = chance.choice([-1, -(2**31), 2**31 - 1])
        else:
            values[name] = chance.choice([0, 1, 2 ** (8 * struct.calcsize(code)) - 1])
    return cls(clock=chance.randrange(1, 2**64), ns=chance.randrange(1, 2**64), **values)


def _small(path: Path) -> list[Event]:
    events: list[Event] = [
        Launch(clock=1, ns=11, launch=0, name="kernel", device=0, stream=7, context=9, grid_x=1,
               grid_y=2, grid_z=3, block_x=4, block_y=5, block_z=6, analysed=1, thread=8,
               operator="aten::mm", region="epoch"),
        Touched(clock=2, ns=12, launch=0, address=512, size=512, what=1, flags=0),
        Note(clock=3, ns=13, level=1, text="kernel"),
    ]  # fmt: skip
    with LogWriter(path) as writer:
        for event in events:
            assert writer.write(event)
    return events


def test_every_kind_comes_back_as_it_was_written(tmp_path):
    chance = random.Random(1)
    events = [_example(cls, chance) for cls in EVENTS if cls is not End for _ in range(20)]
    chance.shuffle(events)
    with LogWriter(tmp_path / "a.atl", pid=77) as writer:
        assert all(writer.write(event) for event in events)
    reader = LogReader(tmp_path / "a.atl")
    read = list(reader)
    assert read[:-1] == events
    assert isinstance(read[-1], End)
    assert (reader.pid, reader.damage, dict(reader.unknown)) == (77, "", {})
    assert reader.frames == read[-1].frames > len(events)  # strings are frames too
    assert read_status(tmp_path / "a.status") == Status(state="closed")
    assert (tmp_path / "a.status").stat().st_size == 4096


def test_no_layout_has_padding_or_loses_a_field():
    for cls in EVENTS:
        layout = LAYOUTS[cls.kind]
        assert {*layout.names, "clock", "ns"} == {field.name for field in fields(cls)}
        codes = layout.struct.format.lstrip("<")
        assert layout.struct.size == sum(struct.calcsize(code) for code in codes)


def test_only_asked_kinds_are_given_and_the_damage_is_still_found(tmp_path):
    _small(tmp_path / "a.atl")
    reader = LogReader(tmp_path / "a.atl")
    assert [type(event) for event in reader.events([Touched])] == [Touched]
    assert not reader.truncated
    path = tmp_path / "a.atl"
    path.write_bytes(path.read_bytes()[:-1])
    assert [event.text for event in reader.events([Note])] == ["kernel"]
    assert "is cut" in reader.damage


def test_a_log_cut_at_any_byte_gives_every_whole_frame(tmp_path):
    whole = tmp_path / "whole.atl"
    events = _small(whole)
    data = whole.read_bytes()
    ends = []  # offset behind each event's frame
    at = struct.calcsize(HEADER)
    while at < len(data):
        kind, _, size, _, _ = struct.unpack_from(FRAME, data, at)
        at += struct.calcsize(FRAME) + size
        if kind != 1:
            ends.append(at)
    assert len(ends) == len(events) + 1
    assert ends[-1] == len(data)
    cut = tmp_path / "cut.atl"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        reader = LogReader(cut)
        read = list(reader)
        assert read == events[: sum(end <= length for end in ends)], length
        assert reader.truncated, length
        assert reader.damage.split()[0] in {"the", "its", "it"}
    assert not LogReader(whole).truncated


@pytest.mark.parametrize("content", [b"PK\x03\x04 and more", b"ACTRACE2", b"ACTRACF", b"\0" * 80])
def test_a_file_that_is_no_log_is_one_clear_error(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(LogError, match=r"other: is no log of accel-trace"):
        LogReader(path)


def test_another_version_a_missing_file_and_a_damaged_header_are_said(tmp_path):
    path = tmp_path / "a.atl"
    path.write_bytes(struct.pack(HEADER, MAGIC, 2, 40, 1, 1, 1))
    with pytest.raises(LogError, match=r"format 2, and this accel-trace reads format 1; read it"):
        LogReader(path)
    path.write_bytes(struct.pack(HEADER, MAGIC, 1, 7, 1, 1, 1))
    with pytest.raises(LogError, match="damaged"):
        LogReader(path)
    with pytest.raises(LogError, match="No such file"):
        LogReader(tmp_path / "none.atl")
    with pytest.raises(LogError, match="cannot be read"):
        LogReader(tmp_path)


def test_unknown_kinds_are_skipped_and_counted(tmp_path):
    path = tmp_path / "a.atl"
    events = _small(path)
    data = path.read_bytes()
    at = struct.calcsize(HEADER)
    strange = struct.pack(FRAME, 99, 0, 6, 0, 0) + b"abcdef"
    large = struct.pack(FRAME, 200, 0, 3_000_000, 0, 0) + bytes(3_000_000)
    end = struct.calcsize(FRAME) + 8
    frames = struct.unpack_from("<Q", data, len(data) - 8)[0]
    path.write_bytes(
        data[:at] + strange + large + strange + data[at:-end] + data[-end:-8]
        + struct.pack("<Q", frames + 3)
    )  # fmt: skip
    reader = LogReader(path)
    assert list(reader)[:-1] == events
    assert dict(reader.unknown) == {99: 2, 200: 1}
    assert not reader.truncated


def test_damage_inside_a_log_ends_the_reading_and_is_said(tmp_path):
    path = tmp_path / "a.atl"
    events = _small(path)
    data = path.read_bytes()
    end = struct.calcsize(FRAME) + 8
    for middle, words in (
        (struct.pack(FRAME, 18, 0, 5, 0, 0), "Touched of 5 bytes instead of 32"),
        (bytes(300), "nothing was written"),
        (struct.pack(FRAME, 1, 0, 2, 0, 0), "kind 1 and 2 bytes"),
        (struct.pack(FRAME, 99, 0, 2**32 - 1, 0, 0), "kind 99 and 4294967295 bytes"),
    ):
        path.write_bytes(data[:-end] + middle + data[-end:])
        reader = LogReader(path)
        assert list(reader) == events
        assert words in reader.damage
        assert f"at byte {len(data) - end}" in reader.damage
    path.write_bytes(data + b"x")
    reader = LogReader(path)
    assert len(list(reader)) == len(events) + 1
    assert "goes on after its end" in reader.damage
    path.write_bytes(data[:-8] + struct.pack("<Q", 3))
    reader = LogReader(path)
    list(reader)
    assert "its end counts 3" in reader.damage


def test_a_string_that_was_never_written_is_shown_as_such(tmp_path):
    path = tmp_path / "a.atl"
    payload = struct.pack("<II", 1, 41)
    path.write_bytes(
        struct.pack(HEADER, MAGIC, 1, 40, 1, 1, 1)
        + struct.pack(FRAME, Note.kind, 0, len(payload), 1, 1) + payload
    )  # fmt: skip
    assert [event.text for event in LogReader(path)] == ["<string 41>"]


def test_a_longer_header_of_a_later_writer_is_skipped(tmp_path):
    path = tmp_path / "a.atl"
    events = _small(path)
    data = path.read_bytes()
    path.write_bytes(struct.pack("<8sII", MAGIC, 1, 48) + data[16:40] + bytes(8) + data[40:])
    assert list(LogReader(path))[:-1] == events


def test_a_value_that_does_not_fit_is_an_error_and_harms_no_frame(tmp_path):
    with LogWriter(tmp_path / "a.atl") as writer:
        with pytest.raises(ValueError, match="cannot be written"):
            writer.write(Hot(launch=-1, block=0, count=0))
        writer.write(Hot(launch=1, block=0, count=0))
    reader = LogReader(tmp_path / "a.atl")
    assert [event.launch for event in reader.events([Hot])] == [1]
    assert not reader.truncated


def test_a_full_disk_makes_the_writer_give_up_and_count(tmp_path):
    path = tmp_path / "trace-1.atl"
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, path], capture_output=True, text=True, check=True
    )
    dropped, gave_up = done.stdout.split()
    reader = LogReader(path)
    read = [event.launch for event in reader.events([Hot])]
    assert gave_up == "True"
    assert path.stat().st_size == 200_000
    assert read == list(range(len(read)))
    assert len(read) + int(dropped) == 20_000
    assert reader.truncated
    status = read_status(path.with_suffix(".status"))
    assert (status.state, status.dropped_events) == ("gave_up", int(dropped))
    assert "File too large" in status.why
    assert done.stderr == ""


def test_a_real_full_file_system_is_borne(tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "a.atl").symlink_to(full)
    with LogWriter(tmp_path / "a.atl") as writer:
        assert writer.write(Hot(launch=1, block=1, count=1))
        writer.flush()
        assert not writer.write(Hot(launch=2, block=1, count=1))
    status = read_status(tmp_path / "a.status")
    assert (status.state, status.dropped_events) == ("gave_up", 2)
    assert "No space left" in status.why


def test_a_folder_that_is_not_there_raises_nothing(tmp_path):
    writer = LogWriter(tmp_path / "none" / "a.atl")
    assert not writer.write(Hot(launch=1, block=1, count=1))
    writer.drop_accesses(5)
    writer.close()
    writer.close()
    assert writer.gave_up
    assert (writer.dropped_events, writer.dropped_accesses) == (1, 5)


def test_a_forked_child_leaves_its_parents_log_alone(tmp_path):
    program = """
import os, sys
from accel_trace.events import Hot
from accel_trace.log_writer import LogWriter
writer = LogWriter(sys.argv[1])
writer.write(Hot(launch=1, block=1, count=1))
child = os.fork()
if child == 0:
    written = writer.write(Hot(launch=2, block=1, count=1))
    writer.flush()
    writer.close()
    os._exit(int(written))
assert os.waitpid(child, 0)[1] == 0
writer.write(Hot(launch=3, block=1, count=1))
writer.close()
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "a.atl"], check=True)
    reader = LogReader(tmp_path / "a.atl")
    assert [event.launch for event in reader.events([Hot])] == [1, 3]
    assert not reader.truncated


def test_a_killed_writer_leaves_a_log_with_whole_frames(tmp_path):
    program = """
import sys
from accel_trace.events import Hot
from accel_trace.log_writer import LogWriter
writer = LogWriter(sys.argv[1])
n = 0
while True:
    writer.write(Hot(launch=n, block=n, count=1))
    n += 1
"""
    path = tmp_path / "a.atl"
    child = subprocess.Popen([sys.executable, "-c", program, path])
    until = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size > 200_000) and time.monotonic() < until:
        time.sleep(0.01)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    reader = LogReader(path)
    launches = [event.launch for event in reader.events([Hot])]
    assert launches == list(range(len(launches)))
    assert len(launches) > 3000
    assert reader.truncated
    assert read_status(path.with_suffix(".status")).state == "open"


def test_threads_share_a_writer(tmp_path):
    with LogWriter(tmp_path / "a.atl") as writer:

        def work(name: str) -> None:
            for number in range(2000):
                writer.write(Note(level=number, text=f"{name} {number}"))

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reader = LogReader(tmp_path / "a.atl")
    notes = list(reader.events([Note]))
    assert len(notes) == 8000
    assert not reader.truncated
    assert [event.clock for event in notes] == list(range(1, 8001))
    for name in "abcd":
        mine = [note for note in notes if note.text.startswith(name)]
        assert [note.text for note in mine] == [f"{name} {number}" for number in range(2000)]


def test_the_name_of_a_log_in_a_folder(tmp_path):
    for part in ("", "cupti", "cupti"):
        LogWriter.in_folder(tmp_path, part).close()
    names = {path.name for path in tmp_path.iterdir()}
    stem = f"trace-{os.getpid()}"
    assert names == {
        f"{stem}{part}.{end}" for part in ("", "-cupti", "-cupti.2") for end in ("atl", "status")
    }


def test_a_status_that_is_not_there_or_not_json_is_empty(tmp_path):
    assert read_status(tmp_path / "none") == Status()
    for text in (b"", b"{", b"[]", b'{"dropped_events": null}', b"\xff"):
        (tmp_path / "a").write_bytes(text)
        assert read_status(tmp_path / "a") == Status()


def test_the_reader_is_fast_and_its_memory_is_bounded(tmp_path):
    path = tmp_path / "a.atl"
    with LogWriter(path) as writer:
        for number in range(300_000):
            writer.write(Hot(clock=number + 1, ns=1, launch=number, block=number & 1023, count=3))
    start = time.process_time()
    total = sum(event.count for event in LogReader(path).events([Hot]))
    seconds = time.process_time() - start
    assert total == 900_000
    assert seconds < 5
    tracemalloc.start()
    for _ in LogReader(path).events(()):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000 < path.stat().st_size / 2

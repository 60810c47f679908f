"""Archives from elsewhere: what is honest arrives whole, everything else is refused."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from ae.engines.archives import ArchiveFault, ArchiveReader, Extracted, extract

Add = Callable[[tarfile.TarFile], object]


def make(*adders: Add, format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for add in adders:
            add(tar)
    return out.getvalue()


def member(name: str, data: bytes = b"", **fields: object) -> Add:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for key, value in fields.items():
            setattr(info, key, value)
        tar.addfile(info, io.BytesIO(data))

    return add


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Add:
    return member(name, type=kind, linkname=target)


def take(data: bytes, folder: Path, max_bytes: int = 10**7, max_files: int = 1000) -> Extracted:
    return extract(io.BytesIO(data), folder, max_bytes=max_bytes, max_files=max_files)


def unzip(data: bytes, folder: Path) -> None:
    with gzip.open(io.BytesIO(data)) as source:
        extract(cast("BinaryIO", source), folder, max_bytes=10**6, max_files=9)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
        yield b""


HONEST = (
    member("top", type=tarfile.DIRTYPE, mode=0o700),
    member("./top//a", b"x" * 1000, mode=0o644),
    member("top/" + "long" * 60, b"long name", mode=0o600),
    member("top/run", b"#!/bin/sh\n", mode=0o777),
    member("deep/er/empty"),
    member("größe", b"512" + bytes(509)),
    link("deep/up", "../top/a"),
    link("also", "top/a", tarfile.LNKTYPE),
)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("size", [0, 1, 511, 4096])
def test_what_is_honest_arrives_whole(tmp_path: Path, format: int, size: int) -> None:
    """From a file, and from chunks of any size."""
    data = make(*HONEST, format=format)
    source = pieces(data, size) if size else io.BytesIO(data)
    done = extract(source, tmp_path / "to", max_bytes=10**6, max_files=8)
    assert done == Extracted(members=8, bytes=1000 + 9 + 10 + 512)
    to = tmp_path / "to"
    assert (to / "top/a").read_bytes() == b"x" * 1000
    assert (to / ("top/" + "long" * 60)).read_bytes() == b"long name"
    assert (to / "deep/er/empty").read_bytes() == b""
    assert (to / "größe").stat().st_size == 512
    assert os.readlink(to / "deep/up") == "../top/a"
    assert (to / "also").samefile(to / "top/a")
    modes = {name: stat.S_IMODE((to / name).stat().st_mode) for name in ("top/a", "top/run")}
    assert modes == {"top/a": 0o644, "top/run": 0o755}


WRONG = [
    ("absolute", [member("/etc/passwd", b"x")], "leads out"),
    ("climbing", [member("a/../../x", b"x")], "leads out"),
    ("climbing within", [member("a/../x", b"x")], "leads out"),
    ("absolute link", [link("l", "/etc")], "link that leads out"),
    ("climbing link", [link("a/l", "../../etc")], "link that leads out"),
    ("through another link", [link("a/b/l", "../.."), link("a/b/m", "l/..")], "link that leads"),
    ("empty link", [link("l", "")], "link that leads out"),
    ("below a link", [link("l", "d"), member("d/x"), member("l/y", b"x")], "'l', which is no"),
    ("below a file", [member("f", b"x"), member("f/y", b"x")], "'f', which is no folder"),
    ("over a link", [link("l", "there"), member("l", b"x")], "'l' twice"),
    ("twice", [member("f", b"1"), member("./f", b"2")], "'f' twice"),
    ("folder then file", [member("f", type=tarfile.DIRTYPE), member("f", b"2")], "'f' twice"),
    ("hard link out", [link("h", "../x", tarfile.LNKTYPE)], "leads out"),
    ("hard link to nothing", [link("h", "x", tarfile.LNKTYPE)], "not in it"),
    ("hard link to a link", [link("s", "x"), link("h", "s", tarfile.LNKTYPE)], "not in it"),
    ("device", [member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)], "a device"),
    ("disk", [member("sda", type=tarfile.BLKTYPE, devmajor=8)], "a device"),
    ("pipe", [member("pipe", type=tarfile.FIFOTYPE)], "a device"),
    ("no name", [member("./", b"x")], "without a name"),
]


@pytest.mark.parametrize(("adders", "said"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_what_could_get_out_is_refused(tmp_path: Path, adders: list[Add], said: str) -> None:
    around = tmp_path / "around"
    with pytest.raises(ArchiveFault) as caught:
        take(make(*adders), around / "to")
    assert said in caught.value.message
    assert caught.value.fix
    assert [path.name for path in around.iterdir()] == ["to"]


def test_a_link_that_was_there_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to/l").symlink_to(tmp_path / "outside")
    with pytest.raises(ArchiveFault, match="no folder"):
        take(make(member("l/x", b"x")), tmp_path / "to")
    with pytest.raises(ArchiveFault, match="there already"):
        take(make(member("l", b"x")), tmp_path / "to")
    assert not list((tmp_path / "outside").iterdir())


def test_dangerous_bits_and_owners_are_dropped(tmp_path: Path) -> None:
    take(make(member("f", b"x", mode=0o7777, uid=12345), member("g", mode=0)), tmp_path)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "g").stat().st_mode) == 0o600
    assert (tmp_path / "f").stat().st_uid == os.getuid()


def test_caps_hold_before_the_bytes_are_written(tmp_path: Path) -> None:
    data = make(member("a", bytes(600)), member("b", bytes(600)))
    with pytest.raises(ArchiveFault, match="more than 1 kB"):
        take(data, tmp_path / "one", max_bytes=1000)
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["a"]
    with pytest.raises(ArchiveFault, match="more than 1 members"):
        take(data, tmp_path / "two", max_files=1)


def test_every_place_to_cut_it_off(tmp_path: Path) -> None:
    """Also where the cut falls between two members, which tar itself takes for the end."""
    data = make(member("a", b"1" * 700), member("b", b"2" * 512))
    end = 2 * 512 + 1024 + 512
    for length in (1, 100, 511, 512, 700, 1024, 1535, 1536, 1900, 2048, 2400, end, end + 300):
        with pytest.raises(ArchiveFault) as caught:
            take(data[:length], tmp_path / str(length))
        assert "cut off" in caught.value.message or length < 512, (length, caught.value.message)
    assert take(data[: end + 512], tmp_path / "whole").members == 2


def test_damage(tmp_path: Path) -> None:
    data = make(member("a", b"1" * 512), member("b", b"2"))
    flipped = bytearray(data)
    flipped[1024 + 3] ^= 1  # in the second header: tar itself would stop there, content
    with pytest.raises(ArchiveFault, match="is damaged"):
        take(bytes(flipped), tmp_path / "header")
    with pytest.raises(ArchiveFault, match="behind its end"):
        take(data + make(member("more", b"x")), tmp_path / "more")
    for junk in (b"", b"hello", os.urandom(5000)):
        with pytest.raises(ArchiveFault, match=r"not a tar archive|cut off"):
            take(junk, tmp_path / "junk")


def test_a_header_that_would_fill_the_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 10**12
    with pytest.raises(ArchiveFault, match="made to harm"):
        take(info.tobuf(tarfile.GNU_FORMAT), tmp_path)


def test_a_negative_size_and_headers_without_end(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 11 + b"\x00"  # -256 in base 256
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(ArchiveFault):
        take(bytes(block) + bytes(4096), tmp_path / "a")
    extended = tarfile.TarInfo("x")
    extended.type = tarfile.XHDTYPE
    with pytest.raises(ArchiveFault, match="headers of headers"):
        take(extended.tobuf(tarfile.GNU_FORMAT) * 3000, tmp_path / "b")


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    fields = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "f",
              "GNU.sparse.realsize": str(10**15)}  # fmt: skip
    data = make(member("f", b"0\n" + bytes(510), pax_headers=fields))
    with pytest.raises(ArchiveFault, match="sparse"):
        take(data, tmp_path)


def test_a_compressed_stream_that_is_cut_off_or_damaged(tmp_path: Path) -> None:
    whole = gzip.compress(make(member("a", os.urandom(5000))))
    with pytest.raises(ArchiveFault, match="cut off"):
        unzip(whole[:-2000], tmp_path / "a")
    broken = bytearray(whole)
    broken[3000] ^= 255
    with pytest.raises(ArchiveFault, match=r"damaged|cut off"):
        unzip(bytes(broken), tmp_path / "b")


def test_a_reader_hands_on_data_in_chunks_and_passes_over_the_rest() -> None:
    data = make(member("big", b"b" * 3 * 2**20), member("small", b"s"))
    reader = ArchiveReader(io.BytesIO(data), max_bytes=10**7, max_files=10)
    names = []
    for one in reader:
        names.append(one.name)
        if one.name == "big":
            assert len(next(reader.chunks())) == 2**20
        else:
            assert b"".join(reader.chunks()) == b"s"
    assert names == ["big", "small"]

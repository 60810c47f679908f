"""The atomic writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ae.host.files import write_atomic


def test_the_text_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_atomic(path, "one\n")
    write_atomic(path, "zwölf\n")
    assert path.read_bytes() == "zwölf\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_keeps_the_file_that_it_has_open(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_atomic(path, "old")
    with path.open() as reader:
        write_atomic(path, "new")
        assert reader.read() == "old"


def test_a_folder_that_does_not_exist_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "none" / "f.json", "x")

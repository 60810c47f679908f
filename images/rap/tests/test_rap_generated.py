"""Generated sources: a file that is whole at any time, and the module that was asked for."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path

from rap_training.generated import load


def test_a_source_is_a_file_and_a_module(tmp_path: Path) -> None:
    text = "def answer():\n    return 42\n"
    module = load(text, "small", tmp_path / "new")
    assert module.answer() == 42
    assert (tmp_path / "new" / "small.py").read_text() == text
    assert inspect.getsource(module.answer) == text  # which is how Triton finds a kernel's source
    assert load(text, "small", tmp_path / "new") is module
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["small.py"]


def test_a_source_without_a_folder_goes_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os\nfrom pathlib import Path\nfrom rap_training.generated import load\n"
        "print(all(os.path.exists(load(f'at = {n}', 'small', None).__file__) for n in range(2)))"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
    assert list(tmp_path.iterdir()) == []


def test_a_source_of_the_same_size_in_the_same_second(tmp_path: Path) -> None:
    found = [
        load(f"def answer():\n    return {number}\n", "small", tmp_path).answer()
        for number in range(10, 20)
    ]
    assert found == list(range(10, 20))


def test_no_rank_sees_a_part_of_a_file(tmp_path: Path) -> None:
    text = "def answer():\n    return 42\n" + "# and many words\n" * 20_000
    load(text, "large", tmp_path)
    seen = set()
    done = threading.Event()

    def rewrite() -> None:
        for _ in range(30):
            load.__wrapped__(text, "large", tmp_path)
        done.set()

    thread = threading.Thread(target=rewrite)
    thread.start()
    while not done.is_set():
        seen.add((tmp_path / "large.py").read_text())
    thread.join()
    assert seen == {text}

"""The entry point: how `ae` ends when it fails, in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ae.__main__ import guarded
from ae.errors import ExitCode
from tests.toy import make_toy

ROOT = Path(__file__).resolve().parents[1]
# A real TypeError inside a command; nothing between it and the last handler is changed.
FAULT = """
import sys
import ae.recipe.load
ae.recipe.load.read_yaml = None
from ae.__main__ import main
sys.argv = ["ae", *{words}]
main()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    root = make_toy(tmp_path / "checkout")
    own = {"AE_ROOT": str(root), "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return {**os.environ, **own}


def faulty(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    code = FAULT.format(words=list(words))
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_a_fault_of_ae_has_a_code_of_its_own_and_a_sentence(environment: dict[str, str]) -> None:
    ended = faulty(environment, "list")
    assert ended.returncode == ExitCode.FAULT
    assert ended.stdout == ""
    first, second = ended.stderr.splitlines()
    assert first.startswith("error: a fault in ae itself: TypeError: ")
    assert second.endswith("report it with its traceback, which --debug prints")


def test_debug_prints_the_traceback_of_a_fault(environment: dict[str, str]) -> None:
    ended = faulty(environment, "list", "--debug")
    assert ended.returncode == ExitCode.FAULT
    assert "Traceback" in ended.stderr


@pytest.mark.parametrize("words", ["list", "show toy --json", "--help"])
def test_a_reader_that_goes_away_gets_the_code_of_a_broken_pipe(
    environment: dict[str, str], words: str
) -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "ae", *words.split()],
        env=environment, stdout=write, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write)
    assert ended.stderr == ""
    assert ended.returncode == ExitCode.BROKEN_PIPE


def test_a_pipe_of_another_that_breaks_is_the_machines_fault(environment: dict[str, str]) -> None:
    code = FAULT.replace(".read_yaml = None", ".read_yaml = lambda *_: os.write(write, b'x')")
    code = "import os\nread, write = os.pipe()\nos.close(read)\n" + code.format(words=["list"])
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == ExitCode.ENVIRONMENT
    assert ended.stderr.startswith("error: the system refused: Broken pipe\n")


def test_no_output_at_all_is_fine(environment: dict[str, str]) -> None:
    words = ["bash", "-c", f"exec {sys.executable} -m ae list >&-"]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_terminal_that_knows_few_characters(environment: dict[str, str]) -> None:
    recipe = Path(environment["AE_ROOT"], "recipes", "toy", "recipe.yaml")
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("\ntitle: ", "\ntitle: ≥ ", 1), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "ae", "list"],
        env=environment | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\\u2265" in ended.stdout


def test_what_the_system_refuses_is_the_machines_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_toy(tmp_path / "checkout")
    monkeypatch.setenv("AE_ROOT", str(root))
    (tmp_path / "report").write_text("a file where a folder belongs")
    report = tmp_path / "report" / "in-it"
    assert guarded(["run", "toy", "--quick", "--engine", "local"]) == ExitCode.OK
    assert guarded(["report", "toy", "-o", str(report)]) == ExitCode.ENVIRONMENT
    said = capsys.readouterr().err
    assert "error: the system refused: Not a directory" in said
    assert str(report) in said

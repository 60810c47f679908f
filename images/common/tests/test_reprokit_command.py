"""The command line that the workloads share, as a small workload sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from reprokit.errors import ConfigError
from reprokit.options import Options, option

SOURCE = Path(__file__).parents[1] / "src"
COLOURS = ("red", "green")


@dataclass(frozen=True, kw_only=True)
class Config(Options):
    experiment: str = option(choices=("good", "bad"))
    device: str = option("cpu", choices=("cpu", "cuda"))
    colours: tuple[str, ...] = option(COLOURS, "what to paint, 100 % of it", choices=COLOURS)
    names: tuple[str, ...] = option(("x",), empty=True)
    sizes: tuple[int, ...] = option((1, 2), least=1)
    rows_read: int = option(5, "rows", least=1, most=10)
    share: float = option(0.5, above=0, most=1)
    seconds: float = option(1.0, above=0)
    out: str = option("", "folder")
    found: int = 0  # no flag


def parse(words: str) -> Config:
    return Config.parse(words.split(), prog="toy", about="A toy.")


def test_flags_become_a_config() -> None:
    config = parse("good --device cuda --colours green --sizes 3,4 --rows-read 10 --share 1")
    assert config == Config(
        experiment="good", device="cuda", colours=("green",), sizes=(3, 4), rows_read=10, share=1.0
    )
    assert isinstance(config.share, float)
    assert config.facts()["sizes"] == [3, 4]
    assert Config.parse(["good", "--names", ""], prog="", about="").names == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "arguments are required: experiment"),
        ("goood", "experiment 'goood' is unknown; fix: one of good, bad; did you mean 'good'?"),
        ("good --found 1", "unrecognized arguments: --found 1"),
        ("good --device tpu", "--device tpu is unknown; fix: one of cpu, cuda"),
        ("good --colours red,blue", "--colours blue is unknown"),
        ("good --colours ,", "--colours is empty; fix: some of red, green"),
        ("good --sizes ,", "--sizes is empty; fix: give one or more"),
        ("good --colours red,red", "--colours names one twice"),
        ("good --sizes 1,0", "--sizes 0 is out of range; fix: at least 1"),
        ("good --sizes 1,x", "'x' is not a whole number"),
        ("good --rows-read 0", "--rows-read 0 is out of range; fix: at least 1, at most 10"),
        ("good --rows-read 11", "--rows-read 11 is out of range"),
        ("good --rows-read 1.5", "'1.5' is not a whole number"),
        ("good --rows-read " + "9" * 5000, "is not a whole number"),
        ("good --sizes " + "9" * 50, "--sizes is out of range"),
        ("good --share 0", "--share 0.0 is out of range; fix: above 0, at most 1"),
        ("good --share nan", "--share nan is out of range"),
        ("good --share x", "'x' is not a number"),
        ("good --seconds inf", "--seconds inf is out of range; fix: above 0"),
    ],
)
def test_wrong_usage_is_one_short_sentence_with_a_fix(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(words)
    assert said in str(error.value)
    assert "; fix: " in str(error.value)
    assert len(str(error.value)) < 200


def test_help_names_each_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse("--help")
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "--rows-read" in shown
    assert "100 % of it (default: red,green)" in " ".join(shown.split())
    assert "--found" not in shown


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A workload of two experiments, one of which fails as it is told to."""
    files = {
        "toy/__init__.py": "",
        "toy/__main__.py": """
            import sys
            from dataclasses import dataclass
            from reprokit.command import Program
            from reprokit.options import Options, option

            @dataclass(frozen=True, kw_only=True)
            class Config(Options):
                experiment: str = option(choices=("good", "bad", "bare"))
                device: str = option("cpu", choices=("cpu", "cuda"))
                how: str = option("")
                out: str = option("")

            sys.exit(Program(
                package="toy", about="A toy.", config=Config, packages=("pytest",),
                prepare=lambda config: print("prepared"), facts=lambda config: {"fact": 1},
                bare=("bare",), scratch=("logs",),
            ).main())
            """,
        "toy/programs.py": "def run(config):\n    print('bare', config.experiment)\n",
        "toy/experiments/__init__.py": "",
        "toy/experiments/good.py": """
            def run(config, out):
                assert out.facts["fact"] == 1
                (out.out_dir / "logs").mkdir()
                out.write("time", "us", [1.0], {})
            """,
        "toy/experiments/bad.py": """
            from reprokit.errors import ConfigError, Failure, Lacking

            def run(config, out):
                out.write("time", "us", [1.0], {})
                (out.out_dir / "logs").mkdir()
                if config.how == "failure":
                    raise Failure("the sums are\\nwrong")
                if config.how == "usage":
                    raise ConfigError("the plan is wrong; fix: write another")
                if config.how == "lacking":
                    raise Lacking("the GPU is too small")
                if config.how == "package":
                    import no_such_package
                if config.how == "file":
                    open("/no/such/file")
                if config.how == "memory":
                    raise MemoryError("Unable to allocate 745. GiB")
                if config.how == "interrupt":
                    raise KeyboardInterrupt
                if config.how == "own":
                    import toy.missing
                raise AssertionError
            """,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def run(toy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The workload as a container starts it, on a machine without a GPU's tool."""
    return subprocess.run(
        [sys.executable, "-m", "toy", *words],
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{toy}", "AE_OUT": str(toy / "out"),
             "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_an_experiment_leaves_records_and_facts(toy: Path) -> None:
    done = run(toy, "good")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"time"' in (toy / "out/records.jsonl").read_text()
    facts = json.loads((toy / "out/environment.json").read_text())
    assert facts["config"] == {"experiment": "good", "device": "cpu", "how": "", "out": ""}
    assert facts["device"] == "cpu"
    assert list(facts["packages"]) == ["pytest"]
    assert "clocks" not in facts  # no GPU
    assert not (toy / "out/logs").exists()


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("failure", 1, "toy: the sums are wrong"),
        ("usage", 2, "toy: the plan is wrong; fix: write another"),
        ("lacking", 77, "the GPU is too small"),
        ("package", 77, "lacks the Python package 'no_such_package'"),
        ("file", 2, "toy: cannot use '/no/such/file': No such file or directory"),
        ("memory", 1, "toy: no memory for these sizes: Unable to allocate 745. GiB; fix: smaller"),
        ("interrupt", 130, ""),
    ],
)
def test_an_end_before_its_time_has_an_exit_code_and_one_line(
    toy: Path, how: str, code: int, words: str
) -> None:
    done = run(toy, "bad", "--how", how)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == bool(words)
    assert (toy / "out/logs").exists()
    assert '"time"' in (toy / "out/records.jsonl").read_text()


def test_a_module_of_its_own_that_is_missing_is_a_bug(toy: Path) -> None:
    done = run(toy, "bad", "--how", "own")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_clocks_before_and_after_stand_in_the_facts(toy: Path) -> None:
    tool = toy / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint('1980' if '=clocks.sm' in sys.argv[1] "
                    "else 'x, y')\n")  # fmt: skip
    tool.chmod(0o755)
    environment: dict[str, Any] = {
        **os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{toy}", "AE_OUT": str(toy / "out"),
        "PATH": str(tool.parent),
    }  # fmt: skip
    subprocess.run([sys.executable, "-m", "toy", "good"], env=environment, check=True)
    clocks = json.loads((toy / "out/environment.json").read_text())["clocks"]
    assert clocks["start"]["sm"] == clocks["end"]["sm"] == "1980"


def test_a_bare_program_writes_nothing(toy: Path) -> None:
    done = run(toy, "bare")
    assert (done.returncode, done.stdout) == (0, "prepared\nbare bare\n")
    assert not (toy / "out").exists()


def test_wrong_usage_prepares_nothing(toy: Path) -> None:
    done = run(toy, "god")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'good'?" in done.stderr

"""The command line: flags into a Config, then to the experiment.

Exit codes: 0 done, 1 a run failed, 2 bad arguments, 77 cannot run here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NoReturn

from reprokit.records import RecordWriter, output_folder
from reprokit.skip import cannot_run

from pasta_workloads.config import DEVICES, EXPERIMENTS, PROGRAMS, Config, ConfigError
from pasta_workloads.pinned import pin_environment

_HELP = {
    "model": "alexnet, resnet18, resnet34, bert, gpt2 or whisper",
    "models": "of `oracle`, comma separated",
    "mode": "test, train (as the paper's scripts) or step (a real training step)",
    "modes": "of `table_v` and `oracle`, comma separated",
    "size": "auto, full (the paper's), small or tiny",
    "small": "size on which `overhead` measures the CPU variants",
    "parallelism": "of `parallel`: dp, tp or pp",
    "variants": "of `overhead`, comma separated",
    "policies": "of `uvm`: what is prefetched, comma separated",
    "iterations": "measured iterations of a process",
    "warmup": "iterations before them, not measured and not analysed",
    "repeats": "processes of every variant, each a sample",
    "sample": "CPU variants at full size too, one launch in N; 0: no",
    "workers": "threads of cs_cpu_mt; 0: one per CPU",
    "oversubscribe": "of `uvm`: footprint over memory; 0: no. Only on hardware of your own",
    "leave": "of `managed`: bytes of GPU memory that ballast leaves; 0: no ballast",
    "advice": "of `managed`: the advisor's file; none: the run that is profiled",
    "patience": "seconds that one profiled process may take",
    "seed": "of weights and data",
    "out": "folder for records, else $AE_OUT",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; fix: see --help")


def parse(argv: Sequence[str]) -> Config:
    """Return the checked Config of a command line. Raises ConfigError with one sentence."""
    parser = _Parser(prog="pasta_workloads", description="The workloads of PASTA, measured.")
    parser.add_argument("experiment", help=", ".join(EXPERIMENTS))
    parser.add_argument("--device", default="cuda", help=f"{' or '.join(DEVICES)} (default: cuda)")
    defaults = {field.name: field.default for field in fields(Config)}
    for name, words in _HELP.items():
        default: Any = defaults[name]
        shown = ",".join(default) if isinstance(default, tuple) else default
        parser.add_argument(
            f"--{name}", default=default, type=_reader(default),
            help=f"{words} (default: {shown if shown != '' else 'none'})",
        )  # fmt: skip
    return Config(**vars(parser.parse_args(argv)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    pin_environment()  # before anything can start CUDA
    try:
        config = parse(sys.argv[1:] if argv is None else argv)
        return _run(config)
    except ConfigError as error:
        return _failed(error, 2)
    except KeyboardInterrupt:
        return 130


def _run(config: Config) -> int:
    try:
        from pasta_workloads.experiments import run
        from pasta_workloads.experiments.errors import RunFailed
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pasta_workloads"):
            raise
        cannot_run(f"this image lacks the Python package '{error.name}'")
    folder = output_folder(config.out)
    try:
        run(config, None if config.experiment in PROGRAMS else RecordWriter(folder))
    except RunFailed as error:
        return _failed(error, 1)
    except OSError as error:
        where = error.filename or folder
        return _failed(f"cannot use '{where}': {error.strerror or error}; fix: see --out", 2)
    return 0


def _failed(words: object, code: int) -> int:
    print(f"pasta_workloads: {words}", file=sys.stderr)
    return code


def _reader(default: Any) -> Callable[[str], Any]:
    """Return the function that turns a flag's word into a value of the default's type."""
    if isinstance(default, tuple):
        return lambda words: tuple(word for word in words.split(",") if word)
    kind = type(default)

    def read(word: str) -> Any:
        try:
            return kind(word)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"'{word}' is not {what}") from None

    return read

"""The command line: flags into a Config, then to the experiment.

Exit codes: 0 done, 1 a session failed, 2 bad arguments, plan or data, 77 cannot run here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn

from reprokit.records import RecordWriter, output_folder
from reprokit.skip import cannot_run

from rap_training.config import DEVICES, EXPERIMENTS, Config, ConfigError

_HELP = {
    "gpus": "ranks: GPUs, or processes on a CPU",
    "plan": "built-in plan, 0 to 3",
    "plan_file": "a plan as JSON that replaces the built-in one",
    "data": "a parquet file that replaces generated batches",
    "batch": "rows a rank and iteration",
    "variants": "comma separated",
    "repeats": "samples of every variant",
    "iterations": "training iterations of a sample",
    "warmup": "iterations before them",
    "batches": "distinct batches",
    "scale": "of the embedding tables' rows, at most 1",
    "loader": "pinned (host memory), resident (on the GPU) or staged (gathered by the CPU)",
    "matmul": "fp32 or tf32",
    "trainer": "graph, eager or torchrec",
    "workers": "CPU processes a rank to try, comma separated",
    "solver": "of the fusion problem: highs, gurobi or asap",
    "solver_seconds": "its time limit",
    "ratios": "preprocessing to training, comma separated",
    "green_sms": "SMs of the green context",
    "mps_percentage": "of the SMs for the preprocessor under MPS",
    "seed": "of data and weights",
    "patience": "seconds that a session may be silent",
    "out": "folder for records, else $AE_OUT",
}
# Errors of a rank, by class, that say what is wrong with the arguments or with this machine.
_BAD = ("PlanError", "DataError", "LicenceError")
_LACKING = ("PlacementError", "SolverError", "TorchRecMissing")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse(argv: Sequence[str]) -> Config:
    """Return the checked Config of a command line. Raises ConfigError with one sentence."""
    parser = _Parser(
        prog="rap_training", description="Preprocessing that shares the GPU with training."
    )
    parser.add_argument("experiment", help=", ".join(EXPERIMENTS))
    parser.add_argument("--device", default="cpu", help=" or ".join(DEVICES))
    defaults = {field.name: field.default for field in fields(Config)}
    for name, words in _HELP.items():
        default: Any = defaults[name]
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        parser.add_argument(
            f"--{name.replace('_', '-')}", default=default, type=_reader(default),
            help=f"{words} (default: {shown or 'none'})".replace("%", "%%"),
        )  # fmt: skip
    return Config(**vars(parser.parse_args(argv)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        config = parse(sys.argv[1:] if argv is None else argv)
        return _run(config)
    except ConfigError as error:
        print(f"rap_training: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _run(config: Config) -> int:
    try:
        from rap_training.experiments import SessionFailed, run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rap_training"):
            raise
        cannot_run(f"this image lacks the Python package '{error.name}'")
    from rap_training.data.columns import DataError
    from rap_training.plan.graph import PlanError
    from rap_training.planner.placement import PlacementError
    from rap_training.planner.solvers import LicenceError

    folder = output_folder(config.out)
    try:
        run(config, RecordWriter(folder))
    except (PlanError, DataError, LicenceError) as error:
        return _failed(error, 2)
    except PlacementError as error:
        cannot_run(str(error))
    except SessionFailed as error:
        if error.kind in _LACKING:
            cannot_run(str(error))
        return _failed(error, 2 if error.kind in _BAD else 1)
    except OSError as error:
        where = error.filename or folder
        return _failed(f"cannot use '{where}': {error.strerror or error}; fix: see --out", 2)
    return 0


def _failed(words: object, code: int) -> int:
    print(f"rap_training: {words}", file=sys.stderr)
    return code


def _reader(default: Any) -> Any:
    """Return the function that turns a flag's word into a value of the default's type."""
    if isinstance(default, tuple):
        item = type(default[0])
        return lambda words: tuple(_value(w, item) for w in words.split(",") if w)
    if isinstance(default, str):
        return str
    return lambda word: _value(word, type(default))


def _value(word: str, kind: type) -> Any:
    try:
        return kind(word)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"'{word}' is not {what}") from None

"""The command line: flags into a Config, then to the code of the device.

Exit codes: 0 done, 1 a variant gave wrong sums, 2 bad arguments, 77 cannot run here.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from reprokit.records import RecordWriter, output_folder
from reprokit.skip import cannot_run

from dlrm_inference.config import DEVICES, EXPERIMENTS, Config, ConfigError, WrongResult

_CUDA_MODULES = {
    "embedding": "dlrm_inference.cuda.experiments",
    "sweep": "dlrm_inference.cuda.experiments",
    "pin_cost": "dlrm_inference.cuda.experiments",
    "profile": "dlrm_inference.cuda.profiler",
    "endtoend": "dlrm_inference.cuda.endtoend",
    "static": "dlrm_inference.cuda.static",
}
_HELP = {
    "dataset": "one_item, high_hot, med_hot, low_hot or random",
    "variants": "comma separated",
    "tables": "embedding tables",
    "rows": "rows of one table",
    "dim": "columns of a row",
    "batch": "bags in a batch",
    "pooling": "rows summed in a bag",
    "batches": "distinct batches of a table",
    "dtype": "table type",
    "index_dtype": "type of indices and offsets",
    "samples": "timed launches of each variant",
    "warmup": "launches of each variant dropped first",
    "seed": "seed of tables and ids",
    "distance": "prefetch distance in rows, 0: the variant's own",
    "register_cap": "registers per thread, 0: the variant's own",
    "warps_per_sm": "resident warps, 0: the variant's own",
    "distances": "sweep: distances, comma separated",
    "warps": "sweep: warps per SM, comma separated",
    "l2_mode": "hint, setaside, window, setaside_reset, several by commas, or all",
    "hot_list": "profiled or oracle",
    "hot_rows": "rows pinned or copied, 0: as many as fit",
    "launch": "one_table, all_tables or both",
    "threads": "CPU threads",
    "archs": "static: GPU architectures, comma separated",
    "trace": "file of row ids that replaces the generated dataset",
    "out": "folder for records, else $AE_OUT",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse(argv: Sequence[str]) -> Config:
    """Return the checked Config of a command line. Raises ConfigError with one sentence."""
    parser = _Parser(prog="dlrm_inference", description="Embedding-bag inference, measured.")
    parser.add_argument("experiment", help=", ".join(EXPERIMENTS))
    parser.add_argument("--device", default="cpu", help=" or ".join(DEVICES))
    defaults = {field.name: field.default for field in fields(Config)}
    for name, words in _HELP.items():
        default: Any = defaults[name]
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        parser.add_argument(
            f"--{name.replace('_', '-')}", default=default, type=_reader(default),
            help=f"{words} (default: {shown or 'none'})",
        )  # fmt: skip
    return Config(**vars(parser.parse_args(argv)))


def run(config: Config, out: RecordWriter) -> None:
    """Hand a config to its device's code. `static` needs no GPU, so it runs on any device."""
    if config.device == "cpu" and config.experiment != "static":
        _import("dlrm_inference.cpu.experiments").run(config, out)
        return
    module = _import(_CUDA_MODULES[config.experiment])
    getattr(module, config.experiment)(config, out)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        config = parse(sys.argv[1:] if argv is None else argv)
        prepare_process(config, os.environ)
        run(config, _writer(config))
    except ConfigError as error:
        print(f"dlrm_inference: {error}", file=sys.stderr)
        return 2
    except WrongResult as error:
        print(f"dlrm_inference: {error}", file=sys.stderr)
        return 1
    return 0


def _writer(config: Config) -> RecordWriter:
    folder = output_folder(config.out)
    try:
        return RecordWriter(folder)
    except OSError as error:
        raise ConfigError(f"cannot write results to '{folder}': {error.strerror}") from error


def prepare_process(config: Config, environment: Any) -> None:
    """Set what numeric libraries read when they are first imported: threads, a cache folder.

    The cache of compiled kernels is keyed by the kernels' own text, because numba looks only at
    the file a kernel stands in.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, str(config.threads))
    environment.setdefault("NUMBA_CACHE_DIR", str(kernel_cache(environment)))


def kernel_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder for compiled CPU kernels of this very source."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parent / "cpu").glob("*.py")):
        digest.update(path.read_bytes())
    root = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp"), ".cache")
    return Path(root) / "dlrm_inference" / digest.hexdigest()[:16]


def _import(module: str) -> Any:
    """Import a device's code; a missing package means that this image cannot run it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or "a package"
        if missing.startswith("dlrm_inference"):
            raise
        cannot_run(f"this image lacks the Python package '{missing}', which {module} needs")


def _reader(default: Any) -> Any:
    """Return the function that turns a flag's word into a value of the default's type."""
    if isinstance(default, tuple):
        item = type(default[0])
        return lambda words: tuple(_number(w, item) for w in words.split(",") if w)
    return (lambda word: _number(word, int)) if isinstance(default, int) else str


def _number(word: str, kind: type) -> Any:
    try:
        return kind(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{word}' is not a whole number") from None

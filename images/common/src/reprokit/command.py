"""The command line of every workload: `python -m PACKAGE EXPERIMENT --flags`.

Exit codes: 0 done, 1 a run failed, 2 wrong usage, 77 this hardware or image cannot run this, with
the reason as the last line of standard error, 130 interrupted.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from reprokit.environment import gpu_clocks, machine_facts
from reprokit.errors import ConfigError, Failure
from reprokit.options import Options
from reprokit.records import RecordWriter, output_folder
from reprokit.skip import EXIT_CODE, cannot_run

Config = TypeVar("Config", bound=Options)


def _nothing(_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Program(Generic[Config]):
    """A workload. Experiment `name` is `run(config, out)` of the module PACKAGE.experiments.name.

    packages: those whose versions belong to a measurement
    prepare: called with the config before anything large is imported
    facts: called with the config just before the experiment; goes to environment.json
    bare: words beside the experiments that write no records: `run(config)` of PACKAGE.programs
    scratch: folders beside the records that go when an experiment ended well
    """

    package: str
    about: str
    config: type[Config]
    packages: tuple[str, ...] = ()
    prepare: Callable[[Config], object] = _nothing
    facts: Callable[[Config], Mapping[str, Any]] = _nothing
    bare: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()

    def parse(self, argv: Sequence[str]) -> Config:
        """Return the checked Config of a command line. Raises ConfigError with one sentence."""
        return self.config.parse(argv, prog=self.package, about=self.about)

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run one command line and return its exit code."""
        try:
            config = self.parse(sys.argv[1:] if argv is None else argv)
            self.prepare(config)
            self._run(config)
        except Failure as error:
            words = " ".join(str(error).split())
            if error.exit_code == EXIT_CODE:
                cannot_run(words)
            print(f"{self.package}: {words}", file=sys.stderr)
            return error.exit_code
        except ModuleNotFoundError as error:
            missing = error.name or "of an unknown name"
            if missing.partition(".")[0] == self.package:
                raise
            cannot_run(f"this image lacks the Python package '{missing}'; fix: install it there")
        except MemoryError as error:
            print(f"{self.package}: no memory for these sizes: {error}; fix: smaller ones",
                  file=sys.stderr)  # fmt: skip
            return Failure.exit_code
        except KeyboardInterrupt:
            return 130
        return 0

    def _run(self, config: Any) -> None:
        if config.experiment in self.bare:
            import_module(f"{self.package}.programs").run(config)
            return
        experiment = import_module(f"{self.package}.experiments.{config.experiment}")
        folder = output_folder(config.out)
        try:
            out = RecordWriter(folder)
            out.environment(
                device=config.device, config=config.facts(), **machine_facts(self.packages),
                **self.facts(config),
            )  # fmt: skip
            if before := gpu_clocks():
                out.environment(clocks={"start": before})
            experiment.run(config, out)
            if before:
                out.environment(clocks={"start": before, "end": gpu_clocks()})
            for name in self.scratch:
                shutil.rmtree(folder / name, ignore_errors=True)
        except OSError as error:
            where = error.filename or folder
            raise ConfigError(
                f"cannot use '{where}': {error.strerror or error}; fix: see --out"
            ) from error

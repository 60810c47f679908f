"""The command line: which commands there are. Each is declared in its module of ae.commands.

Only the module of the command that is asked for is imported, so that `ae --help` stays quick.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from ae import __version__
from ae.errors import ExitCode, UsageError

COMMANDS = {  # word -> module and function below ae.commands, and what it does
    "run": ("run.run", "Run papers' experiments and judge their claims."),
    "list": ("show.list_papers", "List the papers and their lanes."),
    "show": ("show.show", "Show a paper: variants, figures, claims, needs, cost."),
    "doctor": ("machine.doctor", "Check this machine; each finding with its fix."),
    "build": ("images.build", "Build the images of papers."),
    "push": ("images.push", "Publish images and lock their digests."),
    "pull": ("images.pull", "Fetch the locked images by digest."),
    "plot": ("results.plot", "Draw the figures of a run again."),
    "check": ("results.check", "Judge every claim against a run."),
    "compare": ("compare.compare", "Say what is faster, slower or the same in another run."),
    "table": ("results.table", "Print the result tables of a run, whole."),
    "report": ("results.report", "Write one page: results, figures, verdicts."),
    "site": ("results.site", "Write a site with a page for every run."),
    "review": ("evaluate.review", "Print a run as text for a review form."),
    "appendix": ("evaluate.appendix", "Print a paper's artifact appendix as LaTeX."),
    "oracle": ("evaluate.oracle", "Judge environment, image, data or run, for programs."),
    "docs": ("results.docs", "Fill the numbers in README.md and docs/."),
    "keep": ("results.keep", "Put a run's points among the reference results."),
    "bundle": ("images.bundle", "Write one archive with all that a paper needs."),
    "load": ("images.load", "Check a bundle and restore all of it, or nothing."),
    "shell": ("machine.shell", "Open a shell where a paper's points run."),
    "runs": ("results.runs", "List the runs."),
    "wait": ("background.wait", "Follow a detached run; exit with its exit code."),
    "cancel": ("background.cancel", "Stop a run as Ctrl-C does."),
    "clean": ("machine.clean", "Remove what dead launchers left behind."),
}


def run_command(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code (typer's own errors become 2)."""
    # Typer exports BadParameter but not its base, which every wrong command line raises.
    wrong_command_line: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        result = get_command(_app(argv)).main(
            args=argv or ["--help"], prog_name="ae", standalone_mode=False
        )
    except wrong_command_line as error:
        said = " ".join(str(getattr(error, "format_message", error.__str__)()).split())
        said = said.rstrip(".").replace("Value error, ", "")
        raise UsageError(said, fix="see `ae --help`, or `ae COMMAND --help`") from error
    except SystemExit as stop:  # typer's completion has done its work
        if stop.code:
            raise
        result = None
    if result == ExitCode.INTERRUPTED:  # what typer makes of Ctrl-C
        raise KeyboardInterrupt
    return int(result) if isinstance(result, int) else int(ExitCode.OK)


def _app(argv: Sequence[str]) -> typer.Typer:
    """All commands by name, and the one that is asked for, or completed by the shell, whole."""
    app = typer.Typer(
        name="ae",
        help="Reproduce GPU-systems papers: one command per figure, a verdict for every claim.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_options)
    completed = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", ""))
    words = argv or completed.split()[1:]
    asked = next((word for word in words if not word.startswith("-")), "")
    for name, (place, about) in COMMANDS.items():
        function = _declared(place, words) if name == asked else lambda: None  # its name will do
        app.command(name, short_help=about)(function)
    return app


def _declared(place: str, words: Sequence[str]) -> Any:
    module, name = place.split(".")
    function = getattr(import_module(f"ae.commands.{module}"), name)
    if name == "run":
        return import_module("ae.commands.options").with_options_of_recipes(function, words)
    return function


def _options(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
) -> None:
    if version:
        typer.echo(f"ae {__version__}")
        raise typer.Exit

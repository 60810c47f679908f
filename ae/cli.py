"""The command line. Thin: every command parses, calls one function per step and prints.

Heavy modules are imported inside the commands, so that `ae --help` stays quick.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from ae import __version__
from ae.cli_run import clean, register, runs, shell
from ae.errors import ExitCode, UsageError
from ae.options import (
    AsJson,
    BaseImage,
    CaBundle,
    EngineName,
    FlavourOption,
    LaneOption,
    RecipeName,
    Wheels,
    pairs,
    print_data,
)

app = typer.Typer(
    name="ae",
    help="Reproduce five GPU-systems papers: one command per figure, a verdict for every claim.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="a run's name or folder, or a machine of results/reference; default: the latest",
    ),
]
ReportFolder = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="where to write; default: results/report"),
]


def run_command(argv: list[str]) -> int:
    """Run one command line and return its exit code (typer's own errors become 2)."""
    # Typer exports BadParameter but not its base, which every wrong command line raises.
    wrong_command_line: type[Exception] = typer.BadParameter.__mro__[1]
    register(app, argv)
    try:
        result = get_command(app).main(
            args=argv or ["--help"], prog_name="ae", standalone_mode=False
        )
    except wrong_command_line as error:
        say = getattr(error, "format_message", error.__str__)
        raise UsageError(
            str(say()).rstrip("."), fix="see `ae --help`, or `ae COMMAND --help`"
        ) from error
    except SystemExit as stop:  # typer's completion has done its work
        if stop.code:
            raise
        result = None
    except typer.Abort as error:  # what typer makes of Ctrl-C
        raise KeyboardInterrupt from error
    return int(result) if isinstance(result, int) else int(ExitCode.OK)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
) -> None:
    if version:
        typer.echo(f"ae {__version__}")
        raise typer.Exit


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the papers and their lanes."""
    from ae.commands.recipes import listed

    print_data(as_json, *listed())


@app.command(short_help="Show a paper: variants, figures, claims, needs, cost.")
def show(
    recipe: RecipeName,
    everything: Annotated[bool, typer.Option("--all", help="all that the recipe says")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a paper: variants, experiments, figures, claims, needs, time and disk."""
    from ae.commands.recipes import shown

    print_data(as_json, *shown(recipe, everything=everything))


@app.command()
def schema() -> None:
    """Print the JSON Schema of recipe.yaml, for editors."""
    from ae.commands.recipes import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command(short_help="Check this machine; each finding with its fix.")
def doctor(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]")] = None,
    engine: EngineName = None,
    as_json: AsJson = False,
) -> int:
    """Check this machine: engine, GPUs, driver, limits, disk; each with a fix."""
    from ae.commands.doctor import diagnosed

    data, text, code = diagnosed(recipe, engine)
    print_data(as_json, data, text)
    return code


@app.command(short_help="Build the images of papers.")
def build(
    names: Annotated[list[str], typer.Argument(metavar="RECIPE...", help="papers or images")],
    flavour: FlavourOption = None,
    base_image: BaseImage = None,
    wheels: Wheels = None,
    ca_bundle: CaBundle = None,
    network: Annotated[
        str | None, typer.Option("--network", help="network of the build, e.g. host")
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option("--context", metavar="NAME=DIR", help="a build context; repeatable"),
    ] = None,
    lane: LaneOption = None,
    fresh: Annotated[bool, typer.Option("--no-cache", help="build every step anew")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the commands, build nothing")
    ] = False,
) -> None:
    """Build the images of papers, with live output; the bake files are below images/."""
    from ae.commands.images import BuildOptions, build_images

    contexts = {name: Path(path) for name, path in pairs(context, "--context").items()}
    options = BuildOptions(
        base_image=base_image,
        wheels=wheels,
        ca_bundle=ca_bundle,
        network=network,
        contexts=contexts,
        fresh=fresh,
    )
    build_images(names, flavour=flavour, lane=lane, options=options, dry_run=dry_run)


@app.command(short_help="Publish images and lock their digests.")
def push(
    names: Annotated[list[str], typer.Argument(metavar="RECIPE...", help="papers or images")],
    flavour: FlavourOption = None,
    lane: LaneOption = None,
) -> None:
    """Publish images in the registry and lock their digests in images/lock.yaml."""
    from ae.commands.images import push_images

    push_images(names, flavour=flavour, lane=lane)


@app.command(short_help="Fetch the locked images by digest.")
def pull(
    names: Annotated[list[str], typer.Argument(metavar="RECIPE...", help="papers or images")],
    flavour: FlavourOption = None,
    lane: LaneOption = None,
) -> None:
    """Fetch the locked images from the registry, by digest."""
    from ae.commands.images import pull_images

    pull_images(names, flavour=flavour, lane=lane)


@app.command(short_help="Draw the figures of a run again.")
def plot(
    recipe: RecipeName, run: RunName = None, output: ReportFolder = None, as_json: AsJson = False
) -> int:
    """Draw the figures of a run again; needs no GPU and no container."""
    from ae.commands.results import plot_run

    return plot_run(recipe, run, output, as_json=as_json)


@app.command(short_help="Judge every claim against a run.")
def check(recipe: RecipeName, run: RunName = None, as_json: AsJson = False) -> int:
    """Judge every claim against a run; exit code 1 when one is not reproduced."""
    from ae.commands.results import check_run

    return check_run(recipe, run, as_json=as_json)


@app.command(short_help="Print the result tables of a run, whole.")
def table(
    recipe: RecipeName,
    run: RunName = None,
    form: Annotated[str, typer.Option("--format", help="text, csv or latex")] = "text",
) -> int:
    """Print the result tables of a run, whole: as text, CSV or LaTeX."""
    from ae.commands.results import print_tables

    return print_tables(recipe, run, form)


@app.command(short_help="Write one page per paper.")
def report(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]")] = None,
    run: RunName = None,
    output: ReportFolder = None,
) -> int:
    """Write one page per paper: provenance, results, figures, verdicts."""
    from ae.commands.results import write_report

    return write_report(recipe, run, output)


@app.command(short_help="Put a run's points among the reference results.")
def keep(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run's name or folder")],
    machine: Annotated[
        str | None,
        typer.Option("--machine", help="the set's name; default: the GPU's, as in h200x2, or cpu"),
    ] = None,
) -> int:
    """Put a run's finished points among the reference results of its machine and judge them."""
    from ae.commands.results import keep_run

    return keep_run(run, machine)


@app.command(short_help="Write one archive with all that a paper needs.")
def bundle(
    recipe: RecipeName,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="NAME.tar")],
    flavour: Annotated[
        list[str] | None,
        typer.Option("--flavour", help="cpu or cuda; repeatable; default: those that are built"),
    ] = None,
    lane: LaneOption = None,
) -> None:
    """Write one archive with a paper's images, sources, data and reference results."""
    from ae.commands.images import bundle_recipe

    bundle_recipe(recipe, output, lane=lane, kinds=flavour or ())


@app.command(short_help="Check a bundle and restore all of it, or nothing.")
def load(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what `ae bundle` has written")],
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="DIR", help="where the checkout goes; default RECIPE-bundle"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only check the archive")] = False,
) -> None:
    """Check a bundle, then load its images and restore its checkout; or nothing at all."""
    from ae.commands.images import load_file

    load_file(file, into, dry_run=dry_run)


app.command(short_help="Open a shell where a paper's points run.")(shell)
app.command(short_help="List the runs.")(runs)
app.command(short_help="Remove what dead launchers left behind.")(clean)

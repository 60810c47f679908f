"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ae.errors import UsageError


def recipe_names(incomplete: str) -> list[str]:
    """Names of recipes, for the shell's completion."""
    from ae.commands.words import names

    return names(incomplete)


RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="a paper, see `ae list`", autocompletion=recipe_names),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for a program to read")]
EngineName = Annotated[
    str | None,
    typer.Option("--engine", help="docker, podman or local; default: the first that works"),
]
ImageOption = Annotated[
    str | None, typer.Option("--image", metavar="REF", help="run this image instead of ours")
]
BaseImage = Annotated[
    str | None, typer.Option("--base-image", metavar="REF", help="build on top of this image")
]
Wheels = Annotated[
    Path | None, typer.Option("--wheels", metavar="DIR", help="a folder of wheels for the build")
]
CaBundle = Annotated[
    Path | None,
    typer.Option("--ca-bundle", metavar="FILE", help="certificates for a build behind a proxy"),
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secret", metavar="NAME=FILE", help="a file for the container alone; repeatable"
    ),
]
FlavourOption = Annotated[
    str | None, typer.Option("--flavour", help="cpu or cuda; default: what the machine has")
]
LaneOption = Annotated[
    str | None, typer.Option("--lane", help="native or upstream; default: the recipe's image")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only say what would be done")]


def pairs(words: Sequence[str] | None, option: str) -> dict[str, str]:
    """Read a repeatable option of the form key=value. Raises UsageError."""
    found = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(
                f"{option} {word}: not of the form key=value", fix=f"{option} key=value"
            )
        found[key.strip()] = value.strip()
    return found


def print_data(as_json: bool, data: Any, text: str) -> None:
    """Print what a command found: as JSON, or as text."""
    typer.echo(json.dumps(data, indent=2, default=str) if as_json else text)

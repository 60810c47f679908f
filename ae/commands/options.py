"""Words that several commands share, and the options that recipes bring."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Container, Sequence
from functools import partial, update_wrapper
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from ae.errors import AeError, UsageError
from ae.plan.selection import argument
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import Recipe


def recipe_names(incomplete: str) -> list[str]:
    """Names of recipes, for the shell's completion."""
    return [name for name in list_recipes(find_root()) if name.startswith(incomplete)]


def option(text: str, *names: str, value: str | None = None, **more: Any) -> Any:
    """An option: what it does, its names where they are not the parameter's, what it takes."""
    return typer.Option(*names, help=text, metavar=value, **more)


def repeatable(text: str, *names: str, **more: Any) -> Any:
    """An option that may be given several times; its type is Words."""
    return option(f"{text}; repeatable", *names, **more)


Words = list[str] | None
RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="a paper, see `ae list`", autocompletion=recipe_names),
]
AnyRecipe = Annotated[str | None, typer.Argument(metavar="RECIPE", autocompletion=recipe_names)]
ImageNames = Annotated[list[str], typer.Argument(metavar="RECIPE", help="papers or images")]
AsJson = Annotated[bool, option("print JSON for a program to read", "--json")]
EngineName = Annotated[str | None, option("docker, podman, local, slurm; default: docker or local")]
Experiments = Annotated[Words, repeatable("an experiment")]
Gpus = Annotated[str | None, option("how many (2), or which (device=0); none: the CPU")]
ImageOption = Annotated[str | None, option("run this image instead of ours", value="REF")]
Wheels = Annotated[Path | None, option("wheels for builds", exists=True, file_okay=False)]
CaBundle = Annotated[Path | None, option("certificates of a proxy", exists=True, dir_okay=False)]
SecretOption = Annotated[Words, repeatable("a file for the container alone", value="NAME=FILE")]
FlavourOption = Annotated[str | None, option("cpu or cuda; default: what the machine has")]
LaneOption = Annotated[str | None, option("native or upstream; default: the recipe's image")]
DryRun = Annotated[bool, option("only say what would be done", "--dry-run")]


def pairs(words: Sequence[str] | None, name: str, several: Container[str] = ()) -> dict[str, str]:
    """Read a repeatable option of the form NAME=VALUE; the values of a name among `several` are
    joined, and no other name may be there twice. Raises UsageError."""
    found: dict[str, str] = {}
    for word in words or ():
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not key:
            raise UsageError(f"{name} {word}: not of the form NAME=VALUE", fix=f"{name} NAME=VALUE")
        if key in found and key not in several:
            said = f"{key} is given twice: '{found[key]}' and '{value}'"
            raise UsageError(said, fix="leave one of them out")
        found[key] = f"{found[key]},{value}" if key in found else value
    return found


def print_data(as_json: bool, data: Any, text: str) -> None:
    """Print what a command found: as JSON, or as text."""
    typer.echo(json.dumps(data, indent=2, default=str) if as_json else text)


def screen_width() -> int:
    """Columns for a table on this terminal: 80 to 120."""
    return max(80, min(120, get_terminal_size((100, 24)).columns))


def with_options_of_recipes(run: Callable[..., int], words: Sequence[str]) -> Callable[..., int]:
    """`run` with an option for each axis and parameter of the recipes among `words`.

    They take the place of its `**own`, as `own_NAME`.
    Several recipes bring the options that all of them have. An option that `run` itself has under
    that name stays `run`'s.
    """
    signature = inspect.signature(run, eval_str=True)
    parameters = list(signature.parameters.values())[:-1]
    about = [one.annotation.__metadata__[0] for one in parameters]
    taken = {word for one in about for word in (one.default, *(one.param_decls or ()))}
    taken |= {_option(one.name) for one in parameters}
    found = [_described(recipe) for recipe in recipes_among(words)] or [{}]
    for name, text in found[0].items():
        if all(name in one for one in found) and _option(name) not in taken:
            kind = Annotated[Words, typer.Option(_option(name), metavar="VALUE", help=text)]
            own = parameters[0].replace(name=f"own_{name}", default=None, annotation=kind)
            parameters.append(own)
    command = update_wrapper(partial(run), run)
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def recipes_among(words: Sequence[str]) -> list[Recipe]:
    """The recipes that these words name, as far as they can be read."""
    try:
        root = find_root()
        return [load_recipe(root, name) for name in list_recipes(root) if name in words]
    except AeError:  # the command itself will say it
        return []


def _described(recipe: Recipe) -> dict[str, str]:
    """Name and help of a recipe's axes and parameters."""
    found = {}
    for name, axis in recipe.axes.items():
        found[name] = f"{axis.help}: {', '.join(axis.values)}; several with commas"
    for name, about in recipe.parameters.items():
        choices = f" ({', '.join(about.choices)})" if about.choices else ""
        default = argument(about.value(quick=False)) or "none"
        found[name] = f"{about.help}{choices}; default {default}"
    return found

"""The words of `ae run`: its own options, and those that a recipe brings: axes and parameters."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ae.errors import AeError
from ae.options import (
    AsJson,
    BaseImage,
    CaBundle,
    EngineName,
    ImageOption,
    SecretOption,
    Wheels,
    pairs,
    recipe_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ae.recipe.models import Recipe


def _variants(incomplete: str) -> list[str]:
    """Variants of the recipes on the command line, for the shell's completion."""
    names = [name for recipe in named_recipes(_typed()) for name in recipe.variants]
    return [name for name in names if name.startswith(incomplete)]


RecipeNames = Annotated[
    list[str],
    typer.Argument(metavar="RECIPE...", help="papers, see `ae list`", autocompletion=recipe_names),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        help="a design point (its baseline runs too); repeatable",
        autocompletion=_variants,
    ),
]


def run(
    recipe: RecipeNames,
    variant: Variants = None,
    experiment: Annotated[
        list[str] | None, typer.Option("--experiment", help="an experiment; repeatable")
    ] = None,
    figure: Annotated[
        list[str] | None, typer.Option("--figure", help="what this figure draws; repeatable")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="the same as --KEY VALUE; repeatable"),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="run every point N times")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="the small sizes")] = False,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="how many (2), or which (device=0); none: the CPU")
    ] = None,
    lane: Annotated[str, typer.Option("--lane", help="native or upstream")] = "native",
    engine: EngineName = None,
    image: ImageOption = None,
    secret: SecretOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="run what the latest run has not finished")
    ] = False,
    no_build: Annotated[
        bool, typer.Option("--no-build", help="stop when the image is missing or out of date")
    ] = False,
    base_image: BaseImage = None,
    wheels: Wheels = None,
    ca_bundle: CaBundle = None,
    network: Annotated[
        str | None, typer.Option("--build-network", help="network of a build that is needed")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the plan as commands that can be pasted")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="show all that workloads print")
    ] = False,
    as_json: AsJson = False,
    own: Mapping[str, str] | None = None,
) -> int:
    """Run a paper's experiments, then print results, figures and verdicts.

    `ae run RECIPE --help` also shows the options that this paper has.
    """
    from ae.commands.run import run_recipes, show_plans
    from ae.images.content import BuildOptions
    from ae.plan.selection import Request

    requests = [
        Request(
            recipe=name,
            variants=tuple(variant or ()),
            experiments=tuple(experiment or ()),
            figures=tuple(figure or ()),
            settings=pairs(settings, "--set") | dict(own or {}),
            repeat=repeat,
            quick=quick,
            gpus=gpus,
            lane=lane,
            image=image,
            engine=engine,
            secrets=pairs(secret, "--secret"),
        )
        for name in dict.fromkeys(recipe)
    ]
    if dry_run:
        return show_plans(requests, resume=resume, as_json=as_json)
    options = BuildOptions(
        base_image=base_image, wheels=wheels, ca_bundle=ca_bundle, network=network
    )
    build = None if no_build else options
    return run_recipes(requests, resume=resume, build=build, as_json=as_json, verbose=verbose)


def named_recipes(argv: Sequence[str]) -> list[Recipe]:
    """The recipes that a command line of `ae run` names, as far as they can be read."""
    from ae.recipe.load import find_root, list_recipes, load_recipe

    try:
        root = find_root()
        known = list_recipes(root)
        plain = [
            word for word, before in zip(argv, ("", *argv), strict=False) if not _valued(before)
        ]
        return [load_recipe(root, word) for word in dict.fromkeys(plain) if word in known]
    except AeError:  # the command itself will say it
        return []


def register(app: typer.Typer, argv: Sequence[str]) -> None:
    """Make `ae run` the first command, with the options of the recipes that `argv` names."""
    app.registered_commands[:] = [about for about in app.registered_commands if about.name != "run"]
    named = with_own_options(run, argv if "run" in argv else ())
    app.command("run", short_help="Run papers' experiments and judge their claims.")(named)
    app.registered_commands.insert(0, app.registered_commands.pop())


def with_own_options(command: Callable[..., int], argv: Sequence[str]) -> Callable[..., int]:
    """`command`, whose parameter `own` is replaced by the options of the recipes in `argv`.

    Several recipes bring the options that all of them have. `own` gets their values by name.
    An option that `ae run` itself has under that name stays `ae run`'s.
    """
    signature = inspect.signature(command, eval_str=True)
    shared = [p for name, p in signature.parameters.items() if name != "own"]
    about = [p.annotation.__metadata__[0] for p in shared]
    taken = {word for one in about for word in (one.default, *(one.param_decls or ()))}
    words = argv or _typed()
    recipes = named_recipes(words) if words else []
    texts = [_described(recipe) for recipe in recipes]
    names = [name for name in texts[0] if all(name in other for other in texts)] if texts else []
    names = [name for name in names if _options(name)[0] not in taken]

    def run(**given: Any) -> int:
        values = {name: given.pop(f"own_{name}") for name in names}
        return command(own={k: ",".join(v) for k, v in values.items() if v}, **given)

    own = [
        inspect.Parameter(
            f"own_{name}",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                list[str] | None,
                typer.Option(*_options(name), metavar="VALUE", help=texts[0][name]),
            ],
        )
        for name in names
    ]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shared]
    run.__signature__ = signature.replace(parameters=[*keyword, *own])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*keyword, *own)}
    run.__doc__ = command.__doc__
    return run


def _described(recipe: Recipe) -> dict[str, str]:
    """What a person may change of a recipe, by name, in words."""
    found = {
        name: f"{axis.help}: {', '.join(axis.values)}; several with commas"
        for name, axis in recipe.axes.items()
    }
    for name, about in recipe.parameters.items():
        default = about.value(quick=False)
        words = ",".join(default) if isinstance(default, tuple) else str(default)
        choices = f" ({', '.join(about.choices)})" if about.choices else ""
        found[name] = f"{about.help}{choices}; default {words or 'none'}"
    return found


def _options(name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("--" + name.replace("_", "-"), f"--{name}")))


_FLAGS = ("--quick", "--resume", "--no-build", "--dry-run", "--json", "--debug", "--verbose")


def _valued(word: str) -> bool:
    """Whether the word after this one is its value."""
    return word.startswith("--") and "=" not in word and word not in _FLAGS


def _typed() -> list[str]:
    """The words that the shell wants completed."""
    return os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()

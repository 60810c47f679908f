"""The words of `ae run`, with the options that a recipe brings, and of runs, shell and clean."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from ae.options import (
    AsJson,
    CaBundle,
    DryRun,
    EngineName,
    ImageOption,
    RecipeName,
    SecretOption,
    Wheels,
    pairs,
    print_data,
    recipe_names,
)


def _variants(incomplete: str) -> list[str]:
    """Variants of the recipes on the command line, for the shell's completion."""
    from ae.commands.recipes import named

    variants = [name for recipe in named(_plain_words(())) for name in recipe.variants]
    return [name for name in variants if name.startswith(incomplete)]


_FLAGS = ("--quick", "--resume", "--no-build", "--dry-run", "--json", "--verbose")
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
    repeat: Annotated[
        int | None,
        typer.Option("--repeat", min=1, help="processes of every point; default: the recipe's"),
    ] = None,
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
    wheels: Wheels = None,
    ca_bundle: CaBundle = None,
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
    from ae.commands.run import (
        BuildOptions,
        Selection,
        parse_gpus,
        run_recipes,
        settle,
        show_plans,
    )

    wanted = Selection(
        variants=tuple(variant or ()),
        experiments=tuple(experiment or ()),
        figures=tuple(figure or ()),
        settings=pairs(settings, "--set") | dict(own or {}),
        repeat=repeat,
        quick=quick,
        gpus=parse_gpus(gpus),
        lane=lane,
        image_override=image,
    )
    secrets = pairs(secret, "--secret")
    asked = [settle(name, wanted, secrets, resume=resume) for name in dict.fromkeys(recipe)]
    if dry_run:
        return show_plans(asked, engine=engine, as_json=as_json)
    build = None if no_build else BuildOptions(wheels=wheels, ca_bundle=ca_bundle)
    return run_recipes(asked, engine=engine, build=build, as_json=as_json, verbose=verbose)


def runs(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]")] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs: how each ended, how many points are done, how old it is."""
    from ae.commands.runs import list_runs

    print_data(as_json, *list_runs(recipe))


def shell(
    recipe: RecipeName,
    engine: EngineName = None,
    image: ImageOption = None,
    secret: SecretOption = None,
) -> int:
    """Open a shell where a paper's points run: same image, GPUs, limits and mounts."""
    from ae.commands.runs import open_shell

    return open_shell(recipe, engine_name=engine, image=image, secrets=pairs(secret, "--secret"))


def clean(
    environments: Annotated[
        bool,
        typer.Option("--environments", help="also Python environments that no source asks for"),
    ] = False,
    run: Annotated[str, typer.Option(help="of this run alone", metavar="NAME")] = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Remove what dead launchers left behind: containers and processes, nothing else."""
    from ae.commands.clean import clean_up

    return clean_up(environments=environments, run=run, dry_run=dry_run, as_json=as_json)


def register(app: typer.Typer, argv: Sequence[str]) -> None:
    """Make `ae run` the first command, with the options of the recipes that `argv` names."""
    app.registered_commands[:] = [about for about in app.registered_commands if about.name != "run"]
    named = with_own_options(argv if "run" in argv else ())
    app.command("run", short_help="Run papers' experiments and judge their claims.")(named)
    app.registered_commands.insert(0, app.registered_commands.pop())


def with_own_options(argv: Sequence[str]) -> Callable[..., int]:
    """`run`, whose parameter `own` is replaced by the options of the recipes in `argv`.

    Several recipes bring the options that all of them have. `own` gets their values by name.
    An option that `ae run` itself has under that name stays `ae run`'s.
    """
    texts: dict[str, str] = {}
    if words := _plain_words(argv):
        from ae.commands.recipes import own_options

        texts = own_options(words)
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.signature(run, eval_str=True)
    shared = [p.replace(kind=keyword) for n, p in signature.parameters.items() if n != "own"]
    about = [p.annotation.__metadata__[0] for p in shared]
    taken = {word for one in about for word in (one.default, *(one.param_decls or ()))}
    own = [
        inspect.Parameter(
            f"own_{name}",
            keyword,
            default=None,
            annotation=Annotated[
                list[str] | None, typer.Option(option, metavar="VALUE", help=text)
            ],
        )
        for name, text in texts.items()
        if (option := "--" + name.replace("_", "-")) not in taken
    ]

    def command(**given: Any) -> int:
        values = {p.name.removeprefix("own_"): given.pop(p.name) for p in own}
        return run(own={name: ",".join(v) for name, v in values.items() if v}, **given)

    command.__signature__ = signature.replace(parameters=[*shared, *own])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*shared, *own)}
    command.__doc__ = run.__doc__
    return command


def _plain_words(argv: Sequence[str]) -> list[str]:
    """The words that are no options and no option's value; those that the shell completes, too."""
    typed = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", ""))
    words = list(argv) or typed.split()
    before = ["", *words]
    return [w for w, b in zip(words, before, strict=False) if b in _FLAGS or not b.startswith("--")]

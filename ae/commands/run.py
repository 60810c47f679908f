"""`ae run`: recipe, selection, engine and its machine -> plan -> run -> records -> results."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import typer

from ae.claims.judge import to_json
from ae.commands import background, options
from ae.commands.asked import Asked, choose_engine, plan_for, settle, show_plan, size_of
from ae.commands.compare import compare
from ae.commands.options import AsJson, Words, option, pairs, print_data, repeatable
from ae.commands.results import open_results
from ae.compare.turns import by_turns
from ae.engines.base import Engine
from ae.engines.secrets import Mask
from ae.errors import AeError, EnvironmentFault, ExitCode, UsageError
from ae.host import owner, signals
from ae.host.files import write_atomic
from ae.host.processes import watched
from ae.images.content import BuildOptions
from ae.model import Outcome, Plan, Status
from ae.plan.budget import parse_budget
from ae.plan.selection import Selection, parse_gpus
from ae.records.folder import Run, RunStore, results_dir
from ae.records.models import gather
from ae.records.results import load_run
from ae.report import chapter
from ae.run.display import Display
from ae.run.loop import Work, execute, prepare
from ae.run.spend import budget_of, spend, took


def variant_names(context: typer.Context, incomplete: str) -> list[str]:
    """Variants of the recipes on the command line, for the shell's completion."""
    names = [name for recipe in options.recipes_among(context.args) for name in recipe.variants]
    return [name for name in names if name.startswith(incomplete)]


def run(
    recipe: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE", help="papers, or runs to resume", autocompletion=options.recipe_names
        ),
    ],
    variant: Annotated[
        Words, repeatable("a design point (its baseline runs too)", autocompletion=variant_names)
    ] = None,
    experiment: options.Experiments = None,
    figure: Annotated[Words, repeatable("what this figure draws")] = None,
    settings: Annotated[
        Words, repeatable("the same as --KEY VALUE", "--set", value="KEY=VALUE")
    ] = None,
    repeat: Annotated[
        int | None, option("processes of every point; default: the recipe's", min=1, max=1000)
    ] = None,
    quick: Annotated[bool, option("the small sizes", "--quick")] = False,
    budget: Annotated[
        str | None, option("run what decides the most claims in that time", value="TIME")
    ] = None,
    gpus: options.Gpus = None,
    lane: Annotated[str, option("native or upstream")] = "native",
    engine: options.EngineName = None,
    image: options.ImageOption = None,
    secret: options.SecretOption = None,
    resume: Annotated[bool, option("finish the latest run, or the named one", "--resume")] = False,
    detach: Annotated[bool, option("go on alone; see `ae wait`, `ae cancel`", "--detach")] = False,
    no_build: Annotated[
        bool, option("stop when the image is missing or out of date", "--no-build")
    ] = False,
    wheels: options.Wheels = None,
    ca_bundle: options.CaBundle = None,
    dry_run: Annotated[
        bool, option("print the plan as commands that can be pasted", "--dry-run")
    ] = False,
    against: Annotated[
        str | None, option("measure this run's image, too, by turns, and compare", value="RUN")
    ] = None,
    verbose: Annotated[bool, option("show all that workloads print", "-v", "--verbose")] = False,
    as_json: AsJson = False,
    **own: list[str] | None,
) -> int:
    """Run a paper's experiments, then print results, figures and verdicts.

    `ae run RECIPE --help` also shows the options that this paper has.
    """
    if detach and not dry_run:
        return background.detach(recipe, resume=resume, as_json=as_json)
    given = [f"{name.removeprefix('own_')}={v}" for name, each in own.items() for v in each or ()]
    axes = {name for one in options.recipes_among(recipe) for name in one.axes}
    wanted = Selection(
        variants=tuple(variant or ()),
        experiments=tuple(experiment or ()),
        figures=tuple(figure or ()),
        settings=pairs([*(settings or ()), *given], "--set", axes),
        repeat=repeat,
        quick=quick,
        gpus=parse_gpus(gpus),
        lane=lane,
        image_override=image,
    )
    limit_s = parse_budget(budget) if budget is not None else None
    if limit_s and len(set(recipe)) > 1:
        raise UsageError("--budget is for one paper", fix="run one after another")
    secrets = pairs(secret, "--secret")
    asked = [settle(name, wanted, secrets, engine, resume=resume) for name in dict.fromkeys(recipe)]
    for name, paper in zip(dict.fromkeys(recipe), (one.recipe.name for one in asked), strict=True):
        if name != paper and paper in recipe:  # whose latest run would go on as well
            raise UsageError(f"{name} is a run of {paper}: name one", fix=f"ae run {name} --resume")
    if against is not None and (len(asked) > 1 or resume or dry_run or budget):
        said = "--against measures one paper anew, without --resume, --dry-run and --budget"
        raise UsageError(said, fix=f"ae run {recipe[0]} --against {against}")
    if dry_run:
        code, data = 0, [show_plan(one, limit_s, quiet=as_json) for one in asked]
    else:
        build = None if no_build else BuildOptions(wheels=wheels, ca_bundle=ca_bundle)
        if against is not None:
            return run_against(asked[0], build, against, as_json=as_json, verbose=verbose)
        code, data = run_recipes(asked, build, limit_s, quiet=as_json, verbose=verbose)
    if as_json:
        print_data(True, data[0] if len(asked) == 1 else data, "")
    return code


def run_recipes(
    several: Sequence[Asked],
    build: BuildOptions | None,
    limit_s: float | None,
    *,
    quiet: bool,
    verbose: bool,
) -> tuple[int, list[dict[str, Any]]]:
    """Run recipes one after another; return the first exit code that is not 0, and their verdicts.

    All are planned before the first runs. `build` says how to build an image that is missing or
    out of date; None: stop instead.
    """
    codes: list[int] = []
    data = []
    with signals.handled():
        ready = [(asked, choose_engine(asked, build)) for asked in several]
        plans = [plan_for(asked, engine.machine) for asked, engine in ready]
        for (asked, engine), plan in zip(ready, plans, strict=True):
            try:
                made, outcomes = measure(asked, engine, plan, limit_s, verbose=verbose)
                data.append(conclude(asked, made, quiet=quiet))
                codes.append(exit_code(asked, made, outcomes))
            except AeError as error:
                if len(several) == 1:
                    raise
                said = f"error: {asked.recipe.name}: {error.message}\n  fix: {error.fix}"
                print(said, file=sys.stderr)
                codes.append(error.exit_code)
    return next((code for code in codes if code), ExitCode.OK), data


def run_against(
    asked: Asked, build: BuildOptions | None, against: str, *, as_json: bool, verbose: bool
) -> int:
    """Run a recipe by turns with the image of another run, and compare the two new runs."""
    other = open_results(asked.recipe.name, against)[2]
    with signals.handled():
        engine = choose_engine(asked, build)
        plan = plan_for(asked, engine.machine)
        made = by_turns(asked.root, asked.secrets, engine, plan, other, verbose=verbose)
    codes = [exit_code(asked, one, outcomes) for one, outcomes in made]
    a, b = (one.name for one, _ in made)
    if any(codes):
        print(f"what is done: ae compare {asked.recipe.name} {a} {b}", file=sys.stderr)
        return max(codes)
    return compare(asked.recipe.name, a, b, as_json=as_json)


def measure(
    asked: Asked, engine: Engine, plan: Plan, limit_s: float | None, *, verbose: bool
) -> tuple[Run, dict[str, Outcome]]:
    """Run the points that are not done yet. However it ends, it says what is done and what next."""
    root, recipe = asked.root, asked.recipe
    budget = budget_of(root, recipe, plan, engine.machine, limit_s) if limit_s else None
    if budget:
        budget.require(took(asked.resumed, plan))
    found = engine.available()
    about = {"name": engine.name, "detail": found.detail, **found.facts}
    facts = gather(root, about, engine.machine)
    if run := asked.resumed:
        run.resume(plan, facts)
    else:
        run = RunStore(results_dir(root)).create(plan, facts)
        run.claim()
    finished = run.finished()
    todo = [point for point in plan.points if point.key not in finished]
    display = Display(todo, verbose=verbose)
    for note in plan.notes:
        display.say(f"note: {note}")
    if len(finished) > len(plan.points) - len(todo):
        display.say("note: the recipe, its image or the machine changed: some points run again")
    kept = f"{len(plan.points) - len(todo)} of {len(plan.points)} points are done, "
    left = f"{size_of(todo)} to run" if todo else "nothing is left to run"
    size = f": {kept * bool(asked.resumed)}{left}" if budget is None else ""
    display.say(f"run {run.name} on engine {engine.name}{size}")
    labels = owner.stamp({owner.RUN: run.name, owner.RECIPE: recipe.name})
    files = asked.secrets
    work = Work(engine, run, display, labels, root / "recipes" / recipe.name, files, Mask(files))
    with ExitStack() as stack:
        stack.callback(run.close)
        stack.callback(display.close)
        stack.callback(engine.close)
        if not engine.outlives:
            stack.enter_context(watched(run.name))
        if other := stack.enter_context(owner.measuring(f"{recipe.name} {run.name}")):
            display.say(f"warning: {other} measures on this machine, too: timings will be off")
        outcomes: dict[str, Outcome] = {}
        try:
            ended, width = partial(took, run, plan), options.screen_width()
            prepare(todo, work)
            if budget is None:
                engine.ahead([work.job(one, run.folder_of(one)) for one in todo])
            outcomes = execute(spend(budget, ended, display, width) if budget else todo, work)
        finally:
            if run.began and (_failures(outcomes) or len(outcomes) < len(todo)):
                display.close()
                said = f"{len(took(run, plan))} of {len(plan.points)} points are done and kept"
                print(f"{said}; to run the rest: ae run {run.name} --resume", file=sys.stderr)
    return run, outcomes


def conclude(asked: Asked, run: Run, *, quiet: bool) -> dict[str, Any]:
    """Print table, figures and counts of verdicts, and what to do next; return the verdicts."""
    name, about = asked.recipe.name, (asked.root, asked.recipe, load_run(run.path))
    made = chapter.compose(*about, chapter.draw_figures(*about, run.path / "figures"))
    claims = to_json(made.judgements)
    write_atomic(run.path / "claims.json", json.dumps(claims, indent=2) + "\n")
    if not quiet:
        print(chapter.chapter_text(made))
        print(f"\nrun {run.name}: {run.path}")
        print(f"next: ae check {name} (verdicts), ae table {name} (rows), ae report {name} (page)")
    statuses = {point: status.status for point, status in run.statuses().items()}
    return {"recipe": name, "run": run.name, "folder": str(run.path), "points": statuses} | claims


def exit_code(asked: Asked, run: Run, outcomes: Mapping[str, Outcome]) -> int:
    """0, or what the failed points say. Raises EnvironmentFault when no point could be measured."""
    failures = _failures(outcomes)
    for name, outcome in failures.items():
        log = run.path / "points" / name / "stderr.log"
        print(f"failed: {name}: {outcome.reason} (see {log})", file=sys.stderr)
    if failures:
        return ExitCode.WORKLOAD
    if not run.finished():
        words = "; ".join(dict.fromkeys(outcome.reason for outcome in outcomes.values()))
        said = f"this machine could run none of the points: {words}"
        raise EnvironmentFault(said, fix=f"see `ae doctor {asked.recipe.name}`")
    return ExitCode.OK


def _failures(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """The points whose workload failed, by id."""
    good = (Status.DONE, Status.SKIPPED)
    return {name: one for name, one in outcomes.items() if one.status not in good}

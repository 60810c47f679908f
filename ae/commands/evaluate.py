"""`ae review` and `ae appendix`, text for people's forms, and `ae oracle`, judges for programs.

The same state gives the same answer of a judge, to the byte: no time is in it, and what is well has
no words.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from ae import doctor
from ae.claims.judge import Verdict, verdict_lines
from ae.commands.asked import choose_engine, plan_for, settle
from ae.commands.machine import look
from ae.commands.options import AsJson, EngineName, RecipeName, option, print_data, screen_width
from ae.engines.base import Check, Job
from ae.errors import AeError, UsageError, WorkloadError, told
from ae.host import owner
from ae.host.git import git
from ae.model import RuntimeNeeds, Status
from ae.plan.selection import Selection
from ae.recipe.load import find_root, list_recipes, load_recipe
from ae.recipe.models import Recipe
from ae.records import results as measured
from ae.records.folder import Run, RunStore, results_dir
from ae.records.results import Results, load_reference, load_run, machine_of
from ae.report import review as reviewing
from ae.report.chapter import judge_results
from ae.run.display import Display

AnyRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="a run's name or folder, or MACHINE/RECIPE of the reference"
    ),
]
CODES = {"env": 21, "build": 22, "data": 23, "run": 24}  # of a judge that says no
_TAKEN_BY = {"RUN": ["data", "run"], "--engine": ["env", "build"], "--reference": ["run"]}


def review(run_name: AnyRun) -> None:
    """Print a run as text to paste into a review form: machine, verdicts, deviations, hashes."""
    root = find_root()
    found = (path for n in list_recipes(root) for path in measured.reference_sets(root, n).values())
    sets = {"/".join(path.parts[-2:]): path for path in found}
    store, kept = RunStore(results_dir(root)), sets.get(run_name)
    results = load_reference(kept) if kept else load_run(store.find("*", run_name, sets).path)
    print(reviewing.review(_subject(results)))


def appendix(name: RecipeName) -> None:
    """Print a paper's artifact appendix as LaTeX, from its recipe and its claims."""
    root = find_root()
    sets = [load_reference(path) for path in measured.reference_sets(root, name).values()]
    nothing = Results(path=root, name="", recipe=name, points=(), origins=())
    print(reviewing.appendix(_subject(max(sets, key=lambda one: len(one.points), default=nothing))))


def _subject(results: Results) -> reviewing.Subject:
    root = find_root()
    recipe = load_recipe(root, results.recipe)
    return reviewing.Subject(recipe, judge_results(root, recipe, results), results)


def oracle(
    judge: Annotated[Literal["env", "build", "data", "run"], typer.Argument()],
    name: RecipeName,
    run_name: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="a run's name or folder; default: the latest"),
    ] = None,
    engine: EngineName = None,
    reference: Annotated[str | None, option("set to compare with; default: RUN's machine")] = None,
    as_json: AsJson = False,
) -> int:
    """Judge whether this machine may run a paper (env), whether its image is built from this tree
    (build), whether data and records are whole (data), whether a run's verdicts are those of the
    reference (run). Exit code 0, or 21, 22, 23, 24 where the judge says no."""
    root = find_root()
    recipe = load_recipe(root, name)
    for word, said in {"RUN": run_name, "--engine": engine, "--reference": reference}.items():
        if said and judge not in _TAKEN_BY[word]:
            raise UsageError(f"{judge} takes no {word} ('{said}')", fix=f"ae oracle {judge} {name}")
    judges: dict[str, Callable[[], Iterator[Check]]] = {
        "env": lambda: iter(doctor.judge(look(name, engine))),
        "build": partial(_build, recipe, engine),
        "data": partial(_data, root, recipe, run_name),
        "run": partial(_run, root, recipe, run_name, reference),
    }
    try:
        found = list(judges[judge]())
    except (AeError, OSError) as error:
        found = [Check(judge, "fail", *told(error)[1:])]
    code = CODES[judge] if any(one.verdict == "fail" for one in found) else 0
    data = {"schema": 1, "judge": judge, "recipe": name, "pass": code == 0, "exit_code": code}
    plain = [Check(one.name, "ok", "") if one.verdict == "ok" else one for one in found]
    findings = [
        {"check": check, "ok": verdict != "fail", "detail": said, "fix": fix}
        for check, verdict, said, fix in plain
    ]
    print_data(as_json, data | {"findings": findings}, doctor.checks_to_text(found, screen_width()))
    return code


def _build(recipe: Recipe, name: str | None) -> Iterator[Check]:
    """Whether every image of a plain run is built from this tree, and starts."""
    asked = settle(recipe.name, Selection(lane=recipe.plain_run()[0]), {}, name)
    engine = choose_engine(asked, None)
    points = plan_for(asked, engine.machine).points
    for point in {point.image.reference: point for point in points}.values():
        image = point.image
        if not engine.has_image(image):
            fix = f"ae build {image.name} --flavour {image.flavour}, or ae run {recipe.name}"
            said = f"engine {engine.name} has none of the sources {image.content}"
            yield Check(image.reference, "fail", said, fix)
            continue
        # Its interpreter with nothing to do: what the image is made for may need GPUs.
        idle = replace(point, argv=(point.argv[0], "-c", ""), needs=RuntimeNeeds())
        with tempfile.TemporaryDirectory() as folder:
            job = Job(point=idle, out=Path(folder), labels={owner.RUN: "oracle"})
            ended = engine.run(job, Display(()), timeout_s=120)
        fix = f"ae build {image.name} --flavour {image.flavour} --no-cache"
        well = ended.status is Status.DONE
        said = f"engine {engine.name} has it of this tree, and it starts" if well else ended.reason
        yield Check(image.reference, "ok" if well else "fail", said, fix)


def _data(root: Path, recipe: Recipe, run_name: str | None) -> Iterator[Check]:
    """Whether inputs, reference sets and a run, by default the latest, are whole."""
    sets = measured.reference_sets(root, recipe.name)
    store = RunStore(results_dir(root))
    run = store.find(recipe.name, run_name) if run_name else store.latest(recipe.name)
    parts: dict[str, Callable[[], str]] = {"sources": partial(_changed, root, recipe, sets)}
    parts |= {f"reference {name}": partial(_stale, root, recipe, p) for name, p in sets.items()}
    parts |= {f"run {run.name}": partial(_unlike, root, run)} if run else {}
    for name, fault in parts.items():
        fix = "take it back with git, or make it again: ae run, then ae keep"
        try:
            said = fault()
        except (AeError, OSError) as error:
            _, said, fix = told(error)
        yield Check(name, "fail" if said else "ok", said or "whole", fix)


def _changed(root: Path, recipe: Recipe, sets: Mapping[str, Path]) -> str:
    """What differs from the files that git keeps the checksums of."""
    images = {f"images/{recipe.image_of(lane)}" for lane in recipe.lanes}
    kept = [str(path) for path in sets.values() if path.is_relative_to(root)]
    said = git(root, "status", "--porcelain", "--", f"recipes/{recipe.name}", *images, *kept)
    return "git knows no checksums of it" if said is None else ", ".join(said.split("\n")[:-1])


def _stale(root: Path, recipe: Recipe, path: Path) -> str:
    """Whether a set's verdicts are other ones than its records and the claims give."""
    judged = verdict_lines(judge_results(root, recipe, load_reference(path)))
    kept = path / "verdicts.txt"
    same = kept.is_file() and kept.read_bytes() == judged.encode()
    return "" if same else "verdicts.txt is not what the records give with the claims of this tree"


def _unlike(root: Path, run: Run) -> str:
    """What follows from the seed alone and differs from the reference set of the run's machine:
    static records of the same command. Raises WorkloadError where records are gone."""
    results = load_run(run.path)
    ended = {point.status.key for point in results.points}
    origins = [run.record.provenance, *(one.provenance for one in run.record.resumed)]
    budget = any(w.startswith("--budget") for w in origins[-1].command)  # what it left out has none
    if names := [one.id for one in results.missing if one.key in ended or not budget]:
        fix = f"ae run {run.name} --resume"
        raise WorkloadError(f"there are no records of {', '.join(names)}", fix=fix)
    known = measured.find_set(root, results.recipe, machine_of(results))
    theirs = _static(load_reference(known)) if known else {}
    keys = [key for key, samples in _static(results).items() if theirs.get(key, samples) != samples]
    return ", ".join(f"{key[1]} of {key[0]} differs from the reference" for key in keys)


def _static(results: Results) -> dict[tuple[object, ...], tuple[float, ...]]:
    return {
        (point.status.id, one.metric, point.status.argv, frozenset(one.labels.items())): one.samples
        for point in results.points
        for one in point.found.records
        if one.evidence == "static"
    }


def _run(
    root: Path, recipe: Recipe, run_name: str | None, reference: str | None
) -> Iterator[Check]:
    """Whether the verdicts of a run, by default the latest, are those of the reference set."""
    results = load_run(RunStore(results_dir(root)).find(recipe.name, run_name).path)
    wanted = reference or machine_of(results)
    if (path := measured.find_set(root, recipe.name, wanted)) is None:
        known = ", ".join(measured.reference_sets(root, recipe.name))
        fix = f"--reference with one of: {known}" if known else f"ae keep {results.name} makes one"
        yield Check("reference", "fail", f"there is no reference set of {wanted}", fix)
        return
    mine = {one.id: one.verdict for one in judge_results(root, recipe, results)}
    left = f"ae run {results.name} --resume" if results.missing else ""
    fix = left or f"ae check {recipe.name} {results.name}"
    for other in judge_results(root, recipe, load_reference(path)):
        if other.verdict not in (Verdict.NOT_RUN, Verdict.NOT_TRANSCRIBED):
            said = f"{mine[other.id]}; in the reference: {other.verdict}"
            yield Check(other.id, "ok" if mine[other.id] == other.verdict else "fail", said, fix)

"""What the commands do: each function is one command's steps, in order, over the other modules."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, NoReturn

from ae.engines.base import Engine, Job
from ae.engines.secrets import Given, resolve
from ae.errors import EnvironmentFault, ExitCode, UsageError, nearest
from ae.model import Flavour, ImageRef, Machine, Plan, Point, Status
from ae.plan.gpus import unknown_gpu
from ae.plan.selection import Request, select

if TYPE_CHECKING:
    from ae.images.content import BuildOptions
    from ae.plan.planner import Selection
    from ae.recipe.models import Recipe
    from ae.records.folder import Run, RunStore
    from ae.run.loop import Result


def print_plan(request: Request, *, as_json: bool) -> int:
    """`ae run --dry-run`: the plan and the command a person could type instead, per point."""
    from ae.plan.planner import describe

    root, recipe = _load(request.recipe)
    given = _secrets(recipe, request)
    plan = _plan_for_reading(root, recipe, request, given)
    commands = {
        point.id: _equivalent(root, request.engine, point, given.files) for point in plan.points
    }
    if as_json:
        _print_json(describe(plan) | {"commands": {k: list(v) for k, v in commands.items()}})
        return ExitCode.OK
    from shlex import join

    from ae.units import format_seconds

    _say_notes(plan)
    for point in plan.points:
        print(f"{point.id}  (about {format_seconds(point.expected_s)}, {point.image.reference})")
        print(f"  {join(commands[point.id])}")
    return ExitCode.OK


def run_recipe(request: Request, *, resume: bool, build: BuildOptions | None, as_json: bool) -> int:
    """`ae run`: plan, engine, points, then results, figures and verdicts.

    `build` says how to build an image that is missing or out of date; None: stop instead.
    """
    from ae.engines.choose import choose
    from ae.host import signals
    from ae.host.watchdog import Reaper
    from ae.images import lockfile, settings
    from ae.run.display import Display
    from ae.run.loop import execute

    root, recipe = _load(request.recipe)
    with signals.handled():
        run = _store(root).find(recipe.name) if resume else None
        selection = _stored_selection(run) if run and request.is_plain else select(request, recipe)
        given = _secrets(recipe, request)
        machine = _machine(request)
        plan = _plan(root, recipe, selection, machine, given)
        with Reaper.start() as reaper:
            engine = choose(request.engine, plan.flavour, root=root, reaper=reaper, build=build)
            run = _begin(root, plan, engine, machine, resumed=run)
            display = Display(plan.points)
            _say_notes(plan)
            if engine.name != "local":
                for note in lockfile.notes(_images(plan), settings.registry()):
                    display.say(f"note: {note}")
            display.say(f"run {run.name} on engine {engine.name}: {len(plan.points)} points")
            _import_ahead("ae.report.chapter", "rich.table")
            try:
                result = execute(
                    plan,
                    engine,
                    run,
                    display,
                    _labels(run),
                    root / "recipes" / recipe.name,
                    given.files,
                )
            finally:
                display.close()
                run.close()
        return _conclude(root, recipe, run, result, as_json=as_json)


def _conclude(root: Path, recipe: Recipe, run: Run, result: Result, *, as_json: bool) -> int:
    from ae.claims.verdicts import write_claims
    from ae.records.results import load_run
    from ae.report.chapter import chapter_json, chapter_text, conclude

    chapter = conclude(root, recipe, load_run(run.path), run.path / "figures")
    write_claims(run.path, chapter.judgements)
    if as_json:
        statuses = {name: status["status"] for name, status in run.statuses().items()}
        _print_json(chapter_json(chapter) | {"points": statuses, "folder": str(run.path)})
    else:
        print(chapter_text(chapter))
        print(f"\nrun {run.name}: {run.path}")
        print(f"verdicts: ae check {recipe.name} {run.name}")
    for name, outcome in result.failures.items():
        log = run.path / "points" / name / "stderr.log"
        print(f"failed: {name}: {outcome.reason} (see {log})", file=sys.stderr)
    if result.failures:
        return ExitCode.WORKLOAD
    if not result.kept and result.count(Status.DONE) == 0:
        reasons = "; ".join(f"{name}: {o.reason}" for name, o in result.outcomes.items())
        raise EnvironmentFault(
            f"this machine could run none of the points: {reasons}",
            fix=f"see `ae doctor {recipe.name}`",
        )
    return ExitCode.OK


def build_images(
    names: Sequence[str],
    *,
    flavour: str | None,
    lane: str | None,
    options: BuildOptions,
    dry_run: bool,
) -> int:
    """`ae build`: build the image of each paper, with live output."""
    from shlex import join

    from ae.daemon.connection import connect, endpoint_of
    from ae.host import signals
    from ae.images.build import build, describe
    from ae.images.sbom import write_sbom
    from ae.run.display import Display

    root = _root()
    chosen = choose_images(names, flavour=flavour, lane=lane)
    with signals.handled():
        if dry_run:
            for image in chosen:
                for argv in describe(root, image, options):
                    print(join(argv))
            return ExitCode.OK
        daemon = connect(endpoint_of())
        for image in chosen:
            built = build(root, image, Display(()), options)
            print(built.sentence)
            path = built.log.with_suffix(".spdx.json")
            print(f"SBOM: {write_sbom(daemon, built.reference, path)} packages in {path}")
        daemon.close()
    return ExitCode.OK


def show_sbom(name: str, *, flavour: str | None, lane: str | None, output: Path | None) -> None:
    """`ae sbom`: what the image that the engine holds is made of."""
    from ae.daemon.connection import connect, endpoint_of
    from ae.host import signals
    from ae.images.sbom import as_text, describe_image

    (image,) = choose_images([name], flavour=flavour, lane=lane)
    with signals.handled():
        daemon = connect(endpoint_of())
        text = as_text(describe_image(daemon, image.reference))
        daemon.close()
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


def choose_images(names: Sequence[str], *, flavour: str | None, lane: str | None) -> list[ImageRef]:
    """The images that a person means by names of recipes or images. Raises UsageError."""
    from ae.images.content import image_ref

    root = _root()
    folders = [_image_folder(root, name, lane) for name in names]
    return [image_ref(root, one, _flavour_of(root, one, flavour)) for one in folders]


def open_shell(
    name: str,
    *,
    engine_name: str | None,
    image: str | None,
    secrets: Mapping[str, str],
) -> NoReturn:
    """`ae shell`: replace this process by a shell in the place where points run."""
    from ae.engines.choose import choose
    from ae.images.content import BuildOptions
    from ae.records.folder import results_dir
    from ae.run.display import Display

    root, recipe = _load(name)
    request = Request(recipe=name, settings={}, image=image, engine=engine_name, secrets=secrets)
    given = _secrets(recipe, request)
    plan = _plan(root, recipe, select(request, recipe), _machine(request), given)
    image_ref = plan.points[0].image
    engine = choose(engine_name, plan.flavour, root=root, build=BuildOptions())
    if not engine.has_image(image_ref):
        engine.prepare(image_ref, Display(()))
    out = results_dir(root) / "shell" / name
    out.mkdir(parents=True, exist_ok=True)
    argv, environment = engine.shell(plan.points[0], out, given.files)
    print(f"shell of {name} on engine {engine.name}; $AE_OUT is {out}", file=sys.stderr)
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        raise EnvironmentFault(
            f"{argv[0]} cannot be started: {error.strerror}", fix=f"install {argv[0]}"
        ) from error


def clean_leftovers(*, dry_run: bool, as_json: bool) -> int:
    """`ae clean`: remove what dead launchers left behind, and nothing else."""
    from dataclasses import asdict

    from ae.commands.clean import clean

    found = clean(_root(), dry_run=dry_run)
    if as_json:
        _print_json([asdict(leftover) for leftover in found])
        return ExitCode.OK
    for leftover in found:
        verb = "would remove" if dry_run else "removed"
        print(
            f"{verb} {leftover.kind} {leftover.id[:12]} of run {leftover.run} ({leftover.engine})"
        )
    if not found:
        print("nothing is left behind")
    return ExitCode.OK


def _equivalent(
    root: Path, engine_name: str | None, point: Point, secrets: Mapping[str, Path]
) -> tuple[str, ...]:
    """The command for one point, made without touching any engine."""
    from ae.engines.choose import make

    engine = make(engine_name or "docker", root=root)
    return engine.equivalent(
        Job(point=point, out=Path("OUT").absolute(), labels={}, secrets=secrets)
    )


def _load(name: str) -> tuple[Path, Recipe]:
    from ae.recipe.models import load_recipe

    root = _root()
    return root, load_recipe(root, name)


def _root() -> Path:
    from ae.recipe.models import find_root

    return find_root()


def _store(root: Path) -> RunStore:
    from ae.records.folder import RunStore, results_dir

    return RunStore(results_dir(root))


def _secrets(recipe: Recipe, request: Request) -> Given:
    """The secrets that a person gave for a recipe; says what should be known about them."""
    known = recipe.secrets()
    if not known and not request.secrets:
        return Given({})
    given = resolve(known, request.secrets, os.environ)
    for note in given.notes:
        print(f"note: {note}", file=sys.stderr)
    return given


def _machine(request: Request) -> Machine:
    """What the planner may know of the machine that points run on: this one, or the daemon's."""
    from ae.daemon.connection import connect, endpoint_of, looks_far
    from ae.host.machine import detect

    if request.engine in (None, "docker") and looks_far(endpoint := endpoint_of()):
        from ae.engines.far import machine_of
        from ae.plan.selection import parse_gpus

        count, devices = parse_gpus(request.gpus)
        try:
            daemon = connect(endpoint)
        except EnvironmentFault:
            if request.engine == "docker" and not request.dry_run:
                raise
            return detect()  # it cannot be asked: another engine may do, and a plan needs none
        try:
            return machine_of(daemon, devices or count)
        finally:
            daemon.close()
    return detect()


def _plan(root: Path, recipe: Recipe, selection: Selection, machine: Machine, given: Given) -> Plan:
    from ae.images import bake
    from ae.images.content import content_hash
    from ae.plan.planner import make_plan

    name = recipe.image_of(selection.lane) if selection.lane in recipe.lanes else recipe.image
    there = (root / "images" / name / "Dockerfile").is_file()
    content = {name: content_hash(root, name)} if there else {}
    described = (root / "images" / name / "bake.hcl").is_file()
    flavours = {name: bake.flavours(root, name)} if described else {}
    return make_plan(recipe, selection, machine, root, content, given.files, flavours)


def _plan_for_reading(root: Path, recipe: Recipe, request: Request, given: Given) -> Plan:
    """The plan for this machine; where its GPUs will not do, for one whose GPUs would."""
    selection, machine = select(request, recipe), _machine(request)
    try:
        return _plan(root, recipe, selection, machine, given)
    except EnvironmentFault as fault:
        fitting = tuple(unknown_gpu(str(index)) for index in range(recipe.most_gpus()))
        plan = _plan(root, recipe, selection, replace(machine, gpus=fitting), given)
        note = f"{fault.message}; this is the plan for a machine with the GPUs that it needs"
        return replace(plan, notes=(*plan.notes, note))


def _say_notes(plan: Plan) -> None:
    for note in plan.notes:
        print(f"note: {note}", file=sys.stderr)


def _images(plan: Plan) -> list[ImageRef]:
    return list({point.image.reference: point.image for point in plan.points}.values())


def _begin(root: Path, plan: Plan, engine: Engine, machine: Machine, *, resumed: Run | None) -> Run:
    """A new run folder, or the old one with the plan that is now followed."""
    from ae.records.provenance import gather

    facts = gather(root, plan.recipe, engine.name, engine.available(), machine)
    if resumed is None:
        return _store(root).create(plan.recipe, plan, facts)
    resumed.resume(plan, facts)
    return resumed


def _stored_selection(run: Run) -> Selection:
    from ae.plan.planner import Selection

    return Selection.from_json(run.facts["plan"]["selection"])


def _import_ahead(*modules: str) -> None:
    """Import what the end of a run needs while the first point runs and this process waits."""

    def work() -> None:
        for module in modules:
            import_module(module)

    Timer(0.1, work).start()  # not while the point is being started


def _labels(run: Run) -> dict[str, str]:
    return {
        "ae.run": run.name,
        "ae.recipe": run.recipe,
        "ae.host": socket.gethostname(),
        "ae.pid": str(os.getpid()),
    }


def _flavour_of(root: Path, image: str, word: str | None) -> Flavour:
    """The flavour asked for; else what the machine has, where the image comes in several."""
    from ae.host.machine import detect
    from ae.images.bake import flavours

    known = flavours(root, image)
    if word is None:
        wanted = Flavour.CUDA if detect().gpus else Flavour.CPU
        return wanted if wanted in known else known[0]
    if word not in known:
        raise UsageError(
            f"the image {image} has no flavour '{word}'; {nearest(word, known)}",
            fix=f"--flavour {known[0]}",
        )
    return Flavour(word)


def _image_folder(root: Path, name: str, lane: str | None = None) -> str:
    """The image of a recipe's lane; a name that is no recipe is taken for an image's."""
    from ae.recipe.models import list_recipes, load_recipe

    known = list_recipes(root)
    if name not in known:
        images = {path.parent.name for path in (root / "images").glob("*/Dockerfile")}
        if name not in images:
            raise UsageError(
                f"there is no recipe or image '{name}'; {nearest(name, {*known, *images})}",
                fix="see `ae list`",
            )
        return name
    recipe = load_recipe(root, name)
    if lane is None:
        return recipe.image
    if lane not in recipe.lanes:
        raise UsageError(
            f"{name} has no lane '{lane}'; {nearest(lane, recipe.lanes)}", fix="see `ae list`"
        )
    return recipe.image_of(lane)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, default=str))

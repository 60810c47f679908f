"""The planner: recipe, selection and machine facts in, a list of points out. Pure, no I/O."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic_core import to_jsonable_python

from ae.errors import EnvironmentFault, UsageError
from ae.model import Flavour, ImageRef, Machine, Plan, Point
from ae.plan.gpus import LEFT_OUT, Note, choices_of
from ae.plan.points import points_of, runtime_needs, secrets_of, with_unique_ids
from ae.plan.selection import Selection, check_selection, parameter_values, reductions
from ae.recipe.models import Recipe
from ae.recipe.rules import placeholders
from ae.units import counted


def make_plan(
    recipe: Recipe,
    selection: Selection,
    machine: Machine,
    root: Path,
    content: Mapping[str, str],
    secrets: Collection[str] = (),
    flavours: Mapping[str, Sequence[Flavour]] | None = None,
) -> Plan:
    """Return the points to run, in order, each with all that an engine needs.

    `content` maps image folder names to their content hashes, `flavours` to what they come in
    (left out: in all); `secrets` are the names of those that the person gave. Raises UsageError
    for a selection that names what does not exist, EnvironmentFault when the machine cannot run
    what was asked for by name, or nothing at all.
    """
    selection = check_selection(recipe, selection)
    name = recipe.image_of(selection.lane)
    if name not in content:
        raise UsageError(
            f"the {selection.lane} lane of {recipe.name} cannot be run yet: "
            f"there is no images/{name}",
            fix=f"write it, or use another lane: {', '.join(recipe.lanes)}",
        )
    # An image of the authors comes for GPUs alone: its points without one run in it, too.
    allowed = (flavours or {}).get(name, tuple(Flavour))
    image = ImageRef(
        name=name,
        flavour=allowed[0],
        content=content[name],
        source=root / "images" / name,
        override=selection.image_override,
    )
    values = parameter_values(recipe, selection)
    said: dict[Note, list[str]] = {}  # words before and after the names -> names of experiments
    refused: dict[str, UsageError | EnvironmentFault] = {}
    slots: list[list[Point]] = []  # every point, with its repeats
    for name in chosen_experiments(recipe, selection):
        axis = recipe.gpu_axis(name)
        try:
            variants = _variants(recipe, selection, name)
            ranges = _ranges(recipe, selection, name)
            choices, note = choices_of(recipe, selection, name, machine, ranges.get(axis, ("",)))
        except (UsageError, EnvironmentFault) as error:
            counted = axis in selection.axes and machine.gpus and selection.gpus != 0
            if name in selection.experiments or (counted and isinstance(error, EnvironmentFault)):
                raise
            message = error.message.removeprefix(name)
            rest = f": {message}" if message == error.message else message
            said.setdefault((LEFT_OUT, rest), []).append(name)
            refused[name] = error
            continue
        if note:
            said.setdefault(note, []).append(name)
        if axis:
            ranges[axis] = tuple(choices)
        given = secrets_of(recipe, name, secrets)
        if variants and not recipe.experiments[name].interleave:
            ranges["variant"] = variants
        for combination in itertools.product(*ranges.values()):
            labels = dict(zip(ranges, combination, strict=True))
            choice = choices[labels.get(axis, "")]
            flavour = choice.flavour if choice.flavour in allowed else allowed[0]
            each = points_of(
                recipe,
                name,
                labels,
                image=replace(image, flavour=flavour),
                variants=(labels["variant"],) if "variant" in labels else variants,
                needs=runtime_needs(recipe.needs_of(name), choice.request, given, root),
                gpu_models=choice.models,
                selection=selection,
                values=values,
            )
            slots.append(each)
    # Repeats outermost, so that drift hits all points alike.
    points = [point for repeat in itertools.zip_longest(*slots) for point in repeat if point]
    _check_served(recipe, selection, machine, points, refused)
    commands = {point.experiment: recipe.experiments[point.experiment].command for point in points}
    used = {key for words in commands.values() for _, key in placeholders(words)}
    unused = [f"--set {key} has no effect: no chosen experiment uses it"
              for key in selection.settings if key not in used]  # fmt: skip
    unbuilt = f"the {selection.lane} lane of {recipe.name} was written, never built by us"
    notes = [] if recipe.lanes[selection.lane].built else [unbuilt]
    notes += [start + ", ".join(names) + rest for (start, rest), names in said.items()]
    return Plan(
        recipe=recipe.name,
        lane=selection.lane,
        flavour=Flavour.CUDA if any(one.needs.gpus for one in points) else Flavour.CPU,
        quick=selection.quick,
        points=tuple(with_unique_ids(points)),
        selection=to_jsonable_python(selection),
        reduced=reductions(recipe, selection, values),
        notes=(*notes, *unused),
    )


def chosen_experiments(recipe: Recipe, selection: Selection) -> list[str]:
    """The experiments that were asked for, else those of a plain run. Raises UsageError."""
    asked, lane = selection.experiments, selection.lane
    for name in asked:
        if (own := recipe.experiments[name].lane) != lane:
            raise UsageError(f"{name} belongs to the {own} lane", fix=f"--lane {own}")
    plain = [n for n, one in recipe.experiments.items() if one.default and one.lane == lane]
    return [name for name in recipe.experiments if name in (asked or plain)]


def _variants(recipe: Recipe, selection: Selection, name: str) -> tuple[str, ...]:
    """The variants to measure, baselines included. Raises UsageError when no chosen one does."""
    taking_part = recipe.variants_of(name)
    if not selection.variants or (not taking_part and name in selection.experiments):
        return taking_part
    wanted = {name for name in taking_part if name in selection.variants}
    for _ in recipe.variants:  # and what they are compared with, however far up
        wanted |= {recipe.variants[name].baseline or name for name in wanted}
    if not wanted:
        raise UsageError(
            f"{name} has no variant {', '.join(selection.variants)}",
            fix=f"its variants: {', '.join(taking_part) or 'none'}",
        )
    return tuple(variant for variant in taking_part if variant in wanted)


def _ranges(recipe: Recipe, selection: Selection, name: str) -> dict[str, tuple[str, ...]]:
    """The values to run on every axis of an experiment, in the recipe's order.

    Raises UsageError where it has none of those that were asked for.
    """
    ranges = {}
    count = selection.gpus if isinstance(selection.gpus, int) else 0
    used = [key for _, key in placeholders(recipe.experiments[name].command)]
    replaced = {recipe.parameters[key].replaces for key in used if selection.settings.get(key)}
    for axis in recipe.experiments[name].axes:
        there, asked = recipe.possible_values(name, axis), selection.axes.get(axis)
        if not (found := tuple(value for value in there if asked is None or value in asked)):
            raise UsageError(
                f"{name} has no point with {axis} {', '.join(asked or ())}",
                fix=f"it has: {', '.join(there)}",
            )
        if count and axis == recipe.gpu_axis(name):
            if str(count) not in found:
                raise UsageError(
                    f"{name} of {recipe.name} has no point with {count} GPUs",
                    fix=f"--gpus with one of: {', '.join(found)}",
                )
            found = (str(count),)
        elif asked is None:
            found = recipe.values_of(name, axis, quick=selection.quick)
        ranges[axis] = found[:1] if axis in replaced else found
    return ranges


def _check_served(
    recipe: Recipe,
    selection: Selection,
    machine: Machine,
    points: Sequence[Point],
    refused: Mapping[str, UsageError | EnvironmentFault],
) -> None:
    """Raise where nothing runs, or nothing on the GPUs that a person named: never without them."""
    unserved = [error for name, error in refused.items() if recipe.gpu_axis(name)]
    served = any(recipe.gpu_axis(point.experiment) for point in points)
    if unserved and not served and all(isinstance(error, UsageError) for error in unserved):
        raise unserved[0]  # a count of GPUs that no experiment has
    asked = selection.gpus if isinstance(selection.gpus, int) else len(selection.gpus or ())
    if points and (not asked or any(point.needs.gpus for point in points)):
        return
    faults = [error for error in refused.values() if isinstance(error, EnvironmentFault)]
    if not faults and len(machine.gpus) < asked:
        raise EnvironmentFault(
            f"asked for: {counted(asked, 'GPU')}; this machine shows {len(machine.gpus) or 'none'}",
            fix="drop --gpus, or run where there are more; see `ae doctor`",
        )
    for error in (*faults, *refused.values()):
        raise error
    if not asked:
        raise UsageError(
            f"nothing to run: the {selection.lane} lane has no experiment of a plain run",
            fix=f"name one with --experiment: {', '.join(recipe.experiments)}",
        )
    with_gpus = [name for name, about in recipe.experiments.items() if about.gpu != "none"]
    raise UsageError(
        "GPUs were asked for, and no chosen experiment uses one",
        fix=f"drop --gpus, or name one that does: {', '.join(with_gpus) or 'there is none'}",
    )

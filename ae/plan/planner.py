"""The planner: recipe, selection and machine facts in, a list of points out. Pure, no I/O."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic_core import to_jsonable_python

from ae.errors import EnvironmentFault, UsageError
from ae.model import Flavour, Machine, Plan
from ae.plan.gpu_axis import PointGpus, choose_for_points, gpu_axis, values_with
from ae.plan.needs import runtime_needs, secrets_of
from ae.plan.points import Slot, image_of, names_in, point_of, with_unique_ids
from ae.plan.selection import (
    Selection,
    check_selection,
    parameter_values,
    reductions,
)
from ae.recipe.models import Recipe


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
    selection = check_selection(recipe, selection, content)
    values = parameter_values(recipe, selection)
    notes: list[str] = []
    if not recipe.lanes[selection.lane].built:
        notes.append(f"the {selection.lane} lane of {recipe.name} was written, never built by us")
    refused: dict[str, UsageError | EnvironmentFault] = {}
    slots: list[Slot] = []
    for name in _experiments(recipe, selection):
        found = _taking_part(recipe, selection, name, machine, notes, refused)
        if found is None:
            continue
        variants, ranges, gpus = found
        given = secrets_of(recipe, name, secrets)
        for labels, chosen in _combinations(recipe, name, ranges, variants):
            choice = gpus.of(labels)
            image = image_of(recipe, selection, choice, root, content, flavours or {})
            needs = runtime_needs(recipe.needs_of(name), choice.request, root)
            needs = replace(needs, secrets=given)
            slots.append(Slot(name, labels, chosen, image, needs, choice.gpus))
    counted = [error for name, error in refused.items() if gpu_axis(recipe, name)]
    if any(gpu_axis(recipe, slot.experiment) for slot in slots):
        counted = []
    if counted and all(isinstance(error, UsageError) for error in counted):
        raise counted[0]  # a count of GPUs that no experiment has
    if not slots:
        raise _nothing(recipe, selection, list(refused.values()))
    if selection.gpus and not any(slot.needs.gpus for slot in slots):
        raise _without_gpus(recipe, selection, machine, list(refused.values()))
    notes += _full_size_on_cpu(recipe, selection, slots)
    points = [
        point_of(recipe, slot, values, repeat, selection.quick)
        for repeat in range(selection.repeat)  # outermost, so that drift hits all points alike
        for slot in slots
    ]
    used = {name for slot in slots for name in names_in(recipe.experiments[slot.experiment])}
    notes += [
        f"--set {key} has no effect: no chosen experiment uses it"
        for key in selection.settings
        if key not in used
    ]
    on_gpu = any(slot.needs.gpus is not None for slot in slots)
    return Plan(
        recipe=recipe.name,
        lane=selection.lane,
        flavour=Flavour.CUDA if on_gpu else Flavour.CPU,
        quick=selection.quick,
        points=tuple(with_unique_ids(points)),
        selection=to_jsonable_python(selection),
        reduced=reductions(recipe, selection, values),
        notes=tuple(notes),
    )


def _taking_part(
    recipe: Recipe,
    selection: Selection,
    name: str,
    machine: Machine,
    notes: list[str],
    refused: dict[str, UsageError | EnvironmentFault],
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]], PointGpus] | None:
    """Variants, ranges of the axes and GPUs of an experiment; None when it is left out.

    Then `notes` get the reason, and `refused` the error that it would be if nothing else ran.
    """
    named = name in selection.experiments
    variants = _variants(recipe, selection, name)
    if variants is None:
        notes.append(f"left out: {name}: none of the chosen variants takes part")
        return None
    on_cpu = selection.flavour is Flavour.CPU or selection.gpus == 0 or not machine.gpus
    axis = gpu_axis(recipe, name)
    try:
        ranges = _ranges(recipe, selection, name)
        if lacking := next((axis for axis, there in ranges.items() if not there), None):
            what = f"{lacking} {', '.join(selection.axes[lacking])}"
            if named:
                there = recipe.possible_values(name, lacking)
                raise UsageError(
                    f"{name} has no point with {what}", fix=f"it has: {', '.join(there)}"
                )
            notes.append(f"left out: {name}: no point with {what}")
            return None
        gpus = choose_for_points(recipe, selection, name, machine, ranges.get(axis or "", ()))
    except UsageError as error:
        if named:
            raise
        notes.append(f"left out: {error.message}")
        refused[name] = error
        return None
    except EnvironmentFault as fault:
        if named or (axis in selection.axes and not on_cpu):
            raise
        notes.append(f"left out: {fault.message}")
        refused[name] = fault
        return None
    notes += gpus.notes
    if gpus.axis:
        ranges[gpus.axis] = tuple(str(value) for value in gpus.choices)
    return variants, ranges, gpus


def _full_size_on_cpu(recipe: Recipe, selection: Selection, slots: Iterable[Slot]) -> Iterator[str]:
    """A note on what GPUs are meant for, runs on the CPU, and would be smaller with --quick."""
    small = {key for key, about in recipe.parameters.items() if about.quick is not None}
    small |= {axis for axis, about in recipe.axes.items() if about.quick}
    names = [
        name
        for name in dict.fromkeys(slot.experiment for slot in slots if slot.needs.gpus is None)
        if recipe.experiments[name].gpu == "optional" and small & names_in(recipe.experiments[name])
    ]
    if names and not selection.quick:
        yield (
            f"{', '.join(names)}: at full size this may take a CPU far longer than the times "
            "shown, or more memory than there is; --quick is the size for a CPU"
        )


def _experiments(recipe: Recipe, selection: Selection) -> list[str]:
    chosen = []
    for name, experiment in recipe.experiments.items():
        named = name in selection.experiments
        if named and experiment.lane != selection.lane:
            raise UsageError(
                f"{name} belongs to the {experiment.lane} lane", fix=f"--lane {experiment.lane}"
            )
        plain = not selection.experiments and experiment.default
        if named or (plain and experiment.lane == selection.lane):
            chosen.append(name)
    return chosen


def _variants(recipe: Recipe, selection: Selection, name: str) -> tuple[str, ...] | None:
    """The variants to measure, baselines included; None when no chosen one takes part."""
    taking_part = recipe.variants_of(name)
    if not selection.variants:
        return taking_part
    if not set(selection.variants) & set(taking_part):
        if name not in selection.experiments:
            return None
        if not taking_part:
            return ()
        raise UsageError(
            f"{name} has no variant {', '.join(selection.variants)}",
            fix=f"its variants: {', '.join(taking_part)}",
        )
    wanted: set[str] = set()
    for variant in set(selection.variants) & set(taking_part):
        above: str | None = variant
        while above is not None and above not in wanted:
            wanted.add(above)
            above = recipe.variants[above].baseline
    return tuple(variant for variant in taking_part if variant in wanted)


def _ranges(recipe: Recipe, selection: Selection, name: str) -> dict[str, tuple[str, ...]]:
    """The values to run on every axis of an experiment, in the recipe's order; some may be none."""
    ranges = {}
    for axis in recipe.experiments[name].axes:
        asked = selection.axes.get(axis)
        if asked is None:
            ranges[axis] = recipe.values_of(name, axis, quick=selection.quick)
        else:
            there = recipe.possible_values(name, axis)
            ranges[axis] = tuple(value for value in there if value in asked)
    axis, count = gpu_axis(recipe, name) or "", selection.gpus
    if isinstance(count, int) and count > 0 and ranges.get(axis):
        there = ranges[axis] if axis in selection.axes else recipe.possible_values(name, axis)
        ranges[axis] = values_with(recipe, name, there, count)
    return ranges


def _combinations(
    recipe: Recipe,
    name: str,
    ranges: Mapping[str, tuple[str, ...]],
    variants: tuple[str, ...],
) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    """Labels and variants of every point of an experiment, in the recipe's order."""
    experiment = recipe.experiments[name]
    for combination in itertools.product(*ranges.values()):
        labels = dict(zip(experiment.axes, combination, strict=True))
        if experiment.interleave or not variants:
            yield labels, variants
        else:
            for variant in variants:
                yield labels | {"variant": variant}, (variant,)


def _nothing(
    recipe: Recipe, selection: Selection, refused: Sequence[UsageError | EnvironmentFault]
) -> UsageError | EnvironmentFault:
    if refused:
        return refused[0]
    axes = (f"{axis} {', '.join(values)}" for axis, values in selection.axes.items())
    what = ", ".join([*selection.variants, *axes]) or f"the {selection.lane} lane"
    return UsageError(
        f"nothing to run: no experiment of a plain run has {what}",
        fix=f"name one with --experiment: {', '.join(recipe.experiments)}",
    )


def _without_gpus(
    recipe: Recipe,
    selection: Selection,
    machine: Machine,
    refused: Sequence[UsageError | EnvironmentFault],
) -> UsageError | EnvironmentFault:
    """A person who names GPUs is never given a run without."""
    if refused:
        return refused[0]
    asked = selection.gpus if isinstance(selection.gpus, int) else len(selection.gpus or ())
    if len(machine.gpus) < asked:
        return EnvironmentFault(
            f"{asked} GPUs were asked for, and this machine shows {len(machine.gpus) or 'none'}",
            fix="drop --gpus, or run where there are more; see `ae doctor`",
        )
    with_gpus = [name for name, about in recipe.experiments.items() if about.gpu != "none"]
    return UsageError(
        "GPUs were asked for, and no chosen experiment uses one",
        fix=f"drop --gpus, or name one that does: {', '.join(with_gpus) or 'there is none'}",
    )

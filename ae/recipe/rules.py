"""What a recipe must obey beyond its schema: names that exist, placeholders, no loops. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from string import Formatter

from ae.errors import nearest
from ae.recipe.models import Recipe
from ae.recipe.needs import GpuNeed
from ae.recipe.yamlfile import Document, Place, dotted

LANES = ("native", "upstream")
BUILT_IN = frozenset({"variants", "variant", "device", "repeat"})

Faults = Iterator[tuple[Place, str, str]]  # where, what is wrong, and the fix


def check_recipe(recipe: Recipe, document: Document, *, folder: str, images: Sequence[str]) -> None:
    """Raise RecipeError, with file and line, for the first thing that does not fit together."""
    for place, message, fix in _faults(recipe, folder, images):
        raise document.fault(place, message, fix=fix)


def placeholders(words: Sequence[str]) -> list[tuple[int, str]]:
    """The placeholders of a command as (position of the word, name). Raises ValueError."""
    found = []
    for index, word in enumerate(words):
        for _, field, spec, conversion in Formatter().parse(word):
            if field is None:
                continue
            if spec or conversion or not field.isidentifier():
                raise ValueError(f"'{word}' is not plain text with {{names}}")
            found.append((index, field))
    return found


def _faults(recipe: Recipe, folder: str, images: Sequence[str]) -> Faults:
    """Every fault; what comes later may rely on what comes first, so only the first counts."""
    if recipe.name != folder:
        message = f"name is '{recipe.name}' but the folder is '{folder}'"
        yield ("name",), message, f"write `name: {folder}` or rename the folder"
    yield from _lanes(recipe, images)
    yield from _variants(recipe)
    yield from _names(recipe)
    yield from _axes(recipe)
    yield from _gpu_count(recipe, (), recipe.needs.gpus)
    for name in recipe.experiments:
        yield from _experiment(recipe, name)
    yield from _use(recipe)
    yield from _outputs(recipe)


def _unknown(place: Place, word: str, name: str, known: Collection[str], fix: str = "") -> Faults:
    if name not in known:
        message = f"unknown {word} '{name}' in {dotted(place)}; {nearest(name, known)}"
        yield place, message, fix or "name one that exists, or add it"


def _lanes(recipe: Recipe, images: Sequence[str]) -> Faults:
    for name in recipe.lanes:
        if name not in LANES:
            message = f"there is no lane '{name}'; {nearest(name, LANES)}"
            yield ("lanes", name), message, "a lane is `native` (ours) or `upstream` (the authors')"
    fix = "make a folder for it under images/"
    yield from _unknown(("image",), "image", recipe.image, images, fix)
    for name, lane in recipe.lanes.items():
        if lane.image and lane.built:
            yield from _unknown(("lanes", name, "image"), "image", lane.image, images, fix)


def _variants(recipe: Recipe) -> Faults:
    for name, variant in recipe.variants.items():
        place = ("variants", name, "baseline")
        if variant.baseline is None:
            continue
        yield from _unknown(place, "variant", variant.baseline, recipe.variants)
        chain, above = [name], variant.baseline
        while above in recipe.variants and above not in chain:
            chain.append(above)
            above = recipe.variants[above].baseline or ""
        if above in chain:
            message = f"baselines go in a circle: {' -> '.join([*chain, above])}"
            yield place, message, "let one of them have no baseline"


def _names(recipe: Recipe) -> Faults:
    for section in ("parameters", "axes"):
        for name in getattr(recipe, section):
            if name in BUILT_IN:
                message = f"'{name}' is a placeholder with a meaning of its own"
                yield (section, name), message, "choose another name"
    for name in recipe.axes:
        if name in recipe.parameters:
            yield ("axes", name), f"'{name}' is both a parameter and an axis", "rename one of them"


def _axes(recipe: Recipe) -> Faults:
    for name, axis in recipe.axes.items():
        for index, value in enumerate(axis.quick):
            yield from _unknown(("axes", name, "quick", index), "value", value, axis.values)
        if not any(value.default for value in axis.values.values()):
            message = f"no value of the axis '{name}' is part of a plain run"
            yield ("axes", name, "values"), message, "drop `default: false` from at least one"


def _gpu_count(recipe: Recipe, place: Place, need: GpuNeed | None) -> Faults:
    """An axis that says how many GPUs a point gets must be there, with counts as values."""
    if need is None or need.axis is None:
        return
    yield from _unknown((*place, "needs", "gpus", "count"), "axis", need.axis, recipe.axes)
    for value in recipe.axes[need.axis].values:
        if not value.isdecimal() or value.startswith("0"):
            message = f"'{value}' is not a number of GPUs"
            fix = "write whole numbers from 1 on, in quotes"
            yield ("axes", need.axis, "values", value), message, fix


def _experiment(recipe: Recipe, name: str) -> Faults:
    experiment, place = recipe.experiments[name], ("experiments", name)
    yield from _unknown((*place, "lane"), "lane", experiment.lane, recipe.lanes)
    for index, axis in enumerate(experiment.axes):
        yield from _unknown((*place, "axes", index), "axis", axis, recipe.axes)
    if experiment.variants != ("all",):
        for index, variant in enumerate(experiment.variants):
            yield from _unknown((*place, "variants", index), "variant", variant, recipe.variants)
    for word in ("axes", "variants"):
        items = getattr(experiment, word)
        if len(set(items)) < len(items):
            yield (*place, word), "names something twice", "drop one of them"
    for span in ("full", "quick"):
        if getattr(experiment.timeout, span) < getattr(experiment.time, span):
            message = f"the {span} timeout is shorter than the expected time"
            yield (*place, "timeout", span), message, "raise the timeout or lower the time"
    yield from _only(recipe, name)
    yield from _gpus(recipe, name)
    yield from _command(recipe, name)
    needs = recipe.needs_of(name)
    if needs.ipc and needs.ipc.value == "host" and needs.shm_size:
        fix = "with the host's ipc the host's /dev/shm is used: drop shm_size"
        yield (*place, "needs"), "`ipc: host` and `shm_size` exclude each other", fix


def _only(recipe: Recipe, name: str) -> Faults:
    experiment = recipe.experiments[name]
    for axis, values in experiment.only.items():
        place = ("experiments", name, "only", axis)
        yield from _unknown(place, "axis", axis, experiment.axes, "name an axis of the experiment")
        for index, value in enumerate(values):
            yield from _unknown((*place, index), "value", value, recipe.axes[axis].values)
        if not values:
            yield place, "names no value", "name one, or drop it"


def _gpus(recipe: Recipe, name: str) -> Faults:
    experiment, need = recipe.experiments[name], recipe.needs_of(name).gpus
    place = ("experiments", name)
    yield from _gpu_count(recipe, place, experiment.needs.gpus)
    if experiment.gpu == "required" and need is None:
        fix = "say under needs what the GPU must offer, and why"
        yield (*place, "gpu"), "`gpu: required` without `needs.gpus`", fix
    if experiment.gpu != "none" and need and need.axis and need.axis not in experiment.axes:
        message = f"{name} lacks the axis '{need.axis}' that says how many GPUs it gets"
        yield place, message, f"add '{need.axis}' to its axes, or give it `needs.gpus` of its own"


def _command(recipe: Recipe, name: str) -> Faults:
    experiment, place = recipe.experiments[name], ("experiments", name, "command")
    try:
        found = placeholders(experiment.command)
    except ValueError as error:
        yield place, f"{dotted(place)}: {error}", "write a brace of its own as {{ or }}"
        return
    known = {"device", "repeat", *recipe.parameters, *experiment.axes}
    takes_part = bool(recipe.variants_of(name))
    if takes_part:
        known |= {"variants"} if experiment.interleave else {"variants", "variant"}
    for index, field in found:
        if field not in known:
            fix = nearest(field, known)
            if field in recipe.axes:
                fix = f"add '{field}' to the experiment's axes"
            elif field in ("variant", "variants"):
                fix = "write {variants}, or set `interleave: false`"
                fix = fix if takes_part else "give the experiment variants"
            message = f"nobody defines the placeholder {{{field}}} in {dotted(place)}"
            yield (*place, index), message, fix
    used = {field for _, field in found}
    for index, axis in enumerate(experiment.axes):
        if axis not in used:
            fix = f"pass {{{axis}}} to the workload, or drop the axis"
            message = f"the command does not use the axis '{axis}'"
            yield ("experiments", name, "axes", index), message, fix
    if takes_part and not used & {"variant", "variants"}:
        fix = "pass {variants} to the workload (or {variant} with `interleave: false`)"
        yield place, "the command does not say which variants to run", fix


def _use(recipe: Recipe) -> Faults:
    used = {f for e in recipe.experiments.values() for _, f in placeholders(e.command)}
    for section, word in (("parameters", "parameter"), ("axes", "axis")):
        for name in getattr(recipe, section):
            if name not in used:
                fix = f"write {{{name}}} into a command, or drop it"
                yield (section, name), f"no command uses the {word} '{name}'", fix
    for lane, about in recipe.lanes.items():
        planned = any(e.default and e.lane == lane for e in recipe.experiments.values())
        announced = lane != "native" and not about.built
        if not planned and not announced:
            message = f"no experiment is part of a plain run of the lane {lane}"
            yield ("experiments",), message, "set `default: true` for at least one"


def _outputs(recipe: Recipe) -> Faults:
    for name, figure in recipe.figures.items():
        for index, experiment in enumerate(figure.experiments):
            place = ("figures", name, "experiments", index)
            yield from _unknown(place, "experiment", experiment, recipe.experiments)
    if recipe.table is not None and recipe.table.baseline is not None:
        baseline = recipe.table.baseline
        yield from _unknown(("table", "baseline"), "variant", baseline, recipe.variants)

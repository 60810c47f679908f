"""What a recipe must obey beyond its schema: names that exist, placeholders, no loops. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from string import Formatter

from ae.errors import nearest
from ae.recipe.models import Recipe
from ae.recipe.yamlfile import Document, Place, dotted

BUILT_IN = frozenset({"variants", "variant", "device", "repeat"})

Faults = Iterator[tuple[Place, str, str]]  # where, what is wrong, and the fix
# Where, of what kind, the name (empty: not given) and those that there are.
References = Iterator[tuple[Place, str, str | None, Collection[str]]]


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
    yield from _axes(recipe)
    for place, word, name, known in _references(recipe, images):
        if name and name not in known:
            message = f"unknown {word} '{name}' in {dotted(place)}; {nearest(name, known)}"
            yield place, message, "name one that exists, or add it"
    yield from _circles(recipe)
    for name in recipe.experiments:
        yield from _experiment(recipe, name)
        yield from _command(recipe, name)
    yield from _use(recipe)


def _references(recipe: Recipe, images: Sequence[str]) -> References:
    """Every name that must be one of others."""
    yield ("image",), "image", recipe.image, images
    for name, lane in recipe.lanes.items():
        yield ("lanes", name), "lane", name, ("native", "upstream")
        yield ("lanes", name, "image"), "image", lane.image if lane.built else "", images
    for name, variant in recipe.variants.items():
        yield ("variants", name, "baseline"), "variant", variant.baseline, recipe.variants
    for name, axis in recipe.axes.items():
        yield from _each(("axes", name, "quick"), "value", axis.quick, axis.values)
    for name, about in recipe.parameters.items():
        yield ("parameters", name, "replaces"), "axis", about.replaces, recipe.axes
    counting = recipe.needs.gpus.axis if recipe.needs.gpus else ""
    yield ("needs", "gpus", "count"), "axis", counting, recipe.axes
    for name, one in recipe.experiments.items():
        place: Place = ("experiments", name)
        variants = () if one.variants == ("all",) else one.variants
        yield (*place, "lane"), "lane", one.lane, recipe.lanes
        yield from _each((*place, "axes"), "axis", one.axes, recipe.axes)
        yield from _each((*place, "variants"), "variant", variants, recipe.variants)
        for within, values in one.only.items():
            yield (*place, "only", within), "axis", within, one.axes
            known = recipe.axes[within].values
            yield from _each((*place, "only", within), "value", values, known)
        counting = one.needs.gpus.axis if one.needs.gpus else ""
        yield (*place, "needs", "gpus", "count"), "axis", counting, recipe.axes
    for name, figure in recipe.figures.items():
        place = ("figures", name, "experiments")
        yield from _each(place, "experiment", figure.experiments, recipe.experiments)
    yield ("table", "baseline"), "variant", recipe.table.baseline, recipe.variants


def _each(place: Place, word: str, names: Sequence[str], known: Collection[str]) -> References:
    return (((*place, index), word, name, known) for index, name in enumerate(names))


def _circles(recipe: Recipe) -> Faults:
    above = {name: [one.baseline] for name, one in recipe.variants.items() if one.baseline}
    try:
        TopologicalSorter(above).prepare()
    except CycleError as error:
        message = f"baselines go in a circle: {' -> '.join(error.args[1])}"
        yield ("variants", error.args[1][0], "baseline"), message, "let one of them have none"


def _axes(recipe: Recipe) -> Faults:
    """Names of parameters and axes, and values of axes, those that count GPUs above all."""
    for section, taken in (("parameters", BUILT_IN), ("axes", BUILT_IN | set(recipe.parameters))):
        for name in getattr(recipe, section):
            if name in taken:
                fix = "choose a name that no placeholder, parameter or axis has"
                yield (section, name), f"the name '{name}' is taken", fix
    needs = [recipe.needs, *(experiment.needs for experiment in recipe.experiments.values())]
    counting = {need.gpus.axis for need in needs if need.gpus}
    for name, axis in recipe.axes.items():
        if not any(value.default for value in axis.values.values()):
            message = f"no value of the axis '{name}' is part of a plain run"
            yield ("axes", name, "values"), message, "drop `default: false` from at least one"
        for value in axis.values:
            if name in counting and (not value.isdecimal() or value.startswith("0")):
                message = f"'{value}' is not a number of GPUs"
                fix = "write whole numbers from 1 on, in quotes"
                yield ("axes", name, "values", value), message, fix


def _experiment(recipe: Recipe, name: str) -> Faults:
    experiment, place = recipe.experiments[name], ("experiments", name)
    needs = recipe.needs_of(name)
    for word in ("axes", "variants"):
        items = getattr(experiment, word)
        if len(set(items)) < len(items):
            yield (*place, word), "names something twice", "drop one of them"
    for span in ("full", "quick"):
        if getattr(experiment.timeout, span) < getattr(experiment.time, span):
            message = f"the {span} timeout is shorter than the expected time"
            yield (*place, "timeout", span), message, "raise the timeout or lower the time"
    if experiment.gpu == "required" and needs.gpus is None:
        fix = "say under needs what the GPU must offer, and why"
        yield (*place, "gpu"), "`gpu: required` without `needs.gpus`", fix
    counting = recipe.gpu_axis(name)
    if counting and counting not in experiment.axes:
        message = f"{name} lacks the axis '{counting}' that says how many GPUs it gets"
        yield place, message, f"add '{counting}' to its axes, or give it `needs.gpus` of its own"
    if needs.ipc and needs.ipc.value == "host" and needs.shm_size:
        fix = "with the host's ipc the host's /dev/shm is used: drop shm_size"
        yield (*place, "needs"), "`ipc: host` and `shm_size` exclude each other", fix


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
            fix = f"{nearest(field, known)}; an axis must be one of the experiment's `axes`"
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

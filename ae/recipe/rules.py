"""What a recipe must obey beyond its schema: names that exist, placeholders, no loops. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from string import Formatter

from ae.errors import nearest
from ae.recipe.models import Recipe
from ae.recipe.needs import GpuNeed
from ae.recipe.yamlfile import Document, Place, dotted

LANES = ("native", "upstream")
BUILT_IN = frozenset({"variants", "variant", "device", "repeat"})


def check_recipe(recipe: Recipe, document: Document, *, folder: str, images: Sequence[str]) -> None:
    """Raise RecipeError, with file and line, for the first thing that does not fit together."""
    if recipe.name != folder:
        raise document.fault(
            ("name",), f"name is '{recipe.name}' but the folder is '{folder}'",
            fix=f"write `name: {folder}` or rename the folder",
        )  # fmt: skip
    _check_lanes(recipe, document, images)
    _check_variants(recipe, document)
    _check_names(recipe, document)
    _check_axes(recipe, document)
    if recipe.needs.gpus is not None:
        _check_gpu_count(recipe, document, (), recipe.needs.gpus)
    for name in recipe.experiments:
        _check_experiment(recipe, document, name)
    _check_use(recipe, document)
    _check_outputs(recipe, document)


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


def _check_lanes(recipe: Recipe, document: Document, images: Sequence[str]) -> None:
    for name in recipe.lanes:
        if name not in LANES:
            raise document.fault(
                ("lanes", name), f"there is no lane '{name}'; {nearest(name, LANES)}",
                fix="a lane is `native` (our code) or `upstream` (the authors')",
            )  # fmt: skip
    places: dict[Place, str] = {("image",): recipe.image}
    for name, lane in recipe.lanes.items():
        if lane.image and lane.built:
            places["lanes", name, "image"] = lane.image
    for place, image in places.items():
        _require(document, place, "image", image, images, "make a folder for it under images/")


def _check_variants(recipe: Recipe, document: Document) -> None:
    for name, variant in recipe.variants.items():
        place = ("variants", name, "baseline")
        if variant.baseline is None:
            continue
        _require(document, place, "variant", variant.baseline, recipe.variants)
        chain = [name]
        while (above := recipe.variants[chain[-1]].baseline) in recipe.variants:
            assert above is not None
            chain.append(above)
            if above in chain[:-1]:
                raise document.fault(
                    place, f"baselines go in a circle: {' -> '.join(chain)}",
                    fix="let one of them have no baseline",
                )  # fmt: skip


def _check_names(recipe: Recipe, document: Document) -> None:
    for section in ("parameters", "axes"):
        for name in getattr(recipe, section):
            if name in BUILT_IN:
                raise document.fault(
                    (section, name), f"'{name}' is a placeholder with a meaning of its own",
                    fix="choose another name",
                )  # fmt: skip
    for name in recipe.axes:
        if name in recipe.parameters:
            raise document.fault(
                ("axes", name),
                f"'{name}' is both a parameter and an axis",
                fix="rename one of them",
            )


def _check_axes(recipe: Recipe, document: Document) -> None:
    for name, axis in recipe.axes.items():
        for index, value in enumerate(axis.quick):
            _require(document, ("axes", name, "quick", index), "value", value, axis.values)
        if not any(value.default for value in axis.values.values()):
            raise document.fault(
                ("axes", name, "values"), f"no value of the axis '{name}' is part of a plain run",
                fix="drop `default: false` from at least one",
            )  # fmt: skip


def _check_only(recipe: Recipe, document: Document, name: str) -> None:
    experiment = recipe.experiments[name]
    for axis, values in experiment.only.items():
        place = ("experiments", name, "only", axis)
        _require(document, place, "axis", axis, experiment.axes, "name an axis of the experiment")
        for index, value in enumerate(values):
            _require(document, (*place, index), "value", value, recipe.axes[axis].values)
        if not values:
            raise document.fault(place, "names no value", fix="name one, or drop it")


def _check_gpu_count(recipe: Recipe, document: Document, place: Place, need: GpuNeed) -> None:
    """An axis that says how many GPUs a point gets must be there, with counts as values."""
    if need.axis is None:
        return
    _require(document, (*place, "needs", "gpus", "count"), "axis", need.axis, recipe.axes)
    for value in recipe.axes[need.axis].values:
        if not value.isdecimal() or value.startswith("0"):
            raise document.fault(
                ("axes", need.axis, "values", value), f"'{value}' is not a number of GPUs",
                fix="write whole numbers from 1 on, in quotes",
            )  # fmt: skip


def _check_gpus(recipe: Recipe, document: Document, name: str) -> None:
    experiment, need = recipe.experiments[name], recipe.needs_of(name).gpus
    place: Place = ("experiments", name)
    if experiment.needs.gpus is not None:
        _check_gpu_count(recipe, document, place, experiment.needs.gpus)
    if experiment.gpu == "required" and need is None:
        raise document.fault(
            (*place, "gpu"), "`gpu: required` without `needs.gpus`",
            fix="say under needs what the GPU must offer, and why",
        )  # fmt: skip
    if experiment.gpu != "none" and need and need.axis and need.axis not in experiment.axes:
        raise document.fault(
            place, f"{name} lacks the axis '{need.axis}' that says how many GPUs it gets",
            fix=f"add '{need.axis}' to its axes, or give it `needs.gpus` of its own",
        )  # fmt: skip


def _check_experiment(recipe: Recipe, document: Document, name: str) -> None:
    experiment = recipe.experiments[name]
    place = ("experiments", name)
    _require(document, (*place, "lane"), "lane", experiment.lane, recipe.lanes)
    for index, axis in enumerate(experiment.axes):
        _require(document, (*place, "axes", index), "axis", axis, recipe.axes)
    if experiment.variants != ("all",):
        for index, variant in enumerate(experiment.variants):
            _require(document, (*place, "variants", index), "variant", variant, recipe.variants)
    for word in ("axes", "variants"):
        items = getattr(experiment, word)
        if len(set(items)) < len(items):
            raise document.fault((*place, word), "names something twice", fix="drop one of them")
    for span in ("full", "quick"):
        if getattr(experiment.timeout, span) < getattr(experiment.time, span):
            raise document.fault(
                (*place, "timeout", span), f"the {span} timeout is shorter than the expected time",
                fix="raise the timeout or lower the time",
            )  # fmt: skip
    _check_only(recipe, document, name)
    _check_gpus(recipe, document, name)
    _check_command(recipe, document, name)
    needs = recipe.needs_of(name)
    if needs.ipc and needs.ipc.value == "host" and needs.shm_size:
        raise document.fault(
            (*place, "needs"), "`ipc: host` and `shm_size` exclude each other",
            fix="with the host's ipc the host's /dev/shm is used: drop shm_size",
        )  # fmt: skip


def _check_command(recipe: Recipe, document: Document, name: str) -> None:
    experiment = recipe.experiments[name]
    place = ("experiments", name, "command")
    try:
        found = placeholders(experiment.command)
    except ValueError as error:
        raise document.fault(
            place, f"{dotted(place)}: {error}", fix="write a brace of its own as {{ or }}"
        ) from error
    known = {"device", "repeat", *recipe.parameters, *experiment.axes}
    if recipe.variants_of(name):
        known |= {"variants"} if experiment.interleave else {"variants", "variant"}
    for index, field in found:
        if field in known:
            continue
        fix = nearest(field, known)
        if field in recipe.axes:
            fix = f"add '{field}' to the experiment's axes"
        elif field == "variant" and experiment.interleave:
            fix = "write {variants}, or set `interleave: false`"
        elif field in ("variant", "variants"):
            fix = "give the experiment variants"
        raise document.fault(
            (*place, index),
            f"nobody defines the placeholder {{{field}}} in {dotted(place)}",
            fix=fix,
        )
    used = {field for _, field in found}
    for index, axis in enumerate(experiment.axes):
        if axis not in used:
            raise document.fault(
                ("experiments", name, "axes", index), f"the command does not use the axis '{axis}'",
                fix=f"pass {{{axis}}} to the workload, or drop the axis",
            )  # fmt: skip
    if recipe.variants_of(name) and not used & {"variant", "variants"}:
        raise document.fault(
            place, "the command does not say which variants to run",
            fix="pass {variants} to the workload (or {variant} with `interleave: false`)",
        )  # fmt: skip


def _check_use(recipe: Recipe, document: Document) -> None:
    used = {f for e in recipe.experiments.values() for _, f in placeholders(e.command)}
    for section, word in (("parameters", "parameter"), ("axes", "axis")):
        for name in getattr(recipe, section):
            if name not in used:
                raise document.fault(
                    (section, name), f"no command uses the {word} '{name}'",
                    fix=f"write {{{name}}} into a command, or drop it",
                )  # fmt: skip
    for lane, about in recipe.lanes.items():
        if not any(e.default and e.lane == lane for e in recipe.experiments.values()):
            if lane != "native" and not about.built:
                continue  # announced only
            raise document.fault(
                ("experiments",), f"no experiment is part of a plain run of the lane {lane}",
                fix="set `default: true` for at least one",
            )  # fmt: skip


def _check_outputs(recipe: Recipe, document: Document) -> None:
    for name, figure in recipe.figures.items():
        for index, experiment in enumerate(figure.experiments):
            place = ("figures", name, "experiments", index)
            _require(document, place, "experiment", experiment, recipe.experiments)
    if recipe.table is not None and recipe.table.baseline is not None:
        _require(document, ("table", "baseline"), "variant", recipe.table.baseline, recipe.variants)


def _require(
    document: Document, place: Place, word: str, name: str, known: Collection[str], fix: str = ""
) -> None:
    if name not in known:
        message = f"unknown {word} '{name}' in {dotted(place)}; {nearest(name, known)}"
        raise document.fault(place, message, fix=fix or "name one that exists, or add it")

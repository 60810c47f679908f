"""The planner: recipe, selection and machine facts in, a list of points out. Pure, no I/O."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from ae.errors import EnvironmentFault, UsageError, nearest
from ae.model import (
    Flavour,
    Gpu,
    GpuRequest,
    ImageRef,
    Machine,
    Mount,
    Plan,
    Point,
    RuntimeNeeds,
    Secret,
    Ulimit,
)
from ae.plan.gpu_axis import PointGpus, choose_for_points, gpu_axis, values_with
from ae.plan.gpus import GpuChoice

if TYPE_CHECKING:
    from ae.recipe.models import Experiment, Recipe, Value
    from ae.recipe.needs import Needs


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a person picked. Empty means everything that a plain run has."""

    experiments: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    repeat: int = 1
    quick: bool = False
    gpus: tuple[str, ...] | int | None = None  # indices or UUIDs; or how many; None: as needed
    lane: str = "native"
    flavour: Flavour | None = None  # CPU: leave the GPU alone; CUDA: refuse to run without one
    image_override: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The selection as JSON-able data."""
        data = asdict(self)
        data["axes"] = {key: list(values) for key, values in self.axes.items()}
        data["gpus"] = list(self.gpus) if isinstance(self.gpus, tuple) else self.gpus
        return data | {"experiments": list(self.experiments), "variants": list(self.variants)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Selection:
        """The selection that `to_json` wrote; keys that a selection lacks are ignored."""
        gpus = data["gpus"]
        return Selection(
            experiments=tuple(data["experiments"]),
            variants=tuple(data["variants"]),
            axes={key: tuple(values) for key, values in data["axes"].items()},
            settings=dict(data["settings"]),
            repeat=data["repeat"],
            quick=data["quick"],
            gpus=tuple(gpus) if isinstance(gpus, list) else gpus,
            lane=data["lane"],
            flavour=Flavour(data["flavour"]) if data["flavour"] else None,
            image_override=data["image_override"],
        )


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
    selection = _check_selection(recipe, selection, content)
    values = _parameter_values(recipe, selection)
    notes: list[str] = []
    if not recipe.lanes[selection.lane].built:
        notes.append(f"the {selection.lane} lane of {recipe.name} was written, never built by us")
    refused: dict[str, UsageError | EnvironmentFault] = {}
    slots: list[_Slot] = []
    for name in _experiments(recipe, selection):
        found = _taking_part(recipe, selection, name, machine, notes, refused)
        if found is None:
            continue
        variants, ranges, gpus = found
        given = _secrets(recipe, name, secrets)
        for labels, chosen in _combinations(recipe, name, ranges, variants):
            choice = gpus.of(labels)
            image = _image(recipe, selection, choice, root, content, flavours or {})
            needs = runtime_needs(recipe.needs_of(name), choice.request, root)
            needs = replace(needs, secrets=given)
            slots.append(_Slot(name, labels, chosen, image, needs, _models(choice.gpus)))
    counted = [error for name, error in refused.items() if gpu_axis(recipe, name)]
    if any(gpu_axis(recipe, slot.experiment) for slot in slots):
        counted = []
    if counted and all(isinstance(error, UsageError) for error in counted):
        raise counted[0]  # a count of GPUs that no experiment has
    if not slots:
        raise _nothing(recipe, selection, list(refused.values()))
    notes += _full_size_on_cpu(recipe, selection, slots)
    points = [
        _point(recipe, slot, values, repeat, selection.quick)
        for repeat in range(selection.repeat)  # outermost, so that drift hits all points alike
        for slot in slots
    ]
    used = {name for slot in slots for name in _names_in(recipe.experiments[slot.experiment])}
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
        points=tuple(_with_unique_ids(points)),
        selection=selection.to_json() | {"reduced": _reductions(recipe, selection, values)},
        notes=tuple(notes),
    )


def describe(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-able data: the same plan always gives the same text."""
    return {
        "recipe": plan.recipe,
        "lane": plan.lane,
        "flavour": str(plan.flavour),
        "quick": plan.quick,
        "selection": _plain(plan.selection),
        "notes": list(plan.notes),
        "expected_s": sum(point.expected_s for point in plan.points),
        "disk_bytes": sum(point.disk_bytes for point in plan.points),
        "points": [_plain(asdict(p)) | {"image": _describe_image(p.image)} for p in plan.points],
    }


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
        notes.append(f"left out: {name}, in which none of the chosen variants takes part")
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
            notes.append(f"left out: {name}, which has no point with {what}")
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


def _full_size_on_cpu(
    recipe: Recipe, selection: Selection, slots: Iterable[_Slot]
) -> Iterator[str]:
    """A note on what GPUs are meant for, runs on the CPU, and would be smaller with --quick."""
    small = {key for key, about in recipe.parameters.items() if about.quick is not None}
    small |= {axis for axis, about in recipe.axes.items() if about.quick}
    names = [
        name
        for name in dict.fromkeys(slot.experiment for slot in slots if slot.needs.gpus is None)
        if recipe.experiments[name].gpu == "optional"
        and small & _names_in(recipe.experiments[name])
    ]
    if names and not selection.quick:
        yield (
            f"{', '.join(names)}: at full size this may take a CPU far longer than the times "
            "shown, or more memory than there is; --quick is the size for a CPU"
        )


def runtime_needs(needs: Needs, gpus: GpuRequest | None, root: Path) -> RuntimeNeeds:
    """The recipe's needs without their reasons. A relative volume starts at `root`."""
    return RuntimeNeeds(
        gpus=gpus,
        cap_add=tuple(need.value for need in needs.cap_add),
        ipc=needs.ipc.value if needs.ipc else None,
        shm_bytes=needs.shm_size.value if needs.shm_size else None,
        ulimits=tuple(Ulimit(name=u.name, soft=u.soft, hard=u.hard) for u in needs.ulimits),
        network=needs.network.value if needs.network else "none",
        mounts=tuple(
            Mount(source=root / v.source, target=v.target, read_only=v.read_only)
            for v in needs.volumes
        ),
        memory_bytes=needs.memory.value if needs.memory else None,
    )


def _secrets(recipe: Recipe, experiment: str, given: Collection[str]) -> tuple[Secret, ...]:
    """The secrets an experiment gets. Raises EnvironmentFault for one that it cannot do without."""
    found = []
    for need in recipe.needs_of(experiment).secrets:
        secret = Secret(name=need.name, target=need.target, optional=need.optional)
        if need.name in given:
            found.append(secret)
        elif not need.optional:
            raise EnvironmentFault(
                f"{experiment} needs the secret '{secret.name}' ({need.why})",
                fix=f"give its file: --secret {secret.name}=FILE, or {secret.variable}=FILE",
            )
    return tuple(found)


@dataclass(frozen=True)
class _Slot:
    """A point without its repeat number."""

    experiment: str
    labels: Mapping[str, str]
    variants: tuple[str, ...]
    image: ImageRef
    needs: RuntimeNeeds
    gpu_models: tuple[str, ...]


def _check_selection(recipe: Recipe, selection: Selection, content: Mapping[str, str]) -> Selection:
    """Return the selection with settings that narrow an axis moved there."""
    axes = dict(selection.axes)
    settings = {}
    for key, text in selection.settings.items():
        if key in recipe.axes:
            axes[key] = tuple(word.strip() for word in text.split(",") if word.strip())
        elif key in recipe.parameters:
            settings[key] = text
        else:
            _require("parameter", key, [*recipe.parameters, *recipe.axes], recipe)
    for name in selection.experiments:
        _require("experiment", name, recipe.experiments, recipe)
    for name in selection.variants:
        _require("variant", name, recipe.variants, recipe)
    if selection.lane not in recipe.lanes and set(recipe.lanes) == {"upstream"}:
        raise UsageError(
            f"{recipe.name} has no {selection.lane} lane yet, only the authors' own code",
            fix=f"ae run {recipe.name} --lane upstream (see docs/upstream/{recipe.name}.md first)",
        )
    _require("lane", selection.lane, recipe.lanes, recipe)
    if recipe.image_of(selection.lane) not in content:
        raise UsageError(
            f"the {selection.lane} lane of {recipe.name} cannot be run yet: "
            f"there is no images/{recipe.image_of(selection.lane)}",
            fix=f"write it, or use another lane: {', '.join(recipe.lanes)}",
        )
    for axis, values in axes.items():
        _require("axis", axis, recipe.axes, recipe)
        for value in values:
            _require(axis, value, recipe.axes[axis].values, recipe)
        if not values:
            raise UsageError(
                f"no value given for {axis}", fix=f"one of: {', '.join(recipe.axes[axis].values)}"
            )
    if selection.repeat < 1:
        raise UsageError(
            f"--repeat {selection.repeat}: nothing would run", fix="--repeat 1 or more"
        )
    return replace(selection, axes=axes, settings=settings)


def _require(word: str, name: str, known: Iterable[str], recipe: Recipe) -> None:
    names = list(known)
    if name not in names:
        raise UsageError(
            f"{recipe.name} has no {word} '{name}'; {nearest(name, names)}",
            fix=f"see `ae show {recipe.name}`",
        )


def _parameter_values(recipe: Recipe, selection: Selection) -> dict[str, Value]:
    values = {key: p.value(selection.quick) for key, p in recipe.parameters.items()}
    for key, text in selection.settings.items():
        try:
            values[key] = recipe.parameters[key].parse(text)
        except ValueError as error:
            about = recipe.parameters[key].help
            raise UsageError(f"--set {key}: {error}", fix=f"{key} is: {about}") from error
    return values


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


def _image(
    recipe: Recipe,
    selection: Selection,
    choice: GpuChoice,
    root: Path,
    content: Mapping[str, str],
    flavours: Mapping[str, Sequence[Flavour]],
) -> ImageRef:
    name = recipe.image_of(selection.lane)
    allowed = flavours.get(name, (choice.flavour,))
    # An image of the authors comes for GPUs alone: its points without one run in it, too.
    flavour = choice.flavour if choice.flavour in allowed else allowed[0]
    return ImageRef(
        name=name,
        flavour=flavour,
        content=content[name],
        source=root / "images" / name,
        override=selection.image_override,
    )


def _point(
    recipe: Recipe, slot: _Slot, values: Mapping[str, Value], repeat: int, quick: bool
) -> Point:
    experiment = recipe.experiments[slot.experiment]
    texts = {key: _argument(value) for key, value in values.items()} | dict(slot.labels)
    texts |= {
        "variants": ",".join(slot.variants),
        "device": "cuda" if slot.needs.gpus else "cpu",
        "repeat": str(repeat),
    }
    parts = [slot.experiment, *slot.labels.values(), *([f"r{repeat}"] if repeat else [])]
    point = Point(
        id="-".join(parts),
        recipe=recipe.name,
        experiment=slot.experiment,
        labels=slot.labels,
        variants=slot.variants,
        argv=tuple(word.format_map(texts) for word in experiment.command),
        env={"PYTHONUNBUFFERED": "1"},  # so that output streams live
        image=slot.image,
        needs=slot.needs,
        timeout_s=experiment.timeout.quick if quick else experiment.timeout.full,
        expected_s=experiment.time.quick if quick else experiment.time.full,
        disk_bytes=experiment.disk,
        repeat=repeat,
        parser=experiment.parse,
    )
    return replace(point, key=point_key(point, slot.gpu_models))


def point_key(point: Point, gpu_models: Sequence[str]) -> str:
    """The sha256 over everything that defines a point's result."""
    image = point.image
    defines: dict[str, Any] = {
        "recipe": point.recipe,
        "experiment": point.experiment,
        "labels": dict(point.labels),
        "variants": list(point.variants),
        "argv": list(point.argv),
        "env": dict(point.env),
        "image": [image.name, str(image.flavour), image.content, image.override],
        "needs": _plain(asdict(point.needs)),
        "repeat": point.repeat,
        "gpus": list(gpu_models),
    }
    if point.needs.gpus is not None:
        defines["needs"]["gpus"]["devices"] = []  # of equal GPUs, any gives the same result
    if not point.needs.secrets:
        del defines["needs"]["secrets"]  # so that points without any keep their keys
    if point.parser is not None:
        defines["parser"] = point.parser
    return hashlib.sha256(json.dumps(defines, sort_keys=True).encode()).hexdigest()


def _with_unique_ids(points: Sequence[Point]) -> list[Point]:
    """Names with dashes in them can meet (`a-b` and `c`, `a` and `b-c`): such ids get a tail."""
    ids = [point.id for point in points]
    return [p if ids.count(p.id) == 1 else replace(p, id=f"{p.id}-{p.key[:8]}") for p in points]


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


def _reductions(recipe: Recipe, selection: Selection, values: Mapping[str, Value]) -> list[str]:
    """In what the run differs from the paper's problem size, as a person typed it."""
    changed = [
        f"--set {key}={_argument(values[key])}"
        for key in selection.settings
        if recipe.parameters[key].size and values[key] != recipe.parameters[key].value(False)
    ]
    return (["--quick"] if selection.quick else []) + changed


def _names_in(experiment: Experiment) -> set[str]:
    fields = (field for word in experiment.command for _, field, _, _ in Formatter().parse(word))
    return {field for field in fields if field}


def _argument(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _models(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    return tuple(sorted({gpu.name for gpu in gpus}))


def _describe_image(image: ImageRef) -> dict[str, Any]:
    # The folder from the repository's root: a run's record goes to other machines.
    source = f"images/{image.source.name}"
    return {**_plain(asdict(image)), "source": source, "reference": image.reference}


def _plain(value: Any) -> Any:
    """Data that JSON knows: tuples to lists, paths and enum members to text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float) or value is None else str(value)

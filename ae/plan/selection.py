"""What a person asked for: the words of the command line, held against the recipe. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ae.errors import UsageError, nearest
from ae.model import Flavour
from ae.recipe.models import Recipe, Value


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


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asked `ae run` for, in the words of the command line."""

    recipe: str
    variants: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)  # parameters and axes
    repeat: int = 1
    quick: bool = False
    gpus: str | None = None
    lane: str = "native"
    image: str | None = None
    engine: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)  # name -> path


def select(request: Request, recipe: Recipe) -> Selection:
    """Turn the words of the command line into a selection; checks what needs the recipe."""
    count, devices = parse_gpus(request.gpus)
    experiments = [
        *_words(request.experiments),
        *_drawn_by(recipe, _words(request.figures), request.lane),
    ]
    return Selection(
        experiments=tuple(dict.fromkeys(experiments)),
        variants=_words(request.variants),
        axes={k: _words((v,)) for k, v in request.settings.items() if k in recipe.axes},
        settings={k: v for k, v in request.settings.items() if k not in recipe.axes},
        repeat=request.repeat,
        quick=request.quick,
        gpus=devices or count,
        flavour=Flavour.CPU if count == 0 else None,
        lane=request.lane,
        image_override=request.image,
    )


def parse_gpus(word: str | None) -> tuple[int | None, tuple[str, ...]]:
    """Read `--gpus`: `2` is a count, `device=0,1` or `0,1` are indices or UUIDs, `none` the CPU."""
    if word is None:
        return None, ()
    if word == "none":
        return 0, ()
    if word.isdecimal():
        return int(word), ()
    devices = tuple(part for part in word.removeprefix("device=").split(",") if part)
    if not devices or not all(part.isdecimal() or part.startswith("GPU-") for part in devices):
        raise UsageError(
            f"--gpus {word}: neither a count nor a list of GPUs",
            fix="--gpus 2, --gpus device=0,1, --gpus device=GPU-<uuid> or --gpus none",
        )
    return None, devices


def check_selection(recipe: Recipe, selection: Selection, content: Mapping[str, str]) -> Selection:
    """Return the selection with settings that narrow an axis moved there."""
    axes = dict(selection.axes)
    settings = {}
    for key, text in selection.settings.items():
        if key in recipe.axes:
            axes[key] = tuple(word.strip() for word in text.split(",") if word.strip())
        elif key in recipe.parameters:
            settings[key] = text
        else:
            require("parameter", key, [*recipe.parameters, *recipe.axes], recipe)
    for name in selection.experiments:
        require("experiment", name, recipe.experiments, recipe)
    for name in selection.variants:
        require("variant", name, recipe.variants, recipe)
    if selection.lane not in recipe.lanes and set(recipe.lanes) == {"upstream"}:
        raise UsageError(
            f"{recipe.name} has no {selection.lane} lane yet, only the authors' own code",
            fix=f"ae run {recipe.name} --lane upstream (see docs/upstream/{recipe.name}.md first)",
        )
    require("lane", selection.lane, recipe.lanes, recipe)
    if recipe.image_of(selection.lane) not in content:
        raise UsageError(
            f"the {selection.lane} lane of {recipe.name} cannot be run yet: "
            f"there is no images/{recipe.image_of(selection.lane)}",
            fix=f"write it, or use another lane: {', '.join(recipe.lanes)}",
        )
    for axis, values in axes.items():
        require("axis", axis, recipe.axes, recipe)
        for value in values:
            require(axis, value, recipe.axes[axis].values, recipe)
        if not values:
            raise UsageError(
                f"no value given for {axis}", fix=f"one of: {', '.join(recipe.axes[axis].values)}"
            )
    if selection.repeat < 1:
        raise UsageError(
            f"--repeat {selection.repeat}: nothing would run", fix="--repeat 1 or more"
        )
    return replace(selection, axes=axes, settings=settings)


def parameter_values(recipe: Recipe, selection: Selection) -> dict[str, Value]:
    values = {key: p.value(selection.quick) for key, p in recipe.parameters.items()}
    for key, text in selection.settings.items():
        try:
            values[key] = recipe.parameters[key].parse(text)
        except ValueError as error:
            about = recipe.parameters[key].help
            raise UsageError(f"--set {key}: {error}", fix=f"{key} is: {about}") from error
    return values


def reductions(
    recipe: Recipe, selection: Selection, values: Mapping[str, Value]
) -> tuple[str, ...]:
    """In what the run differs from the paper's problem size, as a person typed it."""
    changed = [
        f"--set {key}={argument(values[key])}"
        for key in selection.settings
        if recipe.parameters[key].size and values[key] != recipe.parameters[key].value(False)
    ]
    return (*(["--quick"] if selection.quick else []), *changed)


def argument(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def require(word: str, name: str, known: Iterable[str], recipe: Recipe) -> None:
    """Raise UsageError, naming the nearest, when the recipe has no such thing."""
    names = list(known)
    if name not in names:
        raise UsageError(
            f"{recipe.name} has no {word} '{name}'; {nearest(name, names)}",
            fix=f"see `ae show {recipe.name}`",
        )


def _drawn_by(recipe: Recipe, figures: Iterable[str], lane: str) -> list[str]:
    """The experiments whose records the figures draw."""
    found: list[str] = []
    for name in figures:
        require("figure", name, recipe.figures, recipe)
        drawn = recipe.figures[name].experiments
        found += [one for one in drawn if recipe.experiments[one].lane == lane] or drawn
    return found


def _words(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())

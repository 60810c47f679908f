"""What a person picked, in the words of the command line, held against the recipe. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ae.errors import UsageError, nearest
from ae.recipe.models import Recipe, Value

PROTOCOL = ("repeats", "iterations", "samples")  # parameters that say how much is measured


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a person picked. Empty means everything that a plain run has."""

    experiments: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()  # stand for the experiments that they draw
    variants: tuple[str, ...] = ()
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    repeat: int | None = None  # processes of every point; None: as the recipe says
    quick: bool = False
    gpus: tuple[str, ...] | int | None = None  # indices or UUIDs; or how many; None: as needed
    lane: str = "native"
    image_override: str | None = None


def parse_gpus(word: str | None) -> tuple[str, ...] | int | None:
    """Read `--gpus`: `2` is a count, `device=0,1` or `0,1` are indices or UUIDs, `none` the CPU."""
    if word is None:
        return None
    if word == "none":
        return 0
    if word.isdecimal():
        return int(word)
    devices = tuple(part for part in word.removeprefix("device=").split(",") if part)
    if not devices or not all(part.isdecimal() or part.startswith("GPU-") for part in devices):
        fix = "--gpus 2, --gpus device=0,1, --gpus device=GPU-<uuid> or --gpus none"
        raise UsageError(f"--gpus {word}: neither a count nor a list of GPUs", fix=fix)
    return devices


def check_selection(recipe: Recipe, selection: Selection) -> Selection:
    """Hold a selection against the recipe; raises UsageError.

    Returned are its names one by one, figures as their experiments, and settings that narrow an
    axis moved there.
    """
    if selection.lane not in recipe.lanes and set(recipe.lanes) == {"upstream"}:
        said = f"{recipe.name} has no {selection.lane} lane yet, only the authors' own code"
        fix = f"ae run {recipe.name} --lane upstream (see docs/upstream/{recipe.name}.md first)"
        raise UsageError(said, fix=fix)
    require("lane", [selection.lane], recipe.lanes, recipe)
    experiments, figures = _words(*selection.experiments), _words(*selection.figures)
    require("figure", figures, recipe.figures, recipe)
    for name in figures:
        drawn = recipe.figures[name].experiments
        own = tuple(one for one in drawn if recipe.experiments[one].lane == selection.lane)
        experiments += own or drawn
    require("experiment", experiments, recipe.experiments, recipe)
    variants = _words(*selection.variants)
    require("variant", variants, recipe.variants, recipe)
    axes = dict(selection.axes)
    axes |= {k: _words(text) for k, text in selection.settings.items() if k in recipe.axes}
    require("axis", axes, recipe.axes, recipe)
    for axis, values in axes.items():
        require(axis, values, recipe.axes[axis].values, recipe)
    settings = {k: text for k, text in selection.settings.items() if k not in recipe.axes}
    require("parameter", settings, [*recipe.parameters, *recipe.axes], recipe)
    return replace(
        selection,
        experiments=tuple(dict.fromkeys(experiments)),
        figures=(),
        variants=variants,
        axes=axes,
        settings=settings,
    )


def parameter_values(recipe: Recipe, selection: Selection) -> dict[str, Value]:
    values = {key: p.value(selection.quick) for key, p in recipe.parameters.items()}
    for key, text in selection.settings.items():
        try:
            values[key] = recipe.parameters[key].parse(text)
        except ValueError as error:
            fix = f"--set {key}=VALUE, where VALUE is: {recipe.parameters[key].help}"
            raise UsageError(f"--set {key}: {error}", fix=fix) from error
    return values


def reductions(
    recipe: Recipe, selection: Selection, values: Mapping[str, Value]
) -> tuple[str, ...]:
    """In what the run differs from the paper's problem size, or measures less of it than the
    recipe does, as a person typed it."""
    changed = []
    for key in selection.settings:
        value, usual = values[key], recipe.parameters[key].value(False)
        less = isinstance(value, int | float) and isinstance(usual, int | float) and value < usual
        if (less and key in PROTOCOL) or (recipe.parameters[key].size and value != usual):
            changed.append(f"--set {key}={argument(value)}")
    return (*(["--quick"] if selection.quick else []), *changed)


def is_protocol(word: str) -> bool:
    """Whether a reduction is of how much is measured, and not of what."""
    return word.removeprefix("--set ").partition("=")[0] in PROTOCOL


def argument(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def require(word: str, names: Iterable[str], known: Collection[str], recipe: Recipe) -> None:
    """Raise UsageError, naming the nearest, for the first that the recipe has not."""
    for name in (name for name in names if name not in known):
        said = f"{recipe.name} has no {word} '{name}'; {nearest(name, known)}"
        raise UsageError(said, fix=f"see `ae show {recipe.name}`")


def _words(*values: str) -> tuple[str, ...]:
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(filter(None, parts)) or values[:1]  # no word is a wrong one, not every one

"""Which GPUs the points of an experiment get, also where an axis says how many. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ae.errors import EnvironmentFault, UsageError
from ae.model import Machine
from ae.plan.gpus import GpuChoice, choose_gpus
from ae.plan.selection import Selection
from ae.recipe.models import Recipe


@dataclass(frozen=True, kw_only=True)
class PointGpus:
    """What the points of an experiment get: one choice for all, or one per value of an axis.

    With an axis, values that are not in `choices` are left out.
    """

    axis: str | None = None
    choices: Mapping[str | None, GpuChoice]
    notes: tuple[str, ...] = ()

    def of(self, labels: Mapping[str, str]) -> GpuChoice:
        """The choice for the point with these labels, whose value must be one of `choices`."""
        return self.choices[labels[self.axis] if self.axis else None]


def gpu_axis(recipe: Recipe, name: str) -> str | None:
    """The axis that says how many GPUs a point of the experiment gets, if there is one."""
    need = recipe.needs_of(name).gpus
    return need.axis if need and recipe.experiments[name].gpu != "none" else None


def values_with(recipe: Recipe, name: str, values: Sequence[str], count: int) -> tuple[str, ...]:
    """The one of `values` that is `--gpus COUNT`. Raises UsageError when none is."""
    if str(count) not in values:
        raise UsageError(
            f"{name} of {recipe.name} has no point with {count} GPUs",
            fix=f"--gpus with one of: {', '.join(values)}",
        )
    return (str(count),)


def choose_for_points(
    recipe: Recipe, selection: Selection, name: str, machine: Machine, values: Sequence[str]
) -> PointGpus:
    """Choose the GPUs of every point of an experiment.

    `values` are the values of the axis that says how many, in display order. On the CPU they limit
    nothing. Raises EnvironmentFault as `choose_gpus` does, and where the machine has too few GPUs
    for any point, or for one that was asked for by name.
    """
    wish, need = recipe.experiments[name].gpu, recipe.needs_of(name).gpus
    wanted, flavour, axis = selection.gpus, selection.flavour, gpu_axis(recipe, name)
    least = need.of(1 if axis else recipe.gpu_counts(need)[0]) if need else None
    whole = choose_gpus(name, wish, least, machine, wanted=wanted, flavour=flavour)
    if axis is None or need is None or whole.request is None:
        notes = (f"{name}: {whole.note}",) if whole.note else ()
        return PointGpus(choices={None: whole}, notes=notes)
    here, asked = len(whole.gpus), axis in selection.axes
    fitting = [value for value in values if int(value) <= here]
    left = [value for value in values if int(value) > here]
    notes = ()
    if left:
        least_left = min(int(value) for value in left)
        why = f"{least_left} GPUs are needed and there {'is' if here == 1 else 'are'} {here}"
        if not fitting and selection.quick and not asked:  # a quick run is of what is there
            plain = [value for value in recipe.values_of(name, axis) if int(value) <= here]
            fitting = sorted(plain, key=int)[-1:]
        if asked or not fitting:
            raise EnvironmentFault(
                f"{name} cannot run here: {why}",
                fix="ask for fewer, or run where there are more; see `ae doctor`",
            )
        notes = (f"left out: {name} with {axis} {', '.join(left)}: {why}",)
    devices = wanted if isinstance(wanted, tuple) else ()
    choices: dict[str | None, GpuChoice] = {
        value: choose_gpus(
            name, wish, need.of(int(value)), machine,
            wanted=devices[: int(value)] or None, flavour=flavour,
        )
        for value in fitting
    }  # fmt: skip
    return PointGpus(axis=axis, choices=choices, notes=notes)

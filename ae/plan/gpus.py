"""Which GPUs the points of an experiment get, or why none of them will do. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ae.errors import EnvironmentFault
from ae.model import Flavour, Gpu, GpuId, GpuRequest, Machine
from ae.plan.selection import Selection
from ae.recipe.models import Recipe
from ae.recipe.needs import GpuNeed

GIB = 2**30
LEFT_OUT = "left out: "
Note = tuple[str, str]  # what is said of an experiment, before and after its name


@dataclass(frozen=True, kw_only=True)
class GpuChoice:
    """The request to make and the models of the GPUs chosen for it; no request: the CPU."""

    request: GpuRequest | None = None
    models: tuple[str, ...] = ()
    flavour: Flavour = Flavour.CPU  # of the image; a point without GPUs may run in either


def choices_of(
    recipe: Recipe, selection: Selection, name: str, machine: Machine, values: Sequence[str]
) -> tuple[dict[str, GpuChoice], Note | None]:
    """The GPUs of an experiment's points by the value of their GPU axis, and what to say of it.

    `values` are those of the axis, in display order, or one empty word where there is none. On the
    CPU they limit nothing; values that the machine has too few GPUs for are left out. Raises
    EnvironmentFault where no GPU will do and one is required, or the person asked for one, and
    where there are too few for any point, or for one that was asked for by name.
    """
    wish, need, wanted = recipe.experiments[name].gpu, recipe.needs_of(name).gpus, selection.gpus
    on_cpu = dict.fromkeys(values, GpuChoice())
    if wanted == 0 and wish == "required":
        said = f"{name} cannot run without a GPU, and the run was told to use the CPU"
        fix = "leave --gpus out, or name a GPU: --gpus device=0; or choose other experiments"
        raise EnvironmentFault(said, fix=fix)
    if wanted == 0:
        return on_cpu, None
    if wish == "none":
        wanted = None
    request = gpu_request(need, wanted)
    named = _named(machine.gpus, wanted if isinstance(wanted, tuple) else ())
    suitable = [gpu for gpu in named if not shortcoming(gpu, request)]
    enough = len(suitable) >= request.count
    if wish == "none":  # in the image that other points use here, so that no second one is needed
        flavour = Flavour.CUDA if enough else Flavour.CPU
        return dict.fromkeys(values, GpuChoice(flavour=flavour)), None
    if not enough:
        why, fix = _explain(named, suitable, request, machine.each)
        if wish == "required" or wanted:
            raise EnvironmentFault(f"{name} cannot run here: {why}", fix=fix)
        small = "" if selection.quick else "; --quick is the size for one"
        return on_cpu, ("", f": {why}, so it runs on the CPU{small}")
    if not isinstance(wanted, tuple):
        # Of the model that there is most of first, so that GPUs that work together are alike.
        models = [model for model, _ in Counter(gpu.name for gpu in suitable).most_common()]
        suitable.sort(key=lambda gpu: models.index(gpu.name))
    note = None
    if recipe.gpu_axis(name):
        values, note = _fitting(recipe, selection, name, values, len(suitable), machine.each)
    # In one order for all counts: a GPU of fewer is also one of more.
    return {one: _first(suitable, request, int(one or request.count)) for one in values}, note


def _fitting(
    recipe: Recipe, selection: Selection, name: str, values: Sequence[str], here: int, each: str
) -> tuple[list[str], Note | None]:
    """The values of the GPU axis that so many GPUs are enough for, and what is left out."""
    axis = recipe.gpu_axis(name)
    fitting = [value for value in values if int(value) <= here]
    if not (left := [value for value in values if int(value) > here]):
        return fitting, None
    least = min(int(value) for value in left)
    why = f"{least} GPUs are needed and there {'is' if here == 1 else 'are'} {here}{each}"
    asked = axis in selection.axes
    if not fitting and selection.quick and not asked:  # a quick run is of what is there
        plain = [value for value in recipe.values_of(name, axis) if int(value) <= here]
        fitting = sorted(plain, key=int)[-1:]
    if asked or not fitting:
        fix = "ask for fewer, or run where there are more; see `ae doctor`"
        raise EnvironmentFault(f"{name} cannot run here: {why}", fix=fix)
    return fitting, (LEFT_OUT, f" with {axis} {', '.join(left)}: {why}")


def _first(suitable: Sequence[Gpu], request: GpuRequest, count: int) -> GpuChoice:
    """The first of the suitable GPUs."""
    devices = tuple(GpuId(index=gpu.index, uuid=gpu.uuid) for gpu in suitable[:count])
    return GpuChoice(
        request=replace(request, count=count, devices=devices),
        models=tuple(gpu.name for gpu in suitable[:count]),
        flavour=Flavour.CUDA,
    )


def gpu_request(need: GpuNeed | None, wanted: tuple[str, ...] | int | None) -> GpuRequest:
    """The recipe's need and the person's wish as one request, whose GPUs are not chosen yet."""
    need = need or GpuNeed(why="any GPU will do")
    least = need.count if isinstance(need.count, int) else 1
    asked = (len(wanted) if isinstance(wanted, tuple) else wanted or 0) or least
    if asked < least:
        said = f"{least} GPUs are needed and {asked} asked for"
        raise EnvironmentFault(said, fix=f"--gpus {least}, or more")
    return GpuRequest(
        count=asked,
        min_memory_gib=need.min_memory / GIB,
        min_compute_capability=version(need.min_compute_capability),
        min_driver=need.min_driver,
    )


def shortcoming(gpu: Gpu, request: GpuRequest) -> str:
    """Why a GPU does not meet a request, in words that follow its name; empty when it does."""
    if gpu.memory_gib < request.min_memory_gib:
        return f"has {gpu.memory_gib:.3g} GiB of memory, {request.min_memory_gib:.3g} GiB needed"
    if gpu.compute_capability < request.min_compute_capability:
        both = (*gpu.compute_capability, *request.min_compute_capability)
        return "has compute capability {}.{}, {}.{} needed".format(*both)
    if version(gpu.driver) < version(request.min_driver):
        return f"has driver {gpu.driver}, {request.min_driver} or newer needed"
    return ""


def unknown_gpu(index: str) -> Gpu:
    """A GPU of another machine, of which only the number is known: it suits every request."""
    return Gpu(
        index=int(index),
        name="GPU of another machine",
        memory_gib=math.inf,
        compute_capability=(99, 0),
        driver="9999",
    )


def version(text: str) -> tuple[int, ...]:
    """A driver version as numbers, `550.54.14` -> (550, 54, 14); unknown text is older than any."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(p.isdecimal() for p in parts) else ()


def _named(gpus: Sequence[Gpu], devices: Sequence[str]) -> list[Gpu]:
    if not devices:
        return list(gpus)
    found = []
    for device in devices:
        if not (match := [gpu for gpu in gpus if device in (str(gpu.index), gpu.uuid)]):
            known = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in gpus) or "none"
            raise EnvironmentFault(f"there is no GPU {device}", fix=f"GPUs here: {known}")
        found += [gpu for gpu in match if gpu not in found]
    return found


def _explain(
    named: Sequence[Gpu], suitable: Sequence[Gpu], request: GpuRequest, each: str
) -> tuple[str, str]:
    """Why there are too few suitable GPUs, and what to do."""
    if not named:
        fix = "run on a host with an NVIDIA GPU and its driver; see `ae doctor`"
        return "this machine shows no GPU", fix
    unfit = [(gpu, why) for gpu in named if (why := shortcoming(gpu, request))]
    if not unfit:
        fix = "ask for fewer with --gpus, or run where there are more; see `ae doctor`"
        return f"{request.count} GPUs are needed and there are {len(suitable)}{each}", fix
    gpu, why = unfit[0]
    fix = "update the driver" if "driver" in why else "run on a GPU that has it"
    return f"GPU {gpu.index} ({gpu.name}) {why}", f"{fix}; see `ae doctor`"

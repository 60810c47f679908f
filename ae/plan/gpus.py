"""Which GPUs the points of an experiment get, or why none of them will do. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ae.errors import EnvironmentFault
from ae.model import Flavour, Gpu, GpuId, GpuRequest, Machine
from ae.plan.selection import Selection
from ae.recipe.models import Recipe
from ae.recipe.needs import GpuNeed

GIB = 2**30
Wanted = tuple[str, ...] | int | None  # the GPUs that a person named, or how many; 0: the CPU


@dataclass(frozen=True, kw_only=True)
class GpuChoice:
    """The request to make and the GPUs chosen for it; no request: the CPU."""

    request: GpuRequest | None = None
    gpus: tuple[Gpu, ...] = ()  # those that `request.devices` names
    suitable: tuple[Gpu, ...] = ()  # all that could serve, the chosen ones first
    note: str = ""  # what a person should know about the choice
    flavour: Flavour = Flavour.CPU  # of the image; a point without GPUs may run in either

    def first(self, count: int) -> GpuChoice:
        """The same choice with so many of the suitable GPUs."""
        assert self.request is not None
        gpus = self.suitable[:count]
        devices = tuple(GpuId(index=gpu.index, uuid=gpu.uuid) for gpu in gpus)
        return replace(self, gpus=gpus, request=replace(self.request, count=count, devices=devices))


def gpu_axis(recipe: Recipe, name: str) -> str:
    """The axis that says how many GPUs a point of the experiment gets; empty: there is none."""
    need = recipe.needs_of(name).gpus
    if need is None or recipe.experiments[name].gpu == "none":
        return ""
    return need.axis or ""


def choices_of(
    recipe: Recipe, selection: Selection, name: str, machine: Machine, values: Sequence[str]
) -> tuple[dict[str, GpuChoice], str]:
    """The GPUs of an experiment's points by the value of their GPU axis, and a note.

    `values` are those of the axis, in display order, or one empty word where there is none. On the
    CPU they limit nothing; values that the machine has too few GPUs for are left out. Raises
    EnvironmentFault as `choose_gpus` does, and where it has too few for any point, or for one that
    was asked for by name.
    """
    axis = gpu_axis(recipe, name)
    wish, need = recipe.experiments[name].gpu, recipe.needs_of(name).gpus
    whole = choose_gpus(name, wish, need, machine, wanted=selection.gpus)
    if not axis or whole.request is None:
        small = "" if selection.quick else "; --quick is the size for one"
        note = f"{name}: {whole.note}{small}" if whole.note else ""
        return dict.fromkeys(values, whole), note
    here = len(whole.suitable)
    fitting = [value for value in values if int(value) <= here]
    left = [value for value in values if int(value) > here]
    note = ""
    if left:
        least = min(int(value) for value in left)
        why = f"{least} GPUs are needed and there {'is' if here == 1 else 'are'} {here}"
        asked = axis in selection.axes
        if not fitting and selection.quick and not asked:  # a quick run is of what is there
            plain = [value for value in recipe.values_of(name, axis) if int(value) <= here]
            fitting = sorted(plain, key=int)[-1:]
        if asked or not fitting:
            raise EnvironmentFault(
                f"{name} cannot run here: {why}",
                fix="ask for fewer, or run where there are more; see `ae doctor`",
            )
        note = f"left out: {name} with {axis} {', '.join(left)}: {why}"
    # In one order for all counts: a GPU of fewer is also one of more.
    return {value: whole.first(int(value)) for value in fitting}, note


def choose_gpus(
    experiment: str,
    wish: Literal["required", "optional", "none"],
    need: GpuNeed | None,
    machine: Machine,
    *,
    wanted: Wanted = None,
) -> GpuChoice:
    """Choose between CPU and GPUs for one experiment.

    Raises EnvironmentFault when the experiment requires a GPU, or the person asked for one, and
    none is suitable.
    """
    if wanted == 0:
        if wish != "required":
            return GpuChoice()
        raise EnvironmentFault(
            f"{experiment} needs a GPU and the run was told to use the CPU",
            fix="run it without `--gpus none`, or choose other experiments; `--gpus 0` says how "
            "many, too: the GPU of that number is `--gpus device=0`",
        )
    if wish == "none":
        wanted = None
    request = gpu_request(need, wanted)
    words = wanted if isinstance(wanted, tuple) else ()
    named = _named(machine.gpus, words)
    suitable = [gpu for gpu in named if not shortcoming(gpu, request)]
    enough = len(suitable) >= request.count
    if wish == "none":  # in the image that other points use here, so that no second one is needed
        return GpuChoice(flavour=Flavour.CUDA if enough else Flavour.CPU)
    if enough:
        ordered = tuple(suitable if words else _alike_first(suitable))
        choice = GpuChoice(request=request, suitable=ordered, flavour=Flavour.CUDA)
        return choice.first(request.count)
    why, fix = _explain(named, suitable, request)
    if wish == "required" or wanted:
        raise EnvironmentFault(f"{experiment} cannot run here: {why}", fix=fix)
    return GpuChoice(note=f"{why}, so it runs on the CPU")


def gpu_request(need: GpuNeed | None, wanted: Wanted) -> GpuRequest:
    """The recipe's need and the person's wish as one request, whose GPUs are not chosen yet."""
    least = need.least if need else 1
    asked = (len(wanted) if isinstance(wanted, tuple) else wanted or 0) or least
    if asked < least:
        raise EnvironmentFault(
            f"{least} GPUs are needed and {asked} asked for", fix=f"--gpus {least}, or more"
        )
    if need is None:
        return GpuRequest(count=asked)
    return GpuRequest(
        count=asked,
        min_memory_gib=need.min_memory / GIB,
        min_compute_capability=need.min_compute_capability,
        min_driver=need.min_driver or "",
    )


def shortcoming(gpu: Gpu, request: GpuRequest) -> str:
    """Why a GPU does not meet a request, in words that follow its name; empty when it does."""
    if not gpu.known:  # another machine's: the point itself will say
        return ""
    if gpu.memory_gib < request.min_memory_gib:
        return f"has {gpu.memory_gib:.3g} GiB of memory, {request.min_memory_gib:.3g} GiB needed"
    if gpu.compute_capability < request.min_compute_capability:
        has, needs = (
            ".".join(map(str, pair))
            for pair in (gpu.compute_capability, request.min_compute_capability)
        )
        return f"has compute capability {has}, {needs} needed"
    if version(gpu.driver) < version(request.min_driver):
        return f"has driver {gpu.driver}, {request.min_driver} or newer needed"
    return ""


def unknown_gpu(index: str) -> Gpu:
    """A GPU of another machine, of which only the number is known: it suits every request."""
    return Gpu(index=int(index), name="GPU of another machine", known=False)


def version(text: str) -> tuple[int, ...]:
    """A driver version as numbers, `550.54.14` -> (550, 54, 14); unknown text is older than any."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(p.isdecimal() for p in parts) else ()


def _alike_first(gpus: Sequence[Gpu]) -> list[Gpu]:
    """The model that there is most of first, so that GPUs that work together are alike."""
    number = Counter(gpu.name for gpu in gpus)
    first = {gpu.name: index for index, gpu in reversed(list(enumerate(gpus)))}
    return sorted(gpus, key=lambda gpu: (-number[gpu.name], first[gpu.name]))


def _named(gpus: Sequence[Gpu], devices: Sequence[str]) -> list[Gpu]:
    if not devices:
        return list(gpus)
    found = []
    for device in devices:
        match = [gpu for gpu in gpus if device in (str(gpu.index), gpu.uuid)]
        if not match:
            known = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in gpus) or "none"
            raise EnvironmentFault(f"there is no GPU {device}", fix=f"GPUs here: {known}")
        found += [gpu for gpu in match if gpu not in found]
    return found


def _explain(named: Sequence[Gpu], suitable: Sequence[Gpu], request: GpuRequest) -> tuple[str, str]:
    """Why there are too few suitable GPUs, and what to do."""
    if not named:
        return "this machine shows no GPU", (
            "run on a host with an NVIDIA GPU and its driver; see `ae doctor`"
        )
    unfit = [(gpu, why) for gpu in named if (why := shortcoming(gpu, request))]
    if not unfit:
        return f"{request.count} GPUs are needed and there are {len(suitable)}", (
            "ask for fewer with --gpus, or run where there are more; see `ae doctor`"
        )
    gpu, why = unfit[0]
    fix = "update the driver" if "driver" in why else "run on a GPU that has it"
    return f"GPU {gpu.index} ({gpu.name}) {why}", f"{fix}; see `ae doctor`"

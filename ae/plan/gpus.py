"""Which GPUs an experiment gets, or why none of them will do. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ae.errors import EnvironmentFault
from ae.model import Flavour, Gpu, GpuId, GpuRequest, Machine

if TYPE_CHECKING:
    from ae.recipe.needs import GpuNeed

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class GpuChoice:
    """The request to make and the GPUs chosen for it; no request: the CPU."""

    request: GpuRequest | None = None
    gpus: tuple[Gpu, ...] = ()  # those that `request.devices` names
    suitable: tuple[Gpu, ...] = ()  # all that could serve, the chosen ones first
    note: str = ""  # what a person should know about the choice
    flavour: Flavour = Flavour.CPU  # of the image; a point without GPUs may run in either


def choose_gpus(
    experiment: str,
    wish: Literal["required", "optional", "none"],
    need: GpuNeed | None,
    machine: Machine,
    *,
    wanted: tuple[str, ...] | int | None = None,
    flavour: Flavour | None = None,
) -> GpuChoice:
    """Choose between CPU and GPUs for one experiment.

    `wanted` are the GPUs a person named, or how many. Raises EnvironmentFault when the experiment
    requires a GPU, or the person asked for one, and none is suitable.
    """
    if wish == "none":
        return GpuChoice(flavour=_flavour_at_hand(need, machine, wanted, flavour))
    if flavour is Flavour.CPU or wanted == 0:
        if wish == "optional":
            return GpuChoice()
        raise EnvironmentFault(
            f"{experiment} needs a GPU and the run was told to use the CPU",
            fix="run it without `--gpus none`, or choose other experiments; `--gpus 0` says how "
            "many, too: the GPU of that number is `--gpus device=0`",
        )
    request = gpu_request(need, wanted)
    insists = wish == "required" or flavour is Flavour.CUDA or bool(wanted)
    words = wanted if isinstance(wanted, tuple) else ()
    named = _named(machine.gpus, words)
    suitable = [gpu for gpu in named if not shortcoming(gpu, request)]
    if len(suitable) >= request.count:
        ordered = tuple(suitable if words else _alike_first(suitable))
        chosen = ordered[: request.count]
        devices = tuple(GpuId(index=gpu.index, uuid=gpu.uuid) for gpu in chosen)
        request = replace(request, devices=devices)
        return GpuChoice(request=request, gpus=chosen, suitable=ordered, flavour=Flavour.CUDA)
    why, fix = _explain(named, suitable, request)
    if insists:
        raise EnvironmentFault(f"{experiment} cannot run here: {why}", fix=fix)
    return GpuChoice(note=f"{why}, so it runs on the CPU")


def _flavour_at_hand(
    need: GpuNeed | None,
    machine: Machine,
    wanted: tuple[str, ...] | int | None,
    flavour: Flavour | None,
) -> Flavour:
    """The image that the recipe's other points use here, so that no second one is needed."""
    if flavour is not None or wanted == 0:
        return flavour or Flavour.CPU
    request = gpu_request(need, None)
    suitable = [gpu for gpu in machine.gpus if not shortcoming(gpu, request)]
    return Flavour.CUDA if len(suitable) >= request.count else Flavour.CPU


def gpu_request(need: GpuNeed | None, wanted: tuple[str, ...] | int | None) -> GpuRequest:
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


def unknown_gpu(word: str) -> Gpu:
    """A GPU of another machine, known by index or UUID alone: it suits every request."""
    return Gpu(
        index=int(word) if word.isdigit() else -1,
        uuid="" if word.isdigit() else word,
        name="GPU of another machine",
        memory_gib=0.0,
        memory_free_gib=0.0,
        compute_capability=(0, 0),
        driver="",
        known=False,
    )


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

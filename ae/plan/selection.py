"""What a person asked `ae run` for, and how its words become a selection. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ae.errors import UsageError
from ae.model import Flavour

if TYPE_CHECKING:
    from ae.plan.planner import Selection
    from ae.recipe.models import Recipe


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asked `ae run` for, in the words of the command line."""

    recipe: str
    variants: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    settings: Mapping[str, str]
    repeat: int = 1
    quick: bool = False
    gpus: str | None = None
    lane: str = "native"
    image: str | None = None
    engine: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)  # name -> path
    dry_run: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether nothing was selected (then `--resume` takes the selection of the old run)."""
        bare = replace(self, engine=None, image=None, secrets={})
        return bare == Request(recipe=self.recipe, settings={})


def select(request: Request, recipe: Recipe) -> Selection:
    """Turn the words of the command line into a selection; checks what needs the recipe."""
    from ae.plan.planner import Selection

    axes = {k: tuple(v.split(",")) for k, v in request.settings.items() if k in recipe.axes}
    if request.datasets:
        if "dataset" not in recipe.axes:
            raise UsageError(
                f"{recipe.name} has no datasets to choose from", fix=f"see `ae show {recipe.name}`"
            )
        names = [name for word in request.datasets for name in word.split(",")]
        axes["dataset"] = tuple(names)
    count, devices = parse_gpus(request.gpus)
    return Selection(
        experiments=_words(request.experiments),
        variants=_words(request.variants),
        axes=axes,
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


def _words(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for value in values for part in value.split(",") if part)

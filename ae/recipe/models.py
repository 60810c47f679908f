"""A recipe: one paper as data. The models of `recipe.yaml`."""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict, model_validator

from ae import units
from ae.errors import nearest
from ae.model import Part, Text
from ae.recipe.needs import GpuNeed, Needs, Size

Value = int | float | str | bool | tuple[str, ...]  # what a parameter can hold
_KINDS: dict[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "float": (int | float, "a number"),
    "str": (str, "text"),
    "bool": (bool, "true or false"),
    "choice": (str, "text"),
    "list": (list, "a list of words"),
}


def _seconds(value: object) -> object:
    return units.parse_seconds(value) if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Key = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]  # can stand in a placeholder
Words = Annotated[tuple[str, ...], Strict(False)]
VariantWords = Annotated[Words, BeforeValidator(lambda value: ["all"] if value == "all" else value)]


class Paper(Part):
    """The publication."""

    title: Text
    venue: Text
    url: Text
    artifact: str | None = None


class Lane(Part):
    """Whose code runs: ours (`native`) or the authors' (`upstream`)."""

    summary: Text
    image: Name | None = None  # default: the recipe's
    built: bool = True  # false: the recipe is written, and was never built by us


class Variant(Part):
    """A design point under the paper's name."""

    title: Text
    summary: Text
    baseline: str | None = None


class Parameter(Part):
    """What a person may change with `--set`."""

    type: Literal[
        "int", "float", "str", "bool", "choice",
        "list", "list of int", "list of float", "list of choice",
    ]  # fmt: skip
    default: Any
    quick: Any = None
    min: float | None = None
    max: float | None = None
    choices: Words | None = None
    help: Text
    unit: str | None = None
    replaces: Key | None = None  # an axis of whose values one runs where this is set
    size: bool = False  # part of the paper's problem size: with another value no claim is scored

    @model_validator(mode="after")
    def _fits(self) -> Parameter:
        kind = self.type.removeprefix("list of ")
        if (kind == "choice") != bool(self.choices):
            raise ValueError("`type: choice` and a list of `choices` go together")
        if (self.min is not None or self.max is not None) and kind not in ("int", "float"):
            raise ValueError("only an int or a float has `min` and `max`")
        for word in ("default", "quick") if self.quick is not None else ("default",):
            try:
                self.check(getattr(self, word))
            except ValueError as error:
                raise ValueError(f"`{word}` {error}") from error
        return self

    def value(self, quick: bool) -> Value:
        """What holds when nobody sets it."""
        return self.check(self.quick if quick and self.quick is not None else self.default)

    def parse(self, text: str) -> Value:
        """Read what a person typed. Raises ValueError with words that follow the key's name."""
        if not text.isprintable():  # a broken character or a control code, from a wrong terminal
            raise ValueError(f"must be plain text, not {text!r}")
        value: object = text
        if self.type == "bool":
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif self.type.startswith("list"):
            value = [word.strip() for word in text.split(",") if word.strip()]
        elif self.type in ("int", "float"):
            with suppress(ValueError):  # else the words that it must be a number
                value = (int if self.type == "int" else float)(text.replace("_", ""))
        return self.check(value)

    def check(self, value: object) -> Value:
        """Return `value` if it has the type and lies within the bounds. Raises ValueError."""
        kinds, words = _KINDS[self.type.split()[0]]
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.type != "bool"):
            raise ValueError(f"must be {words}, not {value!r}")
        if isinstance(value, list):
            if not value or any(not isinstance(w, str) or not w or "," in w for w in value):
                raise ValueError(f"must be {words}, not {value!r}")
            for word in value if self.type != "list" else ():
                self.model_copy(update={"type": self.type.split()[-1]}).parse(word)
            return tuple(value)
        if isinstance(value, str):
            if self.choices is not None and value not in self.choices:
                raise ValueError(f"cannot be '{value}'; {nearest(value, self.choices)}")
            return value
        if not abs(value) < (2**63 if self.type == "int" else math.inf):
            raise ValueError("must be a finite number of a sensible size")
        for word, bound, sign in (("least", self.min, 1), ("most", self.max, -1)):
            if bound is not None and sign * value < sign * bound:
                digits = f"{Decimal(str(bound)).normalize():f}"
                raise ValueError(f"must be at {word} {digits}, not {value}")
        return float(value) if self.type == "float" else value


class AxisValue(Part):
    """One value of an axis."""

    summary: Text
    default: bool = True  # false: only where it is asked for, by `--set` or by the axis' `quick`


class Axis(Part):
    """What points are enumerated over."""

    help: Text
    values: Annotated[dict[Name, AxisValue], Field(min_length=1)]
    quick: Words = ()  # the values under `--quick`; none: those of a plain run


class Spans(Part):
    """Seconds for one point, at full size and under `--quick`."""

    full: Seconds
    quick: Seconds


class Experiment(Part):
    """The set of points behind one figure or table."""

    title: Text
    summary: Text
    default: bool = True
    lane: str = "native"
    axes: Words = ()
    # Of an axis that it shares, the values that it runs.
    only: dict[Key, Annotated[Words, Field(min_length=1)]] = Field(default_factory=dict)
    variants: VariantWords = ()  # ("all",): every one, see Recipe.variants_of
    interleave: bool = True
    processes: Annotated[int, Field(ge=1)] = 1  # that a default run takes of every point
    gpu: Literal["required", "optional", "none"]
    command: Annotated[tuple[Text, ...], Strict(False), Field(min_length=1)]
    parse: Key | None = None  # function of parse.py that reads the log of programs not ours
    time: Spans
    timeout: Spans
    disk: Size = 10**7
    needs: Needs = Needs.model_construct()


class FigureRef(Part):
    """A function of figures.py and the experiments whose records it draws."""

    title: Text
    paper: Text | None = None
    experiments: Annotated[Words, Field(min_length=1)]


class Table(Part):
    """The result table at the end of a run."""

    metrics: Words = ()  # of an experiment the first that it recorded
    drawn: Words = ()  # those that are in figures alone
    rows: Words = ()
    baseline: str = ""


class Recipe(Part):
    """One paper, as data. Durations are seconds, sizes bytes."""

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    title: Text
    paper: Paper
    image: Name
    lanes: Annotated[dict[Name, Lane], Field(min_length=1)]
    variants: dict[Name, Variant] = Field(default_factory=dict)
    parameters: dict[Key, Parameter] = Field(default_factory=dict)
    axes: dict[Key, Axis] = Field(default_factory=dict)
    experiments: Annotated[dict[Name, Experiment], Field(min_length=1)]
    needs: Needs = Needs.model_construct()
    figures: dict[Key, FigureRef] = Field(default_factory=dict)
    table: Table = Table()

    def variants_of(self, experiment: str) -> tuple[str, ...]:
        """The names of the variants that take part in an experiment, in display order."""
        listed = self.experiments[experiment].variants
        return tuple(name for name in self.variants if listed == ("all",) or name in listed)

    def plain_run(self) -> tuple[str, tuple[str, ...]]:
        """The lane of `ae run` without options where it has one, and that lane's experiments."""
        lane = "native" if "native" in self.lanes else next(iter(self.lanes))
        own = [name for name, one in self.experiments.items() if one.lane == lane]
        return lane, tuple(n for n in own if self.experiments[n].default) or tuple(own)

    def values_of(self, experiment: str, axis: str, *, quick: bool = False) -> tuple[str, ...]:
        """The values of an axis that an experiment has when nobody narrows it, in display order."""
        about, there = self.axes[axis], self.possible_values(experiment, axis)
        wanted = [value for value in there if quick and value in about.quick]
        return tuple(wanted or [v for v in there if about.values[v].default] or there)

    def possible_values(self, experiment: str, axis: str) -> tuple[str, ...]:
        """The values of an axis that can be asked of an experiment, in display order."""
        only = self.experiments[experiment].only.get(axis)
        return tuple(value for value in self.axes[axis].values if only is None or value in only)

    def points_of(self, experiment: str) -> int:
        """How many points a plain run of an experiment has, given the GPUs for all of them: one for
        each of its processes."""
        about = self.experiments[experiment]
        count = about.processes * math.prod(len(self.values_of(experiment, a)) for a in about.axes)
        return count if about.interleave else count * max(1, len(self.variants_of(experiment)))

    def gpu_axis(self, experiment: str) -> str:
        """The axis that says how many GPUs a point of the experiment gets; empty: there is none."""
        need = self.needs_of(experiment).gpus
        return need.axis if need and self.experiments[experiment].gpu != "none" else ""

    def gpu_counts(self, need: GpuNeed | None) -> tuple[int, ...]:
        """How many GPUs points with this need ask for, ascending; several where an axis says so."""
        if need is None:
            return (1,)
        if isinstance(need.count, int):
            return (need.count,)
        return tuple(sorted(int(value) for value in self.axes[need.axis].values))

    def needs_of(self, experiment: str) -> Needs:
        """The recipe's needs with the experiment's overrides."""
        return self.needs.override(self.experiments[experiment].needs)

    def secrets(self) -> list[str]:
        """The names of all secrets that its experiments can use."""
        needs = [self.needs, *(experiment.needs for experiment in self.experiments.values())]
        return sorted({secret.name for need in needs for secret in need.secrets})

    def image_of(self, lane: str) -> str:
        """The image folder that a lane runs."""
        return self.lanes[lane].image or self.image

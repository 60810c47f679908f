"""A recipe: one paper as data. The models of `recipe.yaml`, and where recipes are found."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    WithJsonSchema,
    model_validator,
)

from ae import units
from ae.errors import UsageError, nearest
from ae.yamlfile import read_yaml, validate

Value = int | float | str | bool | tuple[str, ...]  # what a parameter can hold


def _size(value: object) -> object:
    return units.parse_size(str(value)) if isinstance(value, str | int) else value


def _seconds(value: object) -> object:
    return units.parse_seconds(value) if isinstance(value, str) else value


def _capability(value: object) -> object:
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+)\.(\d+)", value)):
        return int(match[1]), int(match[2])
    raise ValueError(f"{value!r} is not a compute capability; write it in quotes, as '8.0'")


def _driver(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)*", value):
        return value
    raise ValueError(f"{value!r} is not a driver version; write it in quotes, as '550.54'")


def _linux_capability(value: object) -> object:
    if value == "ALL":
        raise ValueError("ALL is not given to anybody; name the capabilities one by one")
    return value.removeprefix("CAP_") if isinstance(value, str) else value


def _text_schema(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example]})


Size = Annotated[int, BeforeValidator(_size), _text_schema("200MB")]  # bytes
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0), _text_schema("5m")]
Capability = Annotated[
    tuple[int, int], Strict(False), BeforeValidator(_capability), _text_schema("8.0")
]
Driver = Annotated[str, BeforeValidator(_driver), _text_schema("550.54")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Key = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]  # can stand in a placeholder
Text = Annotated[str, Field(min_length=1)]
Words = Annotated[tuple[str, ...], Strict(False)]
VariantWords = Annotated[
    Words,
    BeforeValidator(lambda value: ["all"] if value == "all" else value),
    WithJsonSchema(
        {"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "string"}}], "default": []}
    ),
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Paper(_Part):
    """The publication."""

    title: Text
    venue: Text
    url: Text
    artifact: str | None = None


class Lane(_Part):
    """Whose code runs: ours (`native`) or the authors' (`upstream`)."""

    summary: Text
    image: Name | None = None  # default: the recipe's
    built: bool = True  # false: the recipe is written, and was never built by us


class Variant(_Part):
    """A design point under the paper's name."""

    title: Text
    summary: Text
    baseline: str | None = None


class Parameter(_Part):
    """What a person may change with `--set`."""

    type: Literal["int", "float", "str", "bool", "choice", "list"]
    default: Any
    quick: Any = None
    min: float | None = None
    max: float | None = None
    choices: Words | None = None
    help: Text
    unit: str | None = None
    size: bool = False  # part of the paper's problem size: with another value no claim is scored

    @model_validator(mode="after")
    def _fits(self) -> Parameter:
        if (self.type == "choice") != bool(self.choices):
            raise ValueError("`type: choice` and a list of `choices` go together")
        if (self.min is not None or self.max is not None) and self.type not in ("int", "float"):
            raise ValueError("only an int or a float has `min` and `max`")
        for word in ("default", "quick"):
            if word == "default" or self.quick is not None:
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
        if self.type == "bool":
            if text.lower() not in ("true", "false"):
                raise ValueError(f"must be true or false, not '{text}'")
            return text.lower() == "true"
        if self.type == "list":
            return self.check([word.strip() for word in text.split(",") if word.strip()])
        if self.type in ("int", "float"):
            try:
                return self.check(int(text.replace("_", "")) if self.type == "int" else float(text))
            except ValueError as error:
                if str(error).startswith("must"):
                    raise
                kind = "whole number" if self.type == "int" else "number"
                raise ValueError(f"must be a {kind}, not '{text}'") from error
        return self.check(text)

    def check(self, value: object) -> Value:
        """Return `value` if it has the type and lies within the bounds. Raises ValueError."""
        if self.type in ("int", "float"):
            return self._check_number(value)
        if self.type == "bool":
            if not isinstance(value, bool):
                raise ValueError(f"must be true or false, not {value!r}")
            return value
        if self.type == "list":
            if (
                not isinstance(value, list)
                or not value
                or not all(isinstance(word, str) and word and "," not in word for word in value)
            ):
                raise ValueError(f"must be a list of words, not {value!r}")
            return tuple(value)
        if not isinstance(value, str):
            raise ValueError(f"must be text, not {value!r}")
        if self.choices is not None and value not in self.choices:
            raise ValueError(f"cannot be '{value}'; {nearest(value, self.choices)}")
        return value

    def _check_number(self, value: object) -> int | float:
        kinds = int if self.type == "int" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError(f"must be of type {self.type}, not {value!r}")
        assert isinstance(value, int | float)
        if not math.isfinite(value):
            raise ValueError("must be a finite number")
        if self.min is not None and value < self.min:
            raise ValueError(f"must be at least {self.min:g}, not {value}")
        if self.max is not None and value > self.max:
            raise ValueError(f"must be at most {self.max:g}, not {value}")
        return value if self.type == "int" else float(value)


class AxisValue(_Part):
    """One value of an axis."""

    summary: Text


class Axis(_Part):
    """What points are enumerated over."""

    help: Text
    values: Annotated[dict[Name, AxisValue], Field(min_length=1)]


class Spans(_Part):
    """Seconds for one point, at full size and under `--quick`."""

    full: Seconds
    quick: Seconds


class GpuNeed(_Part):
    """What the GPUs must offer. Memory in bytes, compute capability as (major, minor)."""

    count: Annotated[int, Field(ge=1)] = 1
    min_memory: Size = 0
    min_compute_capability: Capability = (0, 0)
    min_driver: Driver | None = None
    why: Text


class SizeNeed(_Part):
    """A size in bytes."""

    value: Size
    why: Text


class CapabilityNeed(_Part):
    """A Linux capability, e.g. `SYS_ADMIN`."""

    value: Annotated[str, BeforeValidator(_linux_capability), Field(pattern=r"^[A-Z][A-Z_]*$")]
    why: Text


class IpcNeed(_Part):
    """Whose shared memory a container sees."""

    value: Literal["host", "private", "shareable", "none"]
    why: Text


class NetworkNeed(_Part):
    """The network of a container; `none` unless a reason is given."""

    value: Literal["none", "bridge", "host"]
    why: Text


class UlimitNeed(_Part):
    """A resource limit; -1 is unlimited."""

    name: Annotated[str, Field(pattern=r"^[a-z]+$")]
    soft: Annotated[int, Field(ge=-1)]
    hard: Annotated[int, Field(ge=-1)]
    why: Text


class VolumeNeed(_Part):
    """A host folder seen in the container; a relative source starts at the repository's root."""

    source: Text
    target: Annotated[str, Field(pattern=r"^/.+")]
    read_only: bool = True
    why: Text


class SecretNeed(_Part):
    """A file of the person's, such as a licence, that the container sees read-only at `target`."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
    target: Annotated[str, Field(pattern=r"^/[^/].*[^/]$")]
    optional: bool = False
    why: Text

    @model_validator(mode="after")
    def _fits(self) -> SecretNeed:
        if ".." in self.target.split("/") or self.target.startswith("/ae/"):
            raise ValueError(f"a secret cannot be put at {self.target}; use /run/secrets/...")
        return self


class Needs(_Part):
    """What containers must be given beyond a process and a folder, each with its reason."""

    gpus: GpuNeed | None = None
    shm_size: SizeNeed | None = None
    cap_add: Annotated[tuple[CapabilityNeed, ...], Strict(False)] = ()
    ipc: IpcNeed | None = None
    ulimits: Annotated[tuple[UlimitNeed, ...], Strict(False)] = ()
    network: NetworkNeed | None = None
    memory: SizeNeed | None = None
    volumes: Annotated[tuple[VolumeNeed, ...], Strict(False)] = ()
    secrets: Annotated[tuple[SecretNeed, ...], Strict(False)] = ()

    @model_validator(mode="after")
    def _secrets_differ(self) -> Needs:
        for word in ("name", "target"):
            values = [getattr(secret, word) for secret in self.secrets]
            if len(set(values)) < len(values):
                raise ValueError(f"two `secrets` have the same {word}")
        return self

    def override(self, other: Needs) -> Needs:
        """These needs with every key that `other` names taken from there (null takes it away)."""
        return self.model_copy(update={key: getattr(other, key) for key in other.model_fields_set})


class Experiment(_Part):
    """The set of points behind one figure or table."""

    title: Text
    summary: Text
    default: bool = True
    lane: str = "native"
    axes: Words = ()
    variants: VariantWords = ()  # ("all",): every one, see Recipe.variants_of
    interleave: bool = True
    gpu: Literal["required", "optional", "none"]
    command: Annotated[tuple[Text, ...], Strict(False), Field(min_length=1)]
    parse: Key | None = None  # function of parse.py that reads the log of programs not ours
    time: Spans
    timeout: Spans
    disk: Size = 10**7
    needs: Needs = Needs()


class FigureRef(_Part):
    """A function of figures.py and the experiments whose records it draws."""

    title: Text
    paper: Text | None = None
    experiments: Annotated[Words, Field(min_length=1)]


class Table(_Part):
    """The result table at the end of a run."""

    metric: Text
    rows: Words
    baseline: str | None = None


class Recipe(_Part):
    """One paper, as data. Durations are seconds, sizes bytes."""

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    title: Text
    paper: Paper
    image: Name
    lanes: Annotated[dict[Name, Lane], Field(min_length=1)]
    variants: dict[Name, Variant] = {}
    parameters: dict[Key, Parameter] = {}
    axes: dict[Key, Axis] = {}
    experiments: Annotated[dict[Name, Experiment], Field(min_length=1)]
    needs: Needs = Needs()
    figures: dict[Key, FigureRef] = {}
    table: Table | None = None

    def variants_of(self, experiment: str) -> tuple[str, ...]:
        """The names of the variants that take part in an experiment, in display order."""
        listed = self.experiments[experiment].variants
        return tuple(name for name in self.variants if listed == ("all",) or name in listed)

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


def load_recipe(root: Path, name: str) -> Recipe:
    """Read `recipes/<name>/recipe.yaml` below `root` and check all of it.

    Raises UsageError when there is no such recipe, RecipeError with file and line for the rest.
    """
    from ae.recipe_checks import check_recipe

    known = list_recipes(root)
    if name not in known:
        raise UsageError(
            f"there is no recipe '{name}'; {nearest(name, known)}", fix="see `ae list`"
        )
    document = read_yaml(root / "recipes" / name / "recipe.yaml", root)
    recipe = validate(document, Recipe)
    check_recipe(recipe, document, folder=name, images=_folders(root / "images"))
    return recipe


def list_recipes(root: Path) -> list[str]:
    """The names of all recipes below `root`, sorted."""
    folder = root / "recipes"
    return [name for name in _folders(folder) if (folder / name / "recipe.yaml").is_file()]


def find_root(start: Path | None = None) -> Path:
    """The folder that holds `recipes/` and `images/`.

    $AE_ROOT; else the nearest such folder at or above `start` (default: the working folder); else
    the checkout that this package lies in. Raises UsageError.
    """
    named = os.environ.get("AE_ROOT")
    if named:
        if not _is_root(Path(named)):
            raise UsageError(
                f"AE_ROOT is {named}, which has no recipes/ and images/",
                fix="set AE_ROOT to the checkout, or unset it",
            )
        return Path(named).resolve()
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
        if _is_root(folder):
            return folder
    raise UsageError(
        f"no folder with recipes/ and images/ at or above {here}",
        fix="change into the checkout, or set AE_ROOT to it",
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of recipe.yaml, for editors."""
    schema = Recipe.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _is_root(folder: Path) -> bool:
    return (folder / "recipes").is_dir() and (folder / "images").is_dir()


def _folders(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []

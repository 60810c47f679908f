"""A workload's configuration: each field is a flag, its words and its bounds, checked once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from reprokit.errors import ConfigError

_INT_END = 2**63  # what numpy and CUDA count in
Self = TypeVar("Self", bound="Options")


def option(
    default: Any = MISSING, help: str = "", *, choices: Sequence[str] = (),
    least: float | None = None, most: float | None = None, above: float | None = None,
    empty: bool = False,
) -> Any:  # fmt: skip
    """A field of `Options` that is a flag too; its type is that of `default`.

    Bounds and `choices` hold for each value of a tuple, which must hold one unless `empty`. With
    `above`, infinity is out of range as well.
    """
    bounds = {"least": least, "most": most, "above": above}
    return field(
        default=default,
        metadata={"help": help, "choices": tuple(choices), "empty": empty, **bounds},
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of a Config: frozen, checked when it is made. Raises ConfigError.

    `experiment` and `device` are arguments of every workload; so is `out`.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.metadata:
                _check(each, getattr(self, each.name))

    @classmethod
    def parse(cls: type[Self], argv: Sequence[str], *, prog: str, about: str) -> Self:
        """Return the Config of a command line. Raises ConfigError; leaves with 0 after --help."""
        parser = _Parser(prog=prog, description=about)
        for each in fields(cls):
            if not each.metadata:
                continue
            words, known = each.metadata["help"], each.metadata["choices"]
            if each.name == "experiment":
                parser.add_argument("experiment", help=", ".join(known))
                continue
            shown = _join(each.default)
            words = f"{words or ' or '.join(known)} (default: {'none' if shown == '' else shown})"
            parser.add_argument(
                _flag(each.name), default=each.default, type=_reader(each.default),
                help=words.replace("%", "%%"),
            )  # fmt: skip
        return cls(**vars(parser.parse_args(argv)))

    def facts(self) -> dict[str, Any]:
        """Every field as plain JSON data, for `environment.json`."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; fix: see --help")


def _check(each: Field[Any], given: Any) -> None:
    flag, known = _flag(each.name), each.metadata["choices"]
    several = isinstance(given, tuple)
    if several and not given and not each.metadata["empty"]:
        what = f"some of {', '.join(known)}" if known else "give one or more"
        raise ConfigError(f"{flag} is empty; fix: {what}")
    if several and len(set(given)) < len(given):
        raise ConfigError(f"{flag} names one twice; fix: name each once")
    for value in given if several else (given,):
        if known and value not in known:
            what = f"{flag} {value}" if each.name != "experiment" else f"experiment '{value}'"
            raise ConfigError(f"{what} is unknown; fix: {_instead(str(value), known)}")
        if isinstance(value, int | float):
            _check_number(flag, value, each.metadata)


def _check_number(flag: str, value: float, bounds: Any) -> None:
    least, most, above = (bounds[name] for name in ("least", "most", "above"))
    if isinstance(value, int) and not -_INT_END <= value < _INT_END:
        raise ConfigError(f"{flag} is out of range; fix: a number below 2^63")
    fine = (
        (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or above < value < float("inf"))
    )
    if not fine:
        limits = (("at least", least), ("above", above), ("at most", most))
        words = ", ".join(f"{name} {limit:g}" for name, limit in limits if limit is not None)
        raise ConfigError(f"{flag} {value} is out of range; fix: {words}")


def _instead(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word, known, n=1)
    asked = f"; did you mean '{close[0]}'?" if close else ""
    return f"one of {', '.join(known)}{asked}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _join(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _reader(default: Any) -> Callable[[str], Any]:
    """The function that turns a flag's word into a value of the default's type."""
    if isinstance(default, tuple):
        item = type(default[0])
        return lambda words: tuple(_value(word, item) for word in words.split(",") if word)
    return lambda word: _value(word, type(default))


def _value(word: str, kind: type) -> Any:
    try:
        return kind(word)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"'{word[:40]}' is not {what}") from None

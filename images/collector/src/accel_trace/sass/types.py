"""The type of what an instruction loads or stores, by what else the code does with its register.

A value is followed from where it is defined to all its uses, and through moves and selections, both
ways: forward from a load, backward from a store. What computes with it says the type: FADD that of
float32, IADD3 of an integer, HMMA of float16, and a pair of registers that DADD reads is a float64.
Values that only pass, from memory to memory or through shared memory, stay of no known type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from accel_trace.sass.disassembly import Function
from accel_trace.sass.effects import LOADS, STORES, Effect, effect_of, run, width_of

MOST = 4000  # definitions that are followed for one register
_GLOBAL = {"LD", "LDG", "ST", "STG"}
_FLOATS = ("f32", "f16", "bf16")
_WIDE = {"i64", "s64", "u64"}


@dataclass(frozen=True)
class Told:
    """A type: name of an element, its bytes; `signed` None where nobody says it of an integer."""

    name: str  # f64, f32, f16, bf16, or int
    size: int
    signed: bool | None = None

    @property
    def element(self) -> str:
        """The element's name in accel_trace.values.elements.

        Integers of no told sign are taken as signed, and bytes as unsigned.
        """
        if self.name != "int":
            return self.name
        unsigned = self.size == 1 if self.signed is None else not self.signed
        return f"{'u' if unsigned else 'i'}{8 * self.size}"


class Code:
    """A function with its effects, asked for one memory instruction after the other."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.effects: list[Effect] = [effect_of(one) for one in function.instructions]
        self._defined = lru_cache(None)(self._definitions)
        self._used = lru_cache(None)(self._uses)

    def accesses(self) -> list[int]:
        """Indices of the loads and stores of global memory, or of what may be it."""
        return [i for i in range(len(self.effects)) if self.is_access(i)]

    def is_access(self, index: int) -> bool:
        """Whether an instruction loads from or stores to memory that may be global."""
        return self.function.instructions[index].words[0] in _GLOBAL

    def told(self, index: int) -> Told | None:
        """The type of a load or store, None where the code does not say it."""
        one = self.function.instructions[index]
        size, loads = width_of(one.words), one.words[0] in LOADS
        if loads:
            named = [name for name, _ in self.effects[index].defines]
            votes = [self.votes([(index, name)]) for name in named]
        elif one.words[0] in STORES:
            plain = [part for part in one.operands if "[" not in part]
            first = plain[0].split(".")[0] if plain else "RZ"
            named = [] if first == "RZ" else run(first, max(size // 4, 1))
            votes = [self.votes(self._defined(index, name)) for name in named]
        else:
            return None
        return decide(votes, size, one.words if loads else ())

    def votes(self, definitions: Iterable[tuple[int, str]], depth: int = 0) -> frozenset[str]:
        """What computes with a value, of all that it is moved to or from, says of its type."""
        todo = list(definitions)
        seen: set[tuple[int, str]] = set()
        found: set[str] = set()
        while todo and len(seen) < MOST:
            index, name = todo.pop()
            if (index, name) in seen:
                continue
            seen.add((index, name))
            effect = self.effects[index]
            found |= {kind for register, kind in effect.defines if register == name and kind}
            for source, target in effect.moves:
                if target == name:
                    todo += self._defined(index, source)
            for user in self._used(index, name):
                other = self.effects[user]
                found |= {kind for register, kind in other.uses if register == name and kind}
                todo += [(user, to) for source, to in other.moves if source == name]
                for source, to in other.raises:
                    if source == name and depth < 2:
                        raised = self.votes([(user, to)], depth + 1)
                        found.add("bf16" if "f32" in raised else "logic")
        return frozenset(found)

    def _definitions(self, index: int, name: str) -> tuple[tuple[int, str], ...]:
        """The instructions whose value of the register may be read at `index`."""
        return self._walk(index, name, back=True)

    def _uses(self, index: int, name: str) -> tuple[int, ...]:
        """The instructions that may read the register as it is defined at `index`."""
        return tuple(at for at, _ in self._walk(index, name, back=False))

    def _walk(self, index: int, name: str, *, back: bool) -> tuple[tuple[int, str], ...]:
        ways = self.function.before if back else self.function.after
        todo, seen, found = list(ways[index]), set(), []
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            effect = self.effects[at]
            defines = any(register == name for register, _ in effect.defines)
            uses = any(
                register == name for register, _ in (*effect.uses, *effect.moves, *effect.raises)
            )
            if defines if back else uses:
                found.append((at, name))
            if not defines or self.function.instructions[at].guard not in ("", "@PT"):
                todo += ways[at]
        return tuple(found)


def decide(votes: list[frozenset[str]], size: int, load: tuple[str, ...] = ()) -> Told | None:
    """The type of an access of `size` bytes by what is said of each of its registers.

    `load`: the words of the opcode of a load, whose extension says a sign.
    """
    if size < 4:
        return _small(votes, size, load)
    if size >= 8:
        pairs = [votes[at : at + 2] for at in range(0, len(votes), 2)]
        whole = [_pair(pair) for pair in pairs if len(pair) == 2]
        known = {one for one in whole if one}
        if known:
            return known.pop() if len(known) == 1 and (all(whole) or _is_float(known)) else None
    single = [_register(one) for one in votes]
    if size >= 8:  # two registers of integers may be one of 64 bits, where nobody says 32
        single = [None if one == Told("int", 4) else one for one in single]
    known = {one for one in single if one}
    if len(known) != 1 or not (all(single) or _is_float(known)):
        return None
    return known.pop()


def _is_float(known: set[Told]) -> bool:
    return all(one.name != "int" for one in known)


def _pair(pair: list[frozenset[str]]) -> Told | None:
    low, high = pair
    if "f64" in low | high:
        return Told("f64", 8)
    if (low & _WIDE or high & {*_WIDE, "x64"}) and not (low | high) & set(_FLOATS):
        return Told("int", 8, _sign(high & _WIDE))
    return None


def _sign(votes: frozenset[str]) -> bool | None:
    signs = {kind[0] for kind in votes} & {"s", "u"}
    return None if len(signs) != 1 else signs == {"s"}


def _register(votes: frozenset[str]) -> Told | None:
    floats = [kind for kind in _FLOATS if kind in votes]
    if "f64" in votes or len(floats) > 1:
        return None
    if floats:
        return Told(floats[0], 4 if floats[0] == "f32" else 2)
    if not votes:
        return None
    for size in (1, 2):  # several in a register
        if votes <= {f"s{8 * size}", f"u{8 * size}"}:
            return Told("int", size, _sign(votes))
    return Told("int", 4, _sign(votes))


def _small(votes: list[frozenset[str]], size: int, load: tuple[str, ...]) -> Told | None:
    said = frozenset().union(*votes)
    floats = [kind for kind in ("f16", "bf16") if kind in said]
    if size == 2 and floats:
        return Told(floats[0], 2) if len(floats) == 1 else None
    # Without an extension of the sign nobody says that there is none: it may not matter.
    sign = True if {"S8", "S16"} & set(load) else None
    return Told("int", size, sign) if size == 1 or said else None

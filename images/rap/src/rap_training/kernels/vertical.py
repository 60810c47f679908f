"""Fusion along chains as well: everything from raw column to trainer in registers (ours).

RAP fuses operators of one kind across features and writes every intermediate value to memory.
Here a program computes elements of a final result: it finds out which element of the raw column
each comes from (first_x, ngram and one_hot only move elements), loads it once, applies the whole
chain and stores it once. Chains of equal operators share a branch; a launch holds up to BRANCHES of
them, which is all of each built-in plan: so chains that keep float64 units busy run beside those
that hash, and no launch waits for the last programs of another. Programs of both take turns, so
that one kind does not wait until the other has ended. The longest chains of each begin first, as
the last ones run while much of the GPU has nothing left. What a chain repeats is a loop, and a
branch calls a function that is not inlined: written out, or as one function, the chains of heavier
plans take the compiler minutes. The source is generated, readable, and kept as a file.
Traffic: raw columns in, results out, nothing between.

Table rows: `words` int64 [members, 9 + 3 * longest]: input, lengths, mask, output, its lengths,
rows, widths of input and output, then three parameters an operator, and the sort of chain; `floats`
float32 [members, 2 * longest]: two parameters an operator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rap_training.generated import load
from rap_training.kernels.tables import BLOCK, Constants, block_table, parameters
from rap_training.memory import Buffers
from rap_training.work import Instance

BRANCHES = 32
WARPS = 8  # of a program: two elements a thread; tried on an H200 with one and four as well
LONGEST, FEWEST = 4, 3  # operators of what is looped over, and turns: fewer are written out
_STILL = {"first_x", "ngram"}  # they move elements, and leave values as they are
_MOVES = {*_STILL, "one_hot"}
_HEAD, _WHOLE, _PARTS = 8, 3, 2  # words before the parameters; parameters of an operator
Signature = tuple[
    str, ...
]  # operators with input types, e.g. ("fill_null:int64", "sigrid_hash:int64")


@dataclass(frozen=True, kw_only=True)
class ChainKernel:
    """A generated kernel with the arguments of one launch."""

    function: Any
    blocks: torch.Tensor
    arguments: tuple[torch.Tensor, ...]
    constants: dict[str, Any]


def kernels(
    buffers: Buffers,
    slot: int,
    outputs: Sequence[str],
    constants: Constants,
    folder: Path | None = None,
) -> list[ChainKernel]:
    """The launches that compute the instances `outputs` from raw columns."""
    chains = sorted((_chain(buffers, key) for key in outputs), key=len, reverse=True)
    signatures = sorted({signature(chain) for chain in chains})
    found = []
    for start in range(0, len(signatures), BRANCHES):
        group = signatures[start : start + BRANCHES]
        members = [chain for chain in chains if signature(chain) in group]
        longest = max(map(len, group))
        words, floats = [], []
        for chain in members:
            whole, parts = _row(chain, buffers, slot, constants, longest)
            words.append([*whole, group.index(signature(chain))])
            floats.append(parts)
        sizes = [chain[-1].rows * chain[-1].gives.width for chain in members]
        blocks = _in_turns(block_table(sizes, buffers.device), members)
        arguments = (
            blocks,
            torch.tensor(words, dtype=torch.int64).to(buffers.device),
            torch.tensor(floats, dtype=torch.float32).to(buffers.device),
        )
        text = source(group, longest)
        name = f"chains_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        function = load(text, name, folder).chains
        found.append(
            ChainKernel(
                function=function, blocks=blocks, arguments=arguments, constants={"BLOCK": BLOCK}
            )
        )
    return found


def _in_turns(blocks: torch.Tensor, members: Sequence[Sequence[Instance]]) -> torch.Tensor:
    """int32 [programs, 2], of `block_table`, mixed: chains of floats and of ids, each in the order
    given, do the same share of their operators by any place."""
    operators = torch.tensor([len(chain) for chain in members], device=blocks.device)
    floats = torch.tensor(
        [2 * [i.takes.dtype for i in chain].count("float32") > len(chain) for chain in members],
        device=blocks.device,
    )
    member = blocks[:, 0].long()
    done = torch.zeros(len(blocks), dtype=torch.float64, device=blocks.device)
    for kind in (floats[member], ~floats[member]):
        work = operators[member][kind]
        done[kind] = work.cumsum(0).double() / work.sum()
    return blocks[done.argsort(stable=True)]


def signature(chain: Sequence[Instance]) -> Signature:
    """Operators and types of a chain: what decides its code."""
    return tuple(f"{instance.node.op}:{instance.takes.dtype}" for instance in chain)


def source(group: Sequence[Signature], longest: int) -> str:
    """Python source of the kernel for the chains of `group`."""
    row = _HEAD + _WHOLE * longest + 1
    branches = []
    for number, chain in enumerate(group):
        word = "if" if number == 0 else "elif"
        branches.append(f"    {word} sort == {number}:  # {_words(chain)}")
        branches.append(f"        chain_{number}(at, numbers, block, BLOCK)")
    body = "\n\n\n".join(_function(number, chain) for number, chain in enumerate(group))
    kernel = "\n".join(
        [
            "@triton.jit",
            "def chains(blocks, words, floats, BLOCK: tl.constexpr):",
            "    program = tl.program_id(0)",
            "    member = tl.load(blocks + 2 * program)",
            "    block = tl.load(blocks + 2 * program + 1)",
            f"    at = words + member * {row}",
            f"    numbers = floats + member * {_PARTS * longest}",
            f"    sort = tl.load(at + {row - 1})",
            *branches,
        ]
    )
    head = (
        '"""Generated: chains of operators from raw columns to the trainer, one launch."""\n\n'
        "import triton\nimport triton.language as tl\n\nfrom rap_training.kernels import device\n"
    )
    return f"{head}\n\n{body}\n\n\n{kernel}\n"


def _function(number: int, chain: Signature) -> str:
    """The code of one sort of chain: lengths forwards, places backwards, values forwards."""
    ops = [step.split(":")[0] for step in chain]
    kinds = [step.split(":")[1] for step in chain]
    lines = [
        "@triton.jit(noinline=True)",
        f"def chain_{number}(at, numbers, block, BLOCK: tl.constexpr):",
        "    offset = block * BLOCK + tl.arange(0, BLOCK)",
        "    mask = offset < (tl.load(at + 5) * tl.load(at + 7)).to(tl.int32)",
        "    in_width = tl.load(at + 6).to(tl.int32)",
        "    out_width = tl.load(at + 7).to(tl.int32)",
        "    row = offset // out_width",
        "    place = offset - row * out_width",
        "    lengths = tl.load(at + 1)",
        "    length = tl.zeros_like(place) + in_width",
        "    if lengths != 0:",
        "        listed = lengths.to(tl.pointer_type(tl.int32))",
        "        length = tl.load(listed + row, mask=mask, other=0)",
    ]
    counts = [f"tl.load(at + {_HEAD + _WHOLE * step}).to(tl.int32)" for step in range(len(ops))]
    length, taken = "length", []  # taken: the length of what each operator takes
    for step, op in enumerate(ops):
        taken.append(length)
        result = {
            "first_x": f"tl.minimum({length}, {counts[step]})",
            "ngram": f"device.ngram_length({length}, {counts[step]})",
            "one_hot": f"{length} * {counts[step]}",
        }.get(op)
        if result is not None:
            length = f"length_{step + 1}"
            lines.append(f"    {length} = {result}")
    came = ["place" for _ in range(len(ops) + 1)]  # of an element before each operator, and at last
    for step in reversed(range(len(ops))):
        after = came[step + 1]
        source = {
            "ngram": f"device.ngram_source({after}, {taken[step]}, {counts[step]})",
            "one_hot": f"{after} // {counts[step]}",
        }.get(ops[step])
        came[step] = f"place_{step}" if source is not None else after
        if source is not None:
            lines.append(f"    place_{step} = {source}")
    pointer = {"float32": "tl.float32", "int64": "tl.int64"}
    lines += [
        f"    read = mask & (place < {length})",
        f"    element = row * in_width + {came[0]}",
        f"    source = tl.load(at).to(tl.pointer_type({pointer[kinds[0]]}))",
        "    x = tl.load(source + element, mask=read, other=0)",
    ]
    for first, size, turns in _runs(chain):
        indent, looped = "    ", 0
        if turns > 1:
            lines.append(f"    for turn in range({turns}):")
            indent, looped = "        ", size
        for step in range(first, first + size):
            if ops[step] not in _STILL:
                places = came[step + 1], came[step]
                lines.append(indent + _value(step, ops[step], kinds[step], places, looped))
    result = _result(ops[-1], kinds[-1], chain)
    lines += [
        f"    target = tl.load(at + 3).to(tl.pointer_type({result}))",
        f"    tl.store(target + offset, x.to({result}), mask=mask)",
        "    out_lengths = tl.load(at + 4)",
        "    if out_lengths != 0:",
        "        where = out_lengths.to(tl.pointer_type(tl.int32)) + row",
        f"        tl.store(where, {length}, mask=mask & (place == 0))",
    ]
    return "\n".join(lines)


def _runs(chain: Signature) -> Iterator[tuple[int, int, int]]:
    """The chain's parts: the first operator of each, how many it has, and how often they come."""
    step = 0
    while step < len(chain):
        size, turns = _repeated(chain[step:])
        yield step, size, turns
        step += size * turns


def _repeated(chain: Signature) -> tuple[int, int]:
    """How many operators the chain begins with again and again, and how often; else 1, 1.

    None of them moves elements. Of several, those that come to the most operators, then the fewest.
    """
    best = 1, 1
    for size in range(1, LONGEST + 1):
        part, turns = chain[:size], 1
        if not _MOVES.isdisjoint(step.split(":")[0] for step in part):
            break
        while chain[turns * size : (turns + 1) * size] == part:
            turns += 1
        if turns >= FEWEST and size * turns > best[0] * best[1]:
            best = size, turns
    return best


def _value(step: int, op: str, kind: str, places: tuple[str, str], looped: int) -> str:
    """The statement that applies one operator to x. places: of the element among its results, and
    among what it takes. looped: operators of a turn, in a loop; else 0."""

    def given(base: str, first: int, each: int) -> list[str]:
        turn = f" + {each * looped} * turn" if looped else ""
        return [f"tl.load({base} + {first + each * step + i}{turn})" for i in range(each)]

    first, second, third = given("at", _HEAD, _WHOLE)
    a, b = given("numbers", 0, _PARTS)
    whole = kind == "int64"
    if op == "fill_null":
        mask = (
            "tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0)"
        )
        return f"x = device.fill_null(x, {mask}, {first if whole else a})"
    low, high = (first, second) if whole else (a, b)
    return {
        "cast": "x = x.to(tl.float32)" if whole else "x = device.to_int(x)",
        "sigrid_hash": f"x = device.sigrid_hash(x, {first}, {second}, {third})",
        "bucketize": f"x = device.bucketize(x, {first}.to(tl.pointer_type(tl.float32)), {second})",
        "logit": f"x = device.logit(x, {a}, {b})",
        "boxcox": f"x = device.boxcox(x, {a}, {second}, {first}.to(tl.pointer_type(tl.float64)))",
        "clamp": f"x = device.clamp(x, {low}, {high})",
        "map_id": f"x = device.map_id(x, {first}.to(tl.pointer_type(tl.int64)), {second})",
        "one_hot": (
            f"x = device.one_hot(x, {places[0]} - {places[1]} * {first}.to(tl.int32), "
            f"{a}, {b}, {first}.to(tl.int32))"
        ),
    }[op]


def _words(chain: Signature) -> str:
    """Its operators, for who reads the program."""
    parts = []
    for first, size, turns in _runs(chain):
        words = " > ".join(chain[first : first + size])
        parts.append(words if turns == 1 else f"({words}) {turns} times")
    return " > ".join(parts)


def _result(op: str, kind: str, chain: Signature) -> str:
    if op == "bucketize":
        return "tl.int64"
    if op == "cast":
        return "tl.float32" if kind == "int64" else "tl.int64"
    return "tl.int64" if kind == "int64" else "tl.float32"


def _chain(buffers: Buffers, key: str) -> tuple[Instance, ...]:
    name, batch = key.rsplit("@", 1)
    work = buffers.work
    return tuple(work.instance[f"{node.name}@{batch}"] for node in work.plan.chain(name))


def _row(
    chain: Sequence[Instance], buffers: Buffers, slot: int, constants: Constants, longest: int
) -> tuple[list[int], list[float]]:
    first, last = chain[0], chain[-1]
    source, in_lengths = buffers.value(slot, first.input)
    target, out_lengths = buffers.value(slot, last.key)
    words = [
        source.data_ptr(),
        in_lengths.data_ptr() if in_lengths is not None else 0,
        buffers.valid(slot, first.input).data_ptr(),
        target.data_ptr(),
        out_lengths.data_ptr() if out_lengths is not None else 0,
        last.rows,
        first.takes.width,
        last.gives.width,
    ]
    floats: list[float] = []
    for instance in chain:
        whole, parts = parameters(instance.node, instance.takes.dtype, constants)
        words += whole + [0] * (_WHOLE - len(whole))
        floats += parts + [0.0] * (_PARTS - len(parts))
    rest = longest - len(chain)
    return words + [0] * _WHOLE * rest, floats + [0.0] * _PARTS * rest

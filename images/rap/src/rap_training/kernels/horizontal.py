"""One launch for all operators of one kind at one level (docs/papers/rap.md, 3.4, 3.7).

An unfused launch is the same kernel with one member, so fused and unfused differ in nothing else.

Launch shape: one program per block of BLOCK output elements, `blocks` int32 [programs, 2] says
whose and which block. Members are rows of two tables: `words` int64 [members, WORDS] holds
addresses, sizes and whole-number parameters, `floats` float32 [members, 4] the others. Traffic:
every element is read once and written once; limit: the memory's bandwidth, or the launch.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from rap_training.kernels import device

# Columns of `words`: input, its lengths, its mask, output, its lengths (addresses; 0: none), rows,
# widths of input and output, three parameters.
COLUMNS = 11
WORDS: tl.constexpr = tl.constexpr(COLUMNS)


@triton.jit
def _element(blocks, words, BLOCK: tl.constexpr):
    """The member of this program, and offsets and mask of its output elements."""
    program = tl.program_id(0)
    member = tl.load(blocks + 2 * program)
    block = tl.load(blocks + 2 * program + 1)
    at = words + member * WORDS
    offset = block * BLOCK + tl.arange(0, BLOCK)
    mask = offset < (tl.load(at + 5) * tl.load(at + 7)).to(tl.int32)
    return member, at, offset, mask


@triton.jit
def elementwise(
    blocks, words, floats, OP: tl.constexpr, TYPE: tl.constexpr, RESULT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Operators that turn one element into one: fill_null, cast, hash, bucketize, logit..."""
    member, at, offset, mask = _element(blocks, words, BLOCK)
    source = tl.load(at).to(tl.pointer_type(TYPE))
    target = tl.load(at + 3).to(tl.pointer_type(RESULT))
    x = tl.load(source + offset, mask=mask, other=0)
    first, second = tl.load(at + 8), tl.load(at + 9)
    a = tl.load(floats + 4 * member)
    b = tl.load(floats + 4 * member + 1)
    if OP == "fill_null":
        valid = tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + offset, mask=mask, other=0)
        y = device.fill_null(x, valid, first if tl.int64 == TYPE else a)
    elif OP == "cast":
        y = device.to_int(x) if tl.int64 == RESULT and tl.float32 == TYPE else x.to(RESULT)
    elif OP == "sigrid_hash":
        y = device.sigrid_hash(x, first, second, tl.load(at + 10))
    elif OP == "bucketize":
        y = device.bucketize(x, first.to(tl.pointer_type(tl.float32)), second)
    elif OP == "logit":
        y = device.logit(x, a, b)
    elif OP == "boxcox":
        y = device.boxcox(x, a, second, first.to(tl.pointer_type(tl.float64)))
    elif OP == "clamp":
        y = device.clamp(x, first, second) if tl.int64 == TYPE else device.clamp(x, a, b)
    else:
        y = device.map_id(x, first.to(tl.pointer_type(tl.int64)), second)
    tl.store(target + offset, y.to(RESULT), mask=mask)
    # Lengths stay as they are; they are written only where the trainer reads them.
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        width = tl.load(at + 7).to(tl.int32)
        row = offset // width
        first_of_row = mask & (offset == row * width)
        in_lengths = tl.load(at + 1).to(tl.pointer_type(tl.int32))
        length = tl.load(in_lengths + row, mask=first_of_row, other=0)
        tl.store(out_lengths.to(tl.pointer_type(tl.int32)) + row, length, mask=first_of_row)


@triton.jit
def gather(
    blocks, words, floats, OP: tl.constexpr, TYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Operators whose result has another width: first_x, ngram, one_hot. Writes lengths too."""
    member, at, offset, mask = _element(blocks, words, BLOCK)
    source = tl.load(at).to(tl.pointer_type(TYPE))
    target = tl.load(at + 3).to(tl.pointer_type(TYPE))
    in_width, out_width = tl.load(at + 6).to(tl.int32), tl.load(at + 7).to(tl.int32)
    n = tl.load(at + 8).to(tl.int32)
    row = offset // out_width
    j = offset - row * out_width
    in_lengths = tl.load(at + 1)
    length = tl.zeros_like(j) + in_width
    if in_lengths != 0:
        length = tl.load(in_lengths.to(tl.pointer_type(tl.int32)) + row, mask=mask, other=0)
    if OP == "first_x":
        i = j
        result = tl.minimum(length, n)
    elif OP == "ngram":
        i = device.ngram_source(j, length, n)
        result = device.ngram_length(length, n)
    else:
        i = j // n
        result = length * n
    x = tl.load(source + row * in_width + i, mask=mask & (j < result), other=0)
    if OP == "one_hot":
        lo, step = tl.load(floats + 4 * member), tl.load(floats + 4 * member + 1)
        x = device.one_hot(x, j - i * n, lo, step, n)
    tl.store(target + offset, x, mask=mask)
    if in_lengths != 0:
        out_lengths = tl.load(at + 4).to(tl.pointer_type(tl.int32))
        tl.store(out_lengths + row, result, mask=mask & (j == 0))

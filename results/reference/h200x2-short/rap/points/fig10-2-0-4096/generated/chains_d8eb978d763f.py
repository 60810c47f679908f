"""Generated: chains of operators from raw columns to the trainer, one launch."""

import triton
import triton.language as tl

from rap_training.kernels import device


@triton.jit
def chain_0(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_2 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_2) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_2 < length_2)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.bucketize(x, tl.load(at + 10).to(tl.pointer_type(tl.float32)), tl.load(at + 11))
    target = tl.load(at + 3).to(tl.pointer_type(tl.int64))
    tl.store(target + offset, x.to(tl.int64), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_2, mask=mask & (place_2 == 0))


@triton.jit
def chain_1(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_2 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_2) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_2 < length_2)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.logit(x, tl.load(numbers + 2), tl.load(numbers + 3))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_2, mask=mask & (place_2 == 0))


@triton.jit
def chain_2(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_3 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_3) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1
    length_3 = tl.minimum(length_2, tl.load(at + 12).to(tl.int32))
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_3 < length_3)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.int64))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(at + 8))
    x = device.sigrid_hash(x, tl.load(at + 10), tl.load(at + 11))
    pass  # only moves elements
    target = tl.load(at + 3).to(tl.pointer_type(tl.int64))
    tl.store(target + offset, x.to(tl.int64), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_3, mask=mask & (place_3 == 0))


@triton.jit
def chains(blocks, words, floats, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    member = tl.load(blocks + 2 * program)
    block = tl.load(blocks + 2 * program + 1)
    at = words + member * 15
    numbers = floats + member * 6
    offset = block * BLOCK + tl.arange(0, BLOCK)
    mask = offset < (tl.load(at + 5) * tl.load(at + 7)).to(tl.int32)
    sort = tl.load(at + 14)
    if sort == 0:  # fill_null:float32 > bucketize:float32
        chain_0(at, numbers, offset, mask)
    elif sort == 1:  # fill_null:float32 > logit:float32
        chain_1(at, numbers, offset, mask)
    elif sort == 2:  # fill_null:int64 > sigrid_hash:int64 > first_x:int64
        chain_2(at, numbers, offset, mask)

"""Generated: chains of operators from raw columns to the trainer, one launch."""

import triton
import triton.language as tl

from rap_training.kernels import device


@triton.jit
def chain_0(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_6 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_6) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1
    length_3 = length_2
    length_4 = length_3
    length_5 = length_4
    length_6 = length_5
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_6 < length_6)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.boxcox(x, tl.load(numbers + 2))
    x = device.clamp(x, tl.load(numbers + 4), tl.load(numbers + 5))
    x = device.boxcox(x, tl.load(numbers + 6))
    x = device.logit(x, tl.load(numbers + 8), tl.load(numbers + 9))
    x = device.clamp(x, tl.load(numbers + 10), tl.load(numbers + 11))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_6, mask=mask & (place_6 == 0))


@triton.jit
def chain_1(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_5 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_5) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1
    length_3 = length_2
    length_4 = length_3
    length_5 = length_4
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_5 < length_5)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.bucketize(x, tl.load(at + 10).to(tl.pointer_type(tl.float32)), tl.load(at + 11))
    x = x.to(tl.float32)
    x = device.boxcox(x, tl.load(numbers + 6))
    x = device.logit(x, tl.load(numbers + 8), tl.load(numbers + 9))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_5, mask=mask & (place_5 == 0))


@triton.jit
def chain_2(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_8 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_8) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1
    length_3 = length_2
    length_4 = length_3
    length_5 = length_4
    length_6 = length_5
    length_7 = length_6
    length_8 = length_7
    place_7 = place_8
    place_6 = place_7
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_8 < length_8)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.to_int(x)
    x = device.sigrid_hash(x, tl.load(at + 12), tl.load(at + 13))
    x = device.map_id(x, tl.load(at + 14).to(tl.pointer_type(tl.int64)), tl.load(at + 15))
    x = x.to(tl.float32)
    x = device.boxcox(x, tl.load(numbers + 10))
    x = device.clamp(x, tl.load(numbers + 12), tl.load(numbers + 13))
    x = device.boxcox(x, tl.load(numbers + 14))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_8, mask=mask & (place_8 == 0))


@triton.jit
def chain_3(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_4 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_4) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1
    length_3 = length_2
    length_4 = length_3
    place_3 = place_4
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_4 < length_4)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.clamp(x, tl.load(numbers + 2), tl.load(numbers + 3))
    x = device.boxcox(x, tl.load(numbers + 4))
    x = device.logit(x, tl.load(numbers + 6), tl.load(numbers + 7))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_4, mask=mask & (place_4 == 0))


@triton.jit
def chain_4(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_6 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_6) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1
    length_3 = length_2 * tl.load(at + 12).to(tl.int32)
    length_4 = tl.minimum(length_3, tl.load(at + 14).to(tl.int32))
    length_5 = length_4
    length_6 = length_5
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3 // tl.load(at + 12).to(tl.int32)
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_6 < length_6)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.clamp(x, tl.load(numbers + 2), tl.load(numbers + 3))
    x = device.one_hot(x, place_3 - place_2 * tl.load(at + 12).to(tl.int32), tl.load(numbers + 4), tl.load(numbers + 5), tl.load(at + 12).to(tl.int32))
    pass  # only moves elements
    x = device.clamp(x, tl.load(numbers + 8), tl.load(numbers + 9))
    x = device.boxcox(x, tl.load(numbers + 10))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_6, mask=mask & (place_6 == 0))


@triton.jit
def chain_5(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_6 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_6) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1 * tl.load(at + 10).to(tl.int32)
    length_3 = device.ngram_length(length_2, tl.load(at + 12).to(tl.int32))
    length_4 = tl.minimum(length_3, tl.load(at + 14).to(tl.int32))
    length_5 = length_4
    length_6 = length_5
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = device.ngram_source(place_3, length_2, tl.load(at + 12).to(tl.int32))
    place_1 = place_2 // tl.load(at + 10).to(tl.int32)
    place_0 = place_1
    read = mask & (place_6 < length_6)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.one_hot(x, place_2 - place_1 * tl.load(at + 10).to(tl.int32), tl.load(numbers + 2), tl.load(numbers + 3), tl.load(at + 10).to(tl.int32))
    pass  # only moves elements
    pass  # only moves elements
    x = device.clamp(x, tl.load(numbers + 8), tl.load(numbers + 9))
    x = device.logit(x, tl.load(numbers + 10), tl.load(numbers + 11))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_6, mask=mask & (place_6 == 0))


@triton.jit
def chain_6(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_5 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_5) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1
    length_3 = length_2
    length_4 = length_3
    length_5 = tl.minimum(length_4, tl.load(at + 16).to(tl.int32))
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_5 < length_5)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.int64))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(at + 8))
    x = device.clamp(x, tl.load(at + 10), tl.load(at + 11))
    x = device.sigrid_hash(x, tl.load(at + 12), tl.load(at + 13))
    x = device.map_id(x, tl.load(at + 14).to(tl.pointer_type(tl.int64)), tl.load(at + 15))
    pass  # only moves elements
    target = tl.load(at + 3).to(tl.pointer_type(tl.int64))
    tl.store(target + offset, x.to(tl.int64), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_5, mask=mask & (place_5 == 0))


@triton.jit
def chain_7(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_8 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_8) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = tl.minimum(length_1, tl.load(at + 10).to(tl.int32))
    length_3 = length_2
    length_4 = length_3 * tl.load(at + 14).to(tl.int32)
    length_5 = length_4
    length_6 = device.ngram_length(length_5, tl.load(at + 18).to(tl.int32))
    length_7 = length_6
    length_8 = tl.minimum(length_7, tl.load(at + 22).to(tl.int32))
    place_7 = place_8
    place_6 = place_7
    place_5 = device.ngram_source(place_6, length_5, tl.load(at + 18).to(tl.int32))
    place_4 = place_5
    place_3 = place_4 // tl.load(at + 14).to(tl.int32)
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_8 < length_8)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.int64))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(at + 8))
    pass  # only moves elements
    x = x.to(tl.float32)
    x = device.one_hot(x, place_4 - place_3 * tl.load(at + 14).to(tl.int32), tl.load(numbers + 6), tl.load(numbers + 7), tl.load(at + 14).to(tl.int32))
    x = device.to_int(x)
    pass  # only moves elements
    x = device.sigrid_hash(x, tl.load(at + 20), tl.load(at + 21))
    pass  # only moves elements
    target = tl.load(at + 3).to(tl.pointer_type(tl.int64))
    tl.store(target + offset, x.to(tl.int64), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_8, mask=mask & (place_8 == 0))


@triton.jit
def chains(blocks, words, floats, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    member = tl.load(blocks + 2 * program)
    block = tl.load(blocks + 2 * program + 1)
    at = words + member * 25
    numbers = floats + member * 16
    offset = block * BLOCK + tl.arange(0, BLOCK)
    mask = offset < (tl.load(at + 5) * tl.load(at + 7)).to(tl.int32)
    sort = tl.load(at + 24)
    if sort == 0:  # fill_null:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > logit:float32 > clamp:float32
        chain_0(at, numbers, offset, mask)
    elif sort == 1:  # fill_null:float32 > bucketize:float32 > cast:int64 > boxcox:float32 > logit:float32
        chain_1(at, numbers, offset, mask)
    elif sort == 2:  # fill_null:float32 > cast:float32 > sigrid_hash:int64 > map_id:int64 > cast:int64 > boxcox:float32 > clamp:float32 > boxcox:float32
        chain_2(at, numbers, offset, mask)
    elif sort == 3:  # fill_null:float32 > clamp:float32 > boxcox:float32 > logit:float32
        chain_3(at, numbers, offset, mask)
    elif sort == 4:  # fill_null:float32 > clamp:float32 > one_hot:float32 > first_x:float32 > clamp:float32 > boxcox:float32
        chain_4(at, numbers, offset, mask)
    elif sort == 5:  # fill_null:float32 > one_hot:float32 > ngram:float32 > first_x:float32 > clamp:float32 > logit:float32
        chain_5(at, numbers, offset, mask)
    elif sort == 6:  # fill_null:int64 > clamp:int64 > sigrid_hash:int64 > map_id:int64 > first_x:int64
        chain_6(at, numbers, offset, mask)
    elif sort == 7:  # fill_null:int64 > first_x:int64 > cast:int64 > one_hot:float32 > cast:float32 > ngram:int64 > sigrid_hash:int64 > first_x:int64
        chain_7(at, numbers, offset, mask)

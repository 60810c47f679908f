"""Generated: chains of operators from raw columns to the trainer, one launch."""

import triton
import triton.language as tl

from rap_training.kernels import device


@triton.jit
def chain_0(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_18 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_18) + in_width
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
    length_9 = length_8
    length_10 = length_9
    length_11 = length_10
    length_12 = length_11
    length_13 = length_12
    length_14 = length_13
    length_15 = length_14
    length_16 = length_15
    length_17 = length_16
    length_18 = length_17
    place_17 = place_18
    place_16 = place_17
    place_15 = place_16
    place_14 = place_15
    place_13 = place_14
    place_12 = place_13
    place_11 = place_12
    place_10 = place_11
    place_9 = place_10
    place_8 = place_9
    place_7 = place_8
    place_6 = place_7
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_18 < length_18)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.boxcox(x, tl.load(numbers + 2))
    x = device.clamp(x, tl.load(numbers + 4), tl.load(numbers + 5))
    x = device.boxcox(x, tl.load(numbers + 6))
    x = device.logit(x, tl.load(numbers + 8), tl.load(numbers + 9))
    x = device.clamp(x, tl.load(numbers + 10), tl.load(numbers + 11))
    x = device.clamp(x, tl.load(numbers + 12), tl.load(numbers + 13))
    x = device.boxcox(x, tl.load(numbers + 14))
    x = device.clamp(x, tl.load(numbers + 16), tl.load(numbers + 17))
    x = device.boxcox(x, tl.load(numbers + 18))
    x = device.clamp(x, tl.load(numbers + 20), tl.load(numbers + 21))
    x = device.boxcox(x, tl.load(numbers + 22))
    x = device.clamp(x, tl.load(numbers + 24), tl.load(numbers + 25))
    x = device.boxcox(x, tl.load(numbers + 26))
    x = device.clamp(x, tl.load(numbers + 28), tl.load(numbers + 29))
    x = device.boxcox(x, tl.load(numbers + 30))
    x = device.clamp(x, tl.load(numbers + 32), tl.load(numbers + 33))
    x = device.boxcox(x, tl.load(numbers + 34))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_18, mask=mask & (place_18 == 0))


@triton.jit
def chain_1(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_15 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_15) + in_width
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
    length_9 = length_8
    length_10 = length_9
    length_11 = length_10
    length_12 = length_11
    length_13 = length_12
    length_14 = length_13
    length_15 = length_14
    place_14 = place_15
    place_13 = place_14
    place_12 = place_13
    place_11 = place_12
    place_10 = place_11
    place_9 = place_10
    place_8 = place_9
    place_7 = place_8
    place_6 = place_7
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_15 < length_15)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.bucketize(x, tl.load(at + 10).to(tl.pointer_type(tl.float32)), tl.load(at + 11))
    x = x.to(tl.float32)
    x = device.boxcox(x, tl.load(numbers + 6))
    x = device.logit(x, tl.load(numbers + 8), tl.load(numbers + 9))
    x = device.clamp(x, tl.load(numbers + 10), tl.load(numbers + 11))
    x = device.boxcox(x, tl.load(numbers + 12))
    x = device.clamp(x, tl.load(numbers + 14), tl.load(numbers + 15))
    x = device.boxcox(x, tl.load(numbers + 16))
    x = device.clamp(x, tl.load(numbers + 18), tl.load(numbers + 19))
    x = device.boxcox(x, tl.load(numbers + 20))
    x = device.clamp(x, tl.load(numbers + 22), tl.load(numbers + 23))
    x = device.boxcox(x, tl.load(numbers + 24))
    x = device.clamp(x, tl.load(numbers + 26), tl.load(numbers + 27))
    x = device.boxcox(x, tl.load(numbers + 28))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_15, mask=mask & (place_15 == 0))


@triton.jit
def chain_2(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_24 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_24) + in_width
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
    length_9 = length_8
    length_10 = length_9
    length_11 = length_10
    length_12 = length_11
    length_13 = length_12
    length_14 = length_13
    length_15 = length_14
    length_16 = length_15
    length_17 = length_16
    length_18 = length_17
    length_19 = length_18
    length_20 = length_19
    length_21 = length_20
    length_22 = length_21
    length_23 = length_22
    length_24 = length_23
    place_23 = place_24
    place_22 = place_23
    place_21 = place_22
    place_20 = place_21
    place_19 = place_20
    place_18 = place_19
    place_17 = place_18
    place_16 = place_17
    place_15 = place_16
    place_14 = place_15
    place_13 = place_14
    place_12 = place_13
    place_11 = place_12
    place_10 = place_11
    place_9 = place_10
    place_8 = place_9
    place_7 = place_8
    place_6 = place_7
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_24 < length_24)
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
    x = device.clamp(x, tl.load(numbers + 16), tl.load(numbers + 17))
    x = device.boxcox(x, tl.load(numbers + 18))
    x = device.clamp(x, tl.load(numbers + 20), tl.load(numbers + 21))
    x = device.boxcox(x, tl.load(numbers + 22))
    x = device.clamp(x, tl.load(numbers + 24), tl.load(numbers + 25))
    x = device.boxcox(x, tl.load(numbers + 26))
    x = device.clamp(x, tl.load(numbers + 28), tl.load(numbers + 29))
    x = device.boxcox(x, tl.load(numbers + 30))
    x = device.clamp(x, tl.load(numbers + 32), tl.load(numbers + 33))
    x = device.boxcox(x, tl.load(numbers + 34))
    x = device.clamp(x, tl.load(numbers + 36), tl.load(numbers + 37))
    x = device.boxcox(x, tl.load(numbers + 38))
    x = device.clamp(x, tl.load(numbers + 40), tl.load(numbers + 41))
    x = device.boxcox(x, tl.load(numbers + 42))
    x = device.clamp(x, tl.load(numbers + 44), tl.load(numbers + 45))
    x = device.boxcox(x, tl.load(numbers + 46))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_24, mask=mask & (place_24 == 0))


@triton.jit
def chain_3(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_12 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_12) + in_width
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
    length_9 = length_8
    length_10 = length_9
    length_11 = length_10
    length_12 = length_11
    place_11 = place_12
    place_10 = place_11
    place_9 = place_10
    place_8 = place_9
    place_7 = place_8
    place_6 = place_7
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_12 < length_12)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.clamp(x, tl.load(numbers + 2), tl.load(numbers + 3))
    x = device.boxcox(x, tl.load(numbers + 4))
    x = device.logit(x, tl.load(numbers + 6), tl.load(numbers + 7))
    x = device.clamp(x, tl.load(numbers + 8), tl.load(numbers + 9))
    x = device.boxcox(x, tl.load(numbers + 10))
    x = device.clamp(x, tl.load(numbers + 12), tl.load(numbers + 13))
    x = device.boxcox(x, tl.load(numbers + 14))
    x = device.clamp(x, tl.load(numbers + 16), tl.load(numbers + 17))
    x = device.boxcox(x, tl.load(numbers + 18))
    x = device.clamp(x, tl.load(numbers + 20), tl.load(numbers + 21))
    x = device.boxcox(x, tl.load(numbers + 22))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_12, mask=mask & (place_12 == 0))


@triton.jit
def chain_4(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_18 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_18) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1
    length_3 = length_2 * tl.load(at + 12).to(tl.int32)
    length_4 = tl.minimum(length_3, tl.load(at + 14).to(tl.int32))
    length_5 = length_4
    length_6 = length_5
    length_7 = length_6
    length_8 = length_7
    length_9 = length_8
    length_10 = length_9
    length_11 = length_10
    length_12 = length_11
    length_13 = length_12
    length_14 = length_13
    length_15 = length_14
    length_16 = length_15
    length_17 = length_16
    length_18 = length_17
    place_17 = place_18
    place_16 = place_17
    place_15 = place_16
    place_14 = place_15
    place_13 = place_14
    place_12 = place_13
    place_11 = place_12
    place_10 = place_11
    place_9 = place_10
    place_8 = place_9
    place_7 = place_8
    place_6 = place_7
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3 // tl.load(at + 12).to(tl.int32)
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_18 < length_18)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.clamp(x, tl.load(numbers + 2), tl.load(numbers + 3))
    x = device.one_hot(x, place_3 - place_2 * tl.load(at + 12).to(tl.int32), tl.load(numbers + 4), tl.load(numbers + 5), tl.load(at + 12).to(tl.int32))
    pass  # only moves elements
    x = device.clamp(x, tl.load(numbers + 8), tl.load(numbers + 9))
    x = device.boxcox(x, tl.load(numbers + 10))
    x = device.clamp(x, tl.load(numbers + 12), tl.load(numbers + 13))
    x = device.boxcox(x, tl.load(numbers + 14))
    x = device.clamp(x, tl.load(numbers + 16), tl.load(numbers + 17))
    x = device.boxcox(x, tl.load(numbers + 18))
    x = device.clamp(x, tl.load(numbers + 20), tl.load(numbers + 21))
    x = device.boxcox(x, tl.load(numbers + 22))
    x = device.clamp(x, tl.load(numbers + 24), tl.load(numbers + 25))
    x = device.boxcox(x, tl.load(numbers + 26))
    x = device.clamp(x, tl.load(numbers + 28), tl.load(numbers + 29))
    x = device.boxcox(x, tl.load(numbers + 30))
    x = device.clamp(x, tl.load(numbers + 32), tl.load(numbers + 33))
    x = device.boxcox(x, tl.load(numbers + 34))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_18, mask=mask & (place_18 == 0))


@triton.jit
def chain_5(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_18 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_18) + in_width
    if lengths != 0:
        listed = lengths.to(tl.pointer_type(tl.int32))
        length_0 = tl.load(listed + row, mask=mask, other=0)
    length_1 = length_0
    length_2 = length_1 * tl.load(at + 10).to(tl.int32)
    length_3 = device.ngram_length(length_2, tl.load(at + 12).to(tl.int32))
    length_4 = tl.minimum(length_3, tl.load(at + 14).to(tl.int32))
    length_5 = length_4
    length_6 = length_5
    length_7 = length_6
    length_8 = length_7
    length_9 = length_8
    length_10 = length_9
    length_11 = length_10
    length_12 = length_11
    length_13 = length_12
    length_14 = length_13
    length_15 = length_14
    length_16 = length_15
    length_17 = length_16
    length_18 = length_17
    place_17 = place_18
    place_16 = place_17
    place_15 = place_16
    place_14 = place_15
    place_13 = place_14
    place_12 = place_13
    place_11 = place_12
    place_10 = place_11
    place_9 = place_10
    place_8 = place_9
    place_7 = place_8
    place_6 = place_7
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = device.ngram_source(place_3, length_2, tl.load(at + 12).to(tl.int32))
    place_1 = place_2 // tl.load(at + 10).to(tl.int32)
    place_0 = place_1
    read = mask & (place_18 < length_18)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.float32))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(numbers + 0))
    x = device.one_hot(x, place_2 - place_1 * tl.load(at + 10).to(tl.int32), tl.load(numbers + 2), tl.load(numbers + 3), tl.load(at + 10).to(tl.int32))
    pass  # only moves elements
    pass  # only moves elements
    x = device.clamp(x, tl.load(numbers + 8), tl.load(numbers + 9))
    x = device.logit(x, tl.load(numbers + 10), tl.load(numbers + 11))
    x = device.clamp(x, tl.load(numbers + 12), tl.load(numbers + 13))
    x = device.boxcox(x, tl.load(numbers + 14))
    x = device.clamp(x, tl.load(numbers + 16), tl.load(numbers + 17))
    x = device.boxcox(x, tl.load(numbers + 18))
    x = device.clamp(x, tl.load(numbers + 20), tl.load(numbers + 21))
    x = device.boxcox(x, tl.load(numbers + 22))
    x = device.clamp(x, tl.load(numbers + 24), tl.load(numbers + 25))
    x = device.boxcox(x, tl.load(numbers + 26))
    x = device.clamp(x, tl.load(numbers + 28), tl.load(numbers + 29))
    x = device.boxcox(x, tl.load(numbers + 30))
    x = device.clamp(x, tl.load(numbers + 32), tl.load(numbers + 33))
    x = device.boxcox(x, tl.load(numbers + 34))
    target = tl.load(at + 3).to(tl.pointer_type(tl.float32))
    tl.store(target + offset, x.to(tl.float32), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_18, mask=mask & (place_18 == 0))


@triton.jit
def chain_6(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_15 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_15) + in_width
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
    length_9 = length_8
    length_10 = length_9
    length_11 = length_10
    length_12 = length_11
    length_13 = length_12
    length_14 = length_13
    length_15 = tl.minimum(length_14, tl.load(at + 36).to(tl.int32))
    place_14 = place_15
    place_13 = place_14
    place_12 = place_13
    place_11 = place_12
    place_10 = place_11
    place_9 = place_10
    place_8 = place_9
    place_7 = place_8
    place_6 = place_7
    place_5 = place_6
    place_4 = place_5
    place_3 = place_4
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_15 < length_15)
    element = row * in_width + place_0
    source = tl.load(at).to(tl.pointer_type(tl.int64))
    x = tl.load(source + element, mask=read, other=0)
    x = device.fill_null(x, tl.load(tl.load(at + 2).to(tl.pointer_type(tl.uint8)) + element, mask=read, other=0), tl.load(at + 8))
    x = device.clamp(x, tl.load(at + 10), tl.load(at + 11))
    x = device.sigrid_hash(x, tl.load(at + 12), tl.load(at + 13))
    x = device.sigrid_hash(x, tl.load(at + 14), tl.load(at + 15))
    x = device.map_id(x, tl.load(at + 16).to(tl.pointer_type(tl.int64)), tl.load(at + 17))
    x = device.clamp(x, tl.load(at + 18), tl.load(at + 19))
    x = device.sigrid_hash(x, tl.load(at + 20), tl.load(at + 21))
    x = device.map_id(x, tl.load(at + 22).to(tl.pointer_type(tl.int64)), tl.load(at + 23))
    x = device.clamp(x, tl.load(at + 24), tl.load(at + 25))
    x = device.sigrid_hash(x, tl.load(at + 26), tl.load(at + 27))
    x = device.map_id(x, tl.load(at + 28).to(tl.pointer_type(tl.int64)), tl.load(at + 29))
    x = device.clamp(x, tl.load(at + 30), tl.load(at + 31))
    x = device.sigrid_hash(x, tl.load(at + 32), tl.load(at + 33))
    x = device.map_id(x, tl.load(at + 34).to(tl.pointer_type(tl.int64)), tl.load(at + 35))
    pass  # only moves elements
    target = tl.load(at + 3).to(tl.pointer_type(tl.int64))
    tl.store(target + offset, x.to(tl.int64), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_15, mask=mask & (place_15 == 0))


@triton.jit
def chain_7(at, numbers, offset, mask):
    in_width = tl.load(at + 6).to(tl.int32)
    out_width = tl.load(at + 7).to(tl.int32)
    row = offset // out_width
    place_24 = offset - row * out_width
    lengths = tl.load(at + 1)
    length_0 = tl.zeros_like(place_24) + in_width
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
    length_8 = length_7
    length_9 = length_8
    length_10 = length_9
    length_11 = length_10
    length_12 = length_11
    length_13 = length_12
    length_14 = length_13
    length_15 = length_14
    length_16 = length_15
    length_17 = length_16
    length_18 = length_17
    length_19 = length_18
    length_20 = length_19
    length_21 = length_20
    length_22 = length_21
    length_23 = length_22
    length_24 = tl.minimum(length_23, tl.load(at + 54).to(tl.int32))
    place_23 = place_24
    place_22 = place_23
    place_21 = place_22
    place_20 = place_21
    place_19 = place_20
    place_18 = place_19
    place_17 = place_18
    place_16 = place_17
    place_15 = place_16
    place_14 = place_15
    place_13 = place_14
    place_12 = place_13
    place_11 = place_12
    place_10 = place_11
    place_9 = place_10
    place_8 = place_9
    place_7 = place_8
    place_6 = place_7
    place_5 = device.ngram_source(place_6, length_5, tl.load(at + 18).to(tl.int32))
    place_4 = place_5
    place_3 = place_4 // tl.load(at + 14).to(tl.int32)
    place_2 = place_3
    place_1 = place_2
    place_0 = place_1
    read = mask & (place_24 < length_24)
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
    x = device.map_id(x, tl.load(at + 22).to(tl.pointer_type(tl.int64)), tl.load(at + 23))
    x = device.clamp(x, tl.load(at + 24), tl.load(at + 25))
    x = device.sigrid_hash(x, tl.load(at + 26), tl.load(at + 27))
    x = device.map_id(x, tl.load(at + 28).to(tl.pointer_type(tl.int64)), tl.load(at + 29))
    x = device.clamp(x, tl.load(at + 30), tl.load(at + 31))
    x = device.sigrid_hash(x, tl.load(at + 32), tl.load(at + 33))
    x = device.map_id(x, tl.load(at + 34).to(tl.pointer_type(tl.int64)), tl.load(at + 35))
    x = device.clamp(x, tl.load(at + 36), tl.load(at + 37))
    x = device.sigrid_hash(x, tl.load(at + 38), tl.load(at + 39))
    x = device.map_id(x, tl.load(at + 40).to(tl.pointer_type(tl.int64)), tl.load(at + 41))
    x = device.clamp(x, tl.load(at + 42), tl.load(at + 43))
    x = device.sigrid_hash(x, tl.load(at + 44), tl.load(at + 45))
    x = device.map_id(x, tl.load(at + 46).to(tl.pointer_type(tl.int64)), tl.load(at + 47))
    x = device.clamp(x, tl.load(at + 48), tl.load(at + 49))
    x = device.sigrid_hash(x, tl.load(at + 50), tl.load(at + 51))
    x = device.sigrid_hash(x, tl.load(at + 52), tl.load(at + 53))
    pass  # only moves elements
    target = tl.load(at + 3).to(tl.pointer_type(tl.int64))
    tl.store(target + offset, x.to(tl.int64), mask=mask)
    out_lengths = tl.load(at + 4)
    if out_lengths != 0:
        where = out_lengths.to(tl.pointer_type(tl.int32)) + row
        tl.store(where, length_24, mask=mask & (place_24 == 0))


@triton.jit
def chains(blocks, words, floats, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    member = tl.load(blocks + 2 * program)
    block = tl.load(blocks + 2 * program + 1)
    at = words + member * 57
    numbers = floats + member * 48
    offset = block * BLOCK + tl.arange(0, BLOCK)
    mask = offset < (tl.load(at + 5) * tl.load(at + 7)).to(tl.int32)
    sort = tl.load(at + 56)
    if sort == 0:  # fill_null:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > logit:float32 > clamp:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32
        chain_0(at, numbers, offset, mask)
    elif sort == 1:  # fill_null:float32 > bucketize:float32 > cast:int64 > boxcox:float32 > logit:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32
        chain_1(at, numbers, offset, mask)
    elif sort == 2:  # fill_null:float32 > cast:float32 > sigrid_hash:int64 > map_id:int64 > cast:int64 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32
        chain_2(at, numbers, offset, mask)
    elif sort == 3:  # fill_null:float32 > clamp:float32 > boxcox:float32 > logit:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32
        chain_3(at, numbers, offset, mask)
    elif sort == 4:  # fill_null:float32 > clamp:float32 > one_hot:float32 > first_x:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32
        chain_4(at, numbers, offset, mask)
    elif sort == 5:  # fill_null:float32 > one_hot:float32 > ngram:float32 > first_x:float32 > clamp:float32 > logit:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32 > clamp:float32 > boxcox:float32
        chain_5(at, numbers, offset, mask)
    elif sort == 6:  # fill_null:int64 > clamp:int64 > sigrid_hash:int64 > sigrid_hash:int64 > map_id:int64 > clamp:int64 > sigrid_hash:int64 > map_id:int64 > clamp:int64 > sigrid_hash:int64 > map_id:int64 > clamp:int64 > sigrid_hash:int64 > map_id:int64 > first_x:int64
        chain_6(at, numbers, offset, mask)
    elif sort == 7:  # fill_null:int64 > first_x:int64 > cast:int64 > one_hot:float32 > cast:float32 > ngram:int64 > sigrid_hash:int64 > map_id:int64 > clamp:int64 > sigrid_hash:int64 > map_id:int64 > clamp:int64 > sigrid_hash:int64 > map_id:int64 > clamp:int64 > sigrid_hash:int64 > map_id:int64 > clamp:int64 > sigrid_hash:int64 > map_id:int64 > clamp:int64 > sigrid_hash:int64 > sigrid_hash:int64 > first_x:int64
        chain_7(at, numbers, offset, mask)

"""Three instructions numba has no words for: prefetch, adding rows, summing a bag in registers.

Arrays are C-contiguous; nothing is bounds-checked here, the kernels do that first.
Columns are taken in explicit vectors of 16 floats, which LLVM splits to what the CPU has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE_FLOATS = 16  # a cache line of 64 bytes
_LANES = 16
_INT32, _INT64, _BYTES = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
_FLOAT = ir.FloatType()


@intrinsic(prefer_literal=True)
def prefetch(_typing: Any, array: Any, element: Any, locality: Any) -> Any:
    """prefetch(array, element, locality): ask for the line of flat `element` to be read soon.

    locality, a constant: 3 into L1 (prefetcht0), 2 into L2 (prefetcht1), 0 non-temporal.
    """
    hint = locality.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        _emit_prefetch(builder, builder.gep(data, [_wide(builder, args[1])]), hint)
        return context.get_dummy_value()

    return types.void(array, element, locality), codegen


@intrinsic(prefer_literal=True)
def add_rows(
    _typing: Any, out: Any, bag: Any, weight: Any, indices: Any, position: Any, count: Any
) -> Any:
    """add_rows(out, bag, weight, indices, position, count): out[bag] += count rows, in order.

    The rows are weight[indices[position + k]] for k < count, a constant: `count` independent
    loads per column are in flight before the first add needs one.
    """
    rows_at_once = count.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = [
            context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 2, 3)
        ]
        target, table, ids = arrays
        dim = builder.extract_value(table.shape, 1)
        sums = builder.gep(target.data, [builder.mul(_wide(builder, args[1]), dim)])
        first = _wide(builder, args[4])
        rows = [
            _row(builder, table.data, ids.data, builder.add(first, _INT64(k)), dim)
            for k in range(rows_at_once)
        ]

        def add(column: Any, lanes: int) -> None:
            total = _load(builder, sums, column, lanes)
            for row in rows:
                total = builder.fadd(total, _load(builder, row, column, lanes))
            _store(builder, total, sums, column, lanes)

        whole = builder.and_(dim, _INT64(-_LANES))
        steps = ((_INT64(0), whole, _LANES), (whole, dim, 1))
        for start, stop, lanes in steps:
            with cgutils.for_range_slice(builder, start, stop, _INT64(lanes), intp=_INT64) as loop:
                add(loop[0], lanes)
        return context.get_dummy_value()

    return types.void(out, bag, weight, indices, position, count), codegen


@intrinsic(prefer_literal=True)
def sum_bag(
    _typing: Any,
    out: Any,
    bag: Any,
    weight: Any,
    indices: Any,
    start: Any,
    end: Any,
    stop: Any,
    dim: Any,
    ahead: Any,
) -> Any:
    """sum_bag(out, bag, weight, indices, start, end, stop, dim, ahead): one bag, in registers.

    out[bag] = sum of weight[indices[e]] for start <= e < end, in order; `dim` is a constant, so
    the whole sum lives in registers. While row e is added, row e + ahead (a constant) is
    prefetched into L2, across the bag's end but never beyond position `stop` - 1.
    """
    columns, distance = dim.literal_value, ahead.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = [
            context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 2, 3)
        ]
        target, table, ids = arrays
        width = _INT64(columns)
        bag, start, end, stop = (_wide(builder, args[k]) for k in (1, 4, 5, 6))
        last = builder.sub(stop, _INT64(1))
        pieces = _pieces(columns)
        totals = [cgutils.alloca_once(builder, _vector(lanes)) for _, lanes in pieces]
        for total, (_, lanes) in zip(totals, pieces, strict=True):
            builder.store(ir.Constant(_vector(lanes), _zero(lanes)), total)
        with cgutils.for_range_slice(builder, start, end, _INT64(1), intp=_INT64) as loop:
            future = builder.add(loop[0], _INT64(distance))
            future = builder.select(builder.icmp_signed("<", future, last), future, last)
            coming = _row(builder, table.data, ids.data, future, width)
            for column in range(0, columns, LINE_FLOATS):
                _emit_prefetch(builder, builder.gep(coming, [_INT64(column)]), 2)
            row = _row(builder, table.data, ids.data, loop[0], width)
            for total, (column, lanes) in zip(totals, pieces, strict=True):
                piece = _load(builder, row, _INT64(column), lanes)
                builder.store(builder.fadd(builder.load(total), piece), total)
        sums = builder.gep(target.data, [builder.mul(bag, width)])
        for total, (column, lanes) in zip(totals, pieces, strict=True):
            _store(builder, builder.load(total), sums, _INT64(column), lanes)
        return context.get_dummy_value()

    return types.void(out, bag, weight, indices, start, end, stop, dim, ahead), codegen


def _pieces(columns: int) -> list[tuple[int, int]]:
    """Return (first column, lanes) pieces that cover `columns` with vectors of 16, 8, 4, 2, 1."""
    pieces, column, lanes = [], 0, _LANES
    while column < columns:
        while columns - column < lanes:
            lanes //= 2
        pieces.append((column, lanes))
        column += lanes
    return pieces


def _vector(lanes: int) -> Any:
    return _FLOAT if lanes == 1 else ir.VectorType(_FLOAT, lanes)


def _zero(lanes: int) -> Any:
    return 0.0 if lanes == 1 else [0.0] * lanes


def _row(builder: Any, table: Any, ids: Any, position: Any, dim: Any) -> Any:
    """Return the pointer to row ids[position] of `table`."""
    index = _wide(builder, builder.load(builder.gep(ids, [position])))
    return builder.gep(table, [builder.mul(index, dim)])


def _wide(builder: Any, value: Any) -> Any:
    """Return an integer as 64 bits, with its sign."""
    return builder.sext(value, _INT64) if value.type.width < 64 else value


def _load(builder: Any, base: Any, column: Any, lanes: int) -> Any:
    pointer = builder.bitcast(builder.gep(base, [column]), _vector(lanes).as_pointer())
    return builder.load(pointer, align=4)  # rows start at any multiple of 4 bytes


def _store(builder: Any, value: Any, base: Any, column: Any, lanes: int) -> None:
    pointer = builder.bitcast(builder.gep(base, [column]), _vector(lanes).as_pointer())
    builder.store(value, pointer, align=4)


def _emit_prefetch(builder: Any, pointer: Any, locality: int) -> None:
    signature = ir.FunctionType(ir.VoidType(), [_BYTES, _INT32, _INT32, _INT32])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    read, data = _INT32(0), _INT32(1)
    builder.call(function, [builder.bitcast(pointer, _BYTES), read, _INT32(locality), data])

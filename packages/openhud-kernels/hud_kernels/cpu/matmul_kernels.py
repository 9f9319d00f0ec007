"""Products of small matrices, compiled by numba: what each head of a sequence multiplies is too small for a library's call.

A **tile** of the result, a few rows of a few vectors, stays in the CPU's registers while it is summed up. The compiler
makes no such loop of Python's: its operations are written here one by one, in the compiler's own language. However many
rows there are, each number is summed up in the same order: what is computed of a row does not depend on the others.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.extending import intrinsic

from hud_kernels.cpu.kernels import compiled

COLUMNS = 16
"""Columns of a product come in multiples of so many."""
_MANY_REGISTERS = bool(get_host_cpu_features().get("avx512f"))
"""Whether there are 32 of 16 numbers each. Elsewhere 16 of 8 are taken for granted."""
LANES = 16 if _MANY_REGISTERS else 8
"""Numbers of a vector."""
_WIDE, _HALF = (64, 32) if _MANY_REGISTERS else (COLUMNS, COLUMNS)
_WIDTHS = sorted({_WIDE, _HALF, COLUMNS})
"""Columns of tiles; see `_width`."""
_HEIGHTS = 6, 4, 3, 2, 1
"""Rows of tiles; see `_height`. The largest leaves few registers idle: 24 of 32 are its sums, or 12 of 16."""
_MOST = 1 << 10
"""More than a tile has columns."""

_NUMBER, _INDEX = ir.FloatType(), ir.IntType(64)
_VECTOR, _BYTES = ir.VectorType(_NUMBER, LANES), ir.IntType(8).as_pointer()


class _Matrix:
    """An array (N, M), or (M,), in code that is being written."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any) -> None:
        fields = context.make_array(kind)(context, builder, array)
        self.builder, self.begin = builder, builder.bitcast(fields.data, _BYTES)
        self.rows = builder.extract_value(fields.shape, 0)
        self.strides = [builder.extract_value(fields.strides, axis) for axis in range(kind.ndim)]

    def at(self, *place: Any) -> Any:
        """Return the address of a number."""
        address = self.begin
        for count, stride in zip(place, self.strides, strict=True):
            address = _further(self.builder, address, self.builder.mul(count, stride))
        return address


def _further(builder: Any, address: Any, count: Any) -> Any:
    """Return an address so many bytes further."""
    return builder.gep(address, [count])


def _vector_at(builder: Any, address: Any, vector: int = 0) -> Any:
    """Return a pointer to the vector of numbers side by side at an address, or to a later one."""
    address = _further(builder, address, _INDEX(4 * LANES * vector))
    return builder.bitcast(address, _VECTOR.as_pointer())


def _load(builder: Any, address: Any, vector: int) -> Any:
    """Return the numbers of a vector at an address, or of a later one."""
    return builder.load(_vector_at(builder, address, vector), align=4)


def _load_halves(builder: Any, address: Any, vector: int) -> Any:
    """Return what `_load` does, of numbers in bfloat16."""
    address = _further(builder, address, _INDEX(2 * LANES * vector))
    kinds = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.IntType(32), LANES)
    halves = builder.load(builder.bitcast(address, kinds[0].as_pointer()), align=2)
    bits = builder.shl(builder.zext(halves, kinds[1]), kinds[1]([16] * LANES))
    return builder.bitcast(bits, _VECTOR)


def _spread(builder: Any, address: Any) -> Any:
    """Return a vector of one number over and over."""
    number = builder.load(builder.bitcast(address, _NUMBER.as_pointer()), align=4)
    nothing = _VECTOR(ir.Undefined)
    first = builder.insert_element(nothing, number, ir.IntType(32)(0))
    everywhere = ir.VectorType(ir.IntType(32), LANES)([0] * LANES)
    return builder.shuffle_vector(first, nothing, everywhere)


def _add_product(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Return total + a b; a product and a sum may be one operation, rounded once."""
    return builder.fadd(total, builder.fmul(a, b, flags=("contract",)), flags=("contract",))


def _tiles(added: bool) -> Any:
    """Return `write_tile(a, b, c, row, column, rows, columns)` for compiled code: `multiply`, or `add_product`, but for a tile.

    It begins at a row and a column of c, and has so many rows and columns, one of `_HEIGHTS` and one of `_WIDTHS`.
    """

    def tiles(
        _context: Any, a: Any, b: Any, c: Any, _row: Any, _column: Any, _rows: Any, _columns: Any
    ) -> Any:
        return types.void(a, b, c, types.intp, types.intp, types.intp, types.intp), code

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *arrays, row, column, rows, columns = arguments
        a, b, c = (
            _Matrix(context, builder, kind, array)
            for kind, array in zip(signature.args, arrays, strict=False)
        )
        halves = signature.args[1].dtype == types.int16
        places = [a.at(row, _INDEX(0)), *a.strides, b.at(_INDEX(0), column), b.strides[0]]
        places += [b.rows, c.at(row, column), c.strides[0]]
        done = builder.append_basic_block("done")
        which = builder.switch(builder.add(builder.mul(rows, _INDEX(_MOST)), columns), done)
        for height, width in product(_HEIGHTS, _WIDTHS):
            block = builder.append_basic_block(f"{height}_rows")
            which.add_case(_INDEX(_MOST * height + width), block)
            builder.position_at_end(block)
            builder.call(_tile(builder.module, height, width // LANES, added, halves), places)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return intrinsic(tiles)


def _tile(module: Any, rows: int, vectors: int, added: bool, halves: bool) -> Any:
    """Return a function of a module that computes a tile of so many rows and vectors; `halves`: b is in bfloat16.

    Its arguments: where a begins, and its strides; where b begins, its rows' stride, and their number; where c begins, and its
    rows' stride. All strides are in bytes. There is one of it however often it is called.
    """
    kind = ir.FunctionType(
        ir.VoidType(), [_BYTES, _INDEX, _INDEX, _BYTES, _INDEX, _INDEX, _BYTES, _INDEX]
    )
    name = f"hud.tile.{rows}.{vectors}.{'added' if added else 'written'}{'.halves' * halves}"
    if name in module.globals:
        return module.globals[name]
    tile = ir.Function(module, kind, name)
    tile.linkage = "internal"
    tile.attributes.add("noinline")
    a, a_row, a_column, b, b_row, depth, c, c_row = tile.args
    before, head, step, end = map(tile.append_basic_block, ("before", "head", "step", "end"))
    sums_at = list(product(range(rows), range(vectors)))

    builder = ir.IRBuilder(before)
    in_a = [_further(builder, a, builder.mul(a_row, _INDEX(row))) for row in range(rows)]
    in_c = [
        _vector_at(builder, _further(builder, c, builder.mul(c_row, _INDEX(row))), vector)
        for row, vector in sums_at
    ]
    begun = [builder.load(place, align=4) if added else _VECTOR(None) for place in in_c]
    builder.branch(head)

    builder.position_at_end(head)
    place, sums = builder.phi(_INDEX), [builder.phi(_VECTOR) for _ in sums_at]
    place.add_incoming(_INDEX(0), before)
    for total, value in zip(sums, begun, strict=True):
        total.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", place, depth), step, end)

    builder.position_at_end(step)
    column = builder.mul(place, a_column)
    of_a = [_spread(builder, _further(builder, start, column)) for start in in_a]
    row_of_b = _further(builder, b, builder.mul(place, b_row))
    load = _load_halves if halves else _load
    of_b = [load(builder, row_of_b, vector) for vector in range(vectors)]
    for (row, vector), total in zip(sums_at, sums, strict=True):
        total.add_incoming(_add_product(builder, total, of_a[row], of_b[vector]), step)
    place.add_incoming(builder.add(place, _INDEX(1)), step)
    builder.branch(head)

    builder.position_at_end(end)
    for total, target in zip(sums, in_c, strict=True):
        builder.store(total, target, align=4)
    builder.ret_void()
    return tile


_write_tile, _add_tile = _tiles(False), _tiles(True)


@compiled
def _height(left: Any) -> Any:
    """Return how many of so many rows the next tile takes."""
    return 6 if left >= 6 else min(left, 4)


@compiled
def _width(left: Any) -> Any:
    """Return how many of so many columns the next tiles take."""
    return _WIDE if left >= _WIDE else _HALF if left >= _HALF else COLUMNS


@compiled
def multiply(a: Any, b: Any, c: Any) -> None:
    """Write the product of a (N, K) and b (K, M) into c (N, M).

    All are fp32, or b is the 16 bits of bfloat16 as integers; c is none of the others, M is a multiple of `COLUMNS`, and rows of b and c lie in one piece each.
    """
    column = 0
    while column < c.shape[1]:
        width, row = _width(c.shape[1] - column), 0
        while row < c.shape[0]:
            height = _height(c.shape[0] - row)
            _write_tile(a, b, c, row, column, height, width)
            row += height
        column += width


@compiled
def add_product(a: Any, b: Any, c: Any) -> None:
    """Add the product that `multiply` writes to c."""
    column = 0
    while column < c.shape[1]:
        width, row = _width(c.shape[1] - column), 0
        while row < c.shape[0]:
            height = _height(c.shape[0] - row)
            _add_tile(a, b, c, row, column, height, width)
            row += height
        column += width

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

from hud.engine.kernels import compiled

COLUMNS = 16
"""Columns of a product come in multiples of so many."""
_MANY_REGISTERS = bool(get_host_cpu_features().get("avx512f"))
"""Whether there are 32 of 16 numbers each. Elsewhere 16 of 8 are taken for granted."""
LANES = 16 if _MANY_REGISTERS else 8
"""Numbers of a vector."""
_WIDE = 64 if _MANY_REGISTERS else COLUMNS
_HEIGHTS = 6, 4, 2, 1
"""Rows of tiles; see `_height`. The largest leaves few registers idle: 24 of 32 are its sums, or 12 of 16."""

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


def _spread(builder: Any, address: Any) -> Any:
    """Return a vector of one number over and over."""
    number = builder.load(builder.bitcast(address, _NUMBER.as_pointer()), align=4)
    nothing = _VECTOR(ir.Undefined)
    first = builder.insert_element(nothing, number, ir.IntType(32)(0))
    return _shuffled(builder, first, nothing, [0] * LANES)


def _shuffled(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    """Return a vector of some of the numbers of two, those of b being counted after those of a."""
    return builder.shuffle_vector(a, b, ir.VectorType(ir.IntType(32), LANES)(places))


def _add_product(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Return total + a b; a product and a sum may be one operation, rounded once."""
    return builder.fadd(total, builder.fmul(a, b, flags=("contract",)), flags=("contract",))


def _tiles(added: bool) -> Any:
    """Return `write_tile(a, b, c, row, column, rows, wide)` for compiled code: `multiply`, or `add_product`, but for one tile.

    It begins at a row and a column of c, has so many `rows`, and is `_WIDE` or `COLUMNS` wide.
    """

    def tiles(
        _context: Any, a: Any, b: Any, c: Any, _row: Any, _column: Any, _rows: Any, _wide: Any
    ) -> Any:
        return types.void(a, b, c, types.intp, types.intp, types.intp, types.boolean), code

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *arrays, row, column, rows, wide = arguments
        a, b, c = (
            _Matrix(context, builder, kind, array)
            for kind, array in zip(signature.args, arrays, strict=False)
        )
        places = [a.at(row, _INDEX(0)), *a.strides, b.at(_INDEX(0), column), b.strides[0]]
        places += [b.rows, c.at(row, column), c.strides[0]]
        done = builder.append_basic_block("done")
        twice = builder.add(rows, rows)
        which = builder.switch(builder.add(twice, builder.zext(wide, _INDEX)), done)
        for height, is_wide in product(_HEIGHTS, (False, True)):
            block = builder.append_basic_block(f"{height}_rows")
            which.add_case(_INDEX(2 * height + is_wide), block)
            builder.position_at_end(block)
            vectors = (_WIDE if is_wide else COLUMNS) // LANES
            builder.call(_tile(builder.module, height, vectors, added), places)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return intrinsic(tiles)


def _tile(module: Any, rows: int, vectors: int, added: bool) -> Any:
    """Return a function of a module that computes a tile of so many rows and vectors.

    Its arguments: where a begins, and its strides; where b begins, its rows' stride, and their number; where c begins, and its
    rows' stride. All strides are in bytes. There is one of it however often it is called.
    """
    kind = ir.FunctionType(
        ir.VoidType(), [_BYTES, _INDEX, _INDEX, _BYTES, _INDEX, _INDEX, _BYTES, _INDEX]
    )
    name = f"hud.tile.{rows}.{vectors}.{'added' if added else 'written'}"
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
    of_b = [
        builder.load(_vector_at(builder, row_of_b, vector), align=4) for vector in range(vectors)
    ]
    for (row, vector), total in zip(sums_at, sums, strict=True):
        total.add_incoming(_add_product(builder, total, of_a[row], of_b[vector]), step)
    place.add_incoming(builder.add(place, _INDEX(1)), step)
    builder.branch(head)

    builder.position_at_end(end)
    for total, target in zip(sums, in_c, strict=True):
        builder.store(total, target, align=4)
    builder.ret_void()
    return tile


def _dots(_context: Any, q: Any, keys: Any, out: Any, _first: Any) -> Any:
    """Say what `write_dots(q, keys, out, first)` is in compiled code.

    That is `score`, but for `LANES` keys from the first on; of the last one over and over, where there are fewer.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *arrays, first = arguments
        asking, keys, out = (
            _Matrix(context, builder, kind, array)
            for kind, array in zip(signature.args, arrays, strict=False)
        )
        last, rows = builder.sub(keys.rows, _INDEX(1)), []
        for one in range(LANES):
            row = builder.add(first, _INDEX(one))
            inside = builder.icmp_signed("<", row, last)
            rows.append(keys.at(builder.select(inside, row, last), _INDEX(0)))
        begin, before = asking.at(_INDEX(0)), builder.block
        head, step, end = map(builder.append_basic_block, ("head", "step", "end"))
        builder.branch(head)

        builder.position_at_end(head)
        place, sums = builder.phi(_INDEX), [builder.phi(_VECTOR) for _ in rows]
        place.add_incoming(_INDEX(0), before)
        for total in sums:
            total.add_incoming(_VECTOR(None), before)
        builder.cbranch(builder.icmp_signed("<", place, asking.rows), step, end)

        builder.position_at_end(step)
        along = builder.mul(place, _INDEX(4))
        of_query = builder.load(_vector_at(builder, _further(builder, begin, along)), align=4)
        for row, total in zip(rows, sums, strict=True):
            of_key = builder.load(_vector_at(builder, _further(builder, row, along)), align=4)
            total.add_incoming(_add_product(builder, total, of_query, of_key), step)
        place.add_incoming(builder.add(place, _INDEX(LANES)), step)
        builder.branch(head)

        builder.position_at_end(end)
        builder.store(_summed(builder, sums), _vector_at(builder, out.at(first)), align=4)
        return context.get_dummy_value()

    return types.void(q, keys, out, types.intp), code


def _summed(builder: Any, vectors: list[Any]) -> Any:
    """Return a vector of the sums of each of `LANES` vectors.

    Two vectors at a time are moved past one another and added: first within groups of four numbers, then whole groups, as the
    CPU has operations for.
    """
    for low, high in _FOLDS:
        vectors = [
            builder.fadd(_shuffled(builder, a, b, low), _shuffled(builder, a, b, high))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _within_fours(places: list[int]) -> list[int]:
    """Return what takes these of each four numbers of two vectors, those of the second being 4 to 7."""
    fours = range(0, LANES, 4)
    return [four + (one if one < 4 else LANES + one - 4) for four in fours for one in places]


def _of_fours(places: list[int]) -> list[int]:
    """Return what takes these fours of two vectors."""
    return [4 * place + one for place in places for one in range(4)]


_FOLDS = [
    (_within_fours([0, 4, 1, 5]), _within_fours([2, 6, 3, 7])),
    (_within_fours([0, 1, 4, 5]), _within_fours([2, 3, 6, 7])),
    *([(_of_fours([0, 1, 4, 5]), _of_fours([2, 3, 6, 7]))] if LANES == 16 else []),
    (
        _of_fours(list(range(0, LANES // 2, 2))),
        _of_fours(list(range(1, LANES // 2, 2))),
    ),
]

_write_tile, _add_tile = _tiles(False), _tiles(True)
_write_dots: Any = intrinsic(_dots)


@compiled
def _height(left: Any) -> Any:
    """Return how many of so many rows the next tile takes."""
    return 6 if left >= 6 else 4 if left >= 4 else 2 if left >= 2 else 1


@compiled
def multiply(a: Any, b: Any, c: Any) -> None:
    """Write the product of a (N, K) and b (K, M) into c (N, M).

    All are fp32, c is none of the others, M is a multiple of `COLUMNS`, and rows of b and c lie in one piece each.
    """
    column = 0
    while column < c.shape[1]:
        wide, row = c.shape[1] - column >= _WIDE, 0
        while row < c.shape[0]:
            height = _height(c.shape[0] - row)
            _write_tile(a, b, c, row, column, height, wide)
            row += height
        column += _WIDE if wide else COLUMNS


@compiled
def add_product(a: Any, b: Any, c: Any) -> None:
    """Add the product that `multiply` writes to c."""
    column = 0
    while column < c.shape[1]:
        wide, row = c.shape[1] - column >= _WIDE, 0
        while row < c.shape[0]:
            height = _height(c.shape[0] - row)
            _add_tile(a, b, c, row, column, height, wide)
            row += height
        column += _WIDE if wide else COLUMNS


@compiled
def score(q: Any, keys: Any, out: Any) -> None:
    """Write the products of q (D,) with keys (N, D) into out, which has room for up to `LANES` - 1 more; those mean nothing.

    D is a multiple of `LANES`.
    """
    for first in range(0, keys.shape[0], LANES):
        _write_dots(q, keys, out, first)

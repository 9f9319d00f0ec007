"""Products of small matrices, compiled by numba: what each head of a sequence multiplies is too small for a library's call.

A **tile** of the result, a few rows of a few vectors, stays in the CPU's registers while it is summed up. The compiler
makes no such loop of Python's: its operations are written here one by one, in the compiler's own language.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from hud.engine.kernels import compiled

COLUMNS = 16
"""Columns of a product come in multiples of so many."""
_MANY_REGISTERS = bool(get_host_cpu_features().get("avx512f"))
"""Whether there are 32 of 16 numbers each. Elsewhere 16 of 8 are taken for granted."""
_LANES = 16 if _MANY_REGISTERS else 8
_ROWS, _WIDE = 6, 64 if _MANY_REGISTERS else COLUMNS
"""A tile that leaves few registers idle: 24 of 32 are its sums, or 12 of 16."""

_NUMBER, _INDEX = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_NUMBER, _LANES)


def _tile(rows: int, columns: int) -> Any:
    """Return an operation for compiled code, `tile(a, b, c, row, column, added)`: `multiply`, but for one tile of C."""

    def tile(_context: Any, a: Any, b: Any, c: Any, row: Any, column: Any, added: Any) -> Any:
        signature = types.void(a, b, c, types.intp, types.intp, types.boolean)
        return signature, _code_of_tile(rows, columns // _LANES)

    return intrinsic(tile)


def _code_of_tile(rows: int, vectors: int) -> Callable[..., Any]:
    sums_at = list(product(range(rows), range(vectors)))

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *arrays, first_row, first_column, added = arguments
        a, b, c = (
            _Matrix(builder, context.make_array(kind)(context, builder, array))
            for kind, array in zip(signature.args, arrays, strict=False)
        )
        in_a = [a.at(builder.add(first_row, _INDEX(row)), _INDEX(0)) for row in range(rows)]
        in_b = b.at(_INDEX(0), first_column)
        in_c = [c.at(builder.add(first_row, _INDEX(row)), first_column) for row in range(rows)]
        before = builder.block
        read, head, step, end = map(builder.append_basic_block, ("read", "head", "step", "end"))
        builder.cbranch(added, read, head)

        builder.position_at_end(read)
        found = [c.vector(in_c[row], one) for row, one in sums_at]
        builder.branch(head)

        builder.position_at_end(head)
        place, sums = builder.phi(_INDEX), [builder.phi(_VECTOR) for _ in sums_at]
        for block, begun in ((before, [_VECTOR(None)] * len(sums)), (read, found)):
            place.add_incoming(_INDEX(0), block)
            for total, value in zip(sums, begun, strict=True):
                total.add_incoming(value, block)
        builder.cbranch(builder.icmp_signed("<", place, b.rows), step, end)

        builder.position_at_end(step)
        of_a = [a.spread(a.moved(start, _INDEX(0), place)) for start in in_a]
        of_b = [b.vector(b.moved(in_b, place, _INDEX(0)), one) for one in range(vectors)]
        for (row, one), total in zip(sums_at, sums, strict=True):
            # A product and a sum may be one operation, rounded once.
            more = builder.fmul(of_a[row], of_b[one], flags=("contract",))
            total.add_incoming(builder.fadd(total, more, flags=("contract",)), step)
        place.add_incoming(builder.add(place, _INDEX(1)), step)
        builder.branch(head)

        builder.position_at_end(end)
        for (row, one), total in zip(sums_at, sums, strict=True):
            builder.store(total, c.pointer(in_c[row], one), align=4)
        return context.get_dummy_value()

    return code


class _Matrix:
    """Where the numbers of an array (N, M) lie, in code that is being written."""

    def __init__(self, builder: Any, array: Any) -> None:
        self.builder, self.data = builder, array.data
        self.rows, _ = unpack_tuple(builder, array.shape)
        self.strides = unpack_tuple(builder, array.strides)

    def at(self, row: Any, column: Any) -> Any:
        """Return the address of a number."""
        return self.moved(self.builder.bitcast(self.data, ir.IntType(8).as_pointer()), row, column)

    def moved(self, address: Any, rows: Any, columns: Any) -> Any:
        """Return an address so many rows and columns further."""
        times = self.builder.mul
        by = self.builder.add(times(rows, self.strides[0]), times(columns, self.strides[1]))
        return self.builder.gep(address, [by])

    def pointer(self, address: Any, vector: int) -> Any:
        """Return a pointer to a vector of numbers side by side, this or a later one."""
        further = self.builder.gep(address, [_INDEX(4 * _LANES * vector)])
        return self.builder.bitcast(further, _VECTOR.as_pointer())

    def vector(self, address: Any, vector: int) -> Any:
        """Return the vector there."""
        return self.builder.load(self.pointer(address, vector), align=4)

    def spread(self, address: Any) -> Any:
        """Return a vector of one number over and over."""
        number = self.builder.load(self.builder.bitcast(address, _NUMBER.as_pointer()), align=4)
        nothing = _VECTOR(ir.Undefined)
        first = self.builder.insert_element(nothing, number, ir.IntType(32)(0))
        zeros = ir.VectorType(ir.IntType(32), _LANES)(None)
        return self.builder.shuffle_vector(first, nothing, zeros)


_six_wide, _one_wide = _tile(_ROWS, _WIDE), _tile(1, _WIDE)
_six_narrow, _one_narrow = _tile(_ROWS, COLUMNS), _tile(1, COLUMNS)


@compiled
def multiply(a: Any, b: Any, c: Any, added: bool) -> None:
    """Write the product of a (N, K) and b (K, M) into c (N, M), or add it.

    All are fp32, c is none of the others, M is a multiple of `COLUMNS`, and rows of b and c lie in one piece each.
    """
    rows, columns, column = c.shape[0], c.shape[1], 0
    whole = rows - rows % _ROWS
    while column < columns:
        wide = columns - column >= _WIDE
        for row in range(0, whole, _ROWS):
            if wide:
                _six_wide(a, b, c, row, column, added)
            else:
                _six_narrow(a, b, c, row, column, added)
        for row in range(whole, rows):
            if wide:
                _one_wide(a, b, c, row, column, added)
            else:
                _one_narrow(a, b, c, row, column, added)
        column += _WIDE if wide else COLUMNS

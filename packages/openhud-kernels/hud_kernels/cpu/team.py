"""Compiled work that the threads of torch's own operations share.

torch's threads spin for a while after each operation, so a thread of another pool would wait for a core. The team of libgomp,
with which torch computes on Linux, starts within microseconds. Elsewhere threads of this module take part.

Work is divided into units, which threads `claim` one at a time: where another process takes a core, the others compute more.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic
from numba.np import numpy_support
from torch import Tensor

from hud_kernels.cpu.kernels import OPTIONS

carray: Any = numpy_support.carray
"""Makes an array of a pointer and a shape."""
pointer_to: Any = types.CPointer


@dataclass(frozen=True)
class Work:
    """Compiled work."""

    call: Callable[[int], None]
    """The work of one thread; its argument is the address of a call's numbers."""
    address: int
    """Address of its code."""


def work(function: Callable[[Any], None], kind: Any) -> Work:
    """Return the compiled form of a function of a call's numbers (int64), which several threads call at a time.

    Number 0 is the count of claimed units (`claim`); the others are the arguments of `run`. For compiled code the numbers have
    type `kind *`, by which `array_at` knows the type of elements.
    """
    signature = types.void(pointer_to(kind))
    try:
        code = cfunc(signature, cache=True, **OPTIONS)(function)
    except RuntimeError:  # There is no folder to keep it in: each process compiles it.
        code = cfunc(signature, **OPTIONS)(function)
    address = code.address or 0
    return Work(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address), address)


def run(task: Work, most: int, *arguments: int | Tensor) -> None:
    """Call compiled work with numbers, by as many threads as torch uses, at most `most` and at least one.

    In place of a contiguous tensor, work gets its address.
    """
    # `array` takes a tenth of the time of numpy's.
    numbers = array("q", [0, *map(_number, arguments)])
    address, threads = numbers.buffer_info()[0], min(torch.get_num_threads(), most)
    parallel = _gomp_parallel()
    if threads < 2:
        task.call(address)
    elif parallel is not None:
        parallel(task.address, address, threads, 0)
    else:
        others = [_helpers(threads - 1).submit(task.call, address) for _ in range(threads - 1)]
        task.call(address)
        for other in others:
            other.result()


def _number(argument: int | Tensor) -> int:
    return argument.data_ptr() if isinstance(argument, Tensor) else argument


@cache
def _gomp_parallel() -> Callable[[int, int, int, int], None] | None:
    """Return the entry of torch's libgomp that calls a function with an argument in several threads; None without one."""
    libraries = Path(torch.__file__).parent.joinpath("lib").glob("libgomp*.so*")
    for library in libraries:
        try:
            parallel = ctypes.CDLL(str(library)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        parallel.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
        parallel.restype = None
        call: Callable[[int, int, int, int], None] = parallel
        return call
    return None


@cache
def _helpers(count: int) -> ThreadPoolExecutor:
    """Return threads beside the one that computes."""
    return ThreadPoolExecutor(count, "hud-team")


def _integers(builder: Any, call: Any) -> Any:
    return builder.bitcast(call, ir.IntType(64).as_pointer())


def _claim(_context: Any, call: Any) -> Any:
    def code(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw(
            "add", _integers(builder, arguments[0]), ir.IntType(64)(1), "monotonic"
        )

    return types.int64(call), code


def _number_at(_context: Any, call: Any, _place: Any) -> Any:
    def code(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        call, place = arguments
        return builder.load(builder.gep(_integers(builder, call), [place]))

    return types.int64(call, types.int64), code


def _pointer(kind: Any = None) -> Any:
    def pointer(_context: Any, call: Any, _place: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            call, place = arguments
            address = builder.load(builder.gep(_integers(builder, call), [place]))
            return builder.inttoptr(address, context.get_value_type(signature.return_type))

        return (call if kind is None else pointer_to(kind))(call, types.int64), code

    return intrinsic(pointer)


claim: Any = intrinsic(_claim)
"""Returns the number of a unit that no other thread computes; past the last one when all are claimed."""
number_at: Any = intrinsic(_number_at)
"""Returns a number of a call."""
at, at_floats, at_doubles, at_integers = map(
    _pointer, (None, types.float32, types.float64, types.int64)
)
"""Return a number of a call as a pointer: to elements of the call's kind, or of the type in the name. `carray` makes it an array."""

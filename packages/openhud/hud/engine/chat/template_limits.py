"""Limits of a template's rendering: time, characters and nesting, checked before memory is taken.

A template is a stranger's program that runs in the server's process. One operation on strings, lists or numbers may take hours or the
machine's memory (`'a' * 10**9`), and nothing interrupts it, so each one that can multiply is checked first.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from time import thread_time
from typing import Any

import jinja2
from jinja2.utils import Namespace

MOST_CHARACTERS = 1 << 28
"""Characters, and 8 for each entry of a list, of all values that a rendering makes."""
MOST_NESTED = 1_000_000
"""Values in a list with those in its entries, counted at each place: a list that holds another twice has twice as many."""
MOST_ARGUMENT = 1 << 20
"""Largest integer that is given to a method of a text or to a filter of `_SIZED`. Macros and tests take a conversation's own numbers."""
_SIZED = frozenset({"center", "indent", "round", "tojson", "truncate"})
"""Filters whose integers are widths, lengths or digits."""
_MOST_BITS = 4096
"""Largest product or power of integers."""
_MOST_STRIPPED = 64
"""Most characters that `strip` takes: its time is their product with the text's length."""
_CHECKS = 16
"""The clock is read at every 16th operation; each is bounded by the characters that it makes."""
_ITERATION = 64
"""Characters that count for an iteration of a loop, for each of its outputs."""
_WIDE = {
    "%": re.compile(r"%(?:\([^)]*\))?[-+ #0-9.]*(?:\d{4}|\*)"),
    "{": re.compile(r"\{[^{}:]*:[^{}]*?\d{4}|\{[^{}]*\{"),
}
"""Widths in formats that make a long text of a short one, or that are themselves arguments."""
_TEXT_METHODS = frozenset(
    {
        "strip",
        "lstrip",
        "rstrip",
        "split",
        "rsplit",
        "splitlines",
        "partition",
        "rpartition",
        "join",
    }
    | {
        "replace",
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "find",
        "rfind",
        "index",
    }
    | {"count", "lower", "upper", "title", "capitalize", "swapcase", "casefold", "format", "center"}
    | {"ljust", "rjust", "zfill", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower"}
    | {"isnumeric", "isdecimal", "isascii", "istitle", "rindex"}
)
WITHOUT = ("wordwrap", "urlize", "striptags", "xmlattr", "slice", "batch", "pprint")
"""Filters of jinja2 whose time or length has no simple bound; chat templates use none of them."""


class _Budget:
    """Remaining limits of a rendering."""

    __slots__ = ("characters", "checks", "end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.characters: float = MOST_CHARACTERS
        self.checks = 0
        self.seconds = seconds
        self.end = min(thread_time() + seconds, _rendering.until)


class _Rendering(threading.local):
    budget: _Budget
    most_seconds: float = math.inf
    until: float = math.inf
    """Processor time of the thread at which every rendering is given up."""


class SlowTemplateError(jinja2.TemplateError):
    """A rendering took longer than its caller may wait."""


_rendering = _Rendering()


def begin(seconds: float) -> None:
    """Begin the limits of a rendering in this thread, or of a compilation, which computes constants.

    `seconds` bounds the thread's processor time.
    """
    _rendering.budget = _Budget(min(seconds, _rendering.most_seconds))


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Bound the renderings of the block in this thread further: `SlowTemplateError` beyond `seconds` of processor time."""
    before, _rendering.most_seconds = _rendering.most_seconds, seconds
    try:
        yield
    finally:
        _rendering.most_seconds = before


@contextmanager
def together(seconds: float) -> Iterator[Callable[[], bool]]:
    """Bound the processor time of the block's renderings in this thread together; yields a function that tells if it is used up."""
    end = thread_time() + seconds
    before, _rendering.until = _rendering.until, end
    try:
        yield lambda: thread_time() > end
    finally:
        _rendering.until = before


def charge(characters: float) -> None:
    """Count characters that are about to be made. Raises `TemplateError` beyond a limit."""
    budget = _rendering.budget
    budget.characters -= characters
    if budget.characters < 0:
        raise jinja2.TemplateError(f"it makes more than {MOST_CHARACTERS:,} characters")
    budget.checks += 1
    # Reading the clock costs more than the rest.
    if budget.checks % _CHECKS == 0 and thread_time() > budget.end:
        kind = (
            SlowTemplateError if budget.seconds == _rendering.most_seconds else jinja2.TemplateError
        )
        raise kind(f"it took longer than {budget.seconds:g} s")


def tick(outputs: int) -> None:
    """Count an iteration of a loop."""
    charge(_ITERATION * outputs)


def nested(value: Any) -> Any:
    """Return a new list, tuple or mapping. Raises `TemplateError` for too many values in it."""
    waiting, count = [value], 0
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, dict):
            inner = [*entry.keys(), *entry.values()]
        elif isinstance(entry, (list, tuple, set, frozenset)):
            inner = list(entry)
        else:
            continue
        count += len(inner)
        if count > MOST_NESTED:
            raise jinja2.TemplateError(f"it nests more than {MOST_NESTED:,} values")
        waiting += inner
    charge(8 * count)
    return value


class OpaqueNamespace(Namespace):
    """A namespace that is written by its name alone: its attributes may hold it."""

    def __repr__(self) -> str:
        return "<Namespace>"


def bounded_call(function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """Check a call, and return its positional arguments, iterators as lists. Raises `TemplateError` beyond a limit."""
    # jinja2 wraps `format` of a text.
    function = getattr(function, "__wrapped__", function)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, str):
        return _text_call(owner, function.__name__, args, options)
    if isinstance(owner, (int, float, complex, bytes, bytearray, memoryview)):
        raise jinja2.TemplateError(f"it calls {function.__name__} of a number or of bytes")
    charge(0)
    return args


def bounded_result(value: Any) -> Any:
    """Count the result of a call or filter."""
    if isinstance(value, (list, tuple, dict)):
        return nested(value)
    charge(len(value) if isinstance(value, str) else 16)
    return value


def _text_call(
    text: str, name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, ...]:
    if name not in _TEXT_METHODS:
        raise jinja2.TemplateError(f"it calls {name} of a text")
    _refuse_large((*args, *options.values()))
    if name in {"strip", "lstrip", "rstrip"}:
        refuse_long_strip(*args)
    if name == "replace":
        charge_replaced(text, *args)
    if name == "join" and args:
        args = (list(args[0]),)
        charge(len(text) * len(args[0]) + sum(map(_length, args[0])))
    if name == "format":
        charge_format(text, "{", (*args, *options.values()))
    return args


def charge_replaced(text: str, old: str, new: str, *_count: Any) -> None:
    """Count the text of a replacement."""
    charge(len(text) + str.count(text, old) * len(new))


def charge_format(text: str, mark: str, values: Any) -> None:
    """Count a formatted text. Raises `TemplateError` for widths that may be large."""
    if _WIDE[mark].search(text):
        raise jinja2.TemplateError("it formats with a large width")
    longest = max(map(_length, values), default=0) if isinstance(values, tuple) else _length(values)
    charge(len(text) + text.count(mark) * longest)


def refuse_long_strip(chars: str | None = None) -> None:
    """Raise `TemplateError` for many characters to strip."""
    if chars is not None and len(chars) > _MOST_STRIPPED:
        raise jinja2.TemplateError("it strips too many kinds of characters")


def multiplied(operator: str, left: Any, right: Any) -> None:
    """Check `*`, `**` and `%` before they are computed. Raises `TemplateError` beyond a limit."""
    if operator == "%":
        if isinstance(left, str):
            charge_format(left, "%", right)
        return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length()
        if operator == "**":
            bits = left.bit_length() * max(1, right)
        if bits > _MOST_BITS:
            raise jinja2.TemplateError("it computes with numbers of too many digits")
        return
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple, bytes)) and isinstance(count, int):
            charge((1 if isinstance(sequence, str) else 8) * len(sequence) * max(0, count))


def bounded_filter(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a filter of jinja2 with limits."""
    first = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0
    before = _BEFORE.get(name)

    @wraps(function)
    def filtered(*args: Any, **options: Any) -> Any:
        if name in _SIZED:
            _refuse_large((*args[first + 1 :], *options.values()))
        if before is not None:
            before(*args[first:], **options)
        return bounded_result(function(*args, **options))

    return filtered


def bounded_test(function: Callable[..., bool]) -> Callable[..., bool]:
    """Return a test of jinja2 that counts: a filter such as `select` calls it for each entry, without an iteration of a loop."""

    @wraps(function)
    def tested(*args: Any) -> bool:
        tick(1)
        return function(*args)

    return tested


def _refuse_large(values: tuple[Any, ...]) -> None:
    if any(isinstance(value, int) and abs(value) > MOST_ARGUMENT for value in values):
        raise jinja2.TemplateError(f"it passes a number above {MOST_ARGUMENT:,}")


def _length(value: Any) -> int:
    """Return the length of a text, and a bound on that of another value that is written."""
    return len(value) if isinstance(value, str) else len(str(value))


def _before_replace(text: Any, old: Any, new: Any, _count: Any = None, **_options: Any) -> None:
    charge_replaced(str(text), str(old), str(new))


def _before_indent(text: Any, width: int | str = 4, *_flags: Any, **_options: Any) -> None:
    columns = len(width) if isinstance(width, str) else width
    charge(len(str(text)) + (str(text).count("\n") + 1) * columns)


def _before_format(text: Any, *values: Any, **named: Any) -> None:
    charge_format(str(text), "%", (*values, *named.values()))


def _before_trim(_text: Any, chars: str | None = None) -> None:
    refuse_long_strip(chars)


def _before_sum(_items: Any, _attribute: Any = None, start: Any = 0, **_options: Any) -> None:
    if not isinstance(start, (int, float)):
        raise jinja2.TemplateError("it sums values that are no numbers")


_BEFORE: dict[str, Callable[..., None]] = {
    "replace": _before_replace,
    "indent": _before_indent,
    "format": _before_format,
    "trim": _before_trim,
    "sum": _before_sum,
}

"""`Fields`: a client's JSON, read field by field; errors name the field's place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from hud.errors import UsageError

LARGEST_INTEGER = (1 << 63) - 1


class Fields:
    """One JSON object. A `null` field counts as missing; unread fields are ignored."""

    def __init__(self, values: Any, where: str = "") -> None:
        if not isinstance(values, dict):
            raise UsageError(f"{where or 'The request body'} must be a JSON object.")
        self.values: dict[str, Any] = values
        self.where = where

    def place(self, name: str) -> str:
        """Return a field's name in error messages."""
        return f"{self.where}.{name}" if self.where else name

    def get(self, *names: str) -> Any:
        """Return the value of the first spelling that is present."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        return None

    def text(self, *names: str) -> str | None:
        value = self.get(*names)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(names[0], "text")

    def needed_text(self, *names: str) -> str:
        """Return the text of a field. Raises `UsageError` if it is missing or empty."""
        value = self.text(*names)
        if not value:
            raise UsageError(f"{self.place(names[0])} is missing.")
        return value

    def flag(self, *names: str) -> bool | None:
        value = self.get(*names)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(names[0], "true or false")

    def integer(self, *names: str, least: int, most: int | None = None) -> int | None:
        """Return a whole number; without `most`, one beyond int64 counts as its largest."""
        value = self.get(*names)
        if value is None:
            return None
        is_integer = type(value) is int or (type(value) is float and value.is_integer())
        if is_integer:
            number = int(value)
            if number >= least and (most is None or number <= most):
                return min(number, LARGEST_INTEGER)
        upper = "" if most is None else f" and at most {most}"
        raise self.wrong(names[0], f"a whole number of at least {least}{upper}")

    def number(self, *names: str, least: float, most: float) -> float | None:
        value = self.get(*names)
        if value is None:
            return None
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and least <= value <= most
        ):
            return float(value)
        raise self.wrong(names[0], f"a number from {least:g} to {most:g}")

    def inner(self, *names: str) -> Self | None:
        value = self.get(*names)
        return None if value is None else type(self)(value, self.place(names[0]))

    def object(self, *names: str) -> dict[str, Any] | None:
        """Return the raw values of the object."""
        inner = self.inner(*names)
        return None if inner is None else inner.values

    def objects(self, *names: str) -> list[Self]:
        """Return a list of objects; empty if missing."""
        value = self.get(*names)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(names[0], "a list")
        return [
            type(self)(item, f"{self.place(names[0])}[{place}]") for place, item in enumerate(value)
        ]

    def texts(self, *names: str) -> tuple[str, ...]:
        """Return one text or a list of texts, as a list; empty if missing."""
        value = self.get(*names)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else value
        if isinstance(values, list) and all(isinstance(item, str) for item in values):
            return tuple(values)
        raise self.wrong(names[0], "text, or a list of texts")

    def integers(self, *names: str, below: int) -> list[int] | None:
        value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, list) and all(
            type(item) is int and 0 <= item < below for item in value
        ):
            return value
        raise self.wrong(names[0], f"a list of token ids, each below {below}")

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise `UsageError` for unsupported settings."""
        for name in names:
            if self.get(name) not in (None, False, 0, [], {}, ""):
                raise UsageError(f"{self.place(name)} is not supported here{why}. Leave it out.")

    def require(self, name: str, *defaults: Any) -> None:
        """Raise `UsageError` for a setting that is supported with its defaults only."""
        if self.get(name) not in (None, *defaults):
            shown = " or ".join(repr(value) for value in defaults)
            raise self.wrong(name, f"{shown} for this model, or left out")

    def wrong(self, name: str, expected: str) -> UsageError:
        return UsageError(f"{self.place(name)} must be {expected}.")

    def unsupported(self, what: str, ending: str = "is not supported here") -> UsageError:
        """Return the error for an object whose `type` is not read."""
        return UsageError(f"{self.place('type')}: {what} of type {self.get('type')!r} {ending}.")

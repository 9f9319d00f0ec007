"""The arguments of a tool or a template: schema and validation, from a function's annotations."""

from __future__ import annotations

import functools
import inspect
import marshal
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from numbers import Number
from typing import Annotated, Any, Optional, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    Secret,
    SecretBytes,
    SecretStr,
    ValidationError,
    create_model,
)
from pydantic_core import from_json

from hud import exact_json
from hud.environment.tools.docstrings import parse_docstring
from hud.errors import UsageError
from hud.trace.json_values import copied, plain_value

HINT, GRADING = "x-hud-hint", "grading"

GradingArg = Annotated[Any, Field(json_schema_extra={HINT: GRADING})]
"""Marker of an argument for graders only: `expected: GradingArg`, or `Annotated[str, GradingArg]`."""

_RECENT, _RECENT_BYTES = 4096, 1024
_VALUES_ALONE = 2
"""Version of marshal whose bytes depend on values and their types alone, not on which of them are one object."""


class Arguments:
    """The declared arguments of a function, computed once.

    Arguments in `leave_out` are ignored.
    """

    def __init__(
        self, function: Callable[..., Any], what: str, *, leave_out: Collection[str] = ()
    ) -> None:
        self.what = what
        source = annotated(function)
        self.description, described = parse_docstring(source.__doc__ or function.__doc__)
        signature = inspect.signature(function)
        try:
            hints = get_type_hints(source, include_extras=True)
        except NameError as error:
            raise UsageError(f"{what}: the annotation {error.name!r} cannot be resolved.") from None
        fields: dict[str, Any] = {}
        self.takes_any = False
        self._fields: dict[str, str] = {}
        self._optional: set[str] = set()
        self._recent: dict[bytes, tuple[dict[str, Any], dict[str, Any]]] = {}
        """Forms of recent arguments, by their bytes: each run asks for them, and a group shares them."""
        for index, (name, parameter) in enumerate(signature.parameters.items()):
            if name in leave_out:
                continue
            if parameter.kind is parameter.VAR_KEYWORD:
                self.takes_any = True
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise UsageError(f"{what}: {name!r} must be an argument that can be given by name.")
            default = ... if parameter.default is parameter.empty else parameter.default
            # Attributes of a pydantic model are reserved ("json", "copy", ...).
            field = f"argument_{index}"
            if default is not ...:
                self._optional.add(name)
            self._fields[name] = field
            hint = _flat(hints.get(name, Any))
            fields[field] = (
                _or_none(hint) if default is None else hint,
                Field(default=default, alias=name, title=None, description=described.get(name)),
            )
        config = ConfigDict(
            extra="allow" if self.takes_any else "forbid", arbitrary_types_allowed=True
        )
        try:
            self.model: type[BaseModel] = create_model("Arguments", __config__=config, **fields)
            self.schema = self._schema()
        except PydanticUserError as error:
            raise UsageError(
                f"{what}: the type of an argument has no JSON schema: {error.message.rstrip('.')}."
            ) from None
        self.names = set(self._fields)

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the validated arguments with defaults; raises `UsageError` with the invalid ones.

        They share no list or object with `arguments`: the function may change them, and `arguments` is recorded and used again.
        A string that does not fit its annotation is also tried as JSON: models quote numbers and lists. A null that an
        optional argument does not take is its default.
        """
        model = self._validated(copied(arguments))
        values = {name: getattr(model, field) for name, field in self._fields.items()}
        return {**values, **(model.model_extra or {})}

    def validate_call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the validated arguments of a model's call. Raises `UsageError` as `validate` does, and where a number is true, false or "nan"."""
        values = self.validate(arguments)
        for name in self._fields.keys() & arguments.keys():
            if _is_no_number(arguments[name], values[name]):
                shown = repr(arguments[name])[:80]
                raise UsageError(
                    f"{self.what}: argument {name!r}: true, false and nan are no numbers here, as in {shown}."
                )
        return values

    def _validated(self, arguments: dict[str, Any]) -> BaseModel:
        try:
            return self.model.model_validate(arguments)
        except ValidationError as first:
            try:
                return self.model.model_validate(_unquoted(arguments, first, self._optional))
            except ValidationError:
                raise UsageError(f"{self.what}: {self._sentence(first)}") from None

    def forms(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return two forms of the same arguments, as JSON: `arguments` without those that equal their default, and all.

        The first has values as they are in `arguments`, or validated if that changes their type ("7" for an integer); the
        second has validated values. Raises `UsageError` for invalid arguments.
        """
        try:
            key = marshal.dumps(arguments, _VALUES_ALONE)
        except ValueError:  # Not plain data.
            return self._forms(arguments)
        forms = self._recent.get(key)
        if forms is None:
            forms = self._forms(arguments)
            if len(key) <= _RECENT_BYTES:
                if len(self._recent) == _RECENT:
                    self._recent.clear()
                self._recent[key] = forms
        return copied(forms[0]), copied(forms[1])

    def _forms(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        model = self._validated(arguments)
        unset = {field for field in self._fields.values() if field not in model.model_fields_set}
        complete = _as_json(model)
        short: dict[str, Any] = {}
        for name, argument in arguments.items():
            field = self._fields.get(name)
            if field is None:
                short[name] = argument
                continue
            value = complete[name]
            if isinstance(getattr(model, field), Secret | SecretStr | SecretBytes):
                value = complete[name] = argument
            if field in unset or _text(value) == self._defaults.get(name):
                continue
            is_scalar = value is None or isinstance(value, str | int | float)
            short[name] = value if is_scalar and type(value) is not type(argument) else argument
        return short, complete

    @functools.cached_property
    def _defaults(self) -> dict[str, str]:
        """Defaults as text, by argument."""
        values = _as_json(self.model.model_construct())
        return {name: _text(value) for name, value in values.items()}

    def _sentence(self, error: ValidationError) -> str:
        problems = []
        for problem in error.errors(include_url=False):
            name = ".".join(str(part) for part in problem["loc"])
            match problem["type"]:
                case "missing":
                    problems.append(f"argument {name!r} is missing")
                case "extra_forbidden":
                    names = ", ".join(self._fields) or "none"
                    problems.append(f"there is no argument {name!r} (there are: {names})")
                case _:
                    value = repr(problem["input"])
                    shown = value if len(value) <= 80 else value[:77] + "..."
                    problems.append(f"argument {name!r}: {problem['msg'].lower()}, not {shown}")
        return "; ".join(problems) + "."

    def _schema(self) -> dict[str, Any]:
        schema = self.model.model_json_schema(by_alias=True)
        schema.pop("title", None)
        schema.pop("description", None)
        for entry in schema.setdefault("properties", {}).values():
            entry.pop("title", None)
        schema["additionalProperties"] = self.takes_any
        return schema


def _as_json(model: BaseModel) -> dict[str, Any]:
    """Return validated arguments as JSON; a set is a sorted list, a value without a JSON form its text."""
    values = model.model_dump(mode="json", by_alias=True, warnings=False, fallback=repr)
    for field, info in type(model).model_fields.items():
        name = info.alias or field
        if isinstance(getattr(model, field, None), set | frozenset):
            values[name] = sorted(values[name], key=_text)
    return values


def _text(value: Any) -> str:
    """Return a value of JSON as text: in Python 1, 1.0 and True are equal."""
    return exact_json.dumps(plain_value(value), option=exact_json.OPT_SORT_KEYS).decode()


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function under a partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the annotated function: that of a partial, or a callable object's `__call__`."""
    function = unwrapped(function)
    called: Callable[..., Any] = (
        function if inspect.isroutine(function) else type(function).__call__
    )
    return called


def _flat(hint: Any) -> Any:
    """Return an annotation with markers of the form `Annotated[...]` replaced by their own markers."""
    if get_origin(hint) is not Annotated:
        return hint
    plain, *markers = get_args(hint)
    flat_markers: list[Any] = []
    for marker in markers:
        flat_markers += get_args(marker)[1:] if get_origin(marker) is Annotated else [marker]
    return Annotated[plain, *flat_markers]


def _or_none(hint: Any) -> Any:
    """Return an annotation that also takes None, the default of its argument (`limit: int = None`)."""
    if hint is Any:
        return hint
    if get_origin(hint) is not Annotated:
        return Optional[hint]  # noqa: UP045 - the annotation is a value
    plain, *markers = get_args(hint)
    return Annotated[Optional[plain], *markers]  # noqa: UP045


def _unquoted(
    arguments: dict[str, Any], error: ValidationError, optional: Collection[str]
) -> dict[str, Any]:
    """Return the arguments without invalid nulls for optional ones, and with invalid strings parsed as JSON.

    A null within an argument is removed, too: its field then has its default, or is missing.
    """
    values: dict[str, Any] = copied(arguments)
    for problem in error.errors(include_url=False):
        *path, name = problem["loc"]
        if not path and values.get(str(name), 0) is None and name not in optional:
            continue
        holder = _at(values, path)
        if isinstance(holder, dict) and holder.get(name, 0) is None:
            del holder[name]
        name = problem["loc"][0]
        if isinstance(name, str) and isinstance(values.get(name), str):
            try:
                values[name] = from_json(values[name])
            except ValueError:
                continue
    return values


def _is_no_number(argument: Any, value: Any) -> bool:
    """Return True where a number was made of true, false, or a text such as "nan": JSON has no such numbers, pydantic has."""
    if type(argument) is type(value) is str:
        return False
    if isinstance(argument, str) and not isinstance(value, str):
        if isinstance(value, float) and not math.isfinite(value):
            return True
        with suppress(ValueError):
            argument = from_json(argument)
    if isinstance(argument, bool):
        return isinstance(value, Number) and not isinstance(value, bool)
    if isinstance(argument, list | tuple):
        if isinstance(value, Set):
            return bool in map(type, argument) and bool not in map(type, value)
        parts: Iterable[tuple[Any, Any]] = (
            zip(argument, value, strict=False) if isinstance(value, Sequence) else ()
        )
    elif isinstance(argument, dict) and isinstance(value, BaseModel):
        names = {info.alias or name: name for name, info in type(value).model_fields.items()}
        parts = (
            (part, getattr(value, names[key])) for key, part in argument.items() if key in names
        )
    elif isinstance(argument, dict):
        fields = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        parts = ((part, fields[key]) for key, part in argument.items() if key in fields)
    else:
        return False
    return any(_is_no_number(*pair) for pair in parts)


def _at(value: Any, path: Sequence[int | str]) -> Any:
    """Return the part of a value at a path; None for a path through anything else than objects and lists."""
    for step in path:
        try:
            value = value[step]
        except (TypeError, LookupError):
            return None
    return value

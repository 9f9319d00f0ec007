"""Options of a command from the fields of a pydantic model: equal names in Python, TOML and on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def config_options(
    fields: Mapping[str, FieldInfo], repeated: Mapping[str, str]
) -> Callable[[Any], Any]:
    """Return a decorator that adds one option for each field, in their order; without it, the file's value or the default applies.

    `repeated`: names of options that may be repeated, with the word for a value.
    """

    def decorate(function: Any) -> Any:
        # Last applied, first shown.
        for name, field in reversed(list(fields.items())):
            flag = f"--{name.replace('_', '-')}"
            text = " ".join((field.description or "").split())
            if name in repeated:
                option = click.option(flag, multiple=True, metavar=repeated[name], help=text)
            elif field.annotation is bool:
                option = click.option(flag, is_flag=True, default=None, help=text)
            else:
                default = "" if field.default is None else f"  [default: {field.default}]"
                option = click.option(flag, type=_click_type(field.annotation), help=text + default)
            function = option(function)
        return function

    return decorate


def _click_type(annotation: Any) -> Any:
    options = [kind for kind in get_args(annotation) if kind is not type(None)]
    if len(options) > 1 and get_origin(annotation) in (Union, UnionType):
        return str  # A number or a word, by the configuration.
    if options and get_origin(annotation) is not Literal:
        annotation = options[0]
    if get_origin(annotation) is Literal:
        return click.Choice(list(get_args(annotation)))
    return annotation if annotation in (int, float) else str

"""Checks of options that click leaves out: of an option given twice it takes the last value, and NaN is in each of its ranges."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import click

PORT = click.IntRange(0, 65_535)
"""Type of a port to listen on; 0 stands for a free one."""
_Parse = Callable[[click.Context, list[str]], list[str]]


def check_options(command: click.Command) -> None:
    """Have `command` and its subcommands raise `click.UsageError` for an option given twice, and for a number that is not finite."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            check_options(subcommand)
    if "parse_args" not in vars(command):  # A command is resolved more than once in one process.
        vars(command)["parse_args"] = _checked(command, command.parse_args)


def _checked(command: click.Command, parse: _Parse) -> _Parse:
    def parse_args(context: click.Context, arguments: list[str]) -> list[str]:
        # `--help` ends in the parser; a malformed line is reported by it as well.
        _, _, order = command.make_parser(context).parse_args(args=list(arguments))
        for parameter, count in Counter(order).items():
            if count > 1 and _has_one_value(parameter):
                option = max(parameter.opts, key=len)
                raise click.UsageError(
                    f"{option} is given {count} times and takes one value; give it once.", context
                )
        rest = parse(context, arguments)
        for parameter in command.params:
            value = context.params.get(parameter.name or "")
            if isinstance(value, float) and not math.isfinite(value):
                option = max(parameter.opts, key=len)
                raise click.UsageError(f"{option} takes a finite number, not {value}.", context)
        return rest

    return parse_args


def _has_one_value(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not (
        parameter.multiple or parameter.count or parameter.is_flag
    )

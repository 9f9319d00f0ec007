"""Refusal of repeated options: click itself takes the last value of an option with one value, silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import click

_Parse = Callable[[click.Context, list[str]], list[str]]


def refuse_repeats(command: click.Command) -> None:
    """Have `command` and its subcommands raise `click.UsageError` where an option with one value is given twice."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            refuse_repeats(subcommand)
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
        return parse(context, arguments)

    return parse_args


def _has_one_value(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not (
        parameter.multiple or parameter.count or parameter.is_flag
    )

"""Command lines: options of the form NAME=VALUE, and suggested commands, complete and quoted for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import click
from click.core import ParameterSource

from hud.errors import UsageError


def command_line(context: click.Context, *, without: tuple[str, ...] = ()) -> str:
    """Return the current command line, without the parameters named in `without`.

    Values of settings whose name ends in `api_key` are omitted.
    """
    words = context.command_path.split()
    for parameter in context.command.params:
        name = parameter.name or ""
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if typed and name not in without:
            words += _words(parameter, context.params[name])
    return shlex.join(words)


def pairs(
    option: str, form: str, texts: Iterable[str], *, empty: bool = False
) -> list[tuple[str, str]]:
    """Parse the values of an option of a form such as NAME=VALUE; with `empty`, values may be "".

    Raises `UsageError` for another form, and for a name that is given twice.
    """
    parsed: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and (value or empty)):
            raise UsageError(f"--{option} takes {form}, not {text!r}.")
        if name in dict(parsed):
            raise UsageError(f"--{option} gives {name} twice; give it once.")
        parsed.append((name, value))
    return parsed


def _words(parameter: click.Parameter, value: object) -> Iterator[str]:
    if not isinstance(parameter, click.Option):
        yield from map(str, value if isinstance(value, tuple) else (value,))
        return
    option = max(parameter.opts, key=len)
    if parameter.is_flag:
        yield option if value else max(parameter.secondary_opts, key=len)
    elif parameter.count:
        yield from [option] * int(str(value))
    else:
        for argument in value if isinstance(value, tuple) else (value,):
            yield from (option, _unsecret(str(argument)))


def _unsecret(text: str) -> str:
    name, separator, _ = text.partition("=")
    return f"{name}=YOUR_KEY" if separator and name.endswith("api_key") else text


@dataclass(frozen=True)
class EvalCommand:
    """The current `hud eval` command line: constant part, task options, and group."""

    constant: str
    tasks: str
    """Options that select the tasks: `--all`, or `--task-ids ...`."""
    group: int | None = None
    """Value of `--group`, or None."""

    @classmethod
    def typed(cls, context: click.Context, first: str) -> EvalCommand:
        """Return the command of a context; `first` is the slug of its first task, the default."""
        chosen = ("everything", "full", "task_ids", "group", "resume", "as_json")
        ids = context.params["task_ids"]
        tasks = "--full" if context.params["full"] else "--all"
        selecting = ("everything", "full", "resume", "benchmark")
        if ids is not None:
            tasks = f"--task-ids {shlex.quote(ids)}"
        elif not any(context.params[name] for name in selecting):
            tasks = f"--task-ids {shlex.quote(first)}"
        return cls(command_line(context, without=chosen), tasks, context.params["group"])

    def resuming(self, job: str) -> str:
        """Return the command that plays a job's missing runs."""
        return " ".join([self.constant, self.tasks, *self._grouped(), f"--resume {job}"])

    def of_all(self) -> str:
        """Return the command that plays every task."""
        return " ".join([self.constant, "--all", *self._grouped()])

    def repeated(self, group: int) -> str:
        """Return the command that plays each task several times."""
        return f"{self.constant} {self.tasks} --group {group}"

    def _grouped(self) -> list[str]:
        return [] if self.group is None else [f"--group {self.group}"]

"""Write docs/commands.md: the help of every command, as `hud COMMAND --help` prints it. `make docs` runs it.

The blocks of the page are sessions, which tests/docs runs and compares; tests/docs/test_site.py compares the whole page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hud.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
BEGINNING = """# Commands

The help of every command, as `hud COMMAND --help` prints it. Exit codes: 0 success, 1 failure, 2 invalid input, 130 interrupted.
Written by `make docs` from the commands themselves.
"""


def page() -> str:
    """Return the page."""
    parts = [BEGINNING]
    for names, command, context in _commands(cli, click.Context(cli, info_name="hud"), ()):
        title = " ".join(("hud", *names))
        level = "##" if len(names) < 2 else "###"
        text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
        parts.append(f"\n{level} {title}\n\n```console\n$ {title} --help\n{text}\n```\n")
    return "".join(parts)


def _commands(
    command: click.Command, context: click.Context, names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """Yield a command and those below it with their names, hidden ones excepted."""
    # The width of `hud` where its output is no terminal.
    context.terminal_width = 78
    context.help_option_names = ["-h", "--help"]
    yield names, command, context
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None and not found.hidden:
            below = click.Context(found, parent=context, info_name=name)
            yield from _commands(found, below, (*names, name))


if __name__ == "__main__":
    written = page()
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != written:
        PAGE.write_text(written, encoding="utf-8")
        sys.stdout.write(f"{PAGE} is new\n")

"""Write docs/commands.md and docs/commands/: the help of every command, as `hud COMMAND --help` prints it. `make docs` runs it.

A top-level command has a page, with those below it. The blocks of the pages are sessions, which tests/docs runs and compares;
tests/docs/test_site.py compares the pages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hud.cli.main import cli

DOCS = Path(__file__).parents[2] / "docs"
BEGINNING = """# Commands

The help of every command, as `hud COMMAND --help` prints it: one page for each top-level command. Exit codes: 0 success, 1 failure,
2 invalid input, 130 interrupted. Written by `make docs` from the commands themselves.

"""


def pages() -> dict[str, str]:
    """Return the text of each page by its path in docs/: the index, then a page for each top-level command."""
    index, texts = BEGINNING, dict[str, str]()
    for names, command, context in _commands(cli, click.Context(cli, info_name="hud"), ()):
        title = " ".join(("hud", *names))
        text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
        help_block = f"```console\n$ {title} --help\n{text}\n```\n"
        if not names:
            overview = f"\n## hud\n\n{help_block}"
        elif len(names) == 1:
            texts[f"commands/{names[0]}.md"] = f"# {title}\n\n{help_block}"
            summary = command.get_short_help_str(limit=200)
            index += f"- [`{title}`](commands/{names[0]}.md): {summary}\n"
        else:
            texts[f"commands/{names[0]}.md"] += f"\n## {title}\n\n{help_block}"
    return {"commands.md": index + overview, **texts}


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
    (DOCS / "commands").mkdir(exist_ok=True)
    texts = pages()
    for path in (DOCS / "commands").glob("*.md"):
        if path.relative_to(DOCS).as_posix() not in texts:
            path.unlink()
    for name, text in texts.items():
        page = DOCS / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{page} is new\n")

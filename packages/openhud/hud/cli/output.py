"""Output of commands: a console that detects terminals, tables, numbers, JSON.

Output for people goes through `console()` or `echo()`, output for programs is JSON on standard output. In none of them does
recorded text (of agents, models, environments) act on the terminal: control characters are shown, and markup is not applied.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hud import exact_json, settings

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal executes, and those that turn the direction of text."""


def safe(text: str) -> str:
    """Return `text` with control characters as escapes (`\\u001b`); lines and tabs stay."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def echo(text: str, *, err: bool = False) -> None:
    """Print a line that may contain recorded text."""
    click.echo(safe(text), err=err)


class _SafeConsole(Console):
    """A console that shows control characters, in tables and panels too."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(safe(text), **options)


def console(*, stderr: bool = False) -> Console:
    """Return a console for people; plain without a terminal, or with NO_COLOR."""
    return _SafeConsole(
        stderr=stderr,
        no_color=not settings.load().color,
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    # JSON reads the escapes as the characters that they stand for.
    echo(
        exact_json.dumps(
            value, option=exact_json.OPT_INDENT_2 | exact_json.OPT_NON_STR_KEYS, default=str
        ).decode()
    )


def tell(as_json: bool, value: Any, sentence: str) -> None:
    """Print a command's result: as JSON, or as a sentence."""
    if as_json:
        print_json(value)
    else:
        console().print(sentence, markup=False)


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table without boxes, for copying and grep."""
    made = Table(box=None, pad_edge=False, title=title, title_justify="left", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column)
    return made


@dataclass(frozen=True)
class Column:
    """A column of fixed width; numbers are right-aligned."""

    name: str
    width: int
    right: bool = True

    def cell(self, text: str) -> str:
        """Return `text` at the column's width."""
        return text.rjust(self.width) if self.right else text.ljust(self.width)


def row(columns: Sequence[Column], values: Sequence[str]) -> str:
    """Return a line of a table that is printed row by row, without trailing spaces."""
    cells = [column.cell(value) for column, value in zip(columns, values, strict=True)]
    return "  ".join(cells).rstrip()


def header(columns: Sequence[Column]) -> str:
    """Return the header line."""
    return row(columns, [column.name for column in columns])


def rest(columns: Sequence[Column]) -> int:
    """Return the remaining width of the console for a last column."""
    return max(12, console().width - sum(column.width + 2 for column in columns))


def lines_of(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[str],
    shrinks: str,
    wraps: bool = False,
) -> list[str]:
    """Return a table as lines that fit the console: columns `left` are left-aligned, and `shrinks` is cut if needed.

    With `wraps` a long text of that column goes on in the next line, in place of the cut.
    """
    widths = [
        max(len(name), *(len(cells[place]) for cells in rows)) if rows else len(name)
        for place, name in enumerate(names)
    ]
    place = names.index(shrinks)
    over = sum(widths) + 2 * (len(names) - 1) - console().width
    widths[place] = max(12, min(widths[place], widths[place] - over))
    columns = [
        Column(name, width, name not in left) for name, width in zip(names, widths, strict=True)
    ]
    if wraps:
        return [
            header(columns),
            *(line for cells in rows for line in _wrapped_row(columns, cells, place)),
        ]
    # Names that differ at their ends must stay distinguishable.
    shrunk = {cells[place] for cells in rows}
    middle = len({fitted(text, widths[place]) for text in shrunk}) < len(shrunk)
    cut = [
        [fitted(cell, width, middle=middle) for cell, width in zip(cells, widths, strict=True)]
        for cells in rows
    ]
    return [header(columns), *(row(columns, cells) for cells in cut)]


def _wrapped_row(columns: Sequence[Column], cells: Sequence[str], place: int) -> list[str]:
    """Return a row as lines: the text at `place` goes on below itself."""
    first, *later = textwrap.wrap(cells[place], columns[place].width) or [""]
    blank = [""] * len(columns)
    return [
        row(columns, [*cells[:place], first, *cells[place + 1 :]]),
        *(row(columns, [*blank[:place], text, *blank[place + 1 :]]) for text in later),
    ]


def fitted(text: str, width: int, *, middle: bool = False) -> str:
    """Return `text` in at most `width` characters, cut at its end or in its middle."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2 if middle else 0
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def wrapped(text: str, indent: int) -> list[str]:
    """Return `text` as lines of the console's width, indented; paths and ids are not broken."""
    space = " " * indent
    return textwrap.wrap(
        " ".join(text.split()),
        max(40, console().width),
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )


def number(value: float | None, digits: int = 3) -> str:
    """Format a number, or a dash for None; what rounds to zero has no sign."""
    return "–" if value is None else f"{value:z.{digits}f}"


def seconds(value: float | None) -> str:
    """Format a duration in a suitable unit."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def about(value: float | None) -> str:
    """Format an estimated duration in at most six characters."""
    if value is None:
        return "–"
    if value < 99.5:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 5970 else f"{value / 3600:.0f} h"


def count(value: int, noun: str) -> str:
    """Format a count with its noun: `1 run`, `1,200 runs`."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def some(names: list[str], most: int = 6) -> str:
    """Join names; all but the first `most` are only counted."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def training_usage(model: str) -> str:
    """Return the usage of `hud train` for a model."""
    return f"Usage: hud train {model} TASKS, with TASKS a .py, .json or .jsonl file of tasks, or a folder"

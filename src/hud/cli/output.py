"""How commands talk: a console that knows whether somebody is watching, tables, numbers, JSON.

What a person reads goes through `console()`; what a program reads goes to standard output as JSON.
"""

from __future__ import annotations

from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from hud import settings


def console(*, stderr: bool = False) -> Console:
    """Return a console for people; plain where it is no terminal or NO_COLOR is set."""
    return Console(
        stderr=stderr, no_color=not settings.load().color, highlight=False, soft_wrap=True
    )


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    click.echo(
        orjson.dumps(
            value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str
        ).decode()
    )


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table in the house style: no boxes, so that it can be copied and grepped."""
    made = Table(box=None, pad_edge=False, title=title, title_justify="left", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column)
    return made


def number(value: float | None, digits: int = 3) -> str:
    """Format a number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def seconds(value: float | None) -> str:
    """Format a duration in the unit that suits it."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


def count(value: int, noun: str) -> str:
    """Format a count with its noun: `1 run`, `1,200 runs`."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def some(names: list[str], most: int = 6) -> str:
    """Join names; all but the first `most` are only counted."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"

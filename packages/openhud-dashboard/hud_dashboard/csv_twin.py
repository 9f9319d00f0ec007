"""The CSV twin of a list: its rows, all pages of them."""

from __future__ import annotations

import csv
import functools
import inspect
import io
from collections.abc import Callable, Iterable
from typing import Any

from fastapi import Response

MOST_ROWS = 10_000
"""Rows of one file: the first of the list's order."""


def csv_twin(function: Callable[..., Any], name: str) -> Callable[..., Response]:
    """Return a route that calls the function of a list page for each page, and responds with the `items` of all.

    `function` takes `offset`, and returns `items`, `limit` and `total`.
    """

    @functools.wraps(function)
    def rows(**values: Any) -> Response:
        items: list[dict[str, Any]] = []
        offset, total = 0, 1
        while offset < min(total, MOST_ROWS):
            page = function(**{**values, "offset": offset})
            items += page["items"]
            offset, total = offset + page["limit"], page["total"]
        headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
        return Response(csv_text(items), media_type="text/csv; charset=utf-8", headers=headers)

    # Resolved in the page's own module.
    signature = inspect.signature(function, eval_str=True)
    rows.__signature__ = signature.replace(return_annotation=Response)  # type: ignore[attr-defined]
    rows.__annotations__ = {}
    return rows


def csv_text(items: Iterable[dict[str, Any]]) -> str:
    """Return rows as CSV: a column for each value that is a number or a text, and for lists of texts."""
    from hud.cli.csv_file import cell

    rows = [{name: _flat(value) for name, value in item.items()} for item in items]
    names = list(
        dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    )
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(map(cell, names))
    for row in rows:
        writer.writerow([cell(row.get(name)) for name in names])
    return out.getvalue()


def _flat(value: Any) -> str | int | float | None:
    """Return a value of one cell; None for objects."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "; ".join(value) or None
    return value if isinstance(value, str | int | float) else None

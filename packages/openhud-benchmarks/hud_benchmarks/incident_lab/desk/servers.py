"""The four MCP servers. Each answers from one recording, which is opened once it is known which.

python -m hud_benchmarks.incident_lab.desk tracker .lab/leak-orders.sqlite.gz      the same server over stdio, for an editor's agent
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from mcp.server import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from hud_benchmarks.incident_lab.desk import console, orchestrator, platform, tracker
from hud_benchmarks.incident_lab.desk.query import Query, table
from hud_benchmarks.incident_lab.lab.recording import opened

TOOLS: dict[str, Sequence[Query]] = {
    "tracker": tracker.TOOLS,
    "database": console.TOOLS,
    "deploy": platform.TOOLS,
    "cluster": orchestrator.TOOLS,
}
"""Tools of each server."""
OPEN = "open_recording"
"""Tool for the environment, not for agents: the recording to answer from."""
EXECUTE_SQL = "execute_sql"
SQL_STEPS = 2_000_000
"""Most steps of SQLite's machine that a free query may take."""
SQL_SECONDS = 1.0
"""Longest time of a free query: a step may make or compare a long text."""
_CHECKED_EVERY = 1_000
"""Steps between two looks at the clock."""


class Desk:
    """One server's tools and the recording behind them."""

    def __init__(self, name: str, recording: Path | None = None) -> None:
        self.name = name
        self.queries = {query.name: query for query in TOOLS[name]}
        self.database: sqlite3.Connection | None = None
        if recording is not None:
            self.database = opened(recording)

    def tools(self) -> list[Tool]:
        """Return the tools as MCP lists them."""
        listed = [
            Tool(name=query.name, description=query.description, input_schema=query.schema())
            for query in self.queries.values()
        ]
        if self.name == "database":
            listed.append(
                _tool(EXECUTE_SQL, "Read-only SQL over the catalogue views and samples.", "query")
            )
        listed.append(_tool(OPEN, "Answer from this recording from now on.", "file"))
        return listed

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return what a tool says. Raises `ValueError` for a call that cannot be answered."""
        if name == OPEN:
            self.database = opened(Path(str(arguments["file"])))
            return "open"
        if self.database is None:
            raise ValueError("No recording is open.")
        if name == EXECUTE_SQL and self.name == "database":
            return free_sql(self.database, str(arguments.get("query", "")))
        if name not in self.queries:
            raise ValueError(f"There is no tool {name!r}.")
        return self.queries[name].answer(self.database, arguments)


def free_sql(database: sqlite3.Connection, query: str) -> str:
    """Return what a query answers that may read the console's tables and nothing else."""

    def allowed(action: int, first: str | None, *_: Any) -> int:
        reads = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
        table_read = action == sqlite3.SQLITE_READ and first in console.SQL_TABLES
        return sqlite3.SQLITE_OK if reads or table_read else sqlite3.SQLITE_DENY

    looks, due = itertools.count(1), monotonic() + SQL_SECONDS

    def is_over() -> bool:
        return next(looks) * _CHECKED_EVERY >= SQL_STEPS or monotonic() > due

    database.set_authorizer(allowed)
    database.set_progress_handler(is_over, _CHECKED_EVERY)
    try:
        return table(database.execute(query))
    except (sqlite3.Error, sqlite3.Warning, TypeError) as error:
        tables = ", ".join(sorted(console.SQL_TABLES))
        raise ValueError(f"{error}. There are: {tables}.") from error
    finally:
        database.set_authorizer(None)
        database.set_progress_handler(None, 0)


def server(name: str, recording: Path | None = None) -> Server[Any]:
    """Return the MCP server of that name, with a desk of its own."""
    desk = Desk(name, recording)

    async def list_tools(_: Any, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=desk.tools())

    async def call_tool(_: Any, call: CallToolRequestParams) -> CallToolResult:
        try:
            text, failed = desk.call(call.name, call.arguments or {}), False
        except ValueError as error:
            text, failed = str(error), True
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

    return Server(f"incident-lab-{name}", on_list_tools=list_tools, on_call_tool=call_tool)


def _tool(name: str, description: str, argument: str) -> Tool:
    schema = Query(name, description, argument, "").schema()
    return Tool(name=name, description=description, input_schema=schema)

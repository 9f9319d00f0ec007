"""`ConnectedServer`: an MCP server whose tools are available in every run of an environment.

A lost server fails the runs that used it; the next run starts it again.
"""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from weakref import WeakKeyDictionary

from hud.environment.mcp.config import (
    ServerConfig,
    named_entry,
    parse_server,
    parse_servers,
    single_server,
)
from hud.environment.part import OpenPart, Part, RunTool
from hud.environment.tools.results import tool_result
from hud.environment.tools.tool import TOOL_SECONDS, parse_arguments
from hud.errors import EnvironmentFault, UsageError
from hud.trace import ToolResult, ToolSpec

if TYPE_CHECKING:
    from hud.capabilities.mcp import Link
    from hud.environment.mcp.stdio import ServerProcess
    from hud.environment.run import EnvironmentRun

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that model providers accept in tool names."""


@dataclass(frozen=True)
class Choice:
    """Selection of a server's tools, and their names in the environment."""

    prefix: str = ""
    include: tuple[str, ...] | None = None
    """The server's own tool names, or patterns (`get_*`); None: all."""
    exclude: tuple[str, ...] = ()

    def takes(self, name: str) -> bool:
        """Return True if the server's tool `name` is selected."""
        wanted = self.include is None or _matches(name, self.include)
        return wanted and not _matches(name, self.exclude)

    def named(self, name: str) -> str:
        """Return the environment's name of the server's tool `name`."""
        return _NO_NAME.sub("_", f"{self.prefix}_{name}" if self.prefix else name)

    def names(self, listed: Sequence[str]) -> dict[str, str]:
        """Return the distinct names in the environment of the selected tools, by the server's names.

        Of two that become one (`get.user` and `get_user`), the second is `get_user_2`; an unchanged name comes first.
        """
        selected = [name for name in listed if self.takes(name)]
        plain = "" if not self.prefix else f"{self.prefix}_"
        names: dict[str, str] = {}
        for name in sorted(
            selected, key=lambda listed_name: self.named(listed_name) != plain + listed_name
        ):
            named, number = self.named(name), 1
            while (shown := named if number == 1 else f"{named}_{number}") in names.values():
                number += 1
            names[name] = shown
        return {name: names[name] for name in selected}

    def check(self, server: str, names: Sequence[str]) -> None:
        """Raise `EnvironmentFault` if an included or excluded name is none of the server's."""
        for name in (*(self.include or ()), *self.exclude):
            if not _is_pattern(name) and name not in names:
                tool_names = ", ".join(sorted(names)) or "none"
                raise EnvironmentFault(
                    f"The MCP server {server!r} has no tool {name!r} (it has: {tool_names})."
                )


class Lifetime(TypedDict, total=False):
    """Options of a connected server."""

    shared: bool
    timeout: float
    start_timeout: float
    reconnects: int


class ConnectedServer(Part["OpenServer"]):
    """The tools of an MCP server for each run; `env.connect_mcp(...)` adds one.

    `server` is a URL, a command line as a list, an entry of `mcpServers`, a server object of the official package, or a
    factory of one. Every run starts its own program and opens its own session, unless the server is `shared` by all runs
    of the process. With `prefix="crm"` the tool `find` is named `crm_find`; `include` and `exclude` are the server's own
    names, or patterns such as `get_*`. `timeout` is the time-out of a call and `start_timeout` that of connecting, in
    seconds; `reconnects` is the number of attempts to reopen a lost connection to a URL.
    """

    def __init__(
        self,
        server: str | Sequence[str] | Mapping[str, Any] | ServerConfig | Callable[[], Any] | Any,
        *,
        name: str | None = None,
        prefix: str | None = None,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        shared: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
        transport: str | None = None,
        timeout: float = TOOL_SECONDS,
        start_timeout: float = 60.0,
        reconnects: int = 3,
    ) -> None:
        self.source: ServerConfig | Any = server
        if isinstance(server, str | Mapping | list | tuple):
            unnamed, entry_name = named_entry(server)
            folder = None if cwd is None else str(cwd)
            entry = single_server(
                unnamed, env=env, cwd=folder, headers=headers, transport=transport
            )
            self.source = parse_server(name or entry_name or "mcp", entry)
            self.name = name or entry_name or self.source.likely_name()
        elif any(option is not None for option in (env, cwd, headers, transport)):
            raise UsageError("env, cwd, headers and transport are for commands and URLs.")
        elif isinstance(server, ServerConfig):
            self.name = name or server.likely_name()
        elif callable(server) or hasattr(server, "streamable_http_app"):
            self.name = name or str(
                getattr(server, "name", None) or getattr(server, "__name__", "mcp")
            )
        else:
            raise UsageError(
                "connect_mcp takes a URL, a command line as a list, an entry of mcpServers, a server object or "
                f"a function that makes one, not a {type(server).__name__}."
            )
        if timeout <= 0 or start_timeout <= 0 or reconnects < 0:
            raise UsageError(
                f"The MCP server {self.name!r}: timeout and start_timeout are seconds above 0, and reconnects is "
                "not below 0."
            )
        self.choice = Choice(
            prefix or "", None if include is None else _names(include), _names(exclude)
        )
        self.timeout = timeout
        self.start_timeout = start_timeout
        self.reconnects = reconnects
        self._shared = SharedServer(self._bring_up) if shared else None

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[OpenServer]:
        if self._shared is not None:
            server = await self._shared.get()
            yield self._for(run, server)
            return
        server = await self._bring_up()
        try:
            yield self._for(run, server)
        finally:
            await server.close()

    def _for(self, run: EnvironmentRun, server: OpenedServer) -> OpenServer:
        opened = OpenServer(self, server)
        self.choice.check(self.name, list(server.link.tools))
        taken = {**dict.fromkeys(run.environment.tools), **run.parts.tools()}
        for name in opened.tools():
            if name in taken:
                raise EnvironmentFault(
                    f"Environment {run.name!r} has two tools {name!r}, one of them from the MCP server "
                    f"{self.name!r}; give it a prefix, or exclude the tool."
                )
        return opened

    @property
    def is_shared(self) -> bool:
        """True if one server serves several runs, of which any may have ended it."""
        return self._shared is not None

    async def _bring_up(self) -> OpenedServer:
        try:
            from hud.environment.mcp.dialer import dialled
        except ModuleNotFoundError as error:
            raise UsageError(
                f"The MCP server {self.name!r} needs the package {error.name!r}: "
                "pip install 'openhud[environments]'."
            ) from None
        server = dialled(self)
        await server.link.open()
        return server


@dataclass(frozen=True)
class OpenedServer:
    """A running server: the connection, and the process if it was started here."""

    link: Link
    process: ServerProcess | None = None

    async def close(self) -> None:
        """Disconnect, and stop the process."""
        await self.link.close()

    def fault(self) -> str | None:
        """Return the reason, in a sentence, why the server is unusable."""
        if self.link.broken is not None:
            return self.link.broken
        words = None if self.process is None else self.process.last_words()
        if words is None:
            return None
        return f"The MCP server {self.link.name!r} ({self.link.where}) was lost: {words}."


class SharedServer:
    """A server shared by all runs of this process: started by the first, replaced when it is lost.

    There is one for each event loop; it is stopped when the loop's end cancels its task.
    """

    def __init__(self, bring_up: Callable[[], Awaitable[OpenedServer]]) -> None:
        self._bring_up = bring_up
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self._servers: WeakKeyDictionary[asyncio.AbstractEventLoop, OpenedServer] = (
            WeakKeyDictionary()
        )

    async def get(self) -> OpenedServer:
        """Return the running server; start one if there is none, or if it was lost."""
        loop = asyncio.get_running_loop()
        async with self._locks.setdefault(loop, asyncio.Lock()):
            server = self._servers.get(loop)
            if server is not None and server.fault() is not None:
                await self._servers.pop(loop).close()
                server = None
            if server is None:
                server = self._servers[loop] = await self._bring_up()
            return server


class OpenServer(OpenPart):
    """A server's tools in a run."""

    def __init__(self, declared: ConnectedServer, server: OpenedServer) -> None:
        self.declared = declared
        self.server = server
        self.resources: list[dict[str, Any]] = []
        self.lost_in_call = False
        """True if the server's process ended while its agent called a tool."""
        self._seen: Mapping[str, Any] | None = None
        self._tools: dict[str, RunTool] = {}

    def tools(self) -> Mapping[str, RunTool]:
        listed = self.server.link.tools
        if listed is not self._seen:
            from hud.capabilities.mcp.results import spec_of

            choice = self.declared.choice
            tools: dict[str, RunTool] = {}
            for name, shown in choice.names(list(listed)).items():
                tools[shown] = ServerTool(self, name, spec_of(listed[name], shown))
            self._seen, self._tools = listed, tools
        return self._tools

    async def observe(self) -> dict[str, Any]:
        resources, self.resources = self.resources, []
        return {"resources": resources} if resources else {}

    def fault(self) -> str | None:
        return self.server.fault()

    def broken_by_agent(self) -> bool:
        return self.lost_in_call and not self.declared.is_shared

    async def call(self, name: str, arguments: dict[str, Any] | None = None) -> ToolResult:
        """Call any tool by the server's own name, selected or not: for hooks and templates."""
        answered = await self.server.link.call(name, arguments or {}, self.declared.timeout)
        return tool_result(answered.result)

    async def read(self, uri: str) -> ToolResult:
        """Return the contents of a resource. Raises `EnvironmentFault` for an unknown one."""
        return tool_result(ToolResult(content=await self.server.link.read(uri)))


class ServerTool:
    """A tool of a server, in a run."""

    def __init__(self, opened: OpenServer, name: str, spec: ToolSpec) -> None:
        self._opened = opened
        self._name = name
        self.spec = spec

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        """Call the tool; `timeout` is in seconds and can only shorten the server's."""
        opened = self._opened
        try:
            values = parse_arguments(arguments, self.spec.name)
        except UsageError as error:
            return ToolResult.of_text(str(error), is_error=True)
        own = opened.declared.timeout
        seconds = own if timeout is None else min(own, timeout)
        process = opened.server.process
        try:
            answered = await opened.server.link.call(self._name, values, seconds)
        finally:
            opened.lost_in_call |= process is not None and process.ended
        opened.resources.extend(answered.unshown)
        return tool_result(answered.result)


def connected_servers(
    config: Mapping[str, Any] | str | Path,
    prefix: bool,
    include: Mapping[str, Sequence[str]],
    exclude: Mapping[str, Sequence[str]],
    lifetime: Lifetime,
) -> list[ConnectedServer]:
    """Return the enabled servers of an `mcpServers` JSON, or of the file at that path; see `env.connect_mcp_config`.

    Raises `UsageError` if `include` or `exclude` names an unknown server.
    """
    servers = parse_servers(config)
    for chosen in (*include, *exclude):
        if chosen not in servers:
            server_names = ", ".join(servers) or "none"
            raise UsageError(
                f"There is no MCP server {chosen!r} to choose tools of ({server_names})."
            )
    return [
        ConnectedServer(
            source,
            name=name,
            prefix=name if prefix else None,
            include=include.get(name),
            exclude=exclude.get(name, ()),
            **lifetime,
        )
        for name, source in servers.items()
    ]


def _names(patterns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(patterns, str):
        raise UsageError(f"include and exclude take a list of tool names, not {patterns!r}.")
    return tuple(patterns)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _is_pattern(name: str) -> bool:
    return any(character in name for character in "*?[")

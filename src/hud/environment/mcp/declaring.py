"""`env.connect_mcp(...)` and `env.connect_mcp_config({...})`: declarations of servers; nothing is started here."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hud.environment.mcp.config import ServerConfig, parse_server, parse_servers, single_server
from hud.environment.mcp.connected_server import Choice, ConnectedServer
from hud.environment.part import Part
from hud.environment.tools.tool import TOOL_SECONDS
from hud.errors import NotFoundError, UsageError

START_SECONDS = 60.0
RECONNECTS = 3

Server = str | Sequence[str] | Mapping[str, Any] | Callable[[], Any] | Any
"""A URL, a command line as a list, an entry of `mcpServers`, or a server object (or what makes one)."""


class ConnectsServers(ABC):
    """What an `Environment` knows of MCP servers."""

    @abstractmethod
    def add_part(self, part: Part) -> None:
        """Have every run bring `part` up."""

    def connect_mcp(
        self,
        server: Server,
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
        start_timeout: float = START_SECONDS,
        reconnects: int = RECONNECTS,
    ) -> ConnectedServer:
        """Give every run the tools of an MCP server, and return the declaration, for `env.opened(...)`.

        `server` is a URL, a command line as a list, an entry of `mcpServers`, a server object of the official
        package, or a function that makes one. Every run has its own (a program is started for it, a session
        opened) unless it is `shared` by all runs of the process. With `prefix="crm"` a tool `find` becomes
        `crm_find`; `include` and `exclude` are the server's own names, or patterns such as `get_*`. `timeout`
        is the limit of one call and `start_timeout` that of connecting, in seconds; `reconnects` is how often a
        server at a URL is tried again when its connection was lost.
        """
        source: ServerConfig | Any
        if isinstance(server, str | Mapping | list | tuple):
            given, found = _named(server)
            folder = None if cwd is None else str(cwd)
            entry = single_server(given, env=env, cwd=folder, headers=headers, transport=transport)
            source = parse_server(name or found or "mcp", entry)
            name = name or found or _likely_name(source)
        else:
            if any(option is not None for option in (env, cwd, headers, transport)):
                raise UsageError("env, cwd, headers and transport are for commands and URLs.")
            _check_object(server)
            source = server
            name = name or str(getattr(server, "name", None) or getattr(server, "__name__", "mcp"))
        part = ConnectedServer(
            name,
            source,
            Choice(prefix or "", None if include is None else _names(include), _names(exclude)),
            shared=shared,
            timeout=timeout,
            start_timeout=start_timeout,
            reconnects=reconnects,
        )
        self.add_part(part)
        return part

    def connect_mcp_config(
        self,
        config: Mapping[str, Any] | str | Path,
        *,
        prefix: bool = False,
        include: Mapping[str, Sequence[str]] | None = None,
        exclude: Mapping[str, Sequence[str]] | None = None,
        shared: bool = False,
        timeout: float = TOOL_SECONDS,
        start_timeout: float = START_SECONDS,
        reconnects: int = RECONNECTS,
    ) -> dict[str, ConnectedServer]:
        """Give every run the tools of all servers of an `mcpServers` JSON (or the path of such a file).

        With `prefix` the tools of each are called `SERVER_TOOL`; `include` and `exclude` choose for each server
        by its name. The rest is as for `connect_mcp`. Returns the declarations by name.
        """
        servers = parse_servers(_read(config) if isinstance(config, str | Path) else config)
        wanted, unwanted = include or {}, exclude or {}
        for chosen in (*wanted, *unwanted):
            if chosen not in servers:
                known = ", ".join(servers) or "none"
                raise UsageError(f"There is no MCP server {chosen!r} to choose tools of ({known}).")
        declared = {
            name: ConnectedServer(
                name,
                source,
                Choice(
                    name if prefix else "",
                    _names(wanted[name]) if name in wanted else None,
                    _names(unwanted.get(name, ())),
                ),
                shared=shared,
                timeout=timeout,
                start_timeout=start_timeout,
                reconnects=reconnects,
            )
            for name, source in servers.items()
        }
        for part in declared.values():
            self.add_part(part)
        return declared


def _named(server: Any) -> tuple[Any, str | None]:
    """Return a server's entry and its name, where it was given as `{name: {...}}` or as a whole configuration."""
    if not isinstance(server, Mapping) or "url" in server or "command" in server:
        return server, None
    inner = server.get("mcpServers", server)
    if isinstance(inner, Mapping) and len(inner) == 1:
        name, entry = next(iter(inner.items()))
        if isinstance(entry, Mapping):
            return entry, str(name)
    if "mcpServers" in server:
        raise UsageError("connect_mcp takes one server; for several there is connect_mcp_config.")
    return server, None


def _likely_name(config: ServerConfig) -> str:
    """Return what to call a server that was given no name: its host, or the program it runs."""
    if config.url is not None:
        return urlsplit(config.url).hostname or "mcp"
    words = [config.command or "", *config.args]
    runners = ("python", "python3", "node", "npx", "uvx", "uv", "run", "bash", "sh")
    for word in words:
        stem = Path(word).stem
        if stem and not word.startswith("-") and stem not in runners:
            return stem
    return Path(words[0]).stem or "mcp"


def _names(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise UsageError(f"include and exclude take a list of tool names, not {given!r}.")
    return tuple(given)


def _check_object(server: object) -> None:
    """Raise `UsageError` for what is no server object of the official package (`MCPServer`)."""
    if not callable(server) and not hasattr(server, "streamable_http_app"):
        raise UsageError(
            "connect_mcp takes a URL, a command line as a list, an entry of mcpServers, a server object or "
            f"a function that makes one, not a {type(server).__name__}."
        )


def _read(path: str | Path) -> Mapping[str, Any]:
    try:
        config = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(config, Mapping):
        raise UsageError(f'{path} does not look like {{"mcpServers": {{...}}}}.')
    return config

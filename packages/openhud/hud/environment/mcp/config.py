"""Configuration of an MCP server in the common `mcpServers` JSON: a command with its environment, or a URL.

`${NAME}` and `${NAME:-default}` in its values are environment variables, so that files need no tokens; they are resolved
when a run opens the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hud import settings
from hud.errors import EnvironmentFault, NotFoundError, UsageError

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TRANSPORTS = {
    "stdio": "stdio",
    "http": "streamable-http",
    "streamable-http": "streamable-http",
    "streamable_http": "streamable-http",
    "streamableHttp": "streamable-http",
    "sse": "sse",
    "ws": "websocket",
    "websocket": "websocket",
}
_FOR_EDITORS = {"alwaysAllow", "autoApprove", "description", "gallery", "icon", "trust", "version"}
"""Keys of editors in the same file, ignored by runs."""

_RUNNERS = ("python", "python3", "node", "npx", "uvx", "uv", "run", "bash", "sh")


class ServerConfig(BaseModel):
    """One entry of `mcpServers`. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = Field(
        default=None, validation_alias=AliasChoices("url", "serverUrl", "httpUrl")
    )
    headers: dict[str, str] = Field(default_factory=dict)
    transport: Literal["stdio", "streamable-http", "sse", "websocket"] | None = Field(
        default=None, validation_alias=AliasChoices("transport", "type")
    )
    disabled: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> ServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("it needs either a command or a url")
        transport = self.transport
        if transport is not None and (transport == "stdio") != (self.command is not None):
            raise ValueError(f"its transport {transport!r} does not go with the rest")
        if self.command is None and (self.args or self.env or self.cwd):
            raise ValueError("args, env and cwd go with a command, not with a url")
        if self.url is None and self.headers:
            raise ValueError("headers go with a url, not with a command")
        return self

    @property
    def where(self) -> str:
        """The address or the command line, for messages; variables are not resolved."""
        return self.url or " ".join([self.command or "", *self.args])

    def likely_name(self) -> str:
        """Return the default name of a server: its host or its program."""
        if self.url is not None:
            return urlsplit(self.url).hostname or "mcp"
        words = [self.command or "", *self.args]
        for word in words:
            stem = Path(word).stem
            if stem and not word.startswith("-") and stem not in _RUNNERS:
                return stem
        return Path(words[0]).stem or "mcp"

    def resolved(self, name: str) -> ServerConfig:
        """Return the configuration with resolved variables. Raises `EnvironmentFault` with the names of unset ones."""
        variables = settings.load().environment
        missing: list[str] = []

        def fill(value: Any) -> Any:
            if isinstance(value, str):
                return _VARIABLE.sub(substitute, value)
            if isinstance(value, list):
                return [fill(item) for item in value]
            if isinstance(value, dict):
                return {key: fill(item) for key, item in value.items()}
            return value

        def substitute(match: re.Match[str]) -> str:
            variable: str = match[1]
            default: str | None = match[2]
            value = variables.get(variable, default)
            if value is None:
                missing.append(variable)
            return value or ""

        filled = {key: fill(value) for key, value in self.model_dump().items()}
        if missing:
            raise EnvironmentFault(
                f"The MCP server {name!r} needs {', '.join(dict.fromkeys(missing))}; set it in the "
                "environment or in .env."
            )
        return ServerConfig.model_construct(**filled)


def parse_server(name: str, entry: Any) -> ServerConfig:
    """Return a server's configuration; raises `UsageError` with the errors of an invalid one."""
    try:
        return ServerConfig.model_validate(_plain(entry) if isinstance(entry, Mapping) else entry)
    except ValidationError as error:
        problems = []
        for problem in error.errors(include_url=False, include_context=False):
            place = ".".join(str(part) for part in problem["loc"])
            reason = problem["msg"].removeprefix("Value error, ")
            if problem["type"] == "extra_forbidden":
                reason = f"is not known (known are: {', '.join(ServerConfig.model_fields)})"
            problems.append(f"{place} {reason}".strip())
        raise UsageError(f"The MCP server {name!r}: {'; '.join(problems)}.") from None


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry without ignored keys, with OpenHUD's name of its transport."""
    plain = {key: value for key, value in entry.items() if key not in _FOR_EDITORS}
    for key in ("transport", "type"):
        if isinstance(plain.get(key), str):
            plain[key] = _TRANSPORTS.get(plain[key], plain[key])
    return plain


def parse_servers(config: Mapping[str, Any] | str | Path) -> dict[str, ServerConfig]:
    """Return the enabled servers of an `mcpServers` JSON, or of the file at that path, by name.

    `{name: {...}}` without `mcpServers` is accepted, too. Raises `UsageError` for another form.
    """
    if isinstance(config, str | Path):
        config = _read(config)
    servers = config.get("mcpServers", config.get("servers", config))
    if not isinstance(servers, Mapping) or not servers:
        raise UsageError('An MCP configuration looks like {"mcpServers": {"name": {...}}}.')
    parsed = {str(name): parse_server(str(name), entry) for name, entry in servers.items()}
    return {
        name: server_config for name, server_config in parsed.items() if not server_config.disabled
    }


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


def named_entry(server: Any) -> tuple[Any, str | None]:
    """Return a server's entry and its name, from `{name: {...}}` or a whole configuration.

    Raises `UsageError` for a configuration without exactly one server.
    """
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


def single_server(server: str | Sequence[str] | Mapping[str, Any], **extra: Any) -> dict[str, Any]:
    """Return the JSON entry of a URL, a command line as a list, or an entry, updated by `extra`."""
    entry: dict[str, Any]
    if isinstance(server, str):
        entry = {"url": server}
    elif isinstance(server, Mapping):
        entry = dict(server)
    else:
        command, *arguments = [str(word) for word in server]
        entry = {"command": command, "args": arguments}
    return {**entry, **{key: value for key, value in extra.items() if value is not None}}

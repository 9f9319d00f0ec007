"""Native tools for a run's capabilities, in addition to the environment's tools.

    ssh         a shell and an editor
    cdp, rfb    a computer
    mcp         each tool of the server

An environment's tool of the same name takes precedence. Each tool, with its protocol's library, is imported at first use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING, Any, cast

from hud.agents.agent import RunView
from hud.agents.types import NativeTool
from hud.capabilities import Capability
from hud.capabilities.capability import CDP, MCP, RFB, SSH
from hud.environment.part import RunTool
from hud.trace import ToolResult, ToolSpec

if TYPE_CHECKING:
    from hud.capabilities.mcp import MCPClient
    from hud.capabilities.shell.ssh import SSHClient

_KINDS: dict[str, tuple[NativeTool, ...]] = {
    SSH: ("bash", "editor"),
    CDP: ("computer",),
    RFB: ("computer",),
    MCP: ("mcp",),
}


async def attach(run: RunView, wanted: Collection[NativeTool]) -> None:
    """Add to `run` the tools for its capabilities, of the kinds in `wanted`.

    Raises the connection's error if an announced capability is unreachable: the run is not measured.
    """
    own = {tool.name for tool in run.tools}
    attached: set[str] = set()
    for capability in run.capabilities:
        kinds = [kind for kind in _KINDS.get(capability.protocol, ()) if kind in wanted]
        async for tool in _tools(run, capability, kinds, attached):
            if tool.spec.name not in own:
                attached.add(tool.spec.name)
                run.attach(tool)


async def _tools(
    run: RunView, capability: Capability, kinds: list[NativeTool], taken: set[str]
) -> AsyncIterator[RunTool]:
    """Yield a capability's tools; a tool whose name is taken is suffixed with the capability's name."""

    def name(plain: str) -> str:
        return f"{capability.name}_{plain}" if plain in taken else plain

    for kind in kinds:
        client: Any = await run.open(capability.name)
        if kind == "bash":
            from hud.agents.native.bash import BashTool

            renewed = run.agent_state is not None
            yield BashTool(cast("SSHClient", client), name=name("bash"), renewed=renewed)
        elif kind == "editor":
            from hud.agents.native.editor import EditorTool

            yield EditorTool(cast("SSHClient", client), name=name("editor"))
        elif kind == "computer":
            from hud.agents.native.computer import ComputerTool

            yield ComputerTool(client, name=name("computer"))
        else:
            server = cast("MCPClient", client)
            for spec in await server.list_tools():
                yield _ServerTool(server, spec, name(spec.name))


class _ServerTool:
    """A tool of an MCP server."""

    def __init__(self, server: MCPClient, spec: ToolSpec, name: str) -> None:
        self.spec = spec.model_copy(update={"name": name})
        self._server = server
        self._name = spec.name

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        if isinstance(arguments, str):
            return ToolResult.of_text("The arguments are no JSON object.", is_error=True)
        return await self._server.call_tool(self._name, arguments, timeout=timeout)

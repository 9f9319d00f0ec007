"""Documentation as an MCP server with two tools, `search` and `read`, and a prompt for the whole pipeline.
The server is stateless: over HTTP each request is independent, without a session.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mcp import MCPError, types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import BaseModel, Field, ValidationError
from starlette.types import Receive, Scope, Send

from hud import __version__
from hud.environment.mcp.protocol_types import call_result, refused, tool_of
from hud.errors import HudError
from hud.trace import TextContent, ToolResult, ToolSpec
from hud_dashboard.documentation.library import Library

_PROMPT, _GUIDE = "train_an_agent", "coding-agents"
"""Name of the prompt, and the page that is its text."""
_LARGEST = 64 * 1024
"""Maximum size of a request in bytes; small, because requests over HTTP need no key."""


class _Search(BaseModel, extra="forbid"):
    query: str = Field(
        min_length=1, max_length=1000, description="Words, names of functions, options."
    )
    limit: int = Field(default=8, ge=1, le=30, description="The most sections to return.")


class _Read(BaseModel, extra="forbid"):
    page: str = Field(min_length=1, max_length=200, description="A page's name, such as training.")
    section: str = Field(
        default="", max_length=200, description="One of its headings; without, the whole page."
    )


class DocumentationServer:
    """MCP server of a library; as an ASGI application, over streamable HTTP."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._server = Server[Any](
            "openhud-docs",
            version=__version__,
            instructions="The documentation of OpenHUD. Search it, then read the matching page or section. "
            f"To lead a user from nothing to a trained model, follow the page {_GUIDE}. "
            f"Pages: {'; '.join(f'{page.name} ({page.title})' for page in library.pages.values())}.",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
        )

    async def serve_stdio(self) -> None:
        """Serve a client over standard input and output until it disconnects."""
        async with stdio_server() as (read, write):
            await self._server.run(read, write, self._server.create_initialization_options())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        manager = StreamableHTTPSessionManager(
            self._server, stateless=True, json_response=True, max_request_body_size=_LARGEST
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    async def _list_tools(
        self, context: ServerRequestContext[Any], params: object
    ) -> types.ListToolsResult:
        del context, params
        pages = ", ".join(self._library.pages)
        specs = [
            ToolSpec(
                name="search",
                description="Search the documentation of OpenHUD. Returns page, heading and an excerpt of each "
                "matching section, best first.",
                parameters=_Search.model_json_schema(),
            ),
            ToolSpec(
                name="read",
                description=f"Read a page of the documentation of OpenHUD, or one section. Pages: {pages}.",
                parameters=_Read.model_json_schema(),
            ),
        ]
        return types.ListToolsResult(tools=[tool_of(spec) for spec in specs])

    async def _call_tool(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        del context
        arguments = params.arguments or {}
        try:
            match params.name:
                case "search":
                    return call_result(self._search(_Search.model_validate(arguments)))
                case "read":
                    return call_result(self._read(_Read.model_validate(arguments)))
            return refused(f"There is no tool {params.name!r}; there are 'search' and 'read'.")
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
                for problem in error.errors(include_url=False)
            )
            return refused(f"The arguments of {params.name!r} do not fit: {problems}.")
        except HudError as error:
            return refused(str(error))

    async def _list_prompts(
        self, context: ServerRequestContext[Any], params: object
    ) -> types.ListPromptsResult:
        del context, params
        prompt = types.Prompt(
            name=_PROMPT,
            description="Lead the user through the pipeline: key, environment, evaluation, fork, training, promotion, serving.",
            arguments=[
                types.PromptArgument(
                    name="goal", description="What the agent shall learn to do.", required=False
                )
            ],
        )
        return types.ListPromptsResult(prompts=[prompt])

    async def _get_prompt(
        self, context: ServerRequestContext[Any], params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        del context
        arguments = params.arguments or {}
        if params.name != _PROMPT or set(arguments) - {"goal"}:
            sentence = f"There is one prompt, {_PROMPT!r}, with one argument, 'goal'."
            raise MCPError(types.INVALID_PARAMS, sentence)
        goal = arguments.get("goal", "").strip()
        text = (
            "Lead me through the pipeline below, one step at a time, with this documentation server and a shell. "
            f"{f'My goal: {goal}' if goal else 'Ask me first what the agent shall learn to do.'}\n\n"
            f"{self._library.read(_GUIDE)}"
        )
        message = types.PromptMessage(
            role="user", content=types.TextContent(type="text", text=text)
        )
        return types.GetPromptResult(messages=[message])

    def _search(self, wanted: _Search) -> ToolResult:
        hits = self._library.search(wanted.query, wanted.limit)
        text = "\n\n".join(
            f"[page {hit.page}, section {hit.heading}]\n{hit.excerpt}" for hit in hits
        )
        if not hits:
            pages = ", ".join(self._library.pages)
            text = f"The documentation has no match for {wanted.query!r}; its pages are {pages}."
        return ToolResult(
            content=[TextContent(text=text)],
            structured_content={"results": [asdict(hit) for hit in hits]},
        )

    def _read(self, wanted: _Read) -> ToolResult:
        return ToolResult.of_text(self._library.read(wanted.page, wanted.section))

"""`HttpAgent`: an agent behind an HTTP address plays a run: its server gets the prompt, and answers.

Request, `POST` of JSON with the run's pass as `Authorization: Bearer`:

    {"run": "...", "prompt": "...", "model": {"name": "...", "base_url": "http://.../v1"}, "tools": {"mcp": "http://..."} | null}

Response, JSON: `{"answer": "..."}`. Its model calls go to `base_url` with the pass as the key, its tool calls to the MCP server.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hud.agents.programs.own_loop_agent import OwnLoopAgent
from hud.agents.programs.tools_server import serve_tools, unless_failed
from hud.errors import AgentFault, InfrastructureFault

if TYPE_CHECKING:
    import httpx

    from hud.agents.agent import RunView
    from hud.agents.programs.program_settings import HttpAgentConfig
    from hud.agents.programs.run_model import ModelAccess

CONNECT_SECONDS = 10.0


class HttpAgent(OwnLoopAgent):
    """An agent that a server plays."""

    config: HttpAgentConfig

    def __init__(self, config: HttpAgentConfig) -> None:
        super().__init__(config, f"The agent at {config.url}")

    async def _play(self, run: RunView, access: ModelAccess) -> None:
        async with serve_tools(run, self.config.tool_timeout_seconds) as tools:
            body = {
                "run": run.trace_id,
                "prompt": run.prompt_text,
                "model": {"name": self.config.model, "base_url": f"{access.server}/v1"},
                "tools": None if tools is None else {"mcp": tools.url},
            }
            response = await unless_failed(self._post(body, access.key), tools)
        run.trace.content = self._answer(response)

    async def _post(self, body: dict[str, Any], key: str) -> httpx.Response:
        import httpx

        # No limit of its own: the agent's time is that of the run.
        limits = httpx.Timeout(None, connect=CONNECT_SECONDS)
        try:
            async with httpx.AsyncClient(timeout=limits, trust_env=False) as client:
                return await client.post(
                    self.config.url, json=body, headers={"Authorization": f"Bearer {key}"}
                )
        except httpx.HTTPError as error:
            raise InfrastructureFault(
                f"The agent at {self.config.url} cannot be reached, or broke its connection: {type(error).__name__}."
            ) from error

    def _answer(self, response: httpx.Response) -> str:
        if response.status_code != 200:
            raise AgentFault(
                f"The agent at {self.config.url} responds with status {response.status_code}: {response.text[:200]!r}."
            )
        try:
            body = json.loads(response.content)
        except ValueError:
            body = None
        answer = body.get("answer") if isinstance(body, dict) else None
        if not isinstance(answer, str):
            raise AgentFault(
                f'The agent at {self.config.url} must respond with JSON, {{"answer": "..."}}, not {response.text[:200]!r}.'
            )
        return answer

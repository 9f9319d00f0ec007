"""A world of doors, and providers that nobody waits for: what the tests of providers' agents share."""

from __future__ import annotations

import asyncio

import pytest
from tests.agents.rooms import PICTURE

from hud.environment import Environment
from hud.eval import rollouts
from hud.inference import retries as asking
from hud.processes.backoff import Backoff
from hud.trace import TextContent, ToolResult

_VARIABLES = ("ANTHROPIC", "GEMINI", "GOOGLE", "OPENAI", "HUD")


@pytest.fixture
def waits(monkeypatch, tmp_path):
    """Nobody waits between attempts; how long one would have is returned. No keys are known."""
    found = []
    sleep = asyncio.sleep

    async def at_once(seconds):
        found.append(seconds)
        await sleep(0)

    for name in _VARIABLES:
        for ending in ("API_KEY", "BASE_URL", "API_URL", "GATEWAY_URL"):
            monkeypatch.delenv(f"{name}_{ending}", raising=False)
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.setattr(asking, "sleep", at_once)
    monkeypatch.setattr(rollouts, "RETRY_PAUSES", Backoff(0.001))
    return found


@pytest.fixture
def task():
    env = Environment("rooms")

    @env.tool
    async def look(where: str = "around") -> str:
        """Look somewhere."""
        return f"{where}: a door"

    @env.tool
    async def picture() -> ToolResult:
        """Take a picture."""
        return ToolResult(content=[TextContent(text="here:"), PICTURE])

    @env.tool(name="doors.open wide")
    async def wide() -> str:
        """Open it."""
        return "it is open"

    @env.tool
    async def navigate() -> str:
        """Find the way on a map."""
        return "north"

    @env.tool
    async def fail() -> ToolResult:
        """Fail."""
        return ToolResult.of_text("no luck", is_error=True)

    @env.tool
    async def silent() -> ToolResult:
        """Fail without a word."""
        return ToolResult(is_error=True)

    @env.template()
    async def escape(prompt: str = "Get out."):
        """Find the way out."""
        answer = yield prompt
        yield float(answer == "door")

    return escape()


@pytest.fixture
def rooms():
    env = Environment("rooms")

    @env.tool
    async def look() -> str:
        """Look around."""
        return "a door"

    @env.tool
    async def nap() -> str:
        """Sleep a while."""
        await asyncio.sleep(0.1)
        return "rested"

    @env.tool
    async def hang() -> str:
        """Never return."""
        await asyncio.sleep(3600)
        return "never"

    @env.template()
    async def escape(prompt: str = "Get out."):
        """Find the way out."""
        answer = yield prompt
        yield float(answer == "door")

    return escape()

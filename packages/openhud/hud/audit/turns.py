"""Turns of an audited run, in the form of a model's turns: graders and environments see nothing else of it.

A turn takes a moment, is recorded before its calls, and holds several of them; a run has no more turns than an evaluation
gives by default. Notes of the audit itself stay outside of the trace.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from hud.agents.types import AgentConfig
from hud.trace import AgentStep, ToolCall, ToolResult, Usage, now

CALL_SECONDS = 10.0
"""Limit of one call."""
TURN_SECONDS = (0.05, 0.4)
"""Shortest and longest duration of a turn: those of a small policy on this machine."""
MOST_TURNS = AgentConfig().max_steps - 1
"""Turns with calls in one run; the last turn is the answer."""
_LETTERS_PER_TOKEN = 4


@dataclass
class Notes:
    """Notes of the audit on one run."""

    model: str = ""
    """Name of the model that its turns show."""
    skipped: bool = False
    """True if the exploit does not apply to the task."""
    reached: list[str] = field(default_factory=list)
    """Places that the tools reached, in words."""
    blind: set[str] = field(default_factory=set)
    """Ids of calls whose arguments come from the schema alone."""


_NOTES: WeakKeyDictionary[Any, Notes] = WeakKeyDictionary()


def notes_of(run: Any) -> Notes:
    """Return the notes on a run."""
    return _NOTES.setdefault(run, Notes())


async def call_in_turns(run: Any, calls: Sequence[ToolCall]) -> list[ToolResult]:
    """Make calls in order, several in each turn; returns their results."""
    size = max(1, math.ceil(len(calls) / MOST_TURNS))
    results: list[ToolResult] = []
    for start in range(0, len(calls), size):
        part = list(calls[start : start + size])
        await _record(run, tool_calls=part)
        results += [await run.call_tool(call, timeout=CALL_SECONDS) for call in part]
    return results


async def answer_in_turn(run: Any, text: str) -> None:
    """End the run with an answer."""
    run.trace.content = text
    await _record(run, content=text)
    run.trace.stop_reason = "done"


async def _record(
    run: Any, *, content: str | None = None, tool_calls: Sequence[ToolCall] = ()
) -> None:
    started = now()
    await asyncio.sleep(random.uniform(*TURN_SECONDS))
    written = len(content or "") + sum(len(call.arguments_text) for call in tool_calls)
    usage = Usage(
        prompt_tokens=len(run.prompt_text) // _LETTERS_PER_TOKEN + 1,
        completion_tokens=written // _LETTERS_PER_TOKEN + 1,
    )
    run.record(
        AgentStep(
            content=content,
            tool_calls=list(tool_calls),
            done=not tool_calls,
            finish_reason="tool_calls" if tool_calls else "stop",
            model=notes_of(run).model,
            usage=usage,
            started_at=started,
        )
    )

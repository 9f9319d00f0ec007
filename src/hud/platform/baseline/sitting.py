"""`Sitting`: one person at one task, from when its environment comes up to its score.

A page is another front of what `HumanAgent` is at a terminal: it brings orders (call a tool, answer, leave), and
shows what came of them. They are carried out in the rollout's own task, one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from hud.agents.agent import Agent, RunView
from hud.agents.human_moves import HUMAN, HUMAN_SECONDS, Moves
from hud.agents.native.attach import attach
from hud.errors import ConflictError, HudError
from hud.trace import ImageContent, ToolResult, ToolSpec, now

if TYPE_CHECKING:
    from hud.eval.run import Run

IDLE_SECONDS = 600.0
"""A sitting whose page nobody has open ends after as long."""
_LOOK_SECONDS = 1.0
READ, WRITE = "read_range", "write_cells"
"""Tools of a spreadsheet."""

State = Literal["starting", "playing", "grading", "over"]


@dataclass(frozen=True)
class Move:
    """A tool that the person called, and what came of it."""

    number: int
    tool: str
    arguments: dict[str, Any]
    result: ToolResult
    seconds: float


@dataclass
class Order:
    """The requested action."""

    kind: Literal["call", "answer", "give up"]
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Sitting:
    """A person's run, while it lasts."""

    def __init__(self, run: Run, team: str, user: str, taskset: dict[str, Any]) -> None:
        self.run = run
        self.team, self.user, self.taskset = team, user, taskset
        self.id = run.trace_id
        self.state: State = "starting"
        self.moves: list[Move] = []
        self.ready_at: datetime | None = None
        """Time at which the person saw the task."""
        self.said: str | None = None
        """A sentence for the person: what was wrong with the last order."""
        self.task: asyncio.Task[None] | None = None
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._seen = time.monotonic()

    @property
    def slug(self) -> str:
        """The task that is taken."""
        return self.run.slug

    @property
    def tools(self) -> list[ToolSpec]:
        """Tools that the person can call: all but subagents, which models play."""
        return [tool for tool in self.run.tools if not tool.delegated]

    @property
    def revision(self) -> str:
        """Differs whenever the page would."""
        return f"{self.state.replace(' ', '-')}-{len(self.moves)}"

    def touch(self) -> None:
        """Note that somebody is there."""
        self._seen = time.monotonic()

    @property
    def abandoned(self) -> bool:
        """True where nobody has been there for a while."""
        return time.monotonic() - self._seen > IDLE_SECONDS

    async def give(self, order: Order) -> None:
        """Have an order carried out. Raises `ConflictError` where the sitting takes none."""
        self.touch()
        if self.state != "playing":
            raise ConflictError(
                "This sitting is over." if self.state == "over" else "Wait a moment."
            )
        self.said = None
        self._orders.put_nowait(order)
        await order.done

    async def next_order(self) -> Order:
        """Wait for the person. Raises `CancelledError` where he has left."""
        while True:
            try:
                return await asyncio.wait_for(self._orders.get(), _LOOK_SECONDS)
            except TimeoutError:
                if self.abandoned:
                    raise asyncio.CancelledError from None

    def leave_orders(self) -> None:
        """Let nobody wait for an order that will not be carried out any more."""
        while not self._orders.empty():
            self._orders.get_nowait().done.set_result(None)


class BrowserPlayer(Agent):
    """Plays one run by the orders of the person who sits there."""

    def __init__(self, sitting: Sitting) -> None:
        self.sitting = sitting

    @property
    def model_name(self) -> str | None:
        return HUMAN

    async def __call__(self, run: RunView) -> None:
        sitting = self.sitting
        await attach(run, ("bash", "editor", "computer", "mcp"))
        moves = Moves(run)
        sitting.ready_at = thinking = now()
        sitting.touch()
        for tool in sitting.tools:
            if tool.native == "computer":  # A screen is there to be looked at from the beginning.
                await self._call(moves, tool.name, {"action": "screenshot"}, thinking)
        if is_spreadsheet(sitting.tools):
            await self._call(moves, READ, {}, thinking)
        sitting.state = "playing"
        while True:
            order = await sitting.next_order()
            try:
                if order.kind == "call":
                    await self._call(moves, order.tool, order.arguments, thinking)
                    thinking = now()
                    continue
                if order.kind == "answer":
                    moves.answer(order.text, thinking)
                run.trace.stop_reason = "done"
                sitting.state = "grading"
                return
            except BaseException:
                sitting.state = "grading"  # Nothing to grade; it only has to come to its end.
                raise
            finally:
                run.trace.extra[HUMAN_SECONDS] = (now() - sitting.ready_at).total_seconds()
                if not order.done.done():
                    order.done.set_result(None)

    async def _call(
        self, moves: Moves, tool: str, arguments: dict[str, Any], thinking: datetime
    ) -> None:
        began = time.monotonic()
        result = await moves.call(tool, arguments, thinking)
        number = len(self.sitting.moves) + 1
        seconds = time.monotonic() - began
        self.sitting.moves.append(Move(number, tool, arguments, result, seconds))


def is_spreadsheet(tools: Sequence[ToolSpec]) -> bool:
    """Return whether tools include those of a spreadsheet, whose sheets are shown as grids."""
    return {READ, WRITE} <= {tool.name for tool in tools}


def pictures(move: Move) -> list[ImageContent]:
    """Return the pictures of a result."""
    return [block for block in move.result.content if isinstance(block, ImageContent)]


def ending(run: Run, error: BaseException | None) -> str | None:
    """Say how a run ended that has no score."""
    if isinstance(error, asyncio.CancelledError):
        return "It was left before there was an answer: nothing was measured."
    if isinstance(error, HudError):
        return str(error)
    return run.error

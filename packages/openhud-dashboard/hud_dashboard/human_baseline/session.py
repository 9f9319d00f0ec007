"""`BaselineSession`: one person plays one task, from the start of its environment to the score.
The page is the browser's counterpart of `HumanAgent` at a terminal: it sends orders (call a tool, answer, leave) and
shows their results. Orders are executed sequentially in the rollout's own asyncio task.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from hud import exact_json
from hud.agents.agent import Agent, RunView
from hud.agents.human import HUMAN, HUMAN_SECONDS, Moves
from hud.agents.native.attach import attach
from hud.environment.tools.spreadsheet import READ, is_spreadsheet
from hud.errors import ConflictError, HudError
from hud.trace import ImageContent, ToolResult, ToolSpec, now

if TYPE_CHECKING:
    from hud.eval.run import Run

IDLE_SECONDS = 600.0
"""Time without an open page after which a session ends."""
MOST_BYTES = 1 << 30
"""Size of the tool calls and results of a team's open sessions together."""
_LOOK_SECONDS = 1.0

State = Literal["starting", "playing", "grading", "over"]


@dataclass(frozen=True)
class Move:
    """Tool call of a person, with its result."""

    number: int
    tool: str
    arguments: dict[str, Any]
    result: ToolResult
    seconds: float


@dataclass
class Order:
    """Action requested by a person."""

    kind: Literal["call", "answer", "give up"]
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class MoveSizes:
    """Bytes of the moves of open sessions, by team."""

    def __init__(self) -> None:
        self._sizes: Counter[str] = Counter()

    def add(self, team: str, size: int) -> None:
        """Count a move."""
        self._sizes[team] += size

    def release(self, team: str, size: int) -> None:
        """Remove the moves of a session that is over."""
        self._sizes[team] -= size

    def check(self, team: str) -> None:
        """Raise `ConflictError` if the moves of the team's open sessions are too large together."""
        if self._sizes[team] > MOST_BYTES:
            raise ConflictError(
                f"The tool calls and results of your team's open sessions hold {MOST_BYTES >> 20} MiB. Answer, or leave one."
            )


class BaselineSession:
    """State of a person's run in progress."""

    def __init__(
        self, run: Run, team: str, user: str, taskset: dict[str, Any], sizes: MoveSizes
    ) -> None:
        self.run = run
        self.team, self.user, self.taskset = team, user, taskset
        self.id = run.trace_id
        self.state: State = "starting"
        self.moves: list[Move] = []
        self.size = 0
        """Bytes of the moves."""
        self._sizes = sizes
        self.ready_at: datetime | None = None
        """Time at which the task was first shown; None while its environment starts."""
        self.error: str | None = None
        """Error sentence about the last order, shown on the page."""
        self.task: asyncio.Task[None] | None = None
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._seen = time.monotonic()

    @property
    def slug(self) -> str:
        """Slug of the task."""
        return self.run.slug

    @property
    def tools(self) -> list[ToolSpec]:
        """Tools that a person can call: all except subagents, which are played by models."""
        return [tool for tool in self.run.tools if not tool.delegated]

    @property
    def revision(self) -> str:
        """Revision of the page's content: changes with the state and with every move."""
        return f"{self.state.replace(' ', '-')}-{len(self.moves)}"

    def touch(self) -> None:
        """Record that the page is open."""
        self._seen = time.monotonic()

    @property
    def abandoned(self) -> bool:
        """True if the page was not open for `IDLE_SECONDS`."""
        return time.monotonic() - self._seen > IDLE_SECONDS

    async def give(self, order: Order) -> None:
        """Execute an order and wait for its end. Raises `ConflictError` unless the session is being played."""
        self.touch()
        if self.state != "playing":
            raise ConflictError(
                "This session is over." if self.state == "over" else "Wait a moment."
            )
        if order.kind == "call":
            self._sizes.check(self.team)
        self.error = None
        self._orders.put_nowait(order)
        await order.done

    def add(self, move: Move) -> None:
        """Add a move."""
        self.moves.append(move)
        size = len(exact_json.dumps(move.arguments)) + len(move.result.model_dump_json())
        self.size += size
        self._sizes.add(self.team, size)

    async def next_order(self) -> Order:
        """Wait for the next order. Cancels the session if it is abandoned."""
        while True:
            try:
                return await asyncio.wait_for(self._orders.get(), _LOOK_SECONDS)
            except TimeoutError:
                # Cancelled from outside: a `CancelledError` of the player itself would be its failure, with reward 0.
                if self.abandoned and self.task is not None:
                    self.task.cancel()

    def leave_orders(self) -> None:
        """Release the waiters of orders that will not be executed."""
        while not self._orders.empty():
            self._orders.get_nowait().done.set_result(None)


class BrowserPlayer(Agent):
    """Agent that plays one run by executing the orders of a session."""

    def __init__(self, session: BaselineSession) -> None:
        self.session = session

    @property
    def model_name(self) -> str | None:
        return HUMAN

    async def __call__(self, run: RunView) -> None:
        session = self.session
        await attach(run, ("bash", "editor", "computer", "mcp"))
        moves = Moves(run)
        session.ready_at = thinking = now()
        session.touch()
        for tool in session.tools:
            if tool.native == "computer":  # The page shows the screen from the start.
                await self._call(moves, tool.name, {"action": "screenshot"}, thinking)
        if is_spreadsheet(session.tools):
            await self._call(moves, READ, {}, thinking)
        session.state = "playing"
        while True:
            order = await session.next_order()
            try:
                if order.kind == "call":
                    await self._call(moves, order.tool, order.arguments, thinking)
                    thinking = now()
                    continue
                if order.kind == "answer":
                    moves.answer(order.text, thinking)
                run.trace.stop_reason = "done"
                session.state = "grading"
                return
            except BaseException:
                session.state = "grading"  # No answer to grade: the run only has to end.
                raise
            finally:
                run.trace.extra[HUMAN_SECONDS] = (now() - session.ready_at).total_seconds()
                if not order.done.done():
                    order.done.set_result(None)

    async def _call(
        self, moves: Moves, tool: str, arguments: dict[str, Any], thinking: datetime
    ) -> None:
        began = time.monotonic()
        result = await moves.call(tool, arguments, thinking)
        number = len(self.session.moves) + 1
        seconds = time.monotonic() - began
        self.session.add(Move(number, tool, arguments, result, seconds))


def pictures(move: Move) -> list[ImageContent]:
    """Return the images in a move's result."""
    return [block for block in move.result.content if isinstance(block, ImageContent)]


def ending(run: Run, error: BaseException | None) -> str | None:
    """Return a sentence about the end of a run without a score."""
    if isinstance(error, asyncio.CancelledError):
        return "It was left without an answer: no score was recorded."
    if isinstance(error, HudError):
        return str(error)
    return run.error

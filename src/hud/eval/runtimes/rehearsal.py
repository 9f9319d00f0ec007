"""Preparation of a warm server's memory, so that its children copy few pages of it: rehearsals, and full allocator pools."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

from hud.environment import Environment
from hud.environment.channel.client.grade_request import grade_params
from hud.environment.channel.framing import PRIVATE_FRAME_BYTES, request_frame
from hud.environment.channel.lazy_loop import LazyLoop
from hud.environment.channel.private_stream import PrivateStream
from hud.environment.channel.server.control_server import ControlServer
from hud.environment.processes.process_tree import has_children
from hud.environment.tools.arguments import Arguments
from hud.trace import Trace

_WAIT_SECONDS = 1e-4
"""Wait of a rehearsed tool, for which the event loop polls."""
_LARGEST_BLOCK = 512
"""Largest block of CPython's small-object allocator, in bytes; its sizes are multiples of 16."""
_BYTES_OVERHEAD = 33
"""Size of an empty `bytes`, in bytes."""
_MOST_BLOCKS = 3000
_ENOUGH_IN_A_ROW = 8
"""Neighbouring blocks that show that the allocator has begun a new pool."""


class Rehearsal:
    """An empty rollout.

    Before the fork the interpreter specializes its bytecode by it: afterwards each child would, and copy the pages. A child
    that waits for its rollout copies those that remain.
    """

    def __init__(self, rehearsed: Environment) -> None:
        """`rehearsed`: the environment whose rollouts follow."""
        for part in (*rehearsed.templates.values(), *rehearsed.tools.values()):
            if isinstance(arguments := getattr(part, "arguments", None), Arguments):
                arguments.look_up()
        self._waits = False
        self._environment = environment = Environment("rehearsal")

        @environment.template(id="nothing")
        async def nothing(word: str = "") -> Any:
            yield word
            yield 1.0

        @environment.tool
        async def touch(word: str) -> str:
            if self._waits:
                await asyncio.sleep(_WAIT_SECONDS)
            return word

        grading = {**grade_params("a", Trace(content="a"), PRIVATE_FRAME_BYTES), "last": True}
        calls: list[tuple[str, dict[str, Any]]] = [
            ("tasks.start", {"id": "nothing", "args": {"word": "a"}}),
            ("tools.call", {"name": "touch", "arguments": {"word": "a"}}),
            ("tasks.grade", grading),
        ]
        frames = [request_frame(number, *call) for number, call in enumerate(calls)]
        self._frames = b"".join(frames)

    def play(self, *, waits: bool) -> None:
        """Play it; `waits`: with a tool that has to wait."""
        self._waits = waits
        ours, theirs = socket.socketpair()
        ours.sendall(self._frames)
        ours.shutdown(socket.SHUT_WR)
        loop = LazyLoop()
        # A run that is alone ends what was started during it: what the environment starts meanwhile is to stay.
        alone = not has_children() and threading.active_count() == 1
        server = ControlServer(self._environment, max_frame=PRIVATE_FRAME_BYTES, one_run=alone)
        stream = PrivateStream(theirs, PRIVATE_FRAME_BYTES, loop)
        server.serve_alone(stream, loop, _nothing)
        stream.close()
        loop.close()
        ours.close()


def _nothing() -> None:
    """Close nothing."""


def fill_pools() -> list[object]:
    """Take the free blocks that lie scattered among older objects in CPython's allocator; returns what is to be held.

    What a child allocates then lies together, so that it copies fewer memory pages: 50 of 770, for half a megabyte here.
    """
    held: list[object] = []
    for size in range(32, _LARGEST_BLOCK + 1, 16):
        in_a_row, last = 0, 0
        for number in range(_MOST_BLOCKS):
            block = bytes(size - _BYTES_OVERHEAD) if size > 32 else float(number)
            held.append(block)
            in_a_row = in_a_row + 1 if id(block) == last + size else 0
            if in_a_row == _ENOUGH_IN_A_ROW:
                break
            last = id(block)
    return held

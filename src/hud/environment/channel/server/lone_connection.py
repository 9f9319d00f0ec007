"""The only connection of a process that was forked for it: requests are answered without polling, and no goodbye is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hud.environment.channel.framing import FrameError, parse_frame, result_frame
from hud.environment.channel.lazy_loop import LazyLoop
from hud.environment.channel.private_stream import PrivateStream
from hud.environment.channel.server.announcements import Offers
from hud.environment.channel.server.control_connection import SLOW, ControlConnection


class LoneConnection(ControlConnection):
    """A connection over `stream`, on `loop`, which polls once there is something to wait for."""

    def __init__(
        self,
        offers: Offers,
        stream: PrivateStream,
        loop: LazyLoop,
        release: Callable[[], None],
        *,
        max_frame: int,
    ) -> None:
        """`release` closes all descriptors of the process but the stream's and those of its output."""
        super().__init__(offers, stream, stream, max_frame=max_frame)
        self.stream, self.loop = stream, loop
        self._release = release
        self._polls = False
        self._last = False
        """True once the peer has sent its last request, apart from its goodbye."""
        self._left = False
        """True once all but the stream is closed, before the last response."""
        self._begun: asyncio.Task[None] | None = None
        """Answer to a request that is no call, begun by `serve_at_once`."""

    def serve_at_once(self) -> bool:
        """Answer one request after another, as long as none has anything to wait for; return whether all were answered.

        If not, `serve` is to go on: there is something to wait for, or the peer is gone without a goodbye.
        """
        while self.loop.is_idle:
            line = self.stream.next_line()
            if line is None:
                return self._is_over()
            try:
                frame = parse_frame(line)
            except FrameError:
                self.stream.close()
                return False
            method = str(frame.get("method"))
            task = self.loop.run_at_once(self.answer(method, frame))
            if task is not None and method in SLOW:
                self.register(task, method, frame)
            elif task is not None:
                self._begun = task
            elif method == "bye" or self._left:
                return self.loop.is_idle
        return False

    async def serve(self) -> None:
        self._polls = True
        if self._begun is not None:
            await self._begun
        await super().serve()

    async def grade(self, params: dict[str, Any]) -> dict[str, Any]:
        self._last = params.get("last") is True and params.get("session_id") is None
        return await super().grade(params)

    def reply(self, identifier: Any, result: Any) -> bytes:
        """Return the frame of a result; before the last one that is sent, all but the stream is closed."""
        over = self._is_over()
        leaves = over and self._last and not self._polls and self.loop.is_idle
        frame = result_frame(identifier, result, over=over, released=leaves)
        if leaves and len(frame) <= self.max_frame:
            self._release()
            self._left = True
        return frame

    def _is_over(self) -> bool:
        """Return whether the peer may leave without a goodbye."""
        if self.session is None or len(self.busy) > 1:
            return False
        return self.session.closes_at_once

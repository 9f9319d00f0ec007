"""A connection to a served environment, with the handlers of its requests.

Each connection is a control session with at most one started task. The task of a dropped connection is parked: a later
connection resumes it by id, or grades it if it is the only one.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from hud import exact_json
from hud.environment.channel.framing import (
    BAD_PARAMS,
    BAD_STATE,
    CLIENT,
    METHOD_NOT_FOUND,
    TASK_FAILED,
    ChannelError,
    FrameError,
    FrameTooLongError,
    error_frame,
    read_frame,
    result_frame,
)
from hud.environment.channel.server.announcements import Offers
from hud.environment.channel.server.sessions import Session
from hud.environment.run_snapshot import parts_of_text, parts_to_text
from hud.foreign_code import is_failure
from hud.foreign_tasks import exits_contained
from hud.trace import Message, ToolResult, parse_trace

_ROOM = 256
"""Bytes reserved for the request id in a response."""
_TASK_CALLS = ("tasks.start", "tasks.grade")
_SUBAGENT_CALLS = ("subagents.delegate", "subagents.open", "subagents.close")
SLOW = (
    *_TASK_CALLS,
    *_SUBAGENT_CALLS,
    "tools.call",
    "tools.list",
    "run.observe",
    "run.snapshot",
    "run.restore",
)
"""Calls that are answered while further requests are read."""
_REFUSED = ("connections", "workspace_routes")
"""Refused fields of `hello`: services that an environment would call with a client's credentials."""
_Method = Callable[[dict[str, Any]], Awaitable[Any]]


class ControlConnection:
    """A connection, from its first frame to its end."""

    def __init__(
        self, offers: Offers, reader: StreamReader, writer: StreamWriter, *, max_frame: int
    ) -> None:
        self.sessions = offers.sessions
        self.offers = offers
        self.max_frame = max_frame
        self.reader, self.writer = reader, writer
        self.session: Session | None = None
        self.ending = False
        self.busy: dict[asyncio.Task[None], tuple[str, Any]] = {}
        """Running calls: their methods, and the subagents' sessions that they name."""
        self.methods: dict[str, _Method] = {
            "hello": self.hello,
            "tasks.list": self.list_tasks,
            "tasks.start": self.start,
            "tasks.grade": self.grade,
            "tasks.cancel": self.cancel,
            "tools.list": self.list_tools,
            "tools.call": self.call_tool,
            "run.observe": self.observe,
            "run.snapshot": self.snapshot,
            "run.restore": self.restore,
            "subagents.delegate": self.delegate,
            "subagents.open": self.open_subagent,
            "subagents.close": self.close_subagent,
            "bye": self.bye,
        }

    async def serve(self) -> None:
        frame = await self.read()
        if frame is not None and frame.get("method") == "tunnel.open":
            await self.tunnel(frame)
            return
        while frame is not None:
            method = str(frame.get("method"))
            if method == "hello":
                frame = await self.greet(frame)
                continue
            if method in SLOW:
                # Concurrent with the reader, so that cancels and heartbeats are processed meanwhile.
                self.register(asyncio.create_task(self.answer(method, frame)), method, frame)
                await asyncio.sleep(0)  # A task cancelled before its start sends no response.
            else:
                await self.answer(method, frame)
            if method == "bye":
                return
            frame = await self.read()

    async def read(self) -> dict[str, Any] | None:
        """Return the next frame; None at the end of the stream, and for one that cannot be read."""
        try:
            return await read_frame(self.reader)
        except FrameTooLongError:
            problem = f"a frame has at most {self.max_frame} bytes"
            await self.send(error_frame(None, ChannelError(TASK_FAILED, problem)))
        except FrameError:
            pass
        return None

    async def greet(self, frame: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a `hello`, and return the next frame; the end of the stream, and a `bye`, end the opening of the run."""
        answering = asyncio.create_task(self.answer("hello", frame))
        reading = asyncio.create_task(self.read())
        try:
            await asyncio.wait({answering, reading}, return_when=asyncio.FIRST_COMPLETED)
            following = await reading if reading.done() else None
            if reading.done() and (following is None or following.get("method") == "bye"):
                answering.cancel()
            await asyncio.wait({answering})
            return await reading
        finally:
            await self._cancelled([answering, reading])

    def register(self, task: asyncio.Task[None], method: str, frame: dict[str, Any]) -> None:
        """Note the answer to a call, while it is in progress."""
        params = frame.get("params")
        named = params.get("session_id") if isinstance(params, dict) else None
        self.busy[task] = method, named
        task.add_done_callback(self.busy.pop)

    async def tunnel(self, frame: dict[str, Any]) -> None:
        """Turn this connection into a tunnel: a single response, then the capability's bytes."""
        handlers: list[Callable[[StreamReader, StreamWriter], Awaitable[None]]] = []

        async def opened(params: dict[str, Any]) -> dict[str, Any]:
            handlers.append(await self.offers.open(params))
            return {"capability": params["capability"]}

        self.methods["tunnel.open"] = opened
        await self.answer("tunnel.open", frame)
        for speak in handlers:
            await speak(self.reader, self.writer)

    async def answer(self, method: str, frame: dict[str, Any]) -> None:
        identifier = frame.get("id")
        handler = self.methods.get(method)
        try:
            if handler is None:
                raise ChannelError(METHOD_NOT_FOUND, f"method not found: {method}")
            params = frame.get("params")
            if params is not None and not isinstance(params, dict):
                raise ChannelError(BAD_PARAMS, f"{method}: params must be an object")
            with exits_contained():
                result = await handler(params or {})
            reply = result_frame(identifier, result)
            if len(reply) > self.max_frame:
                raise ChannelError(
                    TASK_FAILED,
                    f"{method}: the answer has {len(reply)} bytes; a frame has at most {self.max_frame}",
                    "environment",
                )
        except asyncio.CancelledError:
            if self.ending:
                return  # The peer learns it from the end of the stream, and how the process ended.
            error = ChannelError(TASK_FAILED, "tasks.cancel interrupted the task", "environment")
            reply = error_frame(identifier, error)
        except BaseException as error:
            if not is_failure(error):
                raise
            reply = error_frame(identifier, ChannelError.of(error))
        if identifier is not None:
            await self.send(reply)

    async def send(self, data: bytes) -> None:
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            return  # The peer is gone: the reader ends.

    async def end(self) -> None:
        """Handle the end of the connection: a started task is parked, everything else ends."""
        self.ending = True
        if self.busy:
            await self.interrupt(but="tasks.start")
        if self.session is not None:
            await self.sessions.leave(self.session)

    async def interrupt(self, *, but: str = "") -> None:
        """Cancel the running calls, and wait for their end."""
        await self._cancelled([task for task, (method, _) in self.busy.items() if method != but])
        if self.busy:
            await asyncio.wait(list(self.busy))

    async def interrupt_in(self, session: Session) -> None:
        """Cancel the calls of a subagent and of its own subagents; others continue."""
        current = asyncio.current_task()
        within = {nested.id for nested in self.sessions.within(session)}
        running = [task for task, (_, named) in self.busy.items() if named in within]
        await self._cancelled([task for task in running if task is not current])

    async def _cancelled(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def own_session(self) -> Session:
        """Return this connection's session; a `hello` is not required first."""
        if self.session is None:
            self.session = self.sessions.new()
        return self.session

    def session_of(self, params: dict[str, Any]) -> Session:
        """Return the session of a call: the subagent's that it names, else the connection's.

        Raises `ChannelError` for any other session.
        """
        named = params.get("session_id")
        own = self.own_session()
        if named is None:
            return own
        for session in self.sessions.within(own):
            if session.id == named:
                return session
        raise ChannelError(BAD_STATE, f"no subagent of this session has the session {named}")

    def claim(self, method: str, params: dict[str, Any]) -> None:
        """Raise `ChannelError` for concurrent task calls in one session."""
        if len(self.busy) < 2:
            return
        current = asyncio.current_task()
        others = [call for task, call in self.busy.items() if task is not current]
        if any(other in _TASK_CALLS and at == params.get("session_id") for other, at in others):
            raise ChannelError(BAD_STATE, f"{method}: a task call is still running")

    async def move_to(self, session: Session) -> None:
        """Resume a parked session, and end this connection's previous one."""
        own, self.session = self.session, session
        if own is not None:
            await self.sessions.leave(own)

    # -- methods ------------------------------------------------------------------------------------

    async def hello(self, params: dict[str, Any]) -> dict[str, Any]:
        wanted = params.get("session_id")
        if wanted is not None and not isinstance(wanted, str):
            raise ChannelError(BAD_PARAMS, "hello: session_id must be a string")
        for name in _REFUSED:
            if params.get(name):
                raise ChannelError(BAD_PARAMS, f"hello: this environment takes no {name}")
        if wanted is not None and (self.session is None or self.session.id != wanted):
            await self.move_to(self.sessions.resume(wanted))
        session = self.own_session()
        session.parks = params.get("client") != CLIENT
        return await self._introduced(session, ours=not session.parks)

    async def _introduced(self, session: Session, *, ours: bool) -> dict[str, Any]:
        environment = session.run.environment
        return {
            "session_id": session.id,
            "env": {"name": environment.name, "version": environment.version},
            "bindings": await self.offers.announce(session, ours=ours),
            "reward_range": list(environment.reward_range),
        }

    async def list_tasks(self, params: dict[str, Any]) -> dict[str, Any]:
        environment = self.session_of(params).run.environment
        return {"tasks": [template.row() for template in environment.templates.values()]}

    async def start(self, params: dict[str, Any]) -> dict[str, Any]:
        task_id, args = params.get("id"), params.get("args")
        args = {} if args is None else args
        if not isinstance(task_id, str):
            raise ChannelError(BAD_PARAMS, "tasks.start: id must be a string")
        if not isinstance(args, dict):
            raise ChannelError(BAD_PARAMS, "tasks.start: args must be an object")
        progress = params.get("training_progress")
        if progress is not None and not (isinstance(progress, int | float) and 0 <= progress <= 1):
            raise ChannelError(BAD_PARAMS, "tasks.start: training_progress must be from 0 to 1")
        session = self.session_of(params)
        if task_id not in session.run.environment.templates:
            templates = ", ".join(session.run.environment.templates) or "none"
            raise ChannelError(
                BAD_PARAMS, f"unknown task {task_id!r} (there are: {templates})", "environment"
            )
        self.claim("tasks.start", params)
        run = await session.open()
        session.started = False
        frame = await run.start(task_id, args, training_progress=progress)
        session.started = True
        response = {"prompt": _plain(frame.prompt)}
        if frame.bindings:
            response["bindings"] = frame.bindings
        if frame.state is not None:
            response["state"] = frame.state
        return response

    async def grade(self, params: dict[str, Any]) -> dict[str, Any]:
        self.claim("tasks.grade", params)
        session = self.session_of(params)
        if session is self.session and not session.started:
            await self.move_to(self.sessions.adopt())
            session = self.own_session()
        session.started = False
        answer, trace = params.get("answer"), params.get("trace")
        if answer is not None and not isinstance(answer, str):
            answer = exact_json.dumps(answer).decode()
        text = answer or ""
        played = partial(parse_trace, trace) if isinstance(trace, dict) else None
        return await session.run.grade(text, played)

    async def cancel(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.session_of(params)
        await (self.interrupt() if session is self.session else self.interrupt_in(session))
        session.started = False
        await session.run.cancel()
        return {"cancelled": True}

    async def list_tools(self, params: dict[str, Any]) -> dict[str, Any]:
        run = await self.session_of(params).open()
        return {"tools": [spec.model_dump() for spec in await run.list_tools()]}

    async def observe(self, params: dict[str, Any]) -> dict[str, Any]:
        return await (await self.session_of(params).open()).observe()

    async def snapshot(self, params: dict[str, Any]) -> dict[str, Any]:
        taken = await (await self.session_of(params).open()).snapshot()
        return {"parts": parts_to_text(taken.parts), "refused": taken.refused}

    async def restore(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            parts = parts_of_text(params["parts"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ChannelError(BAD_PARAMS, "run.restore: parts must be base64 by name") from None
        return {"problem": await (await self.session_of(params).open()).restore(parts)}

    async def call_tool(self, params: dict[str, Any]) -> dict[str, Any]:
        name, arguments = _called(params, "tools.call")
        timeout = params.get("timeout")
        if timeout is not None and not isinstance(timeout, int | float):
            raise ChannelError(BAD_PARAMS, "tools.call: timeout must be a number")
        run = await self.session_of(params).open()
        outcome = await run.call_tool(name, arguments, timeout=timeout)
        response = {
            "result": outcome.result.model_dump(by_alias=True),
            "observed": outcome.observed,
        }
        size = len(result_frame(0, response))
        if size <= self.max_frame - _ROOM:
            return response
        # An agent's request must not break its run: the failure is returned as any other tool error.
        why = (
            f"{name}: the result has {size:,} bytes, more than can be sent; ask for less at a time."
        )
        return {
            "result": ToolResult.of_text(why, is_error=True).model_dump(by_alias=True),
            "observed": {},
        }

    async def delegate(self, params: dict[str, Any]) -> dict[str, Any]:
        name, arguments = _called(params, "subagents.delegate")
        outcome = await (await self.session_of(params).open()).delegate(name, arguments)
        if isinstance(outcome, ToolResult):
            return {"refused": outcome.model_dump(by_alias=True)}
        return {"delegation": outcome.model_dump(mode="json")}

    async def open_subagent(self, params: dict[str, Any]) -> dict[str, Any]:
        name, _ = _called(params, "subagents.open")
        session = await self.sessions.nested(self.session_of(params), name)
        return await self._introduced(session, ours=True)

    async def close_subagent(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.session_of(params)
        if session is self.session:
            raise ChannelError(BAD_PARAMS, "subagents.close: name a subagent's session_id")
        await self.interrupt_in(session)
        await self.sessions.drop(session)
        return {"closed": True}

    async def bye(self, params: dict[str, Any]) -> dict[str, Any]:
        del params
        if self.busy:
            await self.interrupt()
        session, self.session = self.session, None
        if session is not None:
            await self.sessions.drop(session)
        return {"goodbye": True}


def _called(params: dict[str, Any], method: str) -> tuple[str, dict[str, Any] | str]:
    """Return the name and the arguments of a call."""
    name, arguments = params.get("name"), params.get("arguments")
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str):
        raise ChannelError(BAD_PARAMS, f"{method}: name must be a string")
    if not isinstance(arguments, dict | str):
        raise ChannelError(BAD_PARAMS, f"{method}: arguments must be an object")
    return name, arguments


def _plain(prompt: str | list[Message]) -> Any:
    if isinstance(prompt, str):
        return prompt
    return [message.model_dump(by_alias=True) for message in prompt]

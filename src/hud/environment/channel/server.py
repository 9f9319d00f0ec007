"""The environment's side of the control channel.

Each connection is a control session with at most one started task. A dropped connection leaves its task
parked: a later one resumes it by id, or grades it if it is the only one.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from hud.environment.channel.framing import (
    BAD_PARAMS,
    BAD_STATE,
    MAX_FRAME_BYTES,
    METHOD_NOT_FOUND,
    TASK_FAILED,
    ChannelError,
    FrameError,
    error_frame,
    read_frame,
    result_frame,
)
from hud.environment.environment import Environment
from hud.environment.run import EnvironmentRun
from hud.errors import EnvironmentFault, UsageError
from hud.trace import Message, Trace, parse_trace

_SLOW = ("tasks.start", "tasks.grade", "tools.call")


class Session:
    """One run of the environment, and whether somebody is connected to it."""

    def __init__(self, environment: Environment) -> None:
        self.id = f"sess-{secrets.token_hex(4)}"
        self.run = EnvironmentRun(environment)
        self.opened = False
        self.started = False
        self.live = True

    async def open(self) -> EnvironmentRun:
        """Return the run, its initialize hooks called."""
        if not self.opened:
            self.opened = True
            await self.run.open()
        return self.run


class ControlServer:
    """Serves one environment to any number of connections."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.sessions: dict[str, Session] = {}

    async def serve(self, host: str = "127.0.0.1", port: int = 8765) -> None:
        """Listen until cancelled. Prints `HUD_SERVE_PORT=<port>` once bound."""
        server = await asyncio.start_server(self.connected, host, port, limit=MAX_FRAME_BYTES)
        bound = server.sockets[0].getsockname()[1]
        print(f"HUD_SERVE_PORT={bound}", flush=True)
        try:
            async with server:
                await server.serve_forever()
        finally:
            await self.close()

    async def connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection until it ends; its task, if it has one, stays parked."""
        connection = _Connection(self, reader, writer)
        try:
            await connection.serve()
        except (ConnectionError, asyncio.CancelledError):
            pass  # The peer is gone, or the server is closing; either way this connection is over.
        finally:
            await connection.end()
            writer.close()

    async def close(self) -> None:
        """End every session."""
        sessions, self.sessions = list(self.sessions.values()), {}
        for session in sessions:
            with contextlib.suppress(EnvironmentFault):
                await session.run.close()

    def new_session(self) -> Session:
        """Return a new session."""
        session = Session(self.environment)
        self.sessions[session.id] = session
        return session

    async def drop(self, session: Session) -> None:
        """End a session, and its run."""
        self.sessions.pop(session.id, None)
        await session.run.close()


async def serve(environment: Environment, *, host: str = "127.0.0.1", port: int = 8765) -> None:
    """Serve an environment over TCP until cancelled; port 0 takes a free one."""
    try:
        await ControlServer(environment).serve(host, port)
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be listened on: {error.strerror}. Give another --port."
        ) from error


class _Connection:
    def __init__(self, server: ControlServer, reader: StreamReader, writer: StreamWriter) -> None:
        self.server = server
        self.reader, self.writer = reader, writer
        self.session: Session | None = None
        self.busy: dict[asyncio.Task[None], str] = {}
        self.methods: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "hello": self.hello,
            "tasks.list": self.list_tasks,
            "tasks.start": self.start,
            "tasks.grade": self.grade,
            "tasks.cancel": self.cancel,
            "tools.list": self.list_tools,
            "tools.call": self.call_tool,
            "tunnel.open": self.open_tunnel,
            "bye": self.bye,
        }

    async def serve(self) -> None:
        while True:
            try:
                frame = await read_frame(self.reader)
            except FrameError as error:
                if "longer" in str(error):
                    await self.send(error_frame(None, ChannelError(TASK_FAILED, str(error))))
                return
            if frame is None:
                return
            method = str(frame.get("method"))
            if method in _SLOW:
                # Beside the reader, so that a cancel or a heartbeat is heard meanwhile.
                task = asyncio.create_task(self.answer(method, frame))
                self.busy[task] = method
                task.add_done_callback(self.busy.pop)
            else:
                await self.answer(method, frame)
            if method == "bye":
                return

    async def answer(self, method: str, frame: dict[str, Any]) -> None:
        identifier = frame.get("id")
        try:
            handler = self.methods.get(method)
            if handler is None:
                raise ChannelError(METHOD_NOT_FOUND, f"method not found: {method}")
            params = frame.get("params") or {}
            if not isinstance(params, dict):
                raise ChannelError(BAD_PARAMS, f"{method}: params must be an object")
            reply = result_frame(identifier, await handler(params))
        except asyncio.CancelledError:
            error = ChannelError(TASK_FAILED, f"tasks.cancel interrupted {method}", "environment")
            reply = error_frame(identifier, error)
        except Exception as error:
            reply = error_frame(identifier, ChannelError.of(error))
        if identifier is not None:
            await self.send(reply)

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def end(self) -> None:
        """The connection is over: a task that was started stays, anything else ends."""
        for task, method in list(self.busy.items()):
            if method != "tasks.start":
                task.cancel()
        if self.busy:
            await asyncio.wait(list(self.busy))
        if self.session is None:
            return
        self.session.live = False
        if not self.session.started:
            with contextlib.suppress(EnvironmentFault):
                await self.server.drop(self.session)

    def own_session(self) -> Session:
        """Return this connection's session; a `hello` is not required first."""
        if self.session is None:
            self.session = self.server.new_session()
        return self.session

    # -- methods ------------------------------------------------------------------------------------

    async def hello(self, params: dict[str, Any]) -> dict[str, Any]:
        wanted = params.get("session_id")
        if wanted is not None and not isinstance(wanted, str):
            raise ChannelError(BAD_PARAMS, "hello: session_id must be a string")
        if wanted is not None and (self.session is None or self.session.id != wanted):
            session = self.server.sessions.get(wanted)
            if session is None:
                raise ChannelError(BAD_STATE, f"hello: unknown session {wanted}")
            if session.live:
                raise ChannelError(BAD_STATE, f"hello: session {wanted} has a live connection")
            session.live = True
            self.session = session
        environment = self.server.environment
        return {
            "session_id": self.own_session().id,
            "env": {"name": environment.name, "version": environment.version},
            "bindings": [],
            "reward_range": list(environment.reward_range),
        }

    async def list_tasks(self, params: dict[str, Any]) -> dict[str, Any]:
        del params
        return {
            "tasks": [template.row() for template in self.server.environment.templates.values()]
        }

    async def start(self, params: dict[str, Any]) -> dict[str, Any]:
        task_id, args = params.get("id"), params.get("args") or {}
        if not isinstance(task_id, str):
            raise ChannelError(BAD_PARAMS, "tasks.start: id must be a string")
        if not isinstance(args, dict):
            raise ChannelError(BAD_PARAMS, "tasks.start: args must be an object")
        if task_id not in self.server.environment.templates:
            known = ", ".join(self.server.environment.templates) or "none"
            raise ChannelError(
                BAD_PARAMS, f"unknown task {task_id!r} (there are: {known})", "environment"
            )
        session = self.own_session()
        run = await session.open()
        session.started = False
        frame = await run.start(task_id, args)
        session.started = True
        return {"prompt": _plain(frame.prompt)}

    async def grade(self, params: dict[str, Any]) -> dict[str, Any]:
        if any(method == "tasks.start" for method in self.busy.values()):
            raise ChannelError(BAD_STATE, "tasks.grade: a task call is still running")
        session = self.own_session()
        if not session.started:
            session = self._adopt(session)
        session.started = False
        answer = params.get("answer")
        trace = parse_trace(params["trace"]) if isinstance(params.get("trace"), dict) else None
        text = "" if answer is None else answer if isinstance(answer, str) else _json(answer)
        return await session.run.grade(text, trace or Trace(content=text))

    def _adopt(self, own: Session) -> Session:
        parked = [one for one in self.server.sessions.values() if one.started and not one.live]
        if not parked:
            raise ChannelError(BAD_STATE, "no task in progress")
        if len(parked) > 1:
            names = ", ".join(one.id for one in parked)
            raise ChannelError(BAD_STATE, f"several tasks are parked; name a session: {names}")
        self.server.sessions.pop(own.id, None)
        self.session = parked[0]
        self.session.live = True
        return self.session

    async def cancel(self, params: dict[str, Any]) -> dict[str, Any]:
        del params
        for task in list(self.busy):
            task.cancel()
        if self.busy:
            await asyncio.wait(list(self.busy))
        session = self.own_session()
        session.started = False
        await session.run.cancel()
        return {"cancelled": True}

    async def list_tools(self, params: dict[str, Any]) -> dict[str, Any]:
        del params
        return {"tools": [spec.model_dump() for spec in self.server.environment.tool_specs]}

    async def call_tool(self, params: dict[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str):
            raise ChannelError(BAD_PARAMS, "tools.call: name must be a string")
        run = await self.own_session().open()
        outcome = await run.call_tool(name, arguments, timeout=params.get("timeout"))
        return {"result": outcome.result.model_dump(by_alias=True), "state": outcome.state}

    async def open_tunnel(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params.get("capability")
        if not isinstance(name, str):
            raise ChannelError(BAD_PARAMS, "tunnel.open: capability must be a string")
        raise ChannelError(
            TASK_FAILED, f"environment {self.server.environment.name!r} has no capability {name!r}"
        )

    async def bye(self, params: dict[str, Any]) -> dict[str, Any]:
        del params
        if self.session is not None:
            await self.server.drop(self.session)
            self.session = None
        return {"goodbye": True}


def _plain(prompt: str | list[Message]) -> Any:
    return (
        prompt
        if isinstance(prompt, str)
        else [message.model_dump(by_alias=True) for message in prompt]
    )


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()

"""Frames of the control channel: JSON-RPC 2.0, one object per line."""

from __future__ import annotations

import json
import socket
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from typing import Any

from hud import exact_json
from hud.errors import FailureKind, RolloutError, UsageError

MAX_FRAME_BYTES = 16 << 20
"""Longest frame on TCP, in bytes."""
PRIVATE_FRAME_BYTES = 256 << 20
"""Longest frame between OpenHUD's own processes, in bytes: graders receive long traces with images."""
CLIENT = "openhud"
"""Client name in OpenHUD's `hello`: it implements `tools.call`, and names its session in `tunnel.open`."""
METHOD_NOT_FOUND = -32601
BAD_PARAMS = -32602
BAD_STATE = -32600
TASK_FAILED = -32000

_FAULTS = {fault.kind: fault for fault in RolloutError.__subclasses__()}


class FrameError(Exception):
    """A frame that is no JSON object. The connection is unusable afterwards."""


class FrameTooLongError(FrameError):
    """A frame over the limit."""


class ChannelError(Exception):
    """An error response: a code of JSON-RPC and a sentence."""

    def __init__(self, code: int, message: str, kind: FailureKind | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.kind: FailureKind | None = kind

    @classmethod
    def of(cls, error: BaseException) -> ChannelError:
        """Return the error response for an exception of the environment's side."""
        if isinstance(error, ChannelError):
            return error
        if isinstance(error, RolloutError):
            return cls(TASK_FAILED, str(error), error.kind)
        if isinstance(error, UsageError):
            return cls(TASK_FAILED, str(error), "environment")
        return cls(TASK_FAILED, f"{type(error).__name__}: {error}", "environment")

    @classmethod
    def from_response(cls, error: Any) -> ChannelError:
        """Return the error of an error response of any form."""
        if not isinstance(error, dict):
            return cls(0, str(error))
        data = error.get("data")
        kind = data.get("kind") if isinstance(data, dict) else None
        code = error.get("code")
        return cls(
            code if isinstance(code, int) else 0,
            str(error.get("message")),
            kind if kind in _FAULTS else None,
        )

    def as_fault(self) -> RolloutError:
        """Return the error as the fault of a rollout; without a kind it is `EnvironmentFault`."""
        return _FAULTS[self.kind or "environment"](str(self))


def watch(writer: StreamWriter) -> None:
    """Enable TCP keep-alive, so that a lost peer is detected within two minutes."""
    stream = writer.get_extra_info("socket")
    if stream is None or stream.family not in (socket.AF_INET, socket.AF_INET6):
        return
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # Not available on every system.
            stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def read_frame(reader: StreamReader) -> dict[str, Any] | None:
    """Return the next frame; None at the end of the stream. Raises `FrameError`."""
    try:
        line = await reader.readuntil(b"\n")
    except IncompleteReadError:
        return None
    except LimitOverrunError:
        raise FrameTooLongError("a frame is longer than the limit") from None
    return parse_frame(line)


def parse_frame(line: bytes) -> dict[str, Any]:
    """Return the frame of a line. Raises `FrameError`."""
    try:
        frame = exact_json.loads(line)
    except exact_json.JSONDecodeError:
        frame = _lenient(line)
    if not isinstance(frame, dict):
        raise FrameError("a frame is not a JSON object")
    return frame


def request_frame(identifier: int, method: str, params: dict[str, Any]) -> bytes:
    return _line({"jsonrpc": "2.0", "id": identifier, "method": method, "params": params})


def result_frame(identifier: Any, result: Any) -> bytes:
    return _line({"jsonrpc": "2.0", "id": identifier, "result": result})


def error_frame(identifier: Any, error: ChannelError) -> bytes:
    body: dict[str, Any] = {"code": error.code, "message": str(error)}
    if error.kind is not None:
        body["data"] = {"kind": error.kind}
    return _line({"jsonrpc": "2.0", "id": identifier, "error": body})


def _line(frame: dict[str, Any]) -> bytes:
    try:
        return exact_json.dumps(frame, default=str, option=exact_json.OPT_APPEND_NEWLINE)
    except TypeError:
        # Lone surrogates and integers beyond 64 bits occur in models' output; the standard library can encode them.
        return json.dumps(frame, default=str).encode() + b"\n"


def _lenient(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise FrameError("a frame is not JSON") from None

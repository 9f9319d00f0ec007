"""The tree of errors that OpenHUD raises; catch by meaning.

    HudError                      anything below
    ├── UsageError                the caller's input: CLI exit code 2, HTTP 400
    │   ├── NotFoundError         no such model, job, task, checkpoint: HTTP 404
    │   ├── RefusedError          a model's server refuses a request: its key, its quota, its content
    │   │   ├── ContextOverflow   the conversation no longer fits the model's window
    │   │   └── DeviceMemoryError a GPU has no memory left to load, train or sample a model: HTTP 507
    │   └── ConflictError         taken, held by another client, or out of order: HTTP 409
    ├── RolloutError              one rollout failed; `kind` names the part that failed
    │   ├── EnvironmentFault      the environment failed (its hook, its template, its process)
    │   ├── GraderFault           the grader failed, or returned a value that is no reward
    │   ├── AgentFault            the agent failed
    │   └── InfrastructureFault   a connection, process or provider failed; the only kind that is retried
    ├── StoreError                the store cannot be read or written (full disk, corrupted file)
    │   ├── StoreAwayError        its database is unreachable: HTTP 503
    │   └── StoreFullError        its disk is full: HTTP 507
    ├── OverloadedError           too much at once: HTTP 429; `retry_after` says when to ask again
    └── PlatformError             an error response of a server; `status` is its HTTP status

Every message is one sentence with the object, the place and the remedy.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path
from typing import ClassVar, Literal

FailureKind = Literal["agent", "environment", "grader", "infrastructure"]
"""Kind of a failure. Only `agent` failures count as reward; the others enter no mean and no group."""


class HudError(Exception):
    """Base class of OpenHUD's errors."""

    status: int = 500


class UsageError(HudError):
    """Invalid input of the caller; the message says what to change."""

    status = 400


class NotFoundError(UsageError):
    """A named object does not exist."""

    status = 404


class ConflictError(UsageError):
    """A conflict with the current state: a name is taken, a lease is held, nothing was accumulated."""

    status = 409


class RefusedError(UsageError):
    """Permanent refusal of a request by a model's server.

    A rollout that fails with it has no measurement. `everywhere`: all other runs would be refused as well (wrong key, no
    quota, no such model), and the job ends.
    """

    kind: ClassVar[FailureKind] = "infrastructure"

    def __init__(self, message: str, *, everywhere: bool = False) -> None:
        super().__init__(message)
        self.everywhere = everywhere


class ContextOverflow(RefusedError):
    """The conversation no longer fits the model's window; the agent's `context_policy` applies."""


class DeviceMemoryError(RefusedError):
    """A GPU has no memory left for the work; the message names options that need less."""

    status = 507


class RolloutError(HudError):
    """Failure of one rollout: it fails its run, never the job."""

    kind: ClassVar[FailureKind] = "infrastructure"


class EnvironmentFault(RolloutError):
    """Failure of the environment: a hook or a template raised, or its process died or hung."""

    kind = "environment"


class GraderFault(RolloutError):
    """Failure of grading: the second half of a template raised, or yielded a value that is no reward."""

    kind = "grader"


class AgentFault(RolloutError):
    """Failure of the agent: it raised an exception, or timed out."""

    kind = "agent"


class InfrastructureFault(RolloutError):
    """Failure of a connection, a process or a provider; a retry may succeed."""

    kind = "infrastructure"


class OverloadedError(HudError):
    """The queue is full; `retry_after` is in seconds."""

    status = 429

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoreError(HudError):
    """The store cannot be read or written."""


class StoreAwayError(StoreError):
    """The store's database is unreachable; a retry may succeed."""

    status = 503
    retry_after = 2.0


class StoreFullError(StoreError):
    """The store's disk is full."""

    status = 507


class PlatformError(HudError):
    """Error response of a platform, or no response.

    `status` is the HTTP status; 503 without a response.
    """

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


MOST_REASON = 300
"""Characters of `reason_of`."""
_MOST_NAMED = 3
"""Maximum number of a group's exceptions that a message names."""


def located(error: BaseException) -> str:
    """Return an exception with its place: `KeyError: 'row' (tasks.py:14)`.

    The place is the innermost line of the user's own code, else of a library's.
    """
    if isinstance(error, BaseExceptionGroup):
        return f"{type(error).__name__}: {'; '.join(map(located, error.exceptions[:_MOST_NAMED]))}"
    frame = innermost_frame(error)
    text = text_of(error)
    name = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return name if frame is None else f"{name} ({_shown(frame.filename)}:{frame.lineno})"


def innermost_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost frame of the user's own code, else of a library's, in which an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return next(reversed(own or frames), None)


def text_of(error: BaseException) -> str:
    """Return an exception's text; none where the text of foreign code's exception cannot be made."""
    try:
        return str(error)
    except Exception:
        return ""


def reason_of(error: BaseException) -> str:
    """Return an exception's text as a part of a sentence: on one line, at most `MOST_REASON` characters, no full stop.

    Without a text it is the exception's name.
    """
    return " ".join(text_of(error).split())[:MOST_REASON].rstrip(".") or type(error).__name__


_PATHS = sysconfig.get_paths()
_LIBRARIES = (
    str(Path(__file__).parent),
    *(_PATHS[name] for name in ("purelib", "platlib", "stdlib")),
)
_NOT_THE_USERS = ("<frozen ", *(folder + os.sep for folder in _LIBRARIES))


def _shown(filename: str) -> str:
    """Return the shortest form of a path that opens from the working directory."""
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return filename

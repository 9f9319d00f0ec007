"""The tree of errors that OpenHUD raises; catch by meaning.

    HudError                      anything below
    ├── UsageError                the caller's input: CLI exit code 2, HTTP 400
    │   ├── NotFoundError         no such model, job, task, checkpoint: HTTP 404
    │   ├── RefusedError          a model's server refuses a request: its key, its quota, what it asks
    │   │   └── ContextOverflow   the conversation no longer fits the model's window
    │   └── ConflictError         taken, held by somebody else, or out of order: HTTP 409
    ├── RolloutError              one rollout failed; `kind` says whose fault it was
    │   ├── EnvironmentFault      the environment broke (its hook, its template, its process)
    │   ├── GraderFault           the grader broke, or graded with something that is no reward
    │   ├── AgentFault            the agent broke
    │   └── InfrastructureFault   the machinery between them broke; the only kind that is retried
    ├── StoreError                the store cannot be read or written (full disk, corrupted file)
    │   └── StoreAwayError        its database does not answer now: HTTP 503
    └── PlatformError             a server answered with an error; `status` is its HTTP status

Every message is one sentence that names the thing, the place and the cure.
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
    """Base of every error that OpenHUD raises on purpose."""

    status: int = 500


class UsageError(HudError):
    """The caller's input cannot be used; the message says what to change."""

    status = 400


class NotFoundError(UsageError):
    """Something was named that does not exist."""

    status = 404


class ConflictError(UsageError):
    """The state of things forbids it now: a name is taken, a lease is held, nothing was accumulated."""

    status = 409


class RefusedError(UsageError):
    """A model's server refuses a request, and would refuse it again.

    Inside a rollout nothing was measured. With `everywhere`, every other run would be refused as well (a wrong
    key, no quota, no such model), and the job ends.
    """

    kind: ClassVar[FailureKind] = "infrastructure"

    def __init__(self, message: str, *, everywhere: bool = False) -> None:
        super().__init__(message)
        self.everywhere = everywhere


class ContextOverflow(RefusedError):
    """The conversation no longer fits the model's window; an agent's `context_policy` says what then."""


class RolloutError(HudError):
    """One rollout failed. It fails its own run, never the job."""

    kind: ClassVar[FailureKind] = "infrastructure"


class EnvironmentFault(RolloutError):
    """The environment broke: a hook raised, a template raised, its process died or hung."""

    kind = "environment"


class GraderFault(RolloutError):
    """The grading half of a template raised, or yielded something that is not a reward."""

    kind = "grader"


class AgentFault(RolloutError):
    """The agent raised, or timed out, on its own account."""

    kind = "agent"


class InfrastructureFault(RolloutError):
    """A connection, a process or a provider in between failed; a retry may succeed."""

    kind = "infrastructure"


class StoreError(HudError):
    """The store could not be read or written."""


class StoreAwayError(StoreError):
    """The database of the store does not answer now; the same call may succeed later."""

    status = 503
    retry_after = 2.0


class PlatformError(HudError):
    """A platform answered with an error, or did not answer.

    `status` is the HTTP status, or 503 where no answer came.
    """

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


def located(error: BaseException) -> str:
    """Describe an exception with its place: `KeyError: 'row' (tasks.py:14)`.

    The place is the innermost line of the user's own code; of a library's where no line is the user's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    where = (own or frames)[-1:]
    name = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return name + "".join(f" ({_shown(frame.filename)}:{frame.lineno})" for frame in where)


_PATHS = sysconfig.get_paths()
_LIBRARIES = (
    str(Path(__file__).parent),
    *(_PATHS[name] for name in ("purelib", "platlib", "stdlib")),
)
_NOT_THE_USERS = ("<frozen ", *(folder + os.sep for folder in _LIBRARIES))


def _shown(filename: str) -> str:
    """Return a path as short as one can open it from here."""
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return filename
